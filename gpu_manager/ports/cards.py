"""The node's cards, and the limit on their memory that driver or kernel enforce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.topology import Topology


@dataclass(frozen=True, slots=True)
class CardSensors:
    """Figures of a card that move slowly: °C, watts, hertz, joules since the driver was loaded; ``None`` if
    the card does not report a value.
    """

    temperature: float | None = None
    power: float | None = None
    sm_clock: float | None = None
    memory_clock: float | None = None
    energy: float | None = None


NO_SENSORS = CardSensors()


@dataclass(frozen=True, slots=True)
class CardUse:
    """The usage of one card, in bytes and percent; ``None`` if the card does not report a value.

    ``lists_processes``: a process that is not listed does not exist; ``samples_processes``: it uses no time.
    """

    uuid: CardUuid
    memory_used: int | None = None
    utilisation: float | None = None
    lists_processes: bool = True
    samples_processes: bool = True
    sensors: CardSensors = NO_SENSORS


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """The usage of one card by a host process. ``utilisation``: SM percent of the last sample window."""

    uuid: CardUuid
    pid: int
    memory: int | None = None
    utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class HealthChange:
    """A change of a card's health; ``reason`` is text for operators (``XID 79: fallen off the bus``)."""

    uuid: CardUuid
    healthy: bool
    reason: str


@dataclass(frozen=True, slots=True)
class XidError:
    """An XID error of a card, as the driver reported it. ``closes``: the card takes no new work for it."""

    uuid: CardUuid
    number: int
    closes: bool


CardEvent = HealthChange | XidError


class Cards(Protocol):
    """The node's cards. A failure of one card is reported as that card's state, not as an exception."""

    def list(self) -> Sequence[CardState]:
        """Return every card, by index. Raises NodeUnready if the driver does not answer at all."""

    def topology(self) -> Topology:
        """Return the links between the cards, in the order of :meth:`list`."""

    def usage(self) -> tuple[Sequence[CardUse], Sequence[ProcessUse]]:
        """Return the current usage of the cards; values that cannot be read are left out."""

    def watch(self, told: Callable[[CardEvent], None]) -> None:
        """Call ``told`` from a separate thread, within 1 s of a change of health or an XID."""

    def close(self) -> None:
        """Stop watching and release the driver."""


class DriverMemoryLimitSetter(Protocol):
    """The limit on a card's memory that driver or kernel enforce on every process of a container."""

    def hold(self, container_id: str, card: CardUuid, limit: int) -> str | None:
        """Set the limit in bytes and return what enforces it (``nvml``, ``dmem``); None if nothing can.

        Raises NodeUnready if it cannot be set yet (the container's cgroup does not exist).
        """

    def let_go(self, container_id: str, card: CardUuid) -> None:
        """Remove the limit; a deleted cgroup has none."""
