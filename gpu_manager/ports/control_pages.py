"""The control pages that the agent shares with libvcuda, and the gates of cards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.driver_overhead import Excess
from gpu_manager.domain.enforcement.library_messages import LibraryMessage
from gpu_manager.domain.enforcement.time_sharing import NO_STALLS, Stalls
from gpu_manager.domain.priority import Priority


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of a container on one card: cores in percent, memory in bytes.

    Memory is zero on each of its cards for admin access: it sees whole cards and computes on none.
    """

    card: CardUuid
    memory: int
    cores: int
    ceiling: int
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True)
class TenantUse:
    """The usage of one card in a container's usage page, clamped to possible values.

    ``memory`` is bytes charged. Of the charge on all cards, ``movable`` bytes are managed memory, and
    ``untold`` bytes are released memory whose other holders the library cannot detect.
    """

    card: CardUuid
    memory: int
    busy_seconds: float
    throttled_seconds: float
    refusals: int
    processes: int
    movable: int = 0
    untold: int = 0
    refused_bytes: int = 0  # size of the allocation that was refused last
    held_idle_seconds: float = 0.0  # of throttled_seconds, time with nothing of it in flight
    in_flight_seconds: float = 0.0  # time with work of it on the card, however long others made that take
    longest_seconds: float = 0.0  # the longest kernel or graph that was measured
    launches: int = 0  # ever
    stalls: Stalls = NO_STALLS  # ever
    last_busy_seconds: float = 0.0  # when it last had work in flight (CLOCK_MONOTONIC)
    variance: float | None = None  # of busy_seconds, in square seconds; ever. None: an older library


class ControlPages(Protocol):
    """The control pages. ``name`` is the allocation's random directory name."""

    def open(self, name: str, limits: Sequence[Limit]) -> None:
        """Create the directory and both pages if absent, and write the limits. Idempotent."""

    def reset(self, name: str) -> None:
        """Reset the usage page for a restarted container: usage is zero, slots of dead processes are free."""

    def usage(self, name: str) -> Sequence[TenantUse]:
        """Read the usage page with bounds. Raises NodeUnready if it was tampered with or is gone."""

    def unchanged(self, names: Iterable[str]) -> Mapping[str, Sequence[TenantUse]]:
        """Return the very object that :meth:`usage` returned last, for each page that is as it was then."""

    def names(self) -> Sequence[str]:
        """Return the names of all existing directories."""

    def remove(self, name: str) -> None:
        """Delete the directory, if it exists."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Corrections of a container's limits on one card that only the host can compute; ``None`` keeps a value.

    ``co_active`` is the divisor of measured time, ``others_most`` how many processes of other containers the
    container met at once, at most, ``others_part`` for what part of its time in flight others were charged
    meanwhile, at most (0: not known). ``host_adjust``: bytes that the driver counts beyond the
    account. ``excess``: bytes of the account beyond the driver's count. ``granted``: the share in force
    (percent) while protected and best-effort containers share the card; 0 otherwise. ``beside``: the share
    that is then guaranteed to best-effort ones, as far as they use it (percent). ``gain``: the factor by
    which the library charges more than it measures.
    """

    co_active: float | None = None
    others_most: int | None = None
    others_part: float | None = None
    host_adjust: int | None = None
    excess: Excess | None = None
    granted: float | None = None
    beside: float | None = None
    gain: float | None = None


@dataclass(frozen=True, slots=True)
class Activity:
    """A container's present activity on one card, by its own account.

    ``in_flight`` counts streams with unsettled work, ``at_work`` the processes that have any, of the
    ``processes`` alive; ``last_busy_ns`` is CLOCK_MONOTONIC, 0 for never. ``in_flight_ns`` is the time with
    work in flight so far.
    """

    card: CardUuid
    in_flight: int
    busy_ns: int
    last_busy_ns: int
    at_work: int = 0
    processes: int = 0
    in_flight_ns: int = 0


class ActivityPages(Protocol):
    """The control pages for the time-sharing service. ``name`` as in :class:`ControlPages`."""

    def activity(self, name: str) -> Sequence[Activity]:
        """Return the current activity. Raises NodeUnready if the page was tampered with or is gone."""

    def last_busy_ns(self, places: Sequence[tuple[str, CardUuid]]) -> Sequence[int]:
        """Return when each container last had work in flight on the card (CLOCK_MONOTONIC), 0 if unknown.

        A cheap read: it does not detect whether a page was tampered with.
        """

    def timeline(self, name: str, card: CardUuid, begin_ms: int, end_ms: int) -> Mapping[int, float]:
        """Return how many contexts had work in flight in each millisecond of CLOCK_MONOTONIC with an entry.

        Raises as :meth:`activity` does.
        """

    def publish(self, name: str, heartbeat_ns: int, corrections: Mapping[CardUuid, Correction]) -> None:
        """Write the host's heartbeat (CLOCK_MONOTONIC) and its corrections for the library, in one write.

        Raises NodeUnready if the page is gone or unreadable.
        """


class PageEvidence(Protocol):
    """Evidence in the control pages for the evasion detector. Complements :class:`ControlPages`."""

    def registered(self, name: str) -> frozenset[int]:
        """Return the ids, inside the container, of processes with a slot. Raises as ControlPages.usage."""

    def attacks(self, name: str) -> tuple[int, str]:
        """Return how often illegal changes of the page were found, and the last one as text."""

    def tampering(self) -> Mapping[str, int]:
        """Return how often illegal changes were found, by directory; those without are left out."""

    def noted(self) -> Collection[str]:
        """Return the directories whose pages hold messages, as of the last :meth:`ControlPages.usage`."""

    def notes(self, name: str) -> Sequence[LibraryMessage]:
        """Return the library's messages, oldest first, as of the last :meth:`ControlPages.usage`."""


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
        """Watch exactly these cards from now on. Starts, or restarts, the watcher if necessary.

        Raises:
            NodeUnready: it cannot be started.
        """

    def close(self) -> None:
        """End it: all gates are open."""
