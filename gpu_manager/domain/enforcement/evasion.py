"""Who takes more of a card than the library lets it: the host's figures against the tenant's own account.

Pure. The driver's list of processes cannot be written by a tenant, its usage page can; where the two differ
in a way that the library never causes, the container evades. What could not be read accuses nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from gpu_manager.domain.resources import GIB, format_bytes

CONTEXT_BYTES: Final = GIB
"""What one process may hold beside its account: its context (528 MiB on an H200) and code loaded lazily."""
TIME_GAP: Final = 0.25
"""Share of a card by which the driver may see more work than a page: its samples and ours overlap loosely."""
OVER_SHARE: Final = 0.10
"""Share of a card above the ceiling from which hidden time is taken from somebody."""
_SHOWN_PROCESSES = 3


class EvasionReason(Enum):
    """How a container evades; the value is the label of the metric."""

    UNREGISTERED = "no-slot"
    MEMORY = "memory"
    FOREIGN_CARD = "foreign-card"
    TAMPERED = "tampering"
    TIME = "time"


NEEDED: Final[Mapping[EvasionReason, int]] = {
    EvasionReason.UNREGISTERED: 2,
    EvasionReason.MEMORY: 2,
    EvasionReason.FOREIGN_CARD: 2,
    EvasionReason.TAMPERED: 1,  # nothing but the tenant changes that page so
    EvasionReason.TIME: 3,
}
"""Samples in a row that must show it before it is named: at 1 Hz all are named within 5 s."""

CLEARED: Final[Mapping[EvasionReason, int]] = {**dict.fromkeys(EvasionReason, 5), EvasionReason.TAMPERED: 60}
"""Samples in a row without it after which it is over. A page is put back at once: tampering shows seldom."""

EVICTABLE: Final = frozenset(EvasionReason) - {EvasionReason.TIME}
"""Hidden time can also be work that no library sees (device-side launches): named, never evicted for."""


@dataclass(frozen=True, slots=True)
class ContainerProcess:
    """One process of the container on the card, as driver and cgroup show it. Bytes, SM percent.

    ``registered``: it holds a slot of its container's page; None if that cannot be told (it is ending).
    """

    pid: int
    memory: int | None = None
    utilisation: float | None = None
    registered: bool | None = None


@dataclass(frozen=True, slots=True)
class ContainerEvidence:
    """One container on one card. None is not known.

    ``held`` says whether the card is the container's, ``limited`` whether a page limits it there: then
    ``memory_limit`` (bytes), ``ceiling`` (ratio of the card's time), and what the page claims count.
    ``tampering`` is what was found wrong with the page, empty if nothing was.
    """

    processes: tuple[ContainerProcess, ...] | None
    held: bool
    limited: bool = False
    memory_limit: int = 0
    ceiling: float = 1.0
    claimed_memory: int | None = None
    claimed_busy: float | None = None
    tampering: str | None = None


def judge(facts: ContainerEvidence) -> Mapping[EvasionReason, str]:
    """Reason → what shows it, or an empty text where all is well. What cannot be judged is left out."""
    found: dict[EvasionReason, str] = {}
    if facts.tampering is not None:
        found[EvasionReason.TAMPERED] = facts.tampering
    if facts.processes is None:
        return found
    if not facts.held:
        found[EvasionReason.FOREIGN_CARD] = _foreign(facts.processes)
    elif facts.limited:
        verdicts = {
            EvasionReason.UNREGISTERED: _unregistered(facts.processes),
            EvasionReason.MEMORY: _memory(facts, facts.processes),
            EvasionReason.TIME: _time(facts, facts.processes),
        }
        found |= {reason: verdict for reason, verdict in verdicts.items() if verdict is not None}
    return found


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What the samples so far say of one container, card and reason."""

    seen: int = 0
    quiet: int = 0
    named: bool = False


def weigh(before: Suspicion, reason: EvasionReason, *, shown: bool) -> Suspicion:
    """One sample more: named after :data:`NEEDED` in a row, over after :data:`CLEARED` in a row."""
    if shown:
        seen = min(before.seen + 1, NEEDED[reason])
        return Suspicion(seen, 0, before.named or seen >= NEEDED[reason])
    quiet = min(before.quiet + 1, CLEARED[reason])
    return replace(before, seen=0, quiet=quiet, named=before.named and quiet < CLEARED[reason])


def _foreign(processes: tuple[ContainerProcess, ...]) -> str:
    if not processes:
        return ""
    return f"{_who(processes)} {_uses(processes)} of a card that the container was not given"


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
    used, limit = sum(known), facts.memory_limit
    # A page that owns up to more than the limit is no excuse: the library never lets it come to that.
    accounted = limit if facts.claimed_memory is None else min(facts.claimed_memory, limit)
    allowed = max(limit, accounted + CONTEXT_BYTES * len(processes))
    if used > allowed:
        return (
            f"{_who(processes)} {_uses(processes)}, {format_bytes(used - limit)} past the limit of "
            f"{format_bytes(limit)}; its page accounts for {format_bytes(accounted)}"
        )
    return "" if len(known) == len(processes) else None


def _time(facts: ContainerEvidence, processes: tuple[ContainerProcess, ...]) -> str | None:
    known = [p.utilisation for p in processes if p.utilisation is not None]
    if facts.claimed_busy is None or (processes and not known):
        return None
    busy = min(1.0, sum(known) / 100)
    # Only what takes time from others is named: a page that claims too much harms its own container alone.
    if busy - facts.claimed_busy > TIME_GAP and busy > facts.ceiling + OVER_SHARE:
        return (
            f"{_who(processes)} kept the card busy for {busy:.0%} of the time by the driver's count; "
            f"the page claims {facts.claimed_busy:.0%}, and {facts.ceiling:.0%} are its own"
        )
    return ""


def _who(processes: Iterable[ContainerProcess]) -> str:
    pids = sorted(p.pid for p in processes)
    shown = ", ".join(map(str, pids[:_SHOWN_PROCESSES]))
    more = f" and {len(pids) - _SHOWN_PROCESSES} more" if len(pids) > _SHOWN_PROCESSES else ""
    return f"process{'es' if len(pids) > 1 else ''} {shown}{more}"


def _uses(processes: tuple[ContainerProcess, ...]) -> str:
    verb = "use" if len(processes) > 1 else "uses"
    known = [p.memory for p in processes if p.memory is not None]
    return f"{verb} {format_bytes(sum(known))}" if known else f"{verb} part"
