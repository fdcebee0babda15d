"""Which nodes are large enough for a request, and on which the least must end: kept up by what changed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from admission.cluster.node_view import NodeView
from admission.cluster.snapshot import ClusterState
from admission.extender.node_rooms import NodeRooms
from gpu_manager.domain.pod import PodUid
from gpu_manager.domain.score.multi_gpu_slots import MOST, left_to_end
from gpu_manager.domain.score.request_mix import RequestShape
from gpu_manager.domain.whatif.scheduling_constraints import PodConstraints

NodeContent = tuple[int, int | None]
"""State and free host CPU: nodes that are equal in both are kept together."""

_Able = tuple[int, int, str, NodeContent]
"""A node that is large enough: cores and pods that must end there first, its name and content."""


@dataclass(frozen=True, slots=True)
class LargestPart:
    """A pod's largest part, and where it may lie: not on cards of the ``closed`` models, and on nodes of the
    ``pools`` only, unless that is empty.
    """

    shape: RequestShape
    constraints: PodConstraints
    closed: frozenset[str] = frozenset()
    pools: tuple[str, ...] = ()


class NearestNodes:
    """The nodes that are large enough for a request, by what must end there first."""

    def __init__(self, asked: LargestPart, rooms: NodeRooms) -> None:
        self.asked = asked
        self._rooms = rooms
        self.turn = 0  # of the snapshot that was looked at last
        self._able: dict[str, _Able] = {}
        self._least: list[_Able] | None = []  # as many as can be kept; None: to be found again

    def of(self, cluster: ClusterState) -> list[NodeContent]:
        """Return as many as can be kept, those with the least to end first."""
        return [content for *_, content in self._look(cluster)]

    def first(self, cluster: ClusterState) -> tuple[str, int] | None:
        """The node with the least to end, and how many cores; None if none is large enough."""
        least = self._look(cluster)
        return (least[0][2], least[0][0]) if least else None

    def without(self, view: NodeView, uids: Sequence[PodUid]) -> int | None:
        """How many cores must end on that node beside what these pods hold; None if it is too small."""
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
    """What of the nodes decides whether they are large enough for a request, whatever lies on them. Unlike
    that it seldom changes.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._sizes: dict[str, Hashable] = {}
        self._changed = 0

    def changed(self, cluster: ClusterState) -> int:
        """Return the turn of the snapshot at which the last of them changed, or a node came."""
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
    """What pods of ours may have of the node in all."""
    return None if view.cpu is None else view.cpu + sum(pod.cpu for pod in view.bound.values())
