"""Which pods to evict so that a pod fits on the cards of a node: of all ways to make room the least harmful.

As kube-scheduler prefers among nodes: first the fewest broken PodDisruptionBudgets, then the lowest highest
priority, then the fewest victims; and of ways that are equal so far the one that takes the least of cards.
A pod that is being deleted anyway has no priority and is not counted.

Two searches run. The first tries every way, card by card: the pod's containers are placed one after the
other; at each card in turn, as few of the pods there are evicted as the container needs. What is evicted so
far harms at least so much, so a way that is no better than the best known one is dropped at once. After
:data:`MOST_STEPS` steps the search ends: until then the answer is exact for what cards hold, and after it the
best that was found. The second is kube-scheduler's own: evict every pod of lower priority on the node, then
give back one after the other whatever the pod can do without, the most important first. It alone decides
where a way needs more than room on cards (a quota of the victims' namespace, room reserved for a nominated
pod), or where the ways are too many to try.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView, named
from admission.extender.feasibility import FeasibilityCheck
from admission.extender.wire import Victims
from gpu_manager.domain.cluster.pod_charges import Charge
from gpu_manager.domain.kube.evictions import DisruptionBudget, violating
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, peak
from gpu_manager.domain.placement.trial_placement import TrialPlacement, groups_of
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.rules.request import ContainerRequest


def evictions(
    question: FeasibilityCheck,
    nodes: Mapping[str, NodeView],
    asked: Mapping[str, Victims],
    budgets: Sequence[DisruptionBudget],
) -> dict[str, Victims]:
    """Of the nodes ``asked`` about, with the pods that the scheduler would evict there, those on which
    evicting helps, each with the pods to evict. ``nodes``: all that are known.
    """
    if _fits_soon(question, nodes):
        return {}
    found: dict[str, Victims] = {}
    for name, given in asked.items():
        view = nodes.get(name)
        victims = None if view is None else choose(question, question.pod, view, given, budgets)
        if victims is not None:
            found[name] = victims
    return found


def _fits_soon(question: FeasibilityCheck, nodes: Mapping[str, NodeView]) -> bool:
    """True if the pod fits on its nominated node once the processes of deleted pods have ended.

    The API forgets a victim without a grace period at once; the scheduler then asks for more victims.
    """
    view = nodes.get(question.occupant.nominated)
    return view is not None and bool(view.gone) and question.without(view, view.gone) is not None


def choose(
    question: FeasibilityCheck, pod: Pod, view: NodeView, given: Victims, budgets: Sequence[DisruptionBudget]
) -> Victims | None:
    """The pods to evict from the node; None if evicting does not help or is not needed.

    ``given`` are the pods that the scheduler already means to evict for the resources that it counts itself;
    they are included. Also None if no pod is left to evict: kube-scheduler treats a node without victims as a
    fault.
    """
    lower = [
        occupant
        for uid, occupant in view.bound.items()
        if view.charges[uid].allocations
        and occupant.pod.priority < pod.priority
        and not occupant.reserved
        and not occupant.lent  # its card returns to this resource's name a minute after it has left
        and uid not in given.pods
    ]
    if question.without(view, {*given.pods, *(o.uid for o in lower)}) is None:
        return None
    lower = _by_importance(lower)
    leaving = [view.charges[uid].pod for uid in given.pods if uid in view.charges]
    harm = DisruptionCost(lower, leaving, budgets, view.charges)
    more = _given_back(question, view, given.pods, lower, harm)
    if more:
        better = VictimSearch(question, pod.priority, view, given.pods, lower, harm).best(harm.of(more))
        more = more if better is None else better
    if not given.pods and not more:
        return None
    broken = harm.of(more).budgets
    return Victims((*given.pods, *(o.uid for o in lower if o.uid in more)), given.violations + broken)


def names(view: NodeView, victims: Iterable[PodUid], namespace: str | None) -> tuple[str, ...]:
    """Names of the victims, for readers in one namespace; None: for readers of all namespaces."""
    return named((view.charges[uid].pod for uid in victims if uid in view.charges), namespace)


def _given_back(
    question: FeasibilityCheck,
    view: NodeView,
    given: Sequence[PodUid],
    lower: Sequence[PodView],
    harm: DisruptionCost,
) -> Collection[PodUid]:
    """The pods that must be evicted. Pods whose end would break a budget are spared first, pods that leave
    anyway last.
    """
    gone = {*given, *(o.uid for o in lower)}
    breaks = harm.breaking([o.uid for o in lower])
    for occupant in sorted(lower, key=lambda o: (o.uid not in breaks, o.pod.deleting)):
        if question.without(view, gone - {occupant.uid}) is not None:
            gone.discard(occupant.uid)
    return gone - set(given)


def _by_importance(occupants: Iterable[PodView]) -> list[PodView]:
    """Higher priority first, then the earlier start."""
    return sorted(occupants, key=lambda o: (-o.pod.priority, o.pod.began, o.uid))


MOST_STEPS: Final = 500  # 20 to 200 microseconds each, by the number of pods on the node
_CHECKS_A_STEP: Final = 256  # checks of a pod against a budget
_MOST_TRIALS: Final = 32  # calls of placement itself, some 100 microseconds each
_NOBODY: Final = -(1 << 40)  # below every priority that Kubernetes knows
_Gone = frozenset[PodUid]


@dataclass(frozen=True, slots=True, order=True)
class VictimLoss:
    """The harm of an eviction, compared field by field in this order.

    ``budgets`` broken, the highest ``priority``, ``victims`` except pods that leave anyway, ``all`` of them,
    and the ``cores`` that they hold: a tenth of a card is evicted before a training job on two cards.
    """

    budgets: int
    priority: int
    victims: int
    all: int
    cores: int


class DisruptionCost:
    """Prices evictions of these pods, the most important first; ``leaving`` are the pods that leave
    anyway.
    """

    def __init__(
        self,
        lower: Sequence[PodView],
        leaving: Sequence[Pod],
        budgets: Sequence[DisruptionBudget],
        charges: Mapping[PodUid, Charge],
    ) -> None:
        self._pods = {o.uid: o.pod for o in lower}
        self._cores = {o.uid: _cores(charges[o.uid].allocations) for o in lower}
        self._leaving = leaving
        self._budgets = [b for b in budgets if any(b.selects(o.pod) for o in lower)]
        self._already = violating(leaving, self._budgets) if self._budgets else frozenset()
        self.steps = 1 + len(lower) * len(self._budgets) // _CHECKS_A_STEP  # the cost of one call

    def of(self, gone: Collection[PodUid]) -> VictimLoss:
        """The harm if these pods were evicted."""
        counted = [p.priority for uid, p in self._pods.items() if uid in gone and not p.deleting]
        cores = sum(self._cores.get(uid, 0) for uid in gone)
        return VictimLoss(
            len(self.breaking(gone)), max(counted, default=_NOBODY), len(counted), len(gone), cores
        )

    def counted_by(self, pod: Pod) -> tuple[bool, ...]:
        """For each budget, whether the pod's end counts against it."""
        return tuple(pod.name not in one.disrupted and one.selects(pod) for one in self._budgets)

    def breaking(self, gone: Collection[PodUid]) -> frozenset[PodUid]:
        """The pods whose end would break a budget, as kube-scheduler counts: the most important are evicted
        first.
        """
        if not self._budgets:
            return frozenset()
        pods = (pod for uid, pod in self._pods.items() if uid in gone)
        return violating((*self._leaving, *pods), self._budgets) - self._already


