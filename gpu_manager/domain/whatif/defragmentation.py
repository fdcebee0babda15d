"""Defragmentation: the fewest pods that must move so that another pod fits, each with a new place. Pure.

Every move is a placement on copies of the nodes' books, as in :mod:`gpu_manager.domain.whatif.simulation`.
The sets of pods of a node that are tried are listed by size.

A set that makes room contains a *core*: for a fraction, pods of one card that free what is missing there; for
whole cards, all pods on as many cards. All cores of a size are listed first, then smaller cores with further
pods, whose eviction may free CPU or memory of the host, or a place for a moved pod. Of interchangeable pods
only the first by name is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import peak
from gpu_manager.domain.placement.place import Placement
from gpu_manager.domain.placement.trial_placement import ContainerGroup, TrialPlacement, groups_of
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.request import PodRequest
from gpu_manager.domain.whatif.simulation import (
    NodeOption,
    PodPlacement,
    Shape,
    SimCluster,
    SimNode,
    SimPod,
    why_not,
)

Pods = tuple[SimPod, ...]
Kind = tuple[Shape, tuple[tuple[str, CardUuid], ...], int, tuple[str, ...]]
"""Pods of one kind may stand for one another: shape, cards of each container, priority, budgets."""


@dataclass(frozen=True, slots=True)
class EvictionSet:
    """Pods of a node that would move."""

    node: SimNode
    pods: Pods

    @property
    def cost(self) -> tuple[int, int, int, tuple[str, ...], str]:
        """The order of sets: number of pods, amounts, priorities, names; the least is best."""
        names = tuple(sorted(r.name for r in self.pods))
        pods = self.pods
        return len(pods), sum(r.weight for r in pods), sum(r.priority for r in pods), names, self.node.name


@dataclass(slots=True)
class SearchBudget:
    """How many more sets may be examined, over all nodes, since a hundred pods on a card have too many."""

    left: int


class NodeEvictions:
    """A node on which to make room, and its movable pods. ``alike``: the budgets of each pod."""

    def __init__(
        self,
        node: SimNode,
        request: PodRequest,
        may: Sequence[SimPod],
        alike: Mapping[PodUid, tuple[str, ...]],
        looks: SearchBudget,
    ) -> None:
        self.node = node
        self._looks = looks
        self._may = sorted(may, key=lambda r: (r.weight, r.name))
        self._groups = groups_of(request) or ()
        alone = len(self._groups) == 1 and self._groups[0].parts == 1
        self._any = not alone or node.find(request) is not None
        trial = TrialPlacement(request, node.cards, node.ledger)
        # Card that may take the request → movable pods that hold a part of it.
        self._on: dict[CardUuid, list[SimPod]] = {node.cards[at].card.uuid: [] for at in trial.open}
        self._kind: dict[PodUid, Kind] = {}
        for running in self._may:
            lies = tuple(
                (a.container, card) for a in node.ledger.of_pod(running.uid).values() for card in a.cards
            )
            self._kind[running.uid] = (
                running.shape,
                tuple(sorted(lies)),
                running.priority,
                alike[running.uid],
            )
            for card in {card for _, card in lies} & self._on.keys():
                self._on[card].append(running)
        ours = {r.uid for r in self._may}
        self._held = {
            card for card in self._on if any(a.pod not in ours for a in node.ledger.holders(card))
        }  # by a pod that stays
        members = self._groups[0].members if self._groups else ()
        self._short = {
            node.cards[at].card.uuid: ZERO - trial.left(at, members) for at in trial.open
        }  # positive: missing

    def cores(self, size: int) -> Iterator[EvictionSet]:
        """Sets of ``size`` pods that make room on the cards by themselves.

        All sets of that size for a pod of several containers or with parts of several cards, or if only the
        host lacks something.
        """
        if self._any:
            found = self._choices(self._may, size)
        elif self._groups[0].cards:
            found = self._emptied(self._groups[0], size)
        else:
            found = (pods for card in self._on for pods in self._freed(card, size))
        return (EvictionSet(self.node, pods) for pods in found)

    def more(self, size: int) -> Iterator[EvictionSet]:
        """Sets of ``size`` pods: smaller cores with further pods."""
        if self._any:
            return
        for less in range(1, size):
            for core in self.cores(less):
                inside = {r.uid for r in core.pods}
                others = [r for r in self._may if r.uid not in inside]
                for further in self._choices(others, size - less):
                    yield EvictionSet(self.node, core.pods + further)

    def _emptied(self, group: ContainerGroup, size: int) -> Iterator[Pods]:
        """All pods on as many cards as the group requests."""
        cards = [card for card in self._on if card not in self._held and len(self._on[card]) <= size]
        cards.sort(key=lambda card: len(self._on[card]))

        def chosen(at: int, left: int, pods: dict[PodUid, SimPod]) -> Iterator[Pods]:
            if left == 0:
                if len(pods) == size:
                    yield tuple(pods.values())
                return
            for i in range(at, len(cards) - left + 1):
                union = pods | {r.uid: r for r in self._on[cards[i]]}
                if len(union) <= size:
                    yield from chosen(i + 1, left - 1, union)

        return chosen(0, group.cards, {})

    def _freed(self, card: CardUuid, size: int) -> Iterator[Pods]:
        """Pods of a card that free what is missing there, none of them superfluous."""
        short = self._short[card]
        gives = {r.uid: peak(self.node.ledger.of_pod(r.uid).values(), card) for r in self._on[card]}

        def enough(amounts: Sequence[Amount]) -> bool:
            given = sum(amounts, ZERO)
            return given.cores >= short.cores and given.memory >= short.memory

        most = sorted((a.cores for a in gives.values()), reverse=True)[:size]
        room = sorted((a.memory for a in gives.values()), reverse=True)[:size]
        if sum(most) < short.cores or sum(room) < short.memory:
            return
        for pods in self._choices(self._on[card], size):
            if self._looks.left == 0:
                return
            self._looks.left -= 1
            amounts = [gives[r.uid] for r in pods]
            if enough(amounts) and not any(enough(amounts[:i] + amounts[i + 1 :]) for i in range(size)):
                yield pods

    def _choices(self, pods: Sequence[SimPod], size: int) -> Iterator[Pods]:
        """Combinations of ``size`` pods; of interchangeable pods always the first."""
        kinds: dict[Kind, list[SimPod]] = {}
        for running in pods:
            kinds.setdefault(self._kind[running.uid], []).append(running)
        if len(kinds) == len(pods):
            return combinations(pods, size)
        return _counted(list(kinds.values()), size)


def _counted(kinds: Sequence[Sequence[SimPod]], size: int) -> Iterator[Pods]:
    if size == 0:
        yield ()
        return
    if not kinds or sum(map(len, kinds)) < size:
        return
    for count in range(min(size, len(kinds[0])), -1, -1):
        for rest in _counted(kinds[1:], size - count):
            yield (*kinds[0][:count], *rest)


MOST_SETS = 50_000  # sets of movable pods listed for one size; with more, the plan is not proven minimal
MOST_LOOKED = 500_000  # sets of one card's pods examined to list them, over all sizes
MOST_TRIED = 10_000  # listed sets for which new places are searched, over all sizes
MOST_MOVES = 6
MOST_STEPS = 20_000  # alternative places tried for moved pods after the best one, over all sets
_SHOWN = 5  # pods that must stay, named in a message


@dataclass(frozen=True, slots=True)
class DisruptionAllowance:
    """A PodDisruptionBudget: at most ``allowed`` more of these pods may be disrupted at once."""

    name: str
    allowed: int
    pods: frozenset[PodUid]


@dataclass(frozen=True, slots=True)
class PodMove:
    """A running pod that would be evicted from ``source`` and recreated on ``target``."""

    pod: str
    source: str
    source_cards: tuple[int, ...]
    target: str
    target_cards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DefragPlan:
    """The moves that make room, and the ``placement`` that the pod then has.

    ``placement`` is None if no moves help; ``reason`` is then why. ``proven``: no plan with fewer moves
    exists, on one node or on several. ``before`` and ``after`` are the nodes without and with the plan.
    """

    placement: PodPlacement | None
    moves: tuple[PodMove, ...] = ()
    proven: bool = True
    reason: str = ""
    before: tuple[SimNode, ...] = ()
    after: tuple[SimNode, ...] = ()


def defragment(
    nodes: Sequence[SimNode],
    pod: SimPod,
    budgets: Sequence[DisruptionAllowance] = (),
    most_moves: int = MOST_MOVES,
    most_tried: int = MOST_TRIED,
    most_looked: int = MOST_LOOKED,
    most_steps: int = MOST_STEPS,
) -> DefragPlan:
    """Find the fewest moves on one node that make the pod fit there, with a place for each moved pod on cards
    other than the pod's.

    Pods of higher priority than ``pod`` stay, and so do pods that no controller would recreate and pods whose
    budget allows no more disruption. Of sets of one size, the one with the least amounts is chosen, then the
    first by names.
    """
    cluster = SimCluster(nodes)
    if (placed := cluster.settle(pod)) is not None:
        return DefragPlan(placed, before=tuple(nodes), after=tuple(cluster.now.values()))
    looks = SearchBudget(most_looked)
    view, candidates = _View(cluster, most_steps), _candidate_nodes(nodes, pod, budgets, looks)
    proven, tried = True, 0
    for size in range(1, most_moves + 1):
        sets, whole = _sets(candidates, size)
        proven = proven and whole and looks.left > 0 and not view.doubtful(size)
        for eviction_set in sets:
            if not _within(eviction_set.pods, budgets):
                continue
            if tried == most_tried:
                return DefragPlan(None, proven=False, reason=_gave_up(most_tried))
            tried += 1
            found = view.carried_out(eviction_set, pod)
            if found is not None:
                return replace(found, proven=proven, before=tuple(nodes))
    if reason := _never(nodes, pod):
        return DefragPlan(None, reason=reason)
    proven = proven and not view.doubtful(most_moves + 1)
    reason = _why_not(nodes, pod, budgets, most_moves)
    return DefragPlan(None, proven=proven, reason=reason if proven else f"{reason}; not every set was tried")


def _candidate_nodes(
    nodes: Sequence[SimNode], pod: SimPod, budgets: Sequence[DisruptionAllowance], looks: SearchBudget
) -> list[NodeEvictions]:
    """The nodes that could hold the pod if all their movable pods were gone."""
    found = []
    for node in nodes:
        may = [running for running in node.pods.values() if not _stays(running, pod, budgets)]
        if may and node.without(r.uid for r in may).takes(pod) is not None:
            alike = {r.uid: tuple(b.name for b in budgets if r.uid in b.pods) for r in may}
            found.append(NodeEvictions(node, pod.request, may, alike, looks))
    return found


def _sets(candidates: Sequence[NodeEvictions], size: int) -> tuple[list[EvictionSet], bool]:
    """Sets of ``size`` pods that may make room, the cheapest first; False if not all are listed."""
    listed: dict[tuple[str, frozenset[PodUid]], EvictionSet] = {}
    found = (
        eviction_set
        for lists in (NodeEvictions.cores, NodeEvictions.more)
        for g in candidates
        for eviction_set in lists(g, size)
    )
    for eviction_set in islice(found, MOST_SETS):
        listed.setdefault((eviction_set.node.name, frozenset(r.uid for r in eviction_set.pods)), eviction_set)
    whole = next(found, None) is None
    return sorted(listed.values(), key=lambda eviction_set: eviction_set.cost), whole


class _View:
    """The present cluster, on which many plans are tried; each changes one node and a few others."""

    def __init__(self, cluster: SimCluster, most_steps: int) -> None:
        self._cluster = cluster
        self._ranked: dict[Shape, list[NodeOption]] = {}
        self._steps = most_steps
        self._stuck = MOST_MOVES + 1  # size of the smallest set that makes room but whose pods find no place
        self._unsure = False  # whether another order or layout might have found one

    def doubtful(self, moves: int) -> bool:
        """True if a plan with fewer than ``moves`` moves cannot be ruled out.

        A set that was tried in vain might work if further pods moved elsewhere, or in another layout.
        """
        return self._unsure or self._stuck < moves - 1

    def carried_out(self, eviction_set: EvictionSet, pod: SimPod) -> DefragPlan | None:
        """The plan that moves this set, or None where a moved pod finds no place beside ``pod``."""
        node = eviction_set.node
        room = node.without(r.uid for r in eviction_set.pods)
        placement: Placement | None = room.takes(pod)
        if placement is None:
            return None
        leave = sorted(eviction_set.pods, key=lambda r: (-r.weight, r.name))
        taken = frozenset(node.indices(placement))
        start = {node.name: _closing(room.with_pod(pod, placement), taken)}
        each = all(any(True for _ in self._offers(running, start)) for running in leave)
        found = self._places(leave, start) if each else None
        if found is None:
            self._stuck = min(self._stuck, len(leave))
            self._unsure |= room.free.cores >= pod.weight + min(r.weight for r in leave)
            return None
        changed, placed = found
        moves = tuple(
            PodMove(running.name, node.name, node.held(running.uid), to.node, to.cards)
            for running, to in zip(leave, placed, strict=True)
        )
        changed = {**changed, node.name: replace(changed[node.name], cards=node.cards)}
        after = tuple(changed.get(name, same) for name, same in self._cluster.now.items())
        return DefragPlan(PodPlacement(pod.name, node.name, node.indices(placement)), moves, after=after)

    def _places(
        self, pods: Sequence[SimPod], changed: Mapping[str, SimNode]
    ) -> tuple[Mapping[str, SimNode], tuple[PodPlacement, ...]] | None:
        """Places for all pods: the best of each, or the next best if that leaves another pod without one."""
        if not pods:
            return changed, ()
        for at, offer in enumerate(sorted(self._offers(pods[0], changed), key=lambda offer: offer.rank)):
            if at and not self._steps:
                self._unsure = True
                return None
            self._steps -= bool(at)
            node, placed = offer.taken(pods[0])
            rest = self._places(pods[1:], {**changed, node.name: node})
            if rest is not None:
                return rest[0], (placed, *rest[1])
        return None

    def _offers(self, pod: SimPod, changed: Mapping[str, SimNode]) -> Iterator[NodeOption]:
        """Every node that would take the pod; those in ``changed`` stand for their originals."""
        shape = pod.shape
        if shape not in self._ranked:
            self._ranked[shape] = sorted(self._cluster.offers(pod).values(), key=lambda offer: offer.rank)
        yield from (o for o in self._ranked[shape] if o.node.name not in changed)
        for node in changed.values():
            offer = NodeOption.of(node, pod)
            if offer is not None:
                yield offer


def _closing(node: SimNode, cards: frozenset[int]) -> SimNode:
    """The node with these cards closed while the moved pods search for new places.

    That excludes no plan: a pod that could return to such a card need not have moved.
    """
    closed = (replace(s, cordoned=True) if s.card.index in cards else s for s in node.cards)
    return replace(node, cards=tuple(closed))


def _gave_up(tried: int) -> str:
    return f"none of the first {tried} sets of pods makes room on one node; not every set was tried"


def _never(nodes: Sequence[SimNode], pod: SimPod) -> str:
    """Why no set of moves can help; empty if one might."""
    if not nodes:
        return "no node publishes cards"
    able = [node for node in nodes if not node.constraints.bars(pod.constraints)]
    if not able:
        return why_not(nodes, pod)
    that = "" if len(able) == len(nodes) else " that it may go to"
    emptied = [node.without(node.pods) for node in able]
    if all(node.takes(pod) is None for node in emptied):
        return f"no node{that} could hold it even if all its pods were gone: {why_not(emptied, pod)}"
    free = sum(node.free.cores for node in nodes)
    if free < pod.weight:
        return (
            f"{free} cores are free in the whole cluster, {pod.weight} are asked: no move makes more of them"
        )
    return ""


def _why_not(
    nodes: Sequence[SimNode], pod: SimPod, budgets: Sequence[DisruptionAllowance], most_moves: int
) -> str:
    able = [node for node in nodes if not node.constraints.bars(pod.constraints)]
    that = "" if len(able) == len(nodes) else " that it may go to"
    running_pods = [running for node in able for running in node.pods.values()]
    kept = [f"{r.name} ({why})" for r in running_pods if (why := _stays(r, pod, budgets))]
    movable = len(running_pods) - len(kept)
    said = f"no set of at most {most_moves} of the {movable} pods that may move makes room on one node{that}"
    if kept:
        more = f" and {len(kept) - _SHOWN} more" if len(kept) > _SHOWN else ""
        said += f"; these must stay: {', '.join(kept[:_SHOWN])}{more}"
    return said


def _stays(running: SimPod, pod: SimPod, budgets: Sequence[DisruptionAllowance]) -> str:
    """Why a running pod may not be moved for the pod; empty if it may."""
    if running.stays:
        return running.stays
    if running.priority > pod.priority:
        return f"its priority {running.priority} is above {pod.priority}"
    mine = [b for b in budgets if running.uid in b.pods]
    if len(mine) > 1:
        names = " and ".join(b.name for b in mine[:2])
        return f"{len(mine)} PodDisruptionBudgets cover it, {names}: the API server evicts no such pod"
    closed = next((b.name for b in mine if b.allowed <= 0), None)
    return "" if closed is None else f"PodDisruptionBudget {closed} allows no more disruption"


def _within(moved: Sequence[SimPod], budgets: Sequence[DisruptionAllowance]) -> bool:
    return all(sum(r.uid in b.pods for r in moved) <= b.allowed for b in budgets)
