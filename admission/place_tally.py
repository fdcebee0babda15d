"""How many places for requests of several cards the cluster has left, kept up by what changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from admission.node_view import NodeView
from gpu_manager.domain.score.places import Places, Rooms

_Count = tuple[int, tuple[int, ...]]  # free cores, and places


class PlaceTally:
    """For one scorer. Not thread-safe."""

    def __init__(self, places: Places, rooms_of: Callable[[NodeView], Rooms]) -> None:
        self._places = places
        self._rooms_of = rooms_of
        self._seen: dict[str, tuple[NodeView, _Count]] = {}
        self._alike: dict[tuple[int, int | None], _Count] = {}

    def prices(self, nodes: Mapping[str, NodeView]) -> list[float]:
        """What one place less costs with the nodes as they are; empty if nobody asks for several cards."""
        if not self._places:
            return []
        seen = self._seen
        for name in seen.keys() - nodes.keys():
            del seen[name]
        for name, view in nodes.items():
            known = seen.get(name)
            if known is None or known[0] is not view:
                seen[name] = view, self._count(view)
        counts = [count for _, count in seen.values()]
        return self._places.prices(
            sum(free for free, _ in counts),
            [sum(column) for column in zip(*(held for _, held in counts), strict=True)],
        )

    def _count(self, view: NodeView) -> _Count:
        key = view.state, view.cpu
        if key not in self._alike:
            rooms = self._rooms_of(view)
            self._alike[key] = sum(room.cores for room in rooms), self._places.of(rooms)
        return self._alike[key]