@dataclass(frozen=True, slots=True)
class _Holder:
    """Pods that may be evicted, and how much of the card that frees. Pods of one ``kind`` are
    interchangeable.
    """

    uid: PodUid
    frees: Amount
    counted: int
    kind: object


@dataclass(frozen=True, slots=True)
class _Seat:
    """Containers that need one card. ``after``: the previous seat is equal, so that one gets the earlier
    card.
    """

    members: tuple[ContainerRequest, ...]
    whole: bool
    after: bool


class VictimSearch:
    """One search on one node, for a pod of this ``priority``. Used once."""

    def __init__(
        self,
        question: FeasibilityCheck,
        priority: int,
        view: NodeView,
        given: Sequence[PodUid],
        lower: Sequence[PodView],
        harm: DisruptionCost,
    ) -> None:
        self._question, self._view, self._given, self._harm = question, view, frozenset(given), harm
        awaited = view.awaits(question.request.uid, priority)
        books = view.with_awaited(awaited, view.without([*given, question.request.uid]))
        self._desk = TrialPlacement(question.request, view.node.cards, books)
        self._holders = {at: self._who_lies_on(at, lower) for at in self._desk.open}
        self._cards = sorted(self._desk.open, key=lambda at: (self._emptied(at), at))
        self._whole = {
            at for at in self._cards if books.capacity(view.node.cards[at].card.uuid).cores == CORES_PER_CARD
        }
        self._seats = _seats_of(question)
        self._fewest = sorted(self._alone_on(at, lower) for at in self._whole)
        self._best: VictimLoss | None = None
        self._found: frozenset[PodUid] | None = None
        self._steps, self._trials = MOST_STEPS, _MOST_TRIALS

    def best(self, known: VictimLoss) -> frozenset[PodUid] | None:
        """The least harmful eviction; None if none is less harmful than ``known``."""
        self._best = known
        self._seat(0, 0, {}, frozenset())
        return self._found

    def _who_lies_on(self, at: int, lower: Sequence[PodView]) -> list[_Holder]:
        """The pods on the card: the least important first, of equals the one that frees most, then the
        youngest.
        """
        card = self._view.node.cards[at].card.uuid
        found: list[tuple[tuple[object, ...], _Holder]] = []
        for age, occupant in enumerate(lower):
            pod, held = occupant.pod, self._view.charges[occupant.uid].allocations
            frees = peak(held, card)
            if frees == ZERO:
                continue
            elsewhere = any(share.card != card for a in held for share in a.shares)
            kind = (self._harm.counted_by(pod), pod.priority, pod.deleting, frees)
            holder = _Holder(occupant.uid, frees, int(not pod.deleting), pod.uid if elsewhere else kind)
            rank = (not pod.deleting, pod.priority, -frees.cores, -frees.memory, -age)
            found.append((rank, holder))
        return [holder for _, holder in sorted(found, key=lambda pair: pair[0])]

    def _alone_on(self, at: int, lower: Sequence[PodView]) -> int:
        """Number of victims that are evicted only to empty this card."""
        here = {h.uid for h in self._holders[at] if h.counted}
        held = (self._view.charges[o.uid].allocations for o in lower if o.uid in here)
        return sum(len({card for a in allocations for card in a.cards}) == 1 for allocations in held)

    def _emptied(self, at: int) -> VictimLoss:
        return self._harm.of({h.uid for h in self._holders[at]})

    def _seat(
        self, number: int, first: int, on: dict[int, tuple[ContainerRequest, ...]], gone: _Gone
    ) -> None:
        """Find a card for each seat from ``number`` on."""
        if number == len(self._seats):
            self._try(gone)
            return
        seat = self._seats[number]
        to_empty = sum(s.whole for s in self._seats[number:])
        if self._no_better(gone, sum(self._fewest[:to_empty])):
            return
        for place in range(first if seat.after else 0, len(self._cards)):
            at = self._cards[place]
            members = (*on.get(at, ()), *seat.members)
            if seat.whole and (at in on or at not in self._whole):
                continue
            if not seat.whole and seat.members[0] in on.get(at, ()):
                continue  # its parts lie on different cards
            left = self._desk.left(at, members)
            lack = Amount(-left.cores, -left.memory)
            for more in self._yields(at, lack, gone):
                self._seat(number + 1, place, {**on, at: members}, gone | more)
            if self._steps <= 0:
                return

    def _yields(self, at: int, lack: Amount, gone: _Gone) -> Iterator[_Gone]:
        """Yield sets of pods whose eviction frees this much more of the card."""
        lack -= sum((h.frees for h in self._holders[at] if h.uid in gone), ZERO)
        yield from self._leave([h for h in self._holders[at] if h.uid not in gone], lack, gone, frozenset())

    def _leave(self, holders: Sequence[_Holder], lack: Amount, gone: _Gone, more: _Gone) -> Iterator[_Gone]:
        self._steps -= self._harm.steps
        if self._steps < 0 or self._no_better(gone | more, _at_least(holders, lack)):
            return
        if lack.fits_in(ZERO):
            yield more
            return
        tried: set[object] = set()
        for position, holder in enumerate(holders):
            if holder.kind in tried:
                continue
            tried.add(holder.kind)
            rest = [h for h in holders[position + 1 :] if h.kind not in tried or h.kind == holder.kind]
            yield from self._leave(rest, lack - holder.frees, gone, more | {holder.uid})

    def _no_better(self, gone: _Gone, further: int | None) -> bool:
        """True if these and ``further`` more victims cannot be less harmful than the best known eviction."""
        if further is None or self._best is None:
            return True
        so_far = self._harm.of(gone)
        victims, everyone = so_far.victims + further, so_far.all + further
        return replace(so_far, victims=victims, all=everyone) >= self._best

    def _try(self, gone: _Gone) -> None:
        """There is room on the cards: let placement itself decide."""
        loss = self._harm.of(gone)
        if self._trials <= 0 or self._best is None or loss >= self._best:
            return
        self._trials -= 1
        if self._question.without(self._view, self._given | gone) is not None:
            self._best, self._found = loss, gone


