"""The kubelet's records of devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import Amount


@dataclass(frozen=True, slots=True)
class PodResourcesEntry:
    """A container as PodResources lists it, with its ids by resource."""

    namespace: str
    pod: str
    container: str
    ids: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """An entry of the kubelet's checkpoint for this project's resources; ``annotation`` is the agent's JSON
    in its response, ``nodes`` the numbers of ``/dev/nvidia<n>`` in it, none if cards are named by UUID.
    """

    pod: PodUid
    container: str
    resource: str
    ids: frozenset[str]
    annotation: str | None = None
    nodes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class PredecessorPod:
    """A container in the predecessor's checkpoint, with its cards by the number in ``/dev/nvidia<n>``."""

    pod: PodUid
    container: str
    minors: tuple[int, ...]
    amount: Amount


class Kubelet(Protocol):
    """The kubelet's records of devices given to containers."""

    def listing(self) -> Mapping[tuple[str, str], Sequence[PodResourcesEntry]]:
        """Call PodResources List: active pods with their app containers and sidecars, even without ids.

        Retries for 10 s on the kubelet's rate limit. Raises NodeUnready if the kubelet does not answer.
        """

    def checkpoint(self) -> Sequence[CheckpointEntry] | None:
        """Return the checkpoint's entries of our resources; None if the file is absent or unreadable."""
