"""What if: would these pods fit, how many nodes would it take, what if a node goes. Pure.

Nothing here guesses: every answer is made by placing pods with :func:`placement.find`, the judgement of the
scheduler and the node, on copies of the books. What the rest of Kubernetes counts (CPU, taints, affinity) is
not seen here; whoever shows an answer says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.errors import quoted
from gpu_manager.domain.explain import Refusal
from gpu_manager.domain.ledger import Allocation, Ledger, Share
from gpu_manager.domain.placement import Placement, find, judge
from gpu_manager.domain.pod import PodUid
from gpu_manager.domain.request import PodRequest
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.topology import Topology


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

    @property
    def weight(self) -> int:
        """The cores of all its containers."""
        return sum(c.request.cores for c in self.request.containers)


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

    def indices(self, placement: Placement) -> tuple[int, ...]:
        """The cards that a placement here takes."""
        return self._indices({share.card for shares in placement.values() for share in shares})

    def held(self, pod: PodUid) -> tuple[int, ...]:
        """The cards that a pod has here."""
        return self._indices({card for a in self.ledger.of_pod(pod).values() for card in a.cards})

    def _indices(self, cards: Collection[CardUuid]) -> tuple[int, ...]:
        return tuple(s.card.index for s in self.cards if s.card.uuid in cards)

    @property
    def free(self) -> Amount:
        """What is free on cards that may take more."""
        return sum((self.ledger.free(s.card.uuid) for s in self.cards if s.open), ZERO)


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
        seat = settle(now, pod, choose)
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
        seat = settle(now, pod, choose)
        if seat is None and added < most and kind.find(pod.request) is not None:
            added += 1
            fresh = replace(kind, name=f"new-{added}")
            now[fresh.name] = fresh
            seat = settle(now, pod, choose)
        if seat is None:
            refused[pod.name] = _never(kind, pod.request) or why_not((*now.values(), kind), pod.request)
        else:
            seats.append(seat)
    return Forecast(tuple(seats), refused, tuple(now.values()), added)


def drain(sites: Sequence[Site], node: str, choose: Choose = best_fit) -> Forecast:
    """What if the node goes: its pods, the most important first, placed on the others."""
    leaving = next(site for site in sites if site.name == node)
    pods = sorted(leaving.residents.values(), key=lambda r: (-r.priority, -r.weight, r.name))
    others = [site for site in sites if site.name != node]
    if not others:
        return Forecast((), {pod.name: "no other node publishes cards" for pod in pods}, ())
    return simulate(others, pods, choose)


def _never(kind: Site, request: PodRequest) -> str:
    """Why not even an empty node of the kind holds the pod; empty if it does."""
    verdict = judge(request, kind.cards, kind.topology, kind.ledger)
    if not isinstance(verdict, Refusal):
        return ""
    return f"not even an empty node like {quoted(kind.name)} holds it: {verdict.line()}"


def why_not(sites: Sequence[Site], request: PodRequest) -> str:
    """Why the pod fits nowhere: the reason of the node that has most free, and how many there are."""
    if not sites:
        return "no node publishes cards"
    best = max(sites, key=lambda s: (s.free.cores, s.free.memory, s.name))
    verdict = judge(request, best.cards, best.topology, best.ledger)
    reason = verdict.line() if isinstance(verdict, Refusal) else ""
    where = "the only node" if len(sites) == 1 else f"any of {len(sites)} nodes"
    return f"no room on {where}; {quoted(best.name)} has most free: {reason}"


def settle(now: dict[str, Site], pod: Resident, choose: Choose) -> Seat | None:
    """Put the pod on one of the nodes, by name in ``now``; None if it fits on none of them."""
    options = [(site, found) for site in now.values() if (found := site.find(pod.request)) is not None]
    if not options:
        return None
    site, placement = options[choose(options, pod.request)]
    now[site.name] = site.with_pod(pod, placement)
    return Seat(pod.name, site.name, site.indices(placement))


def _allocations(resident: Resident, placement: Mapping[str, tuple[Share, ...]]) -> Iterator[Allocation]:
    for container in resident.request.containers:
        yield Allocation(
            resident.uid, container.name, container.kind, container.order, placement[container.name]
        )
