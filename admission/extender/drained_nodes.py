"""Nodes kept for pods of several cards for which their scheduler found none: kept up by what changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Final

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import ClusterState
from admission.extender.node_rooms import NodeRooms
from gpu_manager.domain.pod import PodUid
from gpu_manager.domain.score.draining import MOST, drained, left_to_end
from gpu_manager.domain.score.request_mix import RequestShape
from gpu_manager.domain.whatif.scheduling_constraints import PodConstraints

NodeContent = tuple[int, int | None]
"""State and free host CPU: nodes that are equal in both are kept together."""

_LOOKED: Final = 16  # pods that wait, at each question
_MOST_KNOWN: Final = 4096  # pods; the oldest go

_Asked = tuple[RequestShape, PodConstraints]


class _Nearest:
    """The nodes that are large enough for a request, by what must end there first."""

    def __init__(self, asked: _Asked, rooms: NodeRooms) -> None:
        self._shape, self._constraints = asked
        self._rooms = rooms
        self._turn = 0
        self._able: dict[str, tuple[int, int, str, NodeContent]] = {}  # cores and pods that must end, name

    def of(self, cluster: ClusterState) -> list[NodeContent]:
        """Return as many as can be kept, those with the least to end first."""
        snapshot, changed = cluster.news(self._turn)
        self._turn = snapshot.turn
        for view in changed:
            self._put(view)
        for name in self._able.keys() - snapshot.nodes.keys():
            del self._able[name]
        return [content for *_, content in nsmallest(MOST, self._able.values())]

    def _put(self, view: NodeView) -> None:
        self._able.pop(view.name, None)
        if view.problem or view.constraints.bars(self._constraints):
            return
        cpu = None if view.cpu is None else view.cpu + sum(pod.cpu for pod in view.bound.values())
        left = left_to_end(self._shape, self._rooms.of(view), cpu)
        if left is not None:
            self._able[view.name] = left, len(view.bound), view.name, (view.state, view.cpu)


class DrainedNodes:
    """Not thread-safe."""

    def __init__(self, rooms: NodeRooms) -> None:
        self._rooms = rooms
        self._came: dict[PodUid, _Asked] = {}  # pods of several cards, the first come first
        self._nearest: dict[_Asked, _Nearest] = {}

    def copy(self, rooms: NodeRooms) -> DrainedNodes:
        """The same pods, over other books."""
        other = DrainedNodes(rooms)
        other._came = self._came.copy()
        return other

    def came(self, pod: PodView, shapes: list[RequestShape]) -> None:
        """Take note of a new pod; of its parts the one of most cards counts."""
        largest = max(shapes, key=lambda shape: shape.cards, default=None)
        if pod.waits and largest is not None and largest.cards > 1:
            self._came[pod.uid] = largest, pod.constraints
            if len(self._came) > _MOST_KNOWN:
                del self._came[next(iter(self._came))]

    def kept(self, cluster: ClusterState) -> Mapping[NodeContent, int]:
        """Return which nodes are kept, and for how many cards."""
        if not self._came:
            return {}
        waiting = list(islice(self._waiting(cluster), _LOOKED))
        known = self._nearest
        self._nearest = {asked: known[asked] for asked in waiting if asked in known}
        # A new one looks at every node: one a question, so that no scheduler waits for several.
        new = next((asked for asked in waiting if asked not in known), None)
        if new is not None:
            self._nearest[new] = _Nearest(new, self._rooms)
        return drained(
            (asked[0].cards, self._nearest[asked].of(cluster)) for asked in waiting if asked in self._nearest
        )

    def _waiting(self, cluster: ClusterState) -> Iterator[_Asked]:
        """Those that wait still and found no node."""
        for uid, asked in list(self._came.items()):
            pod = cluster.pod(uid)
            if pod is None or not pod.waits:
                del self._came[uid]
            elif pod.unschedulable and uid not in cluster.snapshot().reserved:
                yield asked
