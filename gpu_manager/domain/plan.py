"""What if: would these pods fit, how many nodes would it take, what if a node goes, what must move. Pure.

Nothing here guesses: every answer is made by placing pods with :func:`placement.find`, the judgement of the
scheduler and the node, on copies of the books. What the rest of Kubernetes counts (CPU, taints, affinity) is
not seen here; whoever shows an answer says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.errors import quoted
from gpu_manager.domain.explain import Refusal
from gpu_manager.domain.ledger import Allocation, Ledger, Share
from gpu_manager.domain.placement import Placement, find, judge
from gpu_manager.domain.pod import PodUid
from gpu_manager.domain.request import PodRequest
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.topology import Topology

MOST_TRIED = (
    20_000  # sets of moves looked at for one node and one size; beyond, the plan says it is not proven
)
MOST_MOVES = 6


@dataclass(frozen=True, slots=True)
class Resident:
    """A pod that lies on a node. ``movable`` is False for one that nobody would make anew.

    ``name`` is ``namespace/name``; higher ``priority`` is more important, as in Kubernetes.
    """

    uid: PodUid
    name: str
    request: PodRequest
    movable: bool = True
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Site:
    """A node with its books and whose they are; the books are never changed, only copied."""

    name: str
    cards: tuple[CardState, ...]
    topology: Topology
    ledger: Ledger
    residents: Mapping[PodUid, Resident] = field(default_factory=dict)

    def find(self, request: PodRequest) -> Placement | None:
        """Where the pod would lie here, None if it would not fit."""
        return find(request, self.cards, self.topology, self.ledger)

    def with_pod(self, resident: Resident, placement: Placement) -> Site:
        """The node with the pod on these shares."""
        ledger = self.ledger.copy()
        ledger.commit(_allocations(resident, placement))
        return replace(self, ledger=ledger, residents={**self.residents, resident.uid: resident})

    def without(self, pods: Iterable[PodUid]) -> Site:
        """The node as if these pods were gone."""
        gone = frozenset(pods)
        ledger = self.ledger.copy()
        for uid in gone:
            ledger.release(uid)
        return replace(
            self, ledger=ledger, residents={u: r for u, r in self.residents.items() if u not in gone}
        )

    @property
    def free(self) -> Amount:
        """What is free on cards that may take more."""
        return sum((self.ledger.free(s.card.uuid) for s in self.cards if s.open), ZERO)


@dataclass(frozen=True, slots=True)
class Budget:
    """A promise that only ``allowed`` more of these pods go at once."""

    name: str
    allowed: int
    pods: frozenset[PodUid]


@dataclass(frozen=True, slots=True)
class Seat:
    """A pod and where it would lie; ``cards`` are indices on the node."""

    pod: str
    node: str
    cards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What would become of pods. ``refused`` maps a pod's name to why it fits nowhere.

    ``sites`` is the cluster afterwards; ``added`` counts nodes that had to be added.
    """

    seats: tuple[Seat, ...]
    refused: Mapping[str, str]
    sites: tuple[Site, ...]
    added: int = 0


Choose = Callable[[Sequence[tuple[Site, Placement]], PodRequest], int]
"""Which of the nodes that have room is taken: the index of one. The product's policy, or :func:`best_fit`."""


def best_fit(options: Sequence[tuple[Site, Placement]], _request: PodRequest) -> int:
    """Least left in pieces: no idle card is broken while a broken one has room; of those, the fullest."""
    return min(range(len(options)), key=lambda i: _left(*options[i]))


def _left(site: Site, placement: Placement) -> tuple[int, int, int, int, int, str]:
    taken: dict[CardUuid, Amount] = {}
    for share in (share for shares in placement.values() for share in shares):
        taken[share.card] = taken.get(share.card, ZERO) + share.amount
    books = {s.card.uuid: site.ledger.free(s.card.uuid) for s in site.cards if s.open}
    idle = [card for card in books if site.ledger.idle(card)]
    broken = sum(taken[card].cores < CORES_PER_CARD for card in idle if card in taken)
    left = sum((books[card] - amount for card, amount in taken.items() if card in books), ZERO)
    free = sum(amount.cores for amount in books.values())
    return broken, left.cores, left.memory, sum(card not in taken for card in idle), free, site.name


def simulate(sites: Sequence[Site], pods: Sequence[Resident], choose: Choose = best_fit) -> Forecast:
    """Place the pods one after the other, as they would arrive."""
    now = {site.name: site for site in sites}
    seats: list[Seat] = []
    refused: dict[str, str] = {}
    for pod in pods:
        seat = _settle(now, pod, choose)
        if seat is None:
            refused[pod.name] = why_not(tuple(now.values()), pod.request)
        else:
            seats.append(seat)
    return Forecast(tuple(seats), refused, tuple(now.values()))


