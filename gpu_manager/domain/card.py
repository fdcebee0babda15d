"""One physical card as the rest of the domain sees it, and its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NewType

from gpu_manager.domain.mig import MigInstance
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount

CardUuid = NewType(
    "CardUuid", str
)  # "GPU-5fd4f087-…", "MIG-…": the only name of a card that outlives a reboot


UNREAD_MODEL: Final = "unknown"  # of a card that has never answered


@dataclass(frozen=True, slots=True)
class Card:
    """A card as discovered. ``memory`` and ``reserved`` are bytes; ``index`` is NVML's.

    ``memory`` is 0 for a card that works in the host's memory, as integrated ones do: no part of it can be
    given, only the whole card. ``whole_only`` says why no part of a card can be given, empty if one can;
    ``outside`` is what processes of no pod hold of its memory, in bytes. ``mig``: the card is in MIG mode and
    has nothing to give itself; ``instance`` is set for an instance of such a card, whose ``minor`` and
    ``pci_bus_id`` are its parent's.
    """

    index: int
    uuid: CardUuid
    model: str
    memory: int
    reserved: int = 0
    numa: int | None = None
    minor: int | None = None
    pci_bus_id: str = ""
    mig: bool = False
    whole_only: str = ""
    outside: int = 0
    instance: MigInstance | None = None

    @property
    def undivided(self) -> bool:
        """True for a whole card: claims and ``nvidia.com/gpu`` give such cards alone."""
        return not self.mig and self.instance is None

    @property
    def names(self) -> tuple[str, ...]:
        """The card's UUID, and of an instance also the form that names its place."""
        return (self.uuid,) if self.instance is None else (self.uuid, self.instance.name)

    def size(self, unit: int) -> Amount:
        """Return the amount that the card's device ids count: whole units of memory; zero in MIG mode."""
        return self._without(self.reserved, unit)

    def capacity(self, unit: int) -> Amount:
        """Return the amount that can be booked: :meth:`size` without what processes of no pod hold."""
        return self._without(self.reserved + self.outside, unit)

    def _without(self, taken: int, unit: int) -> Amount:
        if self.mig:
            return ZERO
        return Amount(CORES_PER_CARD, max(0, self.memory - taken) // unit * unit)


@dataclass(frozen=True, slots=True)
class CardState:
    """A card, and whether it may take more work. ``reason`` says why not; it is empty if it may.

    ``held`` is set while a pod holds the card under another resource name: nothing may be placed on it.
    ``missing`` is set when the driver no longer lists the card; the other fields are the last known ones.
    """

    card: Card
    healthy: bool = True
    cordoned: bool = False
    reason: str = ""
    held: str = ""
    missing: bool = False

    @property
    def open(self) -> bool:
        """True if new shares may be placed here."""
        return self.healthy and not self.cordoned and not self.held and not self.card.mig
