"""The cluster as the extender sees it: maintained from one watch, read as immutable values.

:class:`Cluster` applies what the watch shows and what this process is about to bind; :meth:`Cluster.snapshot`
is its state at one moment. Only nodes with changes are rebuilt.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from admission.cluster.claims import CLAIMS, CLASSES, OF_CLAIMS, ClusterClaims
from admission.cluster.node_view import KeptFor, KeptNode, NodeFacts, NodeView
from admission.cluster.nodes import Built, Nodes, OnNode, name_of
from admission.cluster.other_pods import DeletedPods, OtherPods
from admission.cluster.pod_books import PodBooks
from admission.cluster.pod_view import PodView, read_pod_view
from admission.config import KEEP_SECONDS
from gpu_manager.domain.cluster.node_books import Used, added, terminating_shares
from gpu_manager.domain.contract import NAMESPACE
from gpu_manager.domain.kube.evictions import DisruptionBudget, read_budget
from gpu_manager.domain.kube.pod import MIRROR, PodUid
from gpu_manager.domain.untrusted import mapping, text, timestamp

NODES: Final = "nodes"
PODS: Final = "pods"
BUDGETS: Final = "poddisruptionbudgets"
Obj = Mapping[str, Any]
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The cluster at one moment. ``used`` counts claims, and pods that are bound or being bound, by model of
    card, ``protected`` the part in protected shares.

    ``claimed`` is the part of both that claims without a device may come to hold.
    ``reserved``: each pod whose Binding is in progress or expected, and its node. ``unit``: bytes of one
    unit. ``turn`` is the generation, which rises whenever nodes are rebuilt; ``names_turn`` is the generation
    at which a node last came or went.
    """

    nodes: Mapping[str, NodeView]
    used: Used
    protected: Used
    reserved: Mapping[PodUid, str]
    budgets: tuple[DisruptionBudget, ...]
    unit: int
    turn: int
    names_turn: int
    claimed: tuple[Used, Used] = ({}, {})


