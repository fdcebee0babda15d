"""The node's inventory at the API server."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from gpu_manager.domain.card import CardUuid


class InventoryPublisher(Protocol):
    """Publishes the node's inventory and labels, and reads what operators write at the Node object."""

    def publish(self, annotations: Mapping[str, str], labels: Mapping[str, str | None]) -> None:
        """Patch the Node object, in the background, with retries. A label of None is removed."""

    def shown(self) -> bool:
        """Return True if the Node object, as last seen, has every annotation that was published."""

    def cordoned(self) -> frozenset[CardUuid]:
        """Return the cards that the operator has cordoned."""

    def to_forget(self) -> frozenset[CardUuid]:
        """Return the vanished cards that the operator does not expect back."""

    def forgot(self, uuids: Collection[CardUuid]) -> None:
        """Remove cards from that list, in the background."""

    def elsewhere(self, uuids: Collection[CardUuid]) -> frozenset[CardUuid]:
        """Ask which of these cards another node shows as its own. Raises NodeUnready."""
