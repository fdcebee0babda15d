"""Nodes drained for pods of several cards that no node can take now; updated from changes only.

At most two nodes are drained by preference; one of them is closed to smaller pods once the pod has waited
long (:mod:`gpu_manager.domain.score.closing`). Pods that no node could ever take are set aside, so that they
do not block others, and checked again one at a time, since nodes come and change.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import Final

from admission.cluster.node_view import KeptFor
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.extender.node_rooms import LargestPart, NearestNodes, NodeContent, NodeRooms, NodeSizes
from gpu_manager.domain.cluster.quota import NamespaceQuota, Quota
from gpu_manager.domain.kube.constraints import PodConstraints
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.score.closing import NodeClosing, Tenants
from gpu_manager.domain.score.multi_gpu_slots import drained
from gpu_manager.domain.score.request_mix import RequestShape, Stock

_LOOKED: Final = 16  # waiting pods considered in each call
_MOST_NEAREST: Final = 64  # distinct requests whose nodes are kept sorted
_MOST_KNOWN: Final = 4096  # pods; the oldest are dropped


@dataclass(frozen=True, slots=True)
class QuotaBounds:
    """The bounds for judging waiting pods: the quotas (None: no namespace is limited), and the cluster's
    cards by model, with memory in units of ``unit`` bytes.
    """

    quota: Quota | None
    stock: Mapping[str, Stock]
    unit: int


@dataclass(frozen=True, slots=True)
class _Pod:
    namespace: str
    shapes: tuple[RequestShape, ...]  # of the pod's parts
    constraints: PodConstraints

    @property
    def cards(self) -> int:
        """Number of cards of the pod's largest part."""
        return max(shape.cards for shape in self.shapes)

    def asked(
        self, quota: NamespaceQuota | None, used: Mapping[str, Amount], bounds: QuotaBounds
    ) -> LargestPart:
        """The largest part that the pod may have under its namespace's quota, of which ``used`` is in use."""
        largest = max(self.shapes, key=lambda shape: shape.cards)
        if quota is None:
            return LargestPart(largest, self.constraints)
        whole = {model: _charge(self.shapes, stock, bounds.unit) for model, stock in bounds.stock.items()}
        closed = frozenset(model for model, amount in whole.items() if quota.passed(used, {model: amount}))
        return LargestPart(largest, self.constraints, closed, quota.pools)


def _running(snapshot: Snapshot, namespace: str) -> int:
    """Number of the namespace's pods on nodes."""
    return sum(o.pod.namespace == namespace for view in snapshot.nodes.values() for o in view.bound.values())


def _but_for_own(
    namespace: str, nearest: NearestNodes, snapshot: Snapshot, node: str, to_end: int
) -> tuple[str, int]:
    """The node, and how many cores must end there; 0 if only pods of this namespace stand in the way."""
    if to_end:
        view = snapshot.nodes[node]
        own = [uid for uid, occupant in view.bound.items() if occupant.pod.namespace == namespace]
        if own and nearest.without(view, own) == 0:
            return node, 0
    return node, to_end


def _charge(shapes: Sequence[RequestShape], stock: Stock, unit: int) -> Amount:
    """Amount that the shapes take on cards of one model; a whole card counts with all of its memory."""
    return Amount(
        sum(shape.cores for shape in shapes),
        unit * sum(shape.cards * stock.memory or shape.memory for shape in shapes),
    )


