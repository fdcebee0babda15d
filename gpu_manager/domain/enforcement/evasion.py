"""Detect containers that take more of a card than the library allows.

A tenant can write its usage page, but not the driver's list of processes. If the two differ in a way that the
library never causes, the container evades. A missing figure is never evidence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from statistics import fmean
from typing import Final

from gpu_manager.domain.resources import GIB, format_bytes

CONTEXT_BYTES: Final = GIB
"""Bytes a process may hold beyond its account: its context (528 MiB on an H200) and lazily loaded code."""
TIME_GAP: Final = 0.25
"""Share of a card by which the driver may see more work than a page: the two sample at different times."""
OVER_SHARE: Final = 0.10
"""Share of a card above the ceiling from which hidden time takes time from other containers."""
_SHOWN_PROCESSES = 3


class EvasionReason(Enum):
    """How a container evades; the value is the label of the metric."""

    UNREGISTERED = "no-slot"
    MEMORY = "memory"
    FOREIGN_CARD = "foreign-card"
    TAMPERED = "tampering"
    TIME = "time"
    ADMIN = "admin-access"
    UNREADABLE = "unreadable-page"
    SLICE = "slice"


NEEDED: Final[Mapping[EvasionReason, int]] = {
    EvasionReason.UNREGISTERED: 2,
    EvasionReason.MEMORY: 2,
    EvasionReason.FOREIGN_CARD: 2,
    EvasionReason.TAMPERED: 1,  # only the tenant can change the page in this way
    EvasionReason.TIME: 3,
    EvasionReason.ADMIN: 2,
    EvasionReason.UNREADABLE: 3,
    EvasionReason.SLICE: 1,  # it was weighed over a minute before
}
"""Consecutive samples before an evasion is reported: at 1 Hz within 5 s; time beside others takes more."""

SHARED_SAMPLES: Final = 30
"""Samples over which time is judged where other containers use the card too. The driver then gives each of
its few looks a second to one of them as a whole: of two that alternate evenly it said 0.8 and 0.2 (an H100,
driver 580), so that three samples in a row would name an honest one every few minutes, thirty in the mean
none."""

CLEARED: Final[Mapping[EvasionReason, int]] = {
    **dict.fromkeys(EvasionReason, 5),
    EvasionReason.TAMPERED: 60,
    EvasionReason.SLICE: 60,
}
"""Consecutive samples without evidence before it is cleared; more for tampering, as pages are restored."""

EVICTABLE: Final = frozenset(EvasionReason) - {
    EvasionReason.TIME,
    EvasionReason.UNREADABLE,
    EvasionReason.SLICE,
}
"""Reasons for which a pod may be evicted: not hidden time, which can be work that no library sees, nor a page
that cannot be read, which can be the node's own trouble, nor what a neighbour measured: it may lie."""


@dataclass(frozen=True, slots=True)
class ContainerProcess:
    """A process of the container on the card: memory in bytes, utilisation in percent of the SMs.

    ``registered`` says whether it has a slot in its container's page; None if unknown (it is ending).
    """

    pid: int
    memory: int | None = None
    utilisation: float | None = None
    registered: bool | None = None


@dataclass(frozen=True, slots=True)
class ContainerEvidence:
    """The figures of one container on one card; None means unknown.

    ``held``: the card is assigned to the container; ``limited``: a page limits it there, and only then
    ``memory_limit`` (bytes), ``ceiling`` (ratio of the card's time) and the page's claims count. ``admin``:
    the container has admin access to the card, and no share of it. ``tampering`` describes what is wrong with
    the page, empty if nothing is; ``unreadable`` why it cannot be read. ``twice``: bytes that the driver
    counts for several of the processes at once. ``claimed_busy``: the share of the card's time that the page
    claims. ``seen_busy``: the share that the driver saw, if it is not the sum over the processes but the mean
    of :data:`SHARED_SAMPLES`, as the claim then is too.
    """

    processes: tuple[ContainerProcess, ...] | None
    held: bool
    limited: bool = False
    memory_limit: int = 0
    ceiling: float = 1.0
    claimed_memory: int | None = None
    claimed_busy: float | None = None
    tampering: str | None = None
    admin: bool = False
    twice: int = 0
    seen_busy: float | None = None
    unreadable: str = ""


def judge(facts: ContainerEvidence) -> Mapping[EvasionReason, str]:
    """The evidence for each reason, an empty text for none, omitting reasons that cannot be judged."""
    found: dict[EvasionReason, str] = {}
    if facts.tampering is not None:
        found[EvasionReason.TAMPERED] = facts.tampering
    if facts.processes is None:
        return found
    if not facts.held:
        found[EvasionReason.FOREIGN_CARD] = _foreign(facts.processes)
    elif facts.admin:
        found[EvasionReason.ADMIN] = _computing(facts.processes)
    elif facts.limited:
        verdicts = {
            EvasionReason.UNREGISTERED: _unregistered(facts.processes),
            EvasionReason.MEMORY: _memory(facts, facts.processes),
            EvasionReason.TIME: _time(facts, facts.processes),
            EvasionReason.UNREADABLE: _unreadable(facts, facts.processes),
        }
        found |= {reason: verdict for reason, verdict in verdicts.items() if verdict is not None}
    return found


