"""The pods of the cluster that agents have marked for eviction."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from gpu_manager.domain.kube.pod import Pod


class Evictions(Protocol):
    """Reads the marked pods, and evicts one at a time."""

    def marked(self) -> Collection[Pod]:
        """Return the pods that have a mark, as the API server last showed them. Never blocks."""

    def evict(self, pod: Pod) -> float | None:
        """Evict exactly this pod (by UID). Return None if that is done, else the seconds after which the API
        server may be asked again (0: it did not say). Raises NodeUnready: no answer.
        """

    def event(self, pod: Pod, reason: str, message: str) -> None:
        """Emit a warning Event on the pod, in the background."""
