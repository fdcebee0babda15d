"""The cluster as the extender sees it: kept by one watch, read as values that nobody changes.

:class:`Cluster` takes in what the watch shows and what this process is about to bind;
:meth:`Cluster.snapshot` is all of it at one moment. Only nodes on which something changed are built anew.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Final

from admission.charges import Charge, charge_all
from admission.node_facts import NodeFacts, read_node
from admission.node_view import NodeView, build_view
from admission.occupant import Occupant, occupant_of, read_occupant
from admission.other_pods import OtherPods
from gpu_manager.domain.budgets import Budget, read_budget
from gpu_manager.domain.contract import CORDON, INVENTORY, MODEL_LABEL, MODEL_LABEL_GAIA, NVIDIA, POOL_LABEL
from gpu_manager.domain.ledger import Share
from gpu_manager.domain.lenient import mapping
from gpu_manager.domain.pod import Pod, PodUid
from gpu_manager.domain.resources import ZERO, Amount

NODES: Final = "nodes"
PODS: Final = "pods"
BUDGETS: Final = "poddisruptionbudgets"
Used = Mapping[str, Mapping[str, Amount]]  # namespace → model → what its pods hold
_MOST_FRESH = 1 << 16  # pods that nobody has counted yet; the oldest go
_MOST_STATES = 1 << 16  # distinct node states remembered; beyond, numbering goes on with an empty table


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The cluster at one moment. ``used`` counts pods that are bound or being bound, by model of card.

    ``reserved``: each pod whose Binding is under way or expected, and its node. ``unit``: bytes of one unit.
    ``turn`` rises whenever nodes are built anew.
    """

    nodes: Mapping[str, NodeView]
    used: Used
    reserved: Mapping[PodUid, str]
    budgets: tuple[Budget, ...]
    unit: int
    turn: int


