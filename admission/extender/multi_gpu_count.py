"""How many places for requests of several cards the cluster has left, kept up by what changed."""

from __future__ import annotations

from admission.cluster.node_view import NodeView
from admission.cluster.snapshot import ClusterState
from admission.extender.node_rooms import NodeRooms
from gpu_manager.domain.score.multi_gpu_slots import MultiGpuSlots


class MultiGpuCount:
    """For one scorer. Not thread-safe."""

    def __init__(self, places: MultiGpuSlots, rooms: NodeRooms) -> None:
        self._places = places
        self._rooms = rooms
        self._turn = 0
        self._seen: dict[str, tuple[int, ...]] = {}  # node → free cores, and places of each shape
        self._alike: dict[tuple[int, int | None], tuple[int, ...]] = {}
        self._totals = (0,) * (1 + len(places))

    def prices(self, cluster: ClusterState) -> list[float]:
        """What one place less costs with the nodes as they are; empty if nobody asks for several cards."""
        if not self._places:
            return []
        snapshot, changed = cluster.news(self._turn)
        self._turn = snapshot.turn
        for view in changed:
            self._put(view.name, self._count(view))
        if len(self._seen) > len(snapshot.nodes):
            for name in self._seen.keys() - snapshot.nodes.keys():
                self._put(name, ())
        free, *places = self._totals
        return self._places.prices(free, places)

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