def _locked(method: Callable[Concatenate[PodBooks, P], T]) -> Callable[Concatenate[ClusterState, P], T]:
    """The method of the pods' books as one of the state, which holds its lock meanwhile."""

    @wraps(method)
    def locked(state: ClusterState, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with state.lock:
            return method(state._pods, *args, **kwargs)  # noqa: SLF001  # the state's own

    return locked


class ClusterState:
    """The state of the cluster. Thread-safe; no I/O happens while the lock is held.

    ``unit``: bytes of one unit of memory. ``by_capacity``: nodes without an inventory are judged by their
    capacity. ``keep_seconds``: for how long the place of a pod is kept at most until it is bound.
    ``namespace`` is that of the agents' pods.
    """

    def __init__(
        self,
        unit: int,
        *,
        by_capacity: bool = False,
        keep_seconds: float = KEEP_SECONDS,
        namespace: str = NAMESPACE,
    ) -> None:
        self.unit = unit
        self._lock = threading.RLock()
        self._nodes = Nodes(unit, by_capacity=by_capacity)
        self._pods = PodBooks(keep_seconds)
        self.workloads = self._pods.workloads
        self.claims = ClusterClaims(unit, self._nodes.offered)
        self._others = OtherPods(namespace)
        self._deleted = DeletedPods()
        self._budgets: dict[Hashable, DisruptionBudget] = {}
        self._kept = KeptNode()
        self._dirty = self._pods.changed  # the same set: nodes to be built anew, whatever changed there
        self._since = math.inf
        self._synced: set[str] = set()
        self._versions: dict[str, dict[Hashable, str]] = {}  # kind → identity → resourceVersion taken in
        self._latest: dict[str, int] = {}  # kind → the highest that was ever taken in
        self._snapshot: Snapshot | None = None
        self._silent = 0  # nodes that did not say what became of a deleted pod

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Hold it to read, judge and reserve as one step. Re-entrant."""
        return self._lock

    @property
    def lapsed(self) -> int:
        """How often room became free without a watch event: pods that were not bound after all."""
        return self._pods.lapsed + self._silent

    def without_feature(self, feature: str) -> str:
        """A replica of this service that cannot do that, by its pod's annotation; empty if all can."""
        with self._lock:
            return self._others.without_feature(feature)

    @property
    def synced(self) -> bool:
        """True once a full list of nodes and one of pods have been taken in."""
        return {NODES, PODS} <= self._synced

    @property
    def knows_claims(self) -> bool:
        """True once claims and their classes have been listed, too."""
        return {CLAIMS, CLASSES} <= self._synced

    def shown(self, kind: str) -> int:
        """The highest resourceVersion applied for that kind, so that all earlier changes are known; 0 if
        none.
        """
        with self._lock:
            return self._latest.get(kind, 0)

    def copy(self) -> ClusterState:
        """An independent copy of the state, for what-if questions."""
        with self._lock:
            self.snapshot()  # then no node waits to be built
            other = ClusterState(self.unit)
            other._nodes, other._others = self._nodes.copy(), self._others.copy()
            other.claims = self.claims.copy(other._nodes.offered)
            other._pods = self._pods.copy()
            other.workloads, other._dirty = other._pods.workloads, other._pods.changed
            other._deleted, other._budgets = self._deleted.copy(), self._budgets.copy()
            other._kept = replace(self._kept)
            other._since, other._synced = self._since, self._synced.copy()
            return other

    def copy_without(self, pods: Iterable[PodUid]) -> ClusterState:
        """An independent copy as if these pods had gone."""
        other = self.copy()
        other.evacuate(pods)
        return other

    def evacuate(self, pods: Iterable[PodUid]) -> None:
        """Forget these pods, as if their nodes had reported that all of their processes have ended."""
        with self._lock:
            for uid in pods:
                self._pods.forget(uid)

    def arrive(self, pod: PodView) -> None:
        """Add a new pod, as if the watch had shown it."""
        with self._lock:
            self._pods.take(pod)

    # What the watch shows.

    def apply(self, kind: str, event: str, obj: Mapping[str, Any]) -> None:
        """One change: ``kind`` as in the API's paths, ``event`` ADDED, MODIFIED or DELETED."""
        with self._lock:
            gone = event == "DELETED"
            self._note_version(kind, obj, gone=gone)
            if kind == PODS:
                self._apply_pod(obj, gone=gone)
            elif kind == NODES:
                self._apply_node(obj, gone=gone)
            elif kind == BUDGETS:
                budget = read_budget(obj)
                if budget is not None and gone:
                    self._budgets.pop((budget.namespace, budget.name), None)
                elif budget is not None:
                    self._budgets[budget.namespace, budget.name] = budget
                self._snapshot = None
            elif kind in OF_CLAIMS:
                self._dirty |= self.claims.apply(kind, obj, gone=gone)
                self._snapshot = None

    def replace(
        self, kind: str, objects: Iterable[Obj], take: Callable[[Obj], None] | None = None
    ) -> frozenset[Any]:
        """Apply a full list, requested after every change applied so far: objects not in it are gone.

        ``objects`` is iterated and each object applied by ``take`` (default: as it is), with the lock
        released in between. Objects already known in that version are skipped. If ``objects`` raises, the
        rest is unchanged. Returns the identities of all listed objects: of a pod its UID.
        """
        listed: set[Hashable] = set()
        known = self._versions.setdefault(kind, {})
        for obj in objects:
            identity = identity_of(kind, obj)
            listed.add(identity)
            version = mapping(obj.get("metadata")).get("resourceVersion")
            if version is not None and known.get(identity) == version:
                continue
            if take is None:
                self.apply(kind, "ADDED", obj)
            else:
                take(obj)
        with self._lock:
            self._keep_alone(kind, listed)
            for identity in known.keys() - listed:
                del known[identity]
            self._synced.add(kind)
            self._snapshot = None
        return frozenset(listed)

    def _keep_alone(self, kind: str, listed: AbstractSet[Any]) -> None:
        if kind == PODS:
            unseen = [pod.uid for pod in self._pods.all() if pod.uid not in listed]
            for uid in unseen:  # deleted while the watch was down: whether it had ended was not shown
                self._count_until_told(uid)
            for uid in unseen:
                self._pods.forget(uid)
            self._dirty |= self._others.keep(listed)
        elif kind == NODES:
            for name in [name for name in self._nodes.known() if name not in listed]:
                self._drop_node(name)
        elif kind == BUDGETS:
            self._budgets = {key: one for key, one in self._budgets.items() if key in listed}
        elif kind in OF_CLAIMS:
            self._dirty |= self.claims.keep(kind, listed)

    # What this process is about to bind, and what is known of pods: the books' own methods under the lock.

    reserve = _locked(PodBooks.reserve)
    expect = _locked(PodBooks.expect)
    expected_on = _locked(PodBooks.expected_on)
    reserved_on = _locked(PodBooks.reserved_on)
    release = _locked(PodBooks.release)
    give_up = _locked(PodBooks.give_up)
    give_up_all = _locked(PodBooks.give_up_all)
    learn = _locked(PodBooks.learn)
    answer = _locked(PodBooks.answer)
    resizing = _locked(PodBooks.resizing)
    pod = _locked(PodBooks.get)
    named = _locked(PodBooks.named)
    fresh = _locked(PodBooks.came)
    gone = _locked(PodBooks.left)

    def withdraw(self, uids: Iterable[PodUid]) -> None:
        """Give up places that were assumed a moment ago: no pod was refused for them, so nothing is
        requeued.
        """
        with self._lock:
            for uid in uids:
                self._pods.unexpect(uid)

    def expire(self, now: float) -> None:
        """End the expectations whose time is over, and shares of deleted pods on nodes that do not report
        them.
        """
        with self._lock:
            silent = self._deleted.expire(now)
            self._dirty |= silent
            self._silent += len(silent)
            self._pods.expire(now)

    def change_claims(self, change: Callable[[ClusterClaims], None]) -> None:
        """Change the accounting of claims that are about to be created."""
        with self._lock:
            change(self.claims)
            self._snapshot = None

    def expire_claims(self, now: float) -> None:
        """End the wait for claims that were let pass and not created; only while the watch is up."""
        with self._lock:
            self._snapshot = None if self.claims.expire(now) else self._snapshot

    def follow(self, built: Built) -> None:
        """Have ``built`` called, with the lock held, for every node that is built from now on."""
        with self._lock:
            self._nodes.built = built

    def rebuild(self, changed: Mapping[str, tuple[NodeFacts | None, OnNode]]) -> None:
        """Build these nodes from what :meth:`follow` told another process of them."""
        with self._lock:
            for name, (facts, _) in changed.items():
                self._nodes.take_facts(name, facts)
            self._nodes.build({name: on_node for name, (_, on_node) in changed.items()})
            self._snapshot = None

    def keep(self, node: str, kept: KeptFor | None) -> None:
        """Close the node to smaller pods, and open the one that was closed; without ``kept`` none is
        closed.
        """
        with self._lock:
            self._dirty |= self._kept.change(node, kept)

    # What is known.

    @property
    def since(self) -> float:
        """When the oldest node was created, in seconds since 1970; infinite if no node has a time."""
        return self._since

    def waiting(self, namespace: str | None = None) -> tuple[PodView, ...]:
        """Pods that wait for a node, of one namespace or of all."""
        with self._lock:
            pods = [o for o in self._pods.all() if o.waits]
        return tuple(o for o in pods if namespace is None or o.pod.namespace == namespace)

    def snapshot(self) -> Snapshot:
        """The present state; the same object until something changes."""
        with self._lock:
            if self._snapshot is None or self._dirty:
                self._snapshot = replace(self.glance(), nodes=self._nodes.views)
            return self._snapshot

    def glance(self) -> Snapshot:
        """The present state without copying thousands of nodes, for callers that hold :attr:`lock` and keep
        no reference.
        """
        self._build()
        if self._snapshot is not None:
            return self._snapshot
        claimed = self.claims.used(), self.claims.protected()
        return Snapshot(
            nodes=self._nodes.live,
            used=added(self._nodes.used, claimed[0]),
            protected=added(self._nodes.protected, claimed[1]),
            reserved=self._pods.reserved(),
            budgets=tuple(self._budgets.values()),
            unit=self.unit,
            turn=self._nodes.turn,
            names_turn=self._nodes.names_turn,
            claimed=claimed,
        )

    def build(self) -> None:
        """Build the nodes anew on which something changed, that the next snapshot is there sooner."""
        with self._lock:
            self._build()

    def news(self, turn: int) -> tuple[Snapshot, list[NodeView]]:
        """The snapshot, and its nodes that were rebuilt after that generation."""
        with self._lock:
            snapshot = self.snapshot()
            return snapshot, [snapshot.nodes[name] for name in self._nodes.since(turn)]

    def view_of(self, obj: Mapping[str, Any]) -> NodeView:
        """The view of a node offered with its object: the known one, else one from that object alone.

        The second case is a cluster autoscaler's question about nodes that do not exist yet.
        """
        with self._lock:
            known = self.snapshot().nodes.get(name_of(obj))
            return self._nodes.imagined(obj) if known is None else known

    # Every method below is called with the lock held.

    def _note_version(self, kind: str, obj: Obj, *, gone: bool) -> None:
        known, version = (
            self._versions.setdefault(kind, {}),
            mapping(obj.get("metadata")).get("resourceVersion"),
        )
        if isinstance(version, str) and version.isdecimal():
            self._latest[kind] = max(self._latest.get(kind, 0), int(version))
        if gone or not isinstance(version, str):
            known.pop(identity_of(kind, obj), None)
        else:
            known[identity_of(kind, obj)] = version

    # Pods.

    def _apply_pod(self, obj: Mapping[str, Any], *, gone: bool) -> None:
        uid = _uid(obj)
        if gone:
            self._deleted_on_its_node(uid, obj)
            self._pods.forget(uid)
            self._dirty |= self._others.drop(uid)
            return
        occupant = read_pod_view(obj)
        if occupant is not None and occupant.pod.terminal:
            self._pods.forget(uid)  # it holds nothing; objects of ended jobs may stay for days
            self._dirty |= self._others.drop(uid)
        elif occupant is None:
            self._pods.forget(uid)  # it asks for nothing of ours: then it holds nothing but CPU
            self._dirty |= self._others.take(uid, obj)
        else:
            self._pods.take(occupant)

    def _deleted_on_its_node(self, uid: PodUid, obj: Mapping[str, Any]) -> None:
        """A pod that the kubelet has ended is shown as ended before it is deleted; any other may still
        run. The mirror of a static pod says nothing of that pod: another mirror comes.
        """
        last = read_pod_view(obj)
        if last is None or not last.pod.terminal:
            self._count_until_told(uid)

    def _count_until_told(self, uid: PodUid) -> None:
        """Count the pod, which is about to be forgotten, until its node says that its processes are gone."""
        occupant = self._pods.get(uid)
        if occupant is None or not occupant.occupies or MIRROR in occupant.pod.annotations:
            return
        report = self._nodes.report(occupant.pod.node)
        if report is not None and report.released is not None:
            view = self.snapshot().nodes[occupant.pod.node]
            self._deleted.add(uid, report, terminating_shares(view.ledger, [uid]))

    def _build(self) -> None:
        if self._dirty:
            self._nodes.build({name: self._on_node(name) for name in sorted(self._dirty)})
            self._dirty.clear()
            self._snapshot = None

    def _on_node(self, node: str) -> OnNode:
        pods = self._pods.on(node)
        others, deleted = self._others.cpu(node), self._deleted.on(node)
        kept, away = self._kept.on(node), self._others.agent_away(node)
        return OnNode(pods, others, deleted, self.claims.on(node), kept, away)

    # Nodes.

    def _apply_node(self, obj: Mapping[str, Any], *, gone: bool) -> None:
        if gone:
            self._drop_node(name_of(obj))
        elif self._nodes.take(obj):
            self._dirty.add(name_of(obj))
            created = timestamp(mapping(obj.get("metadata")).get("creationTimestamp"))
            self._since = self._since if created is None else min(self._since, created)
            if (report := self._nodes.report(name_of(obj))) is not None:
                self._deleted.hear(report)

    def _drop_node(self, name: str) -> None:
        self._deleted.forget(name)
        if self._nodes.drop(name):
            self._dirty.add(name)


def identity_of(kind: str, obj: Obj) -> Hashable:
    """The key for an object of that kind: its UID, its name, or namespace and name."""
    if kind in (PODS, CLAIMS):
        return _uid(obj)
    if kind in (NODES, CLASSES):
        return name_of(obj)
    return text(mapping(obj.get("metadata")).get("namespace")), name_of(obj)


def _uid(obj: Mapping[str, Any]) -> PodUid:
    return PodUid(str(mapping(obj.get("metadata")).get("uid") or ""))