@dataclass(frozen=True, slots=True)
class Suspicion:
    """The state of one container, card and reason over the samples so far."""

    seen: int = 0
    quiet: int = 0
    named: bool = False


def weigh(before: Suspicion, reason: EvasionReason, *, shown: bool) -> Suspicion:
    """Add a sample: reported after :data:`NEEDED` in a row, cleared after :data:`CLEARED` in a row."""
    if shown:
        seen = min(before.seen + 1, NEEDED[reason])
        return Suspicion(seen, 0, before.named or seen >= NEEDED[reason])
    quiet = min(before.quiet + 1, CLEARED[reason])
    return replace(before, seen=0, quiet=quiet, named=before.named and quiet < CLEARED[reason])


def _foreign(processes: tuple[ContainerProcess, ...]) -> str:
    if not processes:
        return ""
    return f"{_who(processes)} {_uses(processes)} of a card that the container was not given"


def _computing(processes: tuple[ContainerProcess, ...]) -> str:
    if not processes:
        return ""
    return (
        f"{_who(processes)} {_uses(processes)} of a card that its claim may only look at: admin access "
        "computes nothing, and the library refuses every context"
    )


def _unregistered(processes: tuple[ContainerProcess, ...]) -> str | None:
    hidden = tuple(p for p in processes if p.registered is False)
    if hidden:
        return (
            f"{_who(hidden)} {_uses(hidden)} past the library: no slot of the container's page is "
            "its own (another copy of the driver, or none)"
        )
    return None if any(p.registered is None for p in processes) else ""


def _memory(facts: ContainerEvidence, processes: tuple[ContainerProcess, ...]) -> str | None:
    known = [p.memory for p in processes if p.memory is not None]
    if not known and processes:
        return None
    used, limit = sum(known) - facts.twice, facts.memory_limit
    # Claims above the limit do not count: the library never lets the account exceed it.
    accounted = limit if facts.claimed_memory is None else min(facts.claimed_memory, limit)
    allowed = max(limit, accounted + CONTEXT_BYTES * len(processes))
    if used > allowed:
        return (
            f"{_who(processes)} {_uses(processes)}, {format_bytes(used - limit)} past the limit of "
            f"{format_bytes(limit)}; its page accounts for {format_bytes(accounted)}"
        )
    return "" if len(known) == len(processes) else None


def _time(facts: ContainerEvidence, processes: tuple[ContainerProcess, ...]) -> str | None:
    busy = busy_of(processes) if facts.seen_busy is None else facts.seen_busy
    if facts.claimed_busy is None or busy is None:
        return None
    # Only time taken from others is reported: a page that claims too much harms only its own container.
    if busy - facts.claimed_busy > TIME_GAP and busy > facts.ceiling + OVER_SHARE:
        return (
            f"{_who(processes)} kept the card busy for {busy:.0%} of the time by the driver's count; "
            f"the page claims {facts.claimed_busy:.0%}, and {facts.ceiling:.0%} are its own"
        )
    return ""


def _unreadable(facts: ContainerEvidence, processes: tuple[ContainerProcess, ...]) -> str:
    if not facts.unreadable or not processes:
        return ""
    return f"{_who(processes)} {_uses(processes)} of the card, and nobody counts it: {facts.unreadable}"


class SharedTime:
    """Shares of time that the driver saw containers use, and those that their pages claimed, over some
    samples.
    """

    def __init__(self) -> None:
        self._samples: dict[Hashable, deque[tuple[float, float]]] = {}

    def seen(
        self, place: Hashable, seen: float | None, claimed: float | None, *, shared: bool
    ) -> tuple[float | None, float | None]:
        """Add a sample of shares of the card's time; returns the two shares to judge by, None: not yet."""
        if not shared or seen is None or claimed is None:
            self._samples.pop(place, None)
            return seen, claimed
        samples = self._samples.setdefault(place, deque(maxlen=SHARED_SAMPLES))
        samples.append((seen, claimed))
        if len(samples) < SHARED_SAMPLES:
            return None, None
        return fmean(one for one, _ in samples), fmean(one for _, one in samples)

    def forget(self, known: Collection[Hashable]) -> None:
        """Forget all places but these."""
        for gone in self._samples.keys() - set(known):
            del self._samples[gone]


def busy_of(processes: tuple[ContainerProcess, ...]) -> float | None:
    """The share of the card's time for which the driver saw these processes busy; None if it lists none."""
    known = [p.utilisation for p in processes if p.utilisation is not None]
    return None if processes and not known else min(1.0, sum(known) / 100)


def _who(processes: Iterable[ContainerProcess]) -> str:
    pids = sorted(p.pid for p in processes)
    shown = ", ".join(map(str, pids[:_SHOWN_PROCESSES]))
    more = f" and {len(pids) - _SHOWN_PROCESSES} more" if len(pids) > _SHOWN_PROCESSES else ""
    return f"process{'es' if len(pids) > 1 else ''} {shown}{more}"


def _uses(processes: tuple[ContainerProcess, ...]) -> str:
    verb = "use" if len(processes) > 1 else "uses"
    known = [p.memory for p in processes if p.memory is not None]
    return f"{verb} {format_bytes(sum(known))}" if known else f"{verb} part"