def _cores(held: Collection[Allocation]) -> int:
    """Cores that a pod holds, at its peak on each card."""
    return sum(peak(held, card).cores for card in {card for a in held for card in a.cards})


def _at_least(holders: Iterable[_Holder], lack: Amount) -> int | None:
    """The least number of counted holders that must be evicted; None if all of them are not enough."""
    known = tuple(holders)
    by_cores = sorted(known, key=lambda h: (h.counted, -h.frees.cores))
    by_memory = sorted(known, key=lambda h: (h.counted, -h.frees.memory))
    counts = (
        _count([(h.frees.cores, h.counted) for h in by_cores], lack.cores),
        _count([(h.frees.memory, h.counted) for h in by_memory], lack.memory),
    )
    return None if counts[0] is None or counts[1] is None else max(counts[0], counts[1])


def _count(sizes: Iterable[tuple[int, int]], need: int) -> int | None:
    freed = counted = 0
    for size, counts in sizes:
        if freed >= need:
            break
        freed, counted = freed + size, counted + counts
    return counted if freed >= need else None


def _seats_of(question: FeasibilityCheck) -> list[_Seat]:
    """A seat for each card that the pod needs; containers of several cards first."""
    seats: list[_Seat] = []
    for group in sorted(groups_of(question.request) or (), key=lambda g: -g.width):
        asks = [(c.kind, c.request) for c in group.members]
        for number in range(group.width):
            alike = bool(seats) and [(c.kind, c.request) for c in seats[-1].members] == asks
            seats.append(_Seat(group.members, whole=group.cards > 0, after=number > 0 or alike))
    return seats
