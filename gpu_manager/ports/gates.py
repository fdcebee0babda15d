"""The gates of cards, at which best-effort containers wait, and the program that closes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpu_manager.domain.card import CardUuid


@dataclass(frozen=True, slots=True)
class GateReading:
    """How often a card's gate was closed, and for how many seconds, since it was made."""

    closings: int
    closed_seconds: float


class Gates(Protocol):
    """The gate files of a node's cards."""

    def path(self, card: CardUuid) -> Path:
        """Return where the card's gate lies, for a mount. Raises NodeUnready for a name that is no UUID."""

    def ensure(self, card: CardUuid) -> None:
        """Create the card's gate, open, if it is absent. Raises NodeUnready."""

    def leases(self) -> Mapping[CardUuid, Sequence[int]]:
        """Return the gates that a lease kept from being opened a moment ago, with the pids that held one."""

    def read(self, card: CardUuid) -> GateReading:
        """Return how it was closed so far. Raises NodeUnready if there is no such gate."""


@dataclass(frozen=True, slots=True)
class WatchedTenant:
    """A container on a card: its pages' directory, the card's place in them, and its cores (percent)."""

    name: str
    index: int
    cores: int


@dataclass(frozen=True, slots=True)
class GateWatch:
    """A card with protected and best-effort containers: the former, and those ``beside`` them."""

    card: CardUuid
    tenants: tuple[WatchedTenant, ...]
    beside: tuple[WatchedTenant, ...]


class GateWatcher(Protocol):
    """The program that closes and opens gates. Without cards to watch it does not run."""

    def watch(self, cards: Sequence[GateWatch]) -> None:
        """Watch these cards and no others, from now on. Started, or started again, if need be.

        Raises:
            NodeUnready: it cannot be started.
        """

    def close(self) -> None:
        """End it: all gates are open."""
