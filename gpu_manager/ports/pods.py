"""The pods of this node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_manager.domain.kube.pod import Pod


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod of the API, and whether it is a tombstone (deleted in the last 120 s).

    ``unread``: it is there, and its present state cannot be read. ``pod`` is what was read last of it, or its
    name alone.
    """

    pod: Pod
    tombstone: bool = False
    unread: bool = False


class Pods(Protocol):
    """The pods of this node as the API server (or the kubelet's own /pods) shows them."""

    def local(self) -> Mapping[str, Sequence[KnownPod]]:
        """Return the pods by ``namespace/name``, newest first, tombstones included. Never blocks.

        The same object while nothing has changed, never changed in place.
        """

    def fetch(self, namespace: str, name: str) -> Pod | None:
        """Read the pod from the source now; None if it is gone or on another node. Raises NodeUnready if
        the source does not answer.
        """

    def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        """Write annotations to exactly this pod (by UID), in the background, with retries."""

    def event(self, pod: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        """Emit an Event on the pod, in the background, rate-limited."""

    def evict(self, pod: Pod, reason: str | None) -> None:
        """Evict the pod (Eviction API), in the background; None: no more, if that has not happened yet."""
