"""The choice among nodes as deployed: places a pod where it costs future pods the least.

:mod:`gpu_manager.domain.score` prices a placement. This module translates the cluster's nodes and pods into
its terms and caches the prices until the mix of requests has changed. Then a new scorer is prepared beside
the old one, in a thread of its own. It takes effect after a fixed number of questions, not when the thread
happens to be ready, so that the same pods and questions always get the same answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from types import MappingProxyType

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import ClusterState
from admission.extender.drained_nodes import DrainedNodes, QuotaBounds
from admission.extender.many_nodes import Verdicts
from admission.extender.node_rooms import MultiGpuCount, NodeChange, NodeContent, NodeRooms
from admission.extender.ranking import (
    MOST_PRICED,
    BestFit,
    Cost,
    PriceColumn,
    PriceKey,
    PriceTerms,
    RankedNode,
    Totals,
    most_priced,
    unsuited,
)
from admission.quota.quota_book import QuotaBook
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import Allocation, Share, peak
from gpu_manager.domain.placement.trial_placement import groups_of
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.rules.request import PlacementPolicy, PodRequest
from gpu_manager.domain.score.fragmentation import RollOutRoutine
from gpu_manager.domain.score.multi_gpu_slots import Loss, with_kept
from gpu_manager.domain.score.request_mix import Arrivals, Mix, RequestShape, Stock
from gpu_manager.domain.score.scorer import Scorer, in_all, with_neighbours
from gpu_manager.domain.untrusted import timestamp
from gpu_manager.runtime import threads

_MOST = 1 << 16  # cached costs
_WARMED = 32  # kinds of request that a new scorer prices at the start
_PREPARED = 16  # costs computed before they are asked for, which takes about a millisecond
_LEAD = 0.07  # questions to the old scorer, per counted arrival, while the new one is prepared
_CARD = CardUuid("")
Priced = tuple[Cost, NodeChange, Loss]
"""A cost without the prices of slots, the change of the node, and the slots lost."""


class Epoch:
    """One scorer, and its cached costs."""

    def __init__(self, scorer: Scorer, rooms: NodeRooms) -> None:
        self.scorer = scorer
        self.tally = MultiGpuCount(scorer.places, rooms)
        self.known: dict[PriceKey, Priced] = {}

    def add(self, moves: dict[PriceKey, NodeChange]) -> None:
        costs = self.scorer.costs([(move.before, move.after) for move in moves.values()])
        for (key, move), (cost, *content) in zip(moves.items(), costs, strict=True):
            loss = self.scorer.places.lost(move.before, move.after)
            self.known[key] = (cost, -move.joined, *content), move, loss

    def knows(self, move: NodeChange) -> bool:
        """True if the scorer can price this change: the cluster had such cards when the scorer was made."""
        return all(room.model in self.scorer.stock for room in move.before)


class _NextEpoch:
    """The epoch of a newer mix, in preparation. ``known`` and ``recent``: cached costs of the old epoch, and
    the recently used ones among them; ``at``: number of the question at which the new epoch takes effect.
    """

    def __init__(
        self,
        mix: Mix,
        nodes: Iterable[NodeView],
        known: Mapping[PriceKey, Priced],
        recent: Sequence[Sequence[PriceKey]],
        at: int,
        routine: RollOutRoutine | None,
    ) -> None:
        self._routine = routine
        self._mix, self._nodes, self._known, self._recent, self.at = mix, nodes, known, recent, at
        self.epoch: Epoch | None = None
        self._lock = threading.Lock()

    def make(self, rooms: NodeRooms) -> None:
        """Prepare the epoch once; a second caller waits for the first."""
        with self._lock:
            if self.epoch is None:
                stock = stock_of(self._nodes)
                moves = {
                    key: self._known[key][1] for keys in self._recent for key in keys if key in self._known
                }
                epoch = Epoch(Scorer(self._mix, stock, routine=self._routine), rooms)
                epoch.add({key: move for key, move in moves.items() if epoch.knows(move)})
                self.epoch = epoch

    def copy(self) -> _NextEpoch:
        """An unprepared copy."""
        return _NextEpoch(self._mix, self._nodes, self._known, self._recent, self.at, self._routine)


class LeastFragmentation:
    """Chooses the node where a pod costs future pods the least; see the module. Thread-safe.

    Among equal costs the better-joined cards win; under ``topology`` they win before the cost. Under
    ``spread`` :class:`BestFit` chooses. ``aside`` runs a job beside the caller. No node is drained for a
    waiting pod that is over the ``quota`` of its namespace; without ``quota`` no namespace is limited.
    ``routine`` computes roll-outs; the costs are the same without it.
    """

    def __init__(
        self,
        cluster: ClusterState,
        aside: Callable[[Callable[[], None]], None] | None = None,
        quota: QuotaBook | None = None,
        routine: RollOutRoutine | None = None,
    ) -> None:
        self._routine = routine
        self._cluster = cluster
        self._quota = quota
        self._aside = aside or _in_a_thread
        self._plain = BestFit()
        self._rooms = NodeRooms()
        self._lock = threading.Lock()
        self._columns = threading.Lock()
        self._arrivals = Arrivals()
        self._drained = DrainedNodes(self._rooms)
        self._epoch: Epoch | None = None
        self._next: _NextEpoch | None = None
        self._asked = 0  # number of questions so far
        self._parts: dict[PodUid, int] = {}  # of the pods that are not placed as one
        self._recent: dict[object, list[PriceKey]] = {}  # by kind of request, the latest last

    def copy(self) -> LeastFragmentation:
        """The same policy over a copy of the cluster's state; it refreshes at once, in the caller's
        thread.
        """
        with self._lock:  # so that every arrival is counted once
            other = LeastFragmentation(self._cluster.copy(), lambda job: job(), self._quota, self._routine)
            other._arrivals = self._arrivals.copy()
            other._drained = self._drained.copy(other._rooms)
            epoch, coming = self._epoch, self._next
            other._asked, other._parts = self._asked, self._parts.copy()
        if coming is not None:
            other._next = coming.copy()
        if epoch is not None:
            scorer = Scorer(epoch.scorer.mix, epoch.scorer.stock, routine=self._routine)
            other._epoch = Epoch(scorer, other._rooms)
            other._epoch.known = epoch.known.copy()
        return other

    @property
    def basis(self) -> object:
        """What costs follow from beside the nodes: another object once that has changed."""
        return self._epoch

    def begin(self) -> None:
        """A question about a pod begins: what costs follow from may change now, and not before the next."""
        self._current(questions=1)

    @property
    def cluster(self) -> ClusterState:
        """The cluster state that the policy reads."""
        return self._cluster

    @property
    def scorer(self) -> Scorer:
        """The scorer in force."""
        return self._current().scorer

    def costs(
        self, request: PodRequest, candidates: Sequence[RankedNode], terms: PriceTerms | None = None
    ) -> Sequence[Cost | None]:
        """One cost per candidate; the lowest wins. It depends on what the nodes hold, never on their names.

        ``terms``: of this question, None if it has no other call. ``candidates`` are sorted, the most
        promising first. If only some can be priced in time, the others get None and are priced when the same
        kind of request comes again.
        """
        terms = PriceTerms() if terms is None else terms
        if request.placement is PlacementPolicy.SPREAD:
            return spread_costs(request, candidates, self._plain)
        cpu = self._cpu(request)
        epoch = self._epoch or self._current()
        keys: list[PriceKey] = [(fit, view.cpu, cpu) for view, fit in candidates]
        found = list(map(epoch.known.get, keys))
        if None in found:
            epoch = self._work_out(epoch, request.uid, cpu, keys, candidates)
            found = [each or epoch.known.get(key) for each, key in zip(found, keys, strict=True)]
        self._remember(request, [key for key, each in zip(keys, found, strict=True) if each])
        return costs_under(self._under(epoch, cpu, terms), request, candidates, found)

    def totals(
        self,
        request: PodRequest,
        verdicts: Verdicts,
        priced: Mapping[int, RankedNode] = MappingProxyType({}),
        terms: PriceTerms | None = None,
    ) -> Totals | None:
        """The first part of each cost by the number of a kind of nodes, as far as known, to a hundredth: not
        a number where it is unknown. None if a cost depends on more, as beside pods of a priority.

        ``priced``: nodes of some numbers whose costs have just been computed.
        """
        epoch = self._epoch
        plain = request.placement is PlacementPolicy.BINPACK and request.priority is Priority.NORMAL
        if epoch is None or not plain:
            return None
        cpu = self._cpu(request)
        terms = self._under(epoch, cpu, PriceTerms() if terms is None else terms)
        with self._columns:  # questions of two schedulers may be about one column
            column = verdicts.columns.get((epoch, cpu)) or self._new_column(verdicts, epoch, cpu)
            column.follow(verdicts.views)
            for number, (view, fit) in priced.items():
                key = fit, view.cpu, cpu
                if (known := epoch.known.get(key)) is not None:
                    column.put(number, key, known[0][0], known[2])
            if column.prioritised or not column.keys:
                return None
            # The next epoch prices those that this one knows, not only those near the least.
            keys = list(column.keys.values())[-MOST_PRICED:] if priced else []
            found = column.totals(terms.prices, terms.kept, _most_cards(request))
        if priced:
            self._remember(request, keys)
        return found

    @staticmethod
    def _new_column(verdicts: Verdicts, epoch: Epoch, cpu: int) -> PriceColumn:
        """A column with the prices of the former epoch's nodes, as far as this one knows them."""
        column = verdicts.columns[epoch, cpu] = PriceColumn()
        column.follow(verdicts.views)
        for was in [key for key in verdicts.columns if key[0] is not epoch]:
            former = verdicts.columns.pop(was)
            for number, key in former.keys.items() if was[1] == cpu else ():
                known = epoch.known.get(key)
                if known is not None and number < len(verdicts.views):
                    column.put(number, key, known[0][0], known[2])
        return column

    def _cpu(self, request: PodRequest) -> int:
        own = self._cluster.pod(request.uid)
        return own.cpu if own else 0

    def _under(self, epoch: Epoch, cpu: int, terms: PriceTerms) -> PriceTerms:
        """The terms of the question, read once for each epoch that answers it."""
        if terms.basis is not epoch:
            terms.basis, terms.cpu = epoch, cpu
            terms.prices, terms.turn = self._prices(epoch), epoch.tally.turn
            terms.kept = self._kept(epoch)
        return terms

    def _kept(self, epoch: Epoch) -> Mapping[NodeContent, int]:
        with self._lock:
            return self._drained.kept(self._cluster, self._bounds(epoch.scorer.stock))

    def prepare(self, request: PodRequest, candidates: Sequence[RankedNode]) -> None:
        """Compute some of the costs that will be needed next: those of nodes that changed since the last
        question. Changes no answer.
        """
        epoch = self._epoch
        if epoch is None or request.placement is PlacementPolicy.SPREAD:
            return
        cpu = self._cpu(request)
        new = {
            key: place
            for place, (view, fit) in enumerate(candidates)
            if (key := (fit, view.cpu, cpu)) not in epoch.known
        }
        if 0 < len(new) <= _PREPARED:
            moves = {key: self._rooms.change(request.uid, *candidates[at], cpu) for key, at in new.items()}
            epoch.add({key: move for key, move in moves.items() if epoch.knows(move)})

    def close(self, now: float) -> None:
        """Close a node to smaller pods if a large pod has waited long, and open it in time.

        ``now`` in seconds. Call each second. Arrivals are counted here, but no epoch begins: epochs depend on
        the number of questions alone.
        """
        with self._lock:
            self._count()
            epoch = self._epoch
            stock = epoch.scorer.stock if epoch else stock_of(self._cluster.snapshot().nodes.values())
            self._drained.close(self._cluster, self._bounds(stock), now)

    def _bounds(self, stock: Mapping[str, Stock]) -> QuotaBounds:
        return QuotaBounds(self._quota.current if self._quota else None, stock, self._cluster.unit)

    def _work_out(
        self, epoch: Epoch, uid: PodUid, cpu: int, keys: Sequence[PriceKey], candidates: Sequence[RankedNode]
    ) -> Epoch:
        """Price the first unpriced candidates, as many as a scheduler can wait for."""
        new = {key: place for place, key in enumerate(keys) if key not in epoch.known}
        most = min(MOST_PRICED // 4, most_priced(len(self._cluster.snapshot().nodes)))
        if len(keys) - len(new) < MOST_PRICED:
            most = most_priced(len(self._cluster.snapshot().nodes))
        moves = {
            key: self._rooms.change(uid, *candidates[place], cpu) for key, place in islice(new.items(), most)
        }
        if not all(map(epoch.knows, moves.values())):
            epoch = self._start()
        epoch.add(moves)
        return epoch

    def prices(self) -> list[float]:
        """The present price of losing one place for several cards."""
        return self._prices(self._current())

    def _prices(self, epoch: Epoch) -> list[float]:
        with self._lock:
            return epoch.tally.prices(self._cluster)

    def _current(self, questions: int = 0) -> Epoch:
        """The epoch in force; begins to prepare the next one when it is due."""
        with self._lock:
            self._count()
            self._asked += questions
            epoch, coming, begins = self._epoch, self._next, False
            if epoch is not None and len(epoch.known) > _MOST:
                epoch.known = {}
            if epoch is not None and coming is None and self._arrivals.due:
                coming, begins = self._prepare(epoch), True
                self._next = coming
        if coming is not None and begins:
            self._aside(partial(coming.make, self._rooms))
        elif coming is not None and self._asked >= coming.at:
            threads.ran(partial(coming.make, self._rooms))  # on failure the old one stays in force
            with self._lock:
                if self._next is coming:
                    self._epoch, self._next = coming.epoch or self._epoch, None
        return self._epoch or self._start()

    def _count(self) -> None:
        fresh, begins = self._cluster.fresh(), not len(self._arrivals)
        for occupant in fresh:
            shapes = shapes_of(occupant, self._cluster.unit)
            self._drained.came(occupant, shapes)
            if len(shapes) != 1:
                self._parts[occupant.uid] = len(shapes)
            for shape in shapes:
                self._arrivals.add(shape)
        if begins:  # this program has just started: earlier pods may have come and left
            created = (timestamp(occupant.pod.created) for occupant in fresh if occupant.occupies)
            self._arrivals.began([at for at in created if at is not None], self._cluster.since)
        gone = self._cluster.gone()
        self._drained.left(occupant.pod.namespace for occupant in gone)
        for occupant in gone:
            self._arrivals.leave(self._parts.pop(occupant.uid, 1))

    def _prepare(self, epoch: Epoch) -> _NextEpoch:
        """The next epoch, from what is known now: later changes do not affect it."""
        nodes, recent = self._cluster.snapshot().nodes.values(), list(self._recent.values())
        at = self._asked + max(1, round(_LEAD * len(self._arrivals)))
        return _NextEpoch(self._arrivals.mix(), nodes, epoch.known, recent, at, self._routine)

    def _start(self) -> Epoch:
        """A scorer for the cluster's present state, at once."""
        stock = stock_of(self._cluster.snapshot().nodes.values())
        with self._lock:
            scorer = Scorer(self._arrivals.mix(), stock, routine=self._routine)
            self._epoch, self._next = Epoch(scorer, self._rooms), None
            return self._epoch

    def _remember(self, request: PodRequest, keys: list[PriceKey]) -> None:
        kind = tuple(c.request for c in request.containers), request.models, request.placement
        with self._lock:
            self._recent.pop(kind, None)
            self._recent[kind] = keys
            if len(self._recent) > _WARMED:
                del self._recent[next(iter(self._recent))]


def spread_costs(
    request: PodRequest, candidates: Sequence[RankedNode], plain: BestFit
) -> Sequence[Cost | None]:
    """The costs under ``spread``: first how little the pod suits its neighbours, then as ``plain`` has it."""
    costs, neighbours = plain.costs(request, candidates), unsuited(request, candidates)
    return [(n, *cost) for n, cost in zip(neighbours, costs, strict=True)] if neighbours else costs


def costs_under(
    terms: PriceTerms, request: PodRequest, candidates: Sequence[RankedNode], found: Sequence[Priced | None]
) -> Sequence[Cost | None]:
    """The costs under these terms, of candidates that the epoch has priced; None for the others."""
    prices, kept, most = terms.prices, terms.kept, _most_cards(request)
    costs = [each and (in_all(each[0], each[2], prices) if each[2] else each[0]) for each in found]
    if most < max(kept.values(), default=0):
        contents = {(view.state, view.cpu) for view, _ in candidates} & kept.keys()  # few of them are drained
        for at, (view, _) in enumerate(candidates if contents else ()):
            if cost := costs[at]:
                costs[at] = with_kept(cost, most, kept.get((view.state, view.cpu), 0))
    if neighbours := unsuited(request, candidates):
        costs = [cost and with_neighbours(cost, n) for cost, n in zip(costs, neighbours, strict=True)]
    if request.placement is PlacementPolicy.TOPOLOGY:
        # Better joined first: the second part of a cost is the joined cards' sum, negative.
        return [cost and (cost[1], *cost) for cost in costs]
    return costs


def _most_cards(request: PodRequest) -> int:
    return max(c.request.cards for c in request.containers)


def _in_a_thread(job: Callable[[], None]) -> None:
    threads.once("placement mix", job).start()


def stock_of(views: Iterable[NodeView]) -> dict[str, Stock]:
    """The cluster's cards by model, including unhealthy ones, since they come back."""
    stock: dict[str, Stock] = {}
    for view in views:
        for state in view.node.cards:
            units = state.card.capacity(view.node.unit).memory // view.node.unit
            known = stock.get(state.card.model, Stock(0, 0))
            stock[state.card.model] = Stock(known.cards + 1, max(known.memory, units))
    return stock


def shapes_of(occupant: PodView, unit: int) -> list[RequestShape]:
    """A pod's request as one shape for each part that is placed by itself; the first has the pod's host
    CPU.
    """
    request = occupant.request(unit)
    shapes: list[RequestShape] = []
    for part in (request and groups_of(request)) or ():
        amount = part.members[0].request.amount
        if not part.cards:
            held = (
                Allocation(PodUid(""), c.name, c.kind, c.order, (Share(_CARD, c.request.amount),))
                for c in part.members
            )
            amount = peak(held, _CARD)
        models = tuple(sorted(request.models)) if request else ()
        shapes += [
            RequestShape(amount.cores, -(-amount.memory // unit), 0 if shapes or at else occupant.cpu, models)
            for at in range(part.parts)
        ]
    return shapes