class DrainedNodes:
    """Chooses the nodes to drain. Not thread-safe."""

    def __init__(self, rooms: NodeRooms) -> None:
        self._rooms = rooms
        self._came: dict[PodUid, _Pod] = {}  # pods of several cards, oldest first
        self._nearest: dict[LargestPart, NearestNodes] = {}  # least recently used first
        self._closing = NodeClosing[PodUid, str]()
        self._nowhere: dict[PodUid, NearestNodes] = {}  # fit no node; least recently checked first
        self._sizes = NodeSizes()

    def copy(self, rooms: NodeRooms) -> DrainedNodes:
        """A copy with the same pods over other nodes. Which node is closed is part of the cluster's state."""
        other = DrainedNodes(rooms)
        other._came = self._came.copy()
        return other

    def came(self, pod: PodView, shapes: list[RequestShape]) -> None:
        """Record a new pod; the part with the most cards counts."""
        if pod.waits and any(shape.cards > 1 for shape in shapes):
            self._came[pod.uid] = _Pod(pod.pod.namespace, tuple(shapes), pod.constraints)
            if len(self._came) > _MOST_KNOWN:
                del self._came[next(iter(self._came))]

    def left(self, namespaces: Iterable[str]) -> None:
        """Record that pods of these namespaces have left their nodes."""
        for namespace in namespaces:
            self._closing.left(1, namespace)

    def close(self, cluster: ClusterState, bounds: QuotaBounds, now: float) -> None:
        """Close the next node due to smaller pods, and open the one whose time is over; ``now`` in
        seconds.
        """
        snapshot = cluster.snapshot()
        self._look_again(cluster, snapshot, bounds)
        unschedulable = {uid: each.cards for uid, each, pod in self._known(cluster) if pod.unschedulable}
        before = self._closing.closed
        if before is not None and before.left and before.pod in snapshot.reserved:
            self._closing.hold(now)  # the pod has a place: others may use the rest of the node
            cluster.keep("", None)
            return
        if before is None and not unschedulable:
            self._nearest.clear()
            self._closing.hold(now)
            cluster.keep("", None)
            return
        new = [True]  # one per call, as for the drained nodes
        own: dict[tuple[str, LargestPart], tuple[str, int]] = {}

        def nearest(uid: PodUid) -> tuple[str, int] | None:
            if uid in self._nowhere and (before is None or uid != before.pod):
                return None
            asked = self._may_have(uid, snapshot, bounds)
            known = None if asked is None else self._nearest_of(asked, new)
            if known is None:
                return None
            found = known.first(cluster)
            if found is None:
                self._set_aside(uid, known)
                return None
            self._nowhere.pop(uid, None)
            about = self._came[uid].namespace, known.asked
            if about not in own:
                own[about] = _but_for_own(about[0], known, snapshot, *found)
            return own[about]

        running = sum(len(view.bound) for view in snapshot.nodes.values())
        tenants: Tenants[PodUid] = Tenants(
            lambda uid: self._came[uid].namespace,
            cache(partial(_running, snapshot)),
            lambda uid: (pod := cluster.pod(uid)) is not None and pod.occupies,
        )
        closed = self._closing.look(unschedulable, running, nearest, now, tenants)
        waits = None if closed is None else cluster.pod(closed.pod)
        if closed is None or waits is None:
            cluster.keep("", None)
        else:
            seconds = None if closed.seconds is None else round(closed.seconds)
            cluster.keep(closed.node, KeptFor(waits.pod, closed.cards, closed.left, seconds))

    def kept(self, cluster: ClusterState, bounds: QuotaBounds) -> Mapping[NodeContent, int]:
        """The drained nodes, and the number of cards for which each is drained."""
        if not self._came:
            return {}
        snapshot = cluster.snapshot()
        self._look_again(cluster, snapshot, bounds)
        could = (
            (uid, self._may_have(uid, snapshot, bounds))
            for uid, _, pod in self._known(cluster, without=self._nowhere)
            if pod.unschedulable
        )
        waiting = list(islice(((uid, asked) for uid, asked in could if asked is not None), _LOOKED))
        new = [True]
        known = [(uid, asked, self._nearest_of(asked, new)) for uid, asked in waiting]
        return drained(
            (asked.shape.cards, self._nearest_to(uid, nearest, cluster))
            for uid, asked, nearest in known
            if nearest is not None
        )

    def _nearest_of(self, asked: LargestPart, new: list[bool]) -> NearestNodes | None:
        """The nodes for a request, shared by all pods with that request. Computing them for a new request
        visits every node, and no scheduler should wait for several of those: only the first is answered,
        which empties ``new``.
        """
        known = self._nearest.pop(asked, None)
        if known is None and not new:
            return None
        if known is None:
            new.clear()
            known = NearestNodes(asked, self._rooms)
        self._nearest[asked] = known
        if len(self._nearest) > _MOST_NEAREST:
            del self._nearest[next(iter(self._nearest))]
        return known

    def _nearest_to(self, uid: PodUid, nearest: NearestNodes, cluster: ClusterState) -> list[NodeContent]:
        """The nodes where the least must end for a pod; the pod is set aside if no node could take it."""
        found = nearest.of(cluster)
        if not found:
            self._set_aside(uid, nearest)
        return found

    def _set_aside(self, uid: PodUid, nearest: NearestNodes) -> None:
        self._nowhere[uid] = nearest
        self._nearest = {nearest.asked: nearest, **self._nearest}  # the first to be dropped

    def _look_again(self, cluster: ClusterState, snapshot: Snapshot, bounds: QuotaBounds) -> None:
        """Check one of the pods that were set aside; it waits again if some node can take it now."""
        uid = next(iter(self._nowhere), None)
        if uid is None:
            return
        nearest = self._nowhere.pop(uid)
        if uid not in self._came or self._may_have(uid, snapshot, bounds) != nearest.asked:
            return
        looked = nearest.turn >= self._sizes.changed(cluster)
        if looked or nearest.first(cluster) is None:
            self._nowhere[uid] = nearest

    def _known(
        self, cluster: ClusterState, without: Container[PodUid] = ()
    ) -> Iterator[tuple[PodUid, _Pod, PodView]]:
        """The pods that still wait; drops all others."""
        for uid, each in list(self._came.items()):
            if uid in without:
                continue
            pod = cluster.pod(uid)
            if pod is not None and pod.waits:
                yield uid, each, pod
                continue
            del self._came[uid]
            if pod is not None and pod.occupies:
                self._closing.started(uid, each.cards, pod.pod.node)

    def _may_have(self, uid: PodUid, snapshot: Snapshot, bounds: QuotaBounds) -> LargestPart | None:
        """The pod's largest part; None if it is about to be placed, or if its namespace's quota would refuse
        it.
        """
        each = self._came[uid]
        if uid in snapshot.reserved:
            return None
        quota = bounds.quota.of(each.namespace) if bounds.quota else None
        asked = each.asked(quota, snapshot.used.get(each.namespace, {}), bounds)
        return None if asked.closed.issuperset(bounds.stock) else asked
