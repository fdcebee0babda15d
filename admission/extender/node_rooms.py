"""Nodes in the terms of :mod:`gpu_manager.domain.score`: free room, places for several cards, nearest nodes.

The number of places for requests of several cards, and the nodes that are large enough for a request and
closest to empty, are updated from the nodes that changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final, NamedTuple, TypeVar

from admission.cluster.node_view import NodeView
from admission.cluster.snapshot import ClusterState
from admission.extender.feasibility import Fit
from gpu_manager.domain.kube.constraints import PodConstraints
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.multi_gpu_slots import MOST, MultiGpuSlots, Rooms, left_to_end
from gpu_manager.domain.score.request_mix import FreeShape, RequestShape

_MOST: Final = 1 << 16  # cached node states

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Free = tuple[tuple[int, int], ...]  # cores and units of memory free on each card
_Layout = tuple[
    tuple[str, int, tuple[int, ...]], ...
]  # model, size and positions of the cards that take work


class NodeChange(NamedTuple):
    """A node before and after a pod is placed, and how well the pod's cards are joined."""

    before: Rooms
    after: Rooms
    joined: int


class NodeRooms:
    """Free room of nodes, cached by node state. Thread-safe."""

    def __init__(self) -> None:
        self._layouts: dict[int, _Layout] = {}
        self._free: dict[int, _Free] = {}
        self._rooms: dict[tuple[int, int | None], Rooms] = {}

    def of(self, view: NodeView) -> Rooms:
        """The present free room on a node."""
        known = self._rooms.get((view.state, view.cpu))
        if known is None:
            known = _grouped(self._layout(view), self._free_on(view), view.cpu)
            _keep(self._rooms, (view.state, view.cpu), known)
        return known

    def without(self, view: NodeView, uids: Sequence[PodUid]) -> Rooms:
        """The free room on a node if these pods had left it."""
        return _grouped(self._layout(view), _free(view, view.without(uids)), view.cpu)

    def change(self, uid: PodUid, view: NodeView, fit: Fit, cpu: int) -> NodeChange:
        """The node without the pod, and with it. ``cpu``: host CPU that the pod requests."""
        layout, spare, own = self._layout(view), view.cpu, view.bound.get(uid)
        if own is None:
            before, free = self.of(view), list(self._free_on(view))
        else:
            free = list(_free(view, view.without([uid])))
            spare = None if spare is None else spare + own.cpu
            before = _grouped(layout, free, spare)
        for at, amount in fit.taken:
            cores, units = free[at]
            free[at] = max(0, cores - amount.cores), max(0, units - amount.memory // view.node.unit)
        joined = view.node.topology.sum([at for at, _ in fit.taken]) if len(fit.taken) > 1 else 0
        return NodeChange(before, _grouped(layout, free, None if spare is None else spare - cpu), joined)

    def _free_on(self, view: NodeView) -> _Free:
        known = self._free.get(view.state)
        if known is None:
            known = _free(view, view.ledger)
            _keep(self._free, view.state, known)
        return known

    def _layout(self, view: NodeView) -> _Layout:
        known = self._layouts.get(view.hardware)
        if known is None:
            known = _layout(view)
            _keep(self._layouts, view.hardware, known)
        return known


def _keep(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    if len(known) >= _MOST:
        known.clear()
    known[key] = value


def _layout(view: NodeView) -> _Layout:
    """The cards by model and size, without cards that take no work."""
    unit, kinds = view.node.unit, dict[tuple[str, int], list[int]]()
    for at, state in enumerate(view.node.cards):
        if state.open:
            size = view.ledger.room(state.card.uuid).capacity.memory // unit
            kinds.setdefault((state.card.model, size), []).append(at)
    return tuple((model, size, tuple(positions)) for (model, size), positions in sorted(kinds.items()))


def _free(view: NodeView, ledger: Ledger) -> _Free:
    """Free cores and memory units of each card; 100 cores only if no pod holds any of the card."""
    unit, free = view.node.unit, []
    for state in view.node.cards:
        room = ledger.room(state.card.uuid)
        cores, memory = room.left
        most = CORES_PER_CARD if room.idle else CORES_PER_CARD - 1
        free.append((max(0, min(cores, most)), max(0, memory) // unit))
    return tuple(free)


def _grouped(layout: _Layout, free: Sequence[tuple[int, int]], cpu: int | None) -> Rooms:
    return tuple(
        FreeShape(model, size, cpu, tuple(sorted([free[at] for at in positions])))
        for model, size, positions in layout
    )


class MultiGpuCount:
    """Counts places for requests of several cards, for one scorer. Not thread-safe."""

    def __init__(self, places: MultiGpuSlots, rooms: NodeRooms) -> None:
        self._places = places
        self._rooms = rooms
        self.turn = 0  # the generation of the snapshot that was counted last
        self._seen: dict[str, tuple[int, ...]] = {}  # node → free cores, and places of each shape
        self._alike: dict[tuple[int, int | None], tuple[int, ...]] = {}
        self._totals = (0,) * (1 + len(places))
        self._prices: list[float] = []

    def prices(self, cluster: ClusterState) -> list[float]:
        """The present price of losing one place; empty if no pod requests several cards."""
        if not self._places:
            return []
        snapshot, changed = cluster.news(self.turn)
        if snapshot.turn == self.turn and self._prices:
            return self._prices
        self.turn = snapshot.turn
        for view in changed:
            self._put(view.name, self._count(view))
        if len(self._seen) > len(snapshot.nodes):
            for name in self._seen.keys() - snapshot.nodes.keys():
                self._put(name, ())
        free, *places = self._totals
        self._prices = self._places.prices(free, places)
        return self._prices

    def _put(self, name: str, now: tuple[int, ...]) -> None:
        nothing = (0,) * len(self._totals)
        before = self._seen.pop(name, nothing)
        if now:
            self._seen[name] = now
        each = zip(self._totals, before, now or nothing, strict=True)
        self._totals = tuple(total - was + new for total, was, new in each)

    def _count(self, view: NodeView) -> tuple[int, ...]:
        key = view.state, view.cpu
        if key not in self._alike:
            rooms = self._rooms.of(view)
            self._alike[key] = sum(room.cores for room in rooms), *self._places.of(rooms)
        return self._alike[key]


NodeContent = tuple[int, int | None]
"""State and free host CPU: nodes that are equal in both are kept together."""

_Able = tuple[int, int, str, NodeContent]
"""A node that is large enough: cores and pods that must end there first, its name and content."""


@dataclass(frozen=True, slots=True)
class LargestPart:
    """A pod's largest part and where it may be placed: not on cards of the ``closed`` models, and only on
    nodes of the ``pools`` if there are any.
    """

    shape: RequestShape
    constraints: PodConstraints
    closed: frozenset[str] = frozenset()
    pools: tuple[str, ...] = ()


class NearestNodes:
    """The nodes that are large enough for a request, sorted by what must end there first."""

    def __init__(self, asked: LargestPart, rooms: NodeRooms) -> None:
        self.asked = asked
        self._rooms = rooms
        self.turn = 0  # of the last snapshot read
        self._able: dict[str, _Able] = {}
        self._least: list[_Able] | None = []  # as many as can be drained; None: to be computed again

    def of(self, cluster: ClusterState) -> list[NodeContent]:
        """The nodes with the least to end, as many as can be drained."""
        return [content for *_, content in self._look(cluster)]

    def first(self, cluster: ClusterState) -> tuple[str, int] | None:
        """The node with the least to end, and how many cores must end; None if no node is large enough."""
        least = self._look(cluster)
        return (least[0][2], least[0][0]) if least else None

    def without(self, view: NodeView, uids: Sequence[PodUid]) -> int | None:
        """How many cores must end on that node beside these pods'; None if the node is too small."""
        rooms = [room for room in self._rooms.without(view, uids) if room.model not in self.asked.closed]
        return left_to_end(self.asked.shape, tuple(rooms), None)

    def _look(self, cluster: ClusterState) -> list[_Able]:
        before = self.turn
        snapshot, changed = cluster.news(before)
        self.turn = snapshot.turn
        for view in changed:
            self._put(view)
        if snapshot.names_turn > before:
            for name in self._able.keys() - snapshot.nodes.keys():
                self._drop(name)
        if self._least is None:
            self._least = nsmallest(MOST, self._able.values())
        return self._least

    def _drop(self, name: str) -> None:
        known = self._able.pop(name, None)
        if self._least is not None and known in self._least:
            self._least = None

    def _put(self, view: NodeView) -> None:
        self._drop(view.name)
        asked = self.asked
        if view.problem or view.constraints.bars(asked.constraints):
            return
        if asked.pools and view.node.pool not in asked.pools:
            return
        cpu = _host_cpu(view)
        rooms = tuple(room for room in self._rooms.of(view) if room.model not in asked.closed)
        left = left_to_end(asked.shape, rooms, cpu)
        if left is None:
            return
        able = self._able[view.name] = left, len(view.bound), view.name, (view.state, view.cpu)
        if self._least is not None and (len(self._least) < MOST or able < self._least[-1]):
            self._least = None


class NodeSizes:
    """The properties of nodes that decide whether they are large enough for a request, whatever they hold.
    They change seldom.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._sizes: dict[str, Hashable] = {}
        self._changed = 0

    def changed(self, cluster: ClusterState) -> int:
        """The generation of the snapshot in which one of these properties last changed, or a node came."""
        before = self._turn
        snapshot, views = cluster.news(before)
        self._turn = snapshot.turn
        for view in views:
            size = view.hardware, view.problem, view.constraints, view.node.pool, _host_cpu(view)
            if self._sizes.get(view.name) != size:
                self._sizes[view.name] = size
                self._changed = snapshot.turn
        if snapshot.names_turn > before:
            for name in self._sizes.keys() - snapshot.nodes.keys():
                del self._sizes[name]
        return self._changed


def _host_cpu(view: NodeView) -> int | None:
    """Host CPU of the node that pods with cards may have in all."""
    return None if view.cpu is None else view.cpu + sum(pod.cpu for pod in view.bound.values())
