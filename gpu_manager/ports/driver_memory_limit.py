"""The limit on memory that driver or kernel enforce."""

from __future__ import annotations

from typing import Protocol

from gpu_manager.domain.card import CardUuid


class DriverMemoryLimitSetter(Protocol):
    """The limit on a card's memory that driver or kernel enforce on every process of a container."""

    def hold(self, container_id: str, card: CardUuid, limit: int) -> str | None:
        """Set the limit in bytes and return what enforces it (``nvml``, ``dmem``); None if nothing can.

        Raises NodeUnready if it cannot be set yet (the container's cgroup does not exist).
        """

    def let_go(self, container_id: str, card: CardUuid) -> None:
        """Remove the limit; a deleted cgroup has none."""
