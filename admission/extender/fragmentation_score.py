"""The choice among nodes as deployed: where the pod costs those still to come the least.

:mod:`gpu_manager.domain.score` says what a placement costs; here the cluster's nodes and pods are put in its
words, and what it said is kept until the mix of requests has moved. Then a new scorer is made ready beside
the old one, in a thread of its own, so that no scheduler waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import ClusterState
from admission.extender.feasibility import Fit
from admission.extender.multi_gpu_count import MultiGpuCount
from admission.extender.node_rooms import NodeChange, NodeRooms
from admission.extender.ranking import MOST_PRICED, BestFit, Cost, RankedNode
from gpu_manager import threads
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.placement.ledger import Allocation, Share, peak
from gpu_manager.domain.placement.trial_placement import units_of
from gpu_manager.domain.pod import PodUid
from gpu_manager.domain.rules.request import PlacementPolicy, PodRequest
from gpu_manager.domain.score.multi_gpu_slots import Loss
from gpu_manager.domain.score.request_mix import Arrivals, RequestShape, Stock
from gpu_manager.domain.score.scorer import Scorer, in_all

_MOST = 1 << 16  # costs remembered
_WARMED = 32  # kinds of request whose costs a new scorer knows from the start
_CARD = CardUuid("")

_Key = tuple[Fit, int | None, int]  # where it would lie, free CPU there, CPU asked


class _Epoch:
    """One scorer, and what it has said."""

    def __init__(self, scorer: Scorer, rooms: NodeRooms) -> None:
        self.scorer = scorer
        self.tally = MultiGpuCount(scorer.places, rooms)
        self.known: dict[_Key, tuple[Cost, NodeChange, Loss]] = {}

    def add(self, moves: dict[_Key, NodeChange]) -> None:
        costs = self.scorer.costs([(move.before, move.after) for move in moves.values()])
        for (key, move), (cost, *content) in zip(moves.items(), costs, strict=True):
            loss = self.scorer.places.lost(move.before, move.after)
            self.known[key] = (cost, -move.joined, *content), move, loss


class LeastFragmentation:
    """See the module. Thread-safe.

    Among equal costs the better-joined cards go first; under ``topology`` they go before the cost. Under
    ``spread`` :class:`BestFit` chooses. ``aside`` runs a job beside the caller.
    """

    def __init__(
        self, cluster: ClusterState, aside: Callable[[Callable[[], None]], None] | None = None
    ) -> None:
        self._cluster = cluster
        self._aside = aside or _in_a_thread
        self._plain = BestFit()
        self._rooms = NodeRooms()
        self._lock = threading.Lock()
        self._arrivals = Arrivals()
        self._epoch: _Epoch | None = None
        self._refreshing = False
        self._recent: dict[object, list[_Key]] = {}  # by kind of request, the latest last

    def copy(self) -> LeastFragmentation:
        """The same policy over a copy of the cluster's books; it refreshes at once, in no thread of its
        own.
        """
        with self._lock:  # so that every arrival is counted once
            other = LeastFragmentation(self._cluster.copy(), aside=lambda job: job())
            other._arrivals = self._arrivals.copy()
            epoch = self._epoch
        if epoch is not None:
            other._epoch = _Epoch(Scorer(epoch.scorer.mix, epoch.scorer.stock), other._rooms)
            other._epoch.known = epoch.known.copy()
        return other

    @property
    def cluster(self) -> ClusterState:
        """The books that it looks at."""
        return self._cluster

    @property
    def scorer(self) -> Scorer:
        """The one that is asked now."""
        return self._current().scorer

    def costs(self, request: PodRequest, candidates: Sequence[RankedNode]) -> Sequence[Cost | None]:
        """See :class:`~admission.extender.ranking.NodePolicy`."""
        if request.placement is PlacementPolicy.SPREAD:
            return self._plain.costs(request, candidates)
        own = self._cluster.pod(request.uid)
        cpu = own.cpu if own else 0
        epoch = self._current()
        keys: list[_Key] = [(fit, view.cpu, cpu) for view, fit in candidates]
        found = list(map(epoch.known.get, keys))
        if None in found:
            epoch = self._work_out(epoch, request.uid, cpu, keys, candidates)
            found = [each or epoch.known.get(key) for each, key in zip(found, keys, strict=True)]
        self._remember(request, keys)
        prices = self._prices(epoch)
        costs = [each and (in_all(each[0], each[2], prices) if each[2] else each[0]) for each in found]
        if request.placement is PlacementPolicy.TOPOLOGY:
            # The better joined first: the second of a cost is the joined cards' sum, negative.
            return [cost and (cost[1], *cost) for cost in costs]
        return costs

    def _work_out(
        self, epoch: _Epoch, uid: PodUid, cpu: int, keys: Sequence[_Key], candidates: Sequence[RankedNode]
    ) -> _Epoch:
        """The costs of the first candidates that are not known, as many as a scheduler can wait for."""
        new = {key: place for place, key in enumerate(keys) if key not in epoch.known}
        most = MOST_PRICED if len(keys) - len(new) < MOST_PRICED else MOST_PRICED // 4
        moves = {
            key: self._rooms.change(uid, *candidates[place], cpu) for key, place in islice(new.items(), most)
        }
        if any(room.model not in epoch.scorer.stock for move in moves.values() for room in move.before):
            epoch = self._start()
        epoch.add(moves)
        return epoch

    def prices(self) -> list[float]:
        """What the loss of a place for several cards costs now."""
        return self._prices(self._current())

    def _prices(self, epoch: _Epoch) -> list[float]:
        with self._lock:
            return epoch.tally.prices(self._cluster)

    def _current(self) -> _Epoch:
        """The scorer to ask: the old one while a new one is being made."""
        with self._lock:
            for occupant in self._cluster.fresh():
                for shape in shapes_of(occupant, self._cluster.unit):
                    self._arrivals.add(shape)
            for occupant in self._cluster.gone():
                self._arrivals.leave(len(shapes_of(occupant, self._cluster.unit)))
            epoch = self._epoch
            if epoch is not None and len(epoch.known) > _MOST:
                epoch.known = {}
            refresh = epoch is not None and self._arrivals.due and not self._refreshing
            self._refreshing |= refresh
        if refresh:
            self._aside(self._refresh)
        return self._epoch or self._start()

    def _start(self) -> _Epoch:
        """A scorer for the cluster as it is now, at once."""
        stock = stock_of(self._cluster.snapshot().nodes.values())
        with self._lock:
            self._epoch = _Epoch(Scorer(self._arrivals.mix(), stock), self._rooms)
            return self._epoch

    def _refresh(self) -> None:
        """The same beside the old one, with the costs of what was asked of late worked out."""
        stock = stock_of(self._cluster.snapshot().nodes.values())
        with self._lock:
            old, mix = self._epoch, self._arrivals.mix()
            keys = [key for keys in self._recent.values() for key in keys]
            known = old.known if old else {}
        try:
            epoch = _Epoch(Scorer(mix, stock), self._rooms)
            moves = {key: known[key][1] for key in keys if key in known}
            epoch.add({k: m for k, m in moves.items() if all(room.model in stock for room in m.before)})
            with self._lock:
                self._epoch = epoch
        finally:
            self._refreshing = False

    def _remember(self, request: PodRequest, keys: list[_Key]) -> None:
        kind = tuple(c.request for c in request.containers), request.models, request.placement
        with self._lock:
            self._recent.pop(kind, None)
            self._recent[kind] = keys
            if len(self._recent) > _WARMED:
                del self._recent[next(iter(self._recent))]


def _in_a_thread(job: Callable[[], None]) -> None:
    threads.once("placement mix", job).start()


def stock_of(views: Iterable[NodeView]) -> dict[str, Stock]:
    """The cluster's cards by model, those out of order included: they come back."""
    stock: dict[str, Stock] = {}
    for view in views:
        for state in view.node.cards:
            units = state.card.capacity(view.node.unit).memory // view.node.unit
            known = stock.get(state.card.model, Stock(0, 0))
            stock[state.card.model] = Stock(known.cards + 1, max(known.memory, units))
    return stock


def shapes_of(occupant: PodView, unit: int) -> list[RequestShape]:
    """What a pod asks for, a shape for each of its parts that lies by itself; the first has its host CPU."""
    request = occupant.request(unit)
    shapes: list[RequestShape] = []
    for part in (request and units_of(request)) or ():
        amount = part.members[0].request.amount
        if not part.cards:
            held = (
                Allocation(PodUid(""), c.name, c.kind, c.order, (Share(_CARD, c.request.amount),))
                for c in part.members
            )
            amount = peak(held, _CARD)
        models = tuple(sorted(request.models)) if request else ()
        shapes.append(
            RequestShape(amount.cores, -(-amount.memory // unit), 0 if shapes else occupant.cpu, models)
        )
    return shapes