class Cluster:
    """Thread-safe. Nobody waits for the outside while the lock is held."""

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self._lock = threading.RLock()
        self._facts: dict[str, NodeFacts] = {}
        self._said: dict[str, Hashable] = {}  # what of the node's object the facts came from
        self._pods: dict[PodUid, Occupant] = {}
        self._names: dict[str, PodUid] = {}
        self._reserved: dict[PodUid, Occupant] = {}
        self._expected: dict[PodUid, tuple[float, Occupant]] = {}  # until when; the oldest first
        self._others = OtherPods()
        self._fresh: deque[Occupant] = deque(maxlen=_MOST_FRESH)
        self._at: dict[str, set[PodUid]] = {}  # node → pods bound, reserved or nominated there
        self._budgets: dict[tuple[str, str], Budget] = {}
        self._views: dict[str, NodeView] = {}
        self._turn = 0
        self._built: dict[str, int] = {}  # node → the turn in which it was built; the newest last
        self._used: dict[str, dict[str, Amount]] = {}
        self._dirty: set[str] = set()
        self._states: dict[Hashable, int] = {}
        self._next_state = 0
        self._synced: set[str] = set()
        self._snapshot: Snapshot | None = None
        self.lapsed = 0  # expectations that ended though nobody was bound: nothing the watch would tell

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Hold it to read, judge and reserve as one step. Re-entrant."""
        return self._lock

    @property
    def synced(self) -> bool:
        """True once a full list of nodes and one of pods have been taken in."""
        return {NODES, PODS} <= self._synced

    # What the watch shows.

    def apply(self, kind: str, event: str, obj: Mapping[str, Any]) -> None:
        """One change: ``kind`` as in the API's paths, ``event`` ADDED, MODIFIED or DELETED."""
        gone = event == "DELETED"
        with self._lock:
            if kind == PODS:
                self._apply_pod(obj, gone=gone)
            elif kind == NODES:
                self._apply_node(obj, gone=gone)
            elif kind == BUDGETS:
                self._apply_budget(obj, gone=gone)

    def replace(self, kind: str, objects: Sequence[Mapping[str, Any]]) -> None:
        """A full list, begun after every change that was applied: whatever is not in it is gone."""
        with self._lock:
            if kind == PODS:
                uids = {_uid(obj) for obj in objects}
                for uid in [uid for uid in self._pods if uid not in uids]:
                    self._forget(uid)
                self._dirty |= self._others.keep(uids)
            elif kind == NODES:
                names = {_name(obj) for obj in objects}
                for name in [name for name in self._facts if name not in names]:
                    self._drop_node(name)
            elif kind == BUDGETS:
                self._budgets.clear()
                self._snapshot = None
            for obj in objects:
                self.apply(kind, "ADDED", obj)
            self._synced.add(kind)

    # What this process is about to bind.

    def reserve(self, pod: Pod, node: str, placement: Mapping[str, tuple[Share, ...]]) -> None:
        """Count the pod as lying there, until the watch shows it bound or gone, or :meth:`release`."""
        with self._lock:
            self._release(pod.uid)
            occupant = (self._pods.get(pod.uid) or occupant_of(pod)).on(node, placement)
            self._reserved[pod.uid] = occupant
            self._touch(node, pod.uid)
            self._snapshot = None

    def expect(
        self, uid: PodUid, node: str, placement: Mapping[str, tuple[Share, ...]], until: float
    ) -> None:
        """Count a waiting pod as lying there, as one that its scheduler will bind in a moment.

        Ends with :meth:`reserve`, when the watch shows the pod bound or gone, with :meth:`unexpect`, or by
        :meth:`expire` once it is ``until``.
        """
        with self._lock:
            known = self._pods.get(uid)
            if known is None or not known.waits or uid in self._reserved:
                return
            before = self._expected.get(uid)
            self.lapsed += before is not None and before[1].pod.node != node
            self._unexpect(uid)
            self._expected[uid] = until, known.on(node, placement)
            self._touch(node, uid)
            self._snapshot = None

    def unexpect(self, uid: PodUid) -> None:
        """Its scheduler has decided otherwise."""
        with self._lock:
            self._unexpect(uid)

    def expire(self, now: float) -> None:
        """End the expectations whose time is over."""
        with self._lock:
            for uid, (until, _) in list(self._expected.items()):
                if until > now:
                    return
                self._unexpect(uid)
                self.lapsed += 1

    def release(self, uid: PodUid) -> bool:
        """Undo a reservation; False if there is none any more."""
        with self._lock:
            return self._release(uid)

    def reserved_on(self, uid: PodUid) -> str:
        """The node that the pod is reserved on, empty if on none."""
        with self._lock:
            occupant = self._reserved.get(uid)
            return occupant.pod.node if occupant else ""

    def learn(self, pod: Pod) -> bool:
        """The API server itself said that it is bound, before the watch did.

        False for a pod that the watch has never shown: it counts as reserved there until the watch does or
        :meth:`release`, for a list that was asked for before the pod came may lack it.
        """
        with self._lock:
            known = self._pods.get(pod.uid)
            if known is not None:
                self._take(replace(occupant_of(pod), cpu=known.cpu))
                return True
            self._release(pod.uid)
            self._reserved[pod.uid] = replace(occupant_of(pod), reserved=True)
            self._touch(pod.node, pod.uid)
            self._snapshot = None
            return False

    # What is known.

    def pod(self, uid: PodUid) -> Occupant | None:
        """The pod as the watch shows it, if it asks for cards."""
        with self._lock:
            return self._pods.get(uid)

    def named(self, namespace: str, name: str) -> Occupant | None:
        """The same by name."""
        with self._lock:
            uid = self._names.get(f"{namespace}/{name}")
            return None if uid is None else self._pods.get(uid)

    def fresh(self) -> list[Occupant]:
        """The pods that came up since this was last asked, each once: for the one who counts them."""
        with self._lock:
            fresh = list(self._fresh)
            self._fresh.clear()
            return fresh

    def waiting(self, namespace: str | None = None) -> tuple[Occupant, ...]:
        """Pods that look for a node, of one namespace or of all."""
        with self._lock:
            pods = [o for o in self._pods.values() if o.waits]
        return tuple(o for o in pods if namespace is None or o.pod.namespace == namespace)

    def snapshot(self) -> Snapshot:
        """Everything, now. The same object until something changes."""
        with self._lock:
            if self._snapshot is None or self._dirty:
                self._turn += bool(self._dirty)
                for name in self._dirty:
                    self._rebuild(name)
                    self._built.pop(name, None)
                    if name in self._views:
                        self._built[name] = self._turn
                self._dirty.clear()
                self._snapshot = Snapshot(
                    nodes=MappingProxyType(self._views.copy()),
                    used={namespace: models.copy() for namespace, models in self._used.items()},
                    reserved={
                        **{uid: occupant.pod.node for uid, (_, occupant) in self._expected.items()},
                        **{uid: occupant.pod.node for uid, occupant in self._reserved.items()},
                    },
                    budgets=tuple(self._budgets.values()),
                    unit=self.unit,
                    turn=self._turn,
                )
            return self._snapshot

    def news(self, turn: int) -> tuple[Snapshot, list[NodeView]]:
        """The snapshot, and those of its nodes that were built anew after that turn."""
        with self._lock:
            snapshot = self.snapshot()
            names = takewhile(lambda name: self._built[name] > turn, reversed(self._built))
            return snapshot, [snapshot.nodes[name] for name in names]

    def view_of(self, obj: Mapping[str, Any]) -> NodeView:
        """A node that is offered with its object: as it is known here, else from that object alone.

        The second is a cluster autoscaler asking about nodes that do not exist yet.
        """
        with self._lock:
            known = self.snapshot().nodes.get(_name(obj))
            if known is not None:
                return known
            facts = read_node(obj, self.unit, self._intern, by_capacity=True)
            return build_view(facts, {}, (), self._intern, cpu=facts.cpu)

    # Pods. Every method below is called with the lock held.

    def _apply_pod(self, obj: Mapping[str, Any], *, gone: bool) -> None:
        uid = _uid(obj)
        if gone:
            self._forget(uid)
            self._dirty |= self._others.drop(uid)
            return
        occupant = read_occupant(obj)
        if occupant is None:
            self._forget(uid)  # it asks for nothing of ours: then it holds nothing but CPU
            self._dirty |= self._others.take(uid, obj)
        else:
            self._take(occupant)

    def _take(self, occupant: Occupant) -> None:
        uid, before = occupant.uid, self._pods.get(occupant.uid)
        if before is not None and before.pod.node and not occupant.pod.node:
            return  # a UID is bound once for all: this is an older picture of it
        if before == occupant:
            return
        if before is not None:
            self._untouch(before)
        if before is None:
            self._fresh.append(occupant)
        self._pods[uid] = occupant
        self._names[occupant.pod.key] = uid
        if occupant.pod.node or occupant.pod.terminal:
            self._release(uid)
        for node in _places(occupant):
            self._touch(node, uid)
        coming = self._coming(uid)
        if coming is not None:
            self._touch(coming.pod.node, uid)

    def _forget(self, uid: PodUid) -> None:
        occupant = self._pods.pop(uid, None)
        if occupant is not None:
            if self._names.get(occupant.pod.key) == uid:
                del self._names[occupant.pod.key]
            self._untouch(occupant)
        self._release(uid)

    def _release(self, uid: PodUid) -> bool:
        self._unexpect(uid)
        occupant = self._reserved.pop(uid, None)
        if occupant is not None:
            self._leave(occupant)
        return occupant is not None

    def _unexpect(self, uid: PodUid) -> None:
        _, occupant = self._expected.pop(uid, (0.0, None))
        if occupant is not None:
            self._leave(occupant)

    def _leave(self, occupant: Occupant) -> None:
        """It is not coming after all, or has come: back to what the watch shows of it."""
        self._untouch(occupant)
        if occupant.uid in self._pods:
            for node in _places(self._pods[occupant.uid]):
                self._touch(node, occupant.uid)
        self._snapshot = None

    def _coming(self, uid: PodUid) -> Occupant | None:
        """The pod as it will be once bound, while that is under way or expected."""
        return self._reserved.get(uid) or self._expected.get(uid, (0.0, None))[1]

    def _touch(self, node: str, uid: PodUid) -> None:
        self._at.setdefault(node, set()).add(uid)
        self._dirty.add(node)

    def _untouch(self, occupant: Occupant) -> None:
        for node in _places(occupant):
            here = self._at.get(node, set())
            here.discard(occupant.uid)
            if not here:
                self._at.pop(node, None)
            self._dirty.add(node)

    # Nodes.

    def _apply_node(self, obj: Mapping[str, Any], *, gone: bool) -> None:
        name = _name(obj)
        if gone:
            self._drop_node(name)
            return
        said = _said(obj)
        if self._said.get(name) != said:  # a kubelet's heartbeat changes nothing that matters here
            self._facts[name] = read_node(obj, self.unit, self._intern)
            self._said[name] = said
            self._dirty.add(name)

    def _drop_node(self, name: str) -> None:
        if self._facts.pop(name, None) is not None:
            del self._said[name]
            self._dirty.add(name)

    def _apply_budget(self, obj: Mapping[str, Any], *, gone: bool) -> None:
        budget = read_budget(obj)
        if budget is None:
            return
        key = budget.namespace, budget.name
        if gone:
            self._budgets.pop(key, None)
        else:
            self._budgets[key] = budget
        self._snapshot = None

    def _rebuild(self, name: str) -> None:
        before, facts = self._views.pop(name, None), self._facts.get(name)
        if before is not None:
            self._add_usage(before, -1)
        here = [self._coming(uid) or self._pods[uid] for uid in self._at.get(name, ())]
        if facts is None:
            if not any(o.occupies for o in here):
                return
            problem = "this node is not known here"
            # What its cards were says of which model's quota its pods hold.
            facts = (
                NodeFacts(name, self.unit, problem=problem)
                if before is None
                else replace(before.facts, problem=problem)
            )
        known: Mapping[PodUid, Charge] = before.charges if before and before.facts is facts else {}
        bound = [o for o in here if o.occupies and o.pod.node == name]
        nominated = [o for o in here if o.waits and o.nominated == name]
        cpu = facts.cpu
        if cpu is not None:
            cpu -= self._others.cpu(name) + sum(o.cpu for o in bound)
        view = build_view(facts, charge_all(facts, bound, known), nominated, self._intern, before, cpu)
        self._views[name] = view
        self._add_usage(view, 1)

    def _add_usage(self, view: NodeView, sign: int) -> None:
        for (namespace, model), amount in view.usage():
            models = self._used.setdefault(namespace, {})
            held = models.get(model, ZERO)
            models[model] = held + amount if sign > 0 else held - amount
            if models[model] == ZERO:
                del models[model]
                if not models:
                    del self._used[namespace]

    def _intern(self, key: Hashable) -> int:
        number = self._states.get(key)
        if number is None:
            if len(self._states) >= _MOST_STATES:
                self._states.clear()
            self._next_state += 1
            number = self._states[key] = self._next_state
        return number


def _places(occupant: Occupant) -> Iterable[str]:
    if occupant.occupies:
        return (occupant.pod.node,)
    return (occupant.nominated,) if occupant.waits and occupant.nominated else ()


def _said(obj: Mapping[str, Any]) -> Hashable:
    meta = mapping(obj.get("metadata"))
    annotations, labels = mapping(meta.get("annotations")), mapping(meta.get("labels"))
    shown = [annotations.get(key) for key in (INVENTORY, CORDON)]
    shown += [labels.get(key) for key in (MODEL_LABEL, MODEL_LABEL_GAIA, POOL_LABEL)]
    status = mapping(obj.get("status"))
    shown += [mapping(status.get("allocatable")).get("cpu"), mapping(status.get("capacity")).get(NVIDIA)]
    return tuple(text if isinstance(text, str) else None for text in shown)


def _uid(obj: Mapping[str, Any]) -> PodUid:
    return PodUid(str(mapping(obj.get("metadata")).get("uid") or ""))


def _name(obj: Mapping[str, Any]) -> str:
    return str(mapping(obj.get("metadata")).get("name") or "")
