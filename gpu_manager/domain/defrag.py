"""Which pods must move so that another fits: the fewest, each with a new place. Pure.

Made of the same what-if as :mod:`gpu_manager.domain.plan`: every move is a placement on copies of the books.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice

from gpu_manager.domain.placement import Placement
from gpu_manager.domain.plan import Choose, Resident, Seat, Site, best_fit, settle
from gpu_manager.domain.pod import PodUid

MOST_TRIED = 20_000  # sets of moves looked at for a node and a size; beyond, the plan is not proven
MOST_MOVES = 6
_SHOWN = 5  # pods that must stay, for people


@dataclass(frozen=True, slots=True)
class Budget:
    """A promise that only ``allowed`` more of these pods go at once."""

    name: str
    allowed: int
    pods: frozenset[PodUid]


@dataclass(frozen=True, slots=True)
class Move:
    """A running pod that would be ended here and made anew there."""

    pod: str
    source: str
    source_cards: tuple[int, ...]
    target: str
    target_cards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Defrag:
    """The plan: these moves, and the pod then lies at ``seat``. ``proven``: no smaller set exists.

    None where nothing helps: then ``reason`` says why.
    """

    seat: Seat | None
    moves: tuple[Move, ...] = ()
    proven: bool = True
    reason: str = ""
    before: tuple[Site, ...] = ()
    after: tuple[Site, ...] = ()


def defragment(
    sites: Sequence[Site],
    pod: Resident,
    budgets: Sequence[Budget] = (),
    choose: Choose = best_fit,
    most_moves: int = MOST_MOVES,
) -> Defrag:
    """The smallest set of moves on one node that makes the pod fit there, all moved pods placed again.

    Pods of higher priority than ``pod`` stay, and so do those that nobody would make anew, and those whose
    budget allows no more disruption. Among sets of one size: the least amount moved, then names.
    """
    now = {site.name: site for site in sites}
    if (seat := settle(now, pod, choose)) is not None:
        return Defrag(seat, before=tuple(sites), after=tuple(now.values()))
    proven = True
    for size in range(1, most_moves + 1):
        tried = _Tried()
        plans = [
            plan for site in sites for plan in _first(_plans(sites, site, pod, size, budgets, choose, tried))
        ]
        proven = proven and not tried.cut
        if plans:
            cost, found = min(plans, key=lambda p: p[0])
            return replace(found, proven=proven or cost[0] == 1, before=tuple(sites))
    return Defrag(None, proven=proven, reason=_why_not(sites, pod, budgets, most_moves))


def _why_not(sites: Sequence[Site], pod: Resident, budgets: Sequence[Budget], most_moves: int) -> str:
    if not sites:
        return "no node publishes cards"
    if all(site.without(site.residents).find(pod.request) is None for site in sites):
        return "no node could hold it even if all its pods were gone"
    residents = [resident for site in sites for resident in site.residents.values()]
    kept = [f"{r.name} ({why})" for r in residents if (why := _stays(r, pod, budgets))]
    movable = len(residents) - len(kept)
    said = f"no set of at most {most_moves} of the {movable} pods that may move makes room on one node"
    if kept:
        more = f" and {len(kept) - _SHOWN} more" if len(kept) > _SHOWN else ""
        said += f"; these must stay: {', '.join(kept[:_SHOWN])}{more}"
    return said


@dataclass(slots=True)
class _Tried:
    cut: bool = False


_Cost = tuple[int, int, int, tuple[str, ...]]


def _first(plans: Iterator[tuple[_Cost, Defrag]]) -> Iterator[tuple[_Cost, Defrag]]:
    return islice(plans, 1)


def _plans(
    sites: Sequence[Site],
    site: Site,
    pod: Resident,
    size: int,
    budgets: Sequence[Budget],
    choose: Choose,
    tried: _Tried,
) -> Iterator[tuple[_Cost, Defrag]]:
    """Plans that move ``size`` pods off the node's cards, the cheapest first."""
    candidates = sorted(_candidates(site, pod, budgets), key=lambda r: (r.weight, r.name))
    if site.without(r.uid for r in candidates).find(pod.request) is None:
        return
    sets = list(islice(combinations(candidates, size), MOST_TRIED + 1))
    if len(sets) > MOST_TRIED:
        tried.cut = True
        sets.pop()
    for moved in sorted(sets, key=_cost):
        if not _within(moved, budgets):
            continue
        room = site.without(r.uid for r in moved)
        placement = room.find(pod.request)
        if placement is None:
            continue
        found = _replaced(sites, site, room, pod, placement, moved, choose)
        if found is not None:
            yield _cost(moved), found


def _replaced(
    sites: Sequence[Site],
    site: Site,
    room: Site,
    pod: Resident,
    placement: Placement,
    moved: Sequence[Resident],
    choose: Choose,
) -> Defrag | None:
    """The whole plan, if every moved pod finds a place once ``pod`` lies where it should; else None."""
    now = {s.name: s for s in sites}
    now[site.name] = room.with_pod(pod, placement)
    moves = []
    for resident in sorted(moved, key=lambda r: (-r.weight, r.name)):
        seat = settle(now, resident, choose)
        if seat is None:
            return None
        moves.append(Move(resident.name, site.name, site.held(resident.uid), seat.node, seat.cards))
    return Defrag(Seat(pod.name, site.name, site.indices(placement)), tuple(moves), after=tuple(now.values()))


def _candidates(site: Site, pod: Resident, budgets: Sequence[Budget]) -> Iterator[Resident]:
    return (resident for resident in site.residents.values() if not _stays(resident, pod, budgets))


def _stays(resident: Resident, pod: Resident, budgets: Sequence[Budget]) -> str:
    """Why the resident may not be moved for the pod; empty if it may."""
    if not resident.movable:
        return "no controller would make it anew"
    if resident.priority > pod.priority:
        return f"its priority {resident.priority} is above {pod.priority}"
    closed = next((b.name for b in budgets if resident.uid in b.pods and b.allowed <= 0), None)
    return "" if closed is None else f"PodDisruptionBudget {closed} allows no more disruption"


def _within(moved: Sequence[Resident], budgets: Sequence[Budget]) -> bool:
    return all(sum(r.uid in b.pods for r in moved) <= b.allowed for b in budgets)


def _cost(moved: Sequence[Resident]) -> _Cost:
    names = tuple(sorted(r.name for r in moved))
    return len(moved), sum(r.weight for r in moved), sum(r.priority for r in moved), names
