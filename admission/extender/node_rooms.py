"""Nodes in the words of :mod:`gpu_manager.domain.score`: what is free on their cards, and what a pod
takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from admission.cluster.node_view import NodeView
from admission.extender.feasibility import Fit
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.pod import PodUid
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.multi_gpu_slots import Rooms
from gpu_manager.domain.score.request_mix import FreeShape

_MOST: Final = 1 << 16  # nodes' states remembered

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Free = tuple[tuple[int, int], ...]  # cores and units of memory free on each card
_Layout = tuple[
    tuple[str, int, tuple[int, ...]], ...
]  # model, size and positions of the cards that take work


class NodeChange(NamedTuple):
    """A node before and after a pod came, and how well the cards that it takes are joined."""

    before: Rooms
    after: Rooms
    joined: int


class NodeRooms:
    """Reads nodes; what it read is remembered by the node's state. Thread-safe."""

    def __init__(self) -> None:
        self._layouts: dict[int, _Layout] = {}
        self._free: dict[int, _Free] = {}
        self._rooms: dict[tuple[int, int | None], Rooms] = {}

    def of(self, view: NodeView) -> Rooms:
        """What is free on a node as it is."""
        known = self._rooms.get((view.state, view.cpu))
        if known is None:
            known = _grouped(self._layout(view), self._free_on(view), view.cpu)
            _keep(self._rooms, (view.state, view.cpu), known)
        return known

    def without(self, view: NodeView, uids: Sequence[PodUid]) -> Rooms:
        """What would be free on a node if these pods had left it."""
        return _grouped(self._layout(view), _free(view, view.without(uids)), view.cpu)

    def change(self, uid: PodUid, view: NodeView, fit: Fit, cpu: int) -> NodeChange:
        """The node without the pod, and as it would be with it. ``cpu``: host CPU that the pod asks for."""
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
    """The cards by model and size; those that take no work are left out."""
    unit, kinds = view.node.unit, dict[tuple[str, int], list[int]]()
    for at, state in enumerate(view.node.cards):
        if state.open:
            size = view.ledger.room(state.card.uuid).capacity.memory // unit
            kinds.setdefault((state.card.model, size), []).append(at)
    return tuple((model, size, tuple(positions)) for (model, size), positions in sorted(kinds.items()))


def _free(view: NodeView, ledger: Ledger) -> _Free:
    """Cores and units free on each card; 100 cores only where nobody holds any of it."""
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