def nodes_needed(
    sites: Sequence[Site], pods: Sequence[Resident], kind: Site, choose: Choose = best_fit, most: int = 10_000
) -> Forecast:
    """The same, adding a node like ``kind`` whenever a pod finds no room, ``most`` of them at the outside.

    One after the other in the order given, so the count is what arrivals in that order take. A pod that does
    not fit an empty node of the kind stays refused and adds none.
    """
    now = {site.name: site for site in sites}
    seats: list[Seat] = []
    refused: dict[str, str] = {}
    added = 0
    for pod in pods:
        seat = _settle(now, pod, choose)
        if seat is None and added < most and kind.find(pod.request) is not None:
            added += 1
            fresh = replace(kind, name=f"new-{added}")
            now[fresh.name] = fresh
            seat = _settle(now, pod, choose)
        if seat is None:
            refused[pod.name] = why_not((*now.values(), kind), pod.request)
        else:
            seats.append(seat)
    return Forecast(tuple(seats), refused, tuple(now.values()), added)


def drain(sites: Sequence[Site], node: str, choose: Choose = best_fit) -> Forecast:
    """What if the node goes: its pods, the most important first, placed on the others."""
    leaving = next(site for site in sites if site.name == node)
    pods = sorted(leaving.residents.values(), key=lambda r: (-r.priority, -_weight(r), r.name))
    return simulate([site for site in sites if site.name != node], pods, choose)


def why_not(sites: Sequence[Site], request: PodRequest) -> str:
    """Why the pod fits nowhere: the reason of the node that has most free, and how many there are."""
    if not sites:
        return "there is no other node with cards"
    best = max(sites, key=lambda s: (s.free.cores, s.free.memory, s.name))
    verdict = judge(request, best.cards, best.topology, best.ledger)
    reason = verdict.line() if isinstance(verdict, Refusal) else ""
    where = "the only node" if len(sites) == 1 else f"any of {len(sites)} nodes"
    return f"no room on {where}; {quoted(best.name)} has most free: {reason}"


def _settle(now: dict[str, Site], pod: Resident, choose: Choose) -> Seat | None:
    options = [(site, found) for site in now.values() if (found := site.find(pod.request)) is not None]
    if not options:
        return None
    site, placement = options[choose(options, pod.request)]
    now[site.name] = site.with_pod(pod, placement)
    return Seat(pod.name, site.name, _indices(site, placement))


# Defragmentation: the fewest pods that must move so that a pod fits.


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
    if (seat := _settle(now, pod, choose)) is not None:
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
    movable = sum(1 for site in sites for _ in _candidates(site, pod, budgets))
    return Defrag(
        None,
        proven=proven,
        reason=f"no set of at most {most_moves} of the {movable} pods that may move makes room on one node",
    )


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
    candidates = sorted(_candidates(site, pod, budgets), key=lambda r: (_weight(r), r.name))
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
    for resident in sorted(moved, key=lambda r: (-_weight(r), r.name)):
        seat = _settle(now, resident, choose)
        if seat is None:
            return None
        moves.append(Move(resident.name, site.name, _held(site, resident.uid), seat.node, seat.cards))
    return Defrag(
        Seat(pod.name, site.name, _indices(site, placement)), tuple(moves), after=tuple(now.values())
    )


def _candidates(site: Site, pod: Resident, budgets: Sequence[Budget]) -> Iterator[Resident]:
    for resident in site.residents.values():
        closed = any(resident.uid in b.pods and b.allowed <= 0 for b in budgets)
        if resident.movable and resident.priority <= pod.priority and not closed:
            yield resident


def _within(moved: Sequence[Resident], budgets: Sequence[Budget]) -> bool:
    return all(sum(r.uid in b.pods for r in moved) <= b.allowed for b in budgets)


def _cost(moved: Sequence[Resident]) -> _Cost:
    names = tuple(sorted(r.name for r in moved))
    return len(moved), sum(_weight(r) for r in moved), sum(r.priority for r in moved), names


def _weight(resident: Resident) -> int:
    return sum(c.request.cores for c in resident.request.containers)


def _held(site: Site, uid: PodUid) -> tuple[int, ...]:
    cards = {card for a in site.ledger.of_pod(uid).values() for card in a.cards}
    return tuple(s.card.index for s in site.cards if s.card.uuid in cards)


def _indices(site: Site, placement: Placement) -> tuple[int, ...]:
    cards = {share.card for shares in placement.values() for share in shares}
    return tuple(s.card.index for s in site.cards if s.card.uuid in cards)


def _allocations(resident: Resident, placement: Mapping[str, tuple[Share, ...]]) -> Iterator[Allocation]:
    for container in resident.request.containers:
        yield Allocation(
            resident.uid, container.name, container.kind, container.order, placement[container.name]
        )
