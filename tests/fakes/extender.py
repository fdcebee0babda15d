"""A cluster on paper for the extender's tests: node and pod objects, an API server in memory, one of everything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from admission.cluster.snapshot import BUDGETS, NODES, PODS, ClusterState
from admission.config import GANG_SECONDS, KEEP_SECONDS
from admission.extender.binding import BindAnswer, Binder, BindOutcome, BindRules
from admission.extender.decisions import unrecorded
from admission.extender.feasibility import FeasibilityJudge
from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.ranking import BestFit
from admission.extender.verbs import Extender, Reply
from admission.gangs.keeper import GangKeeper
from admission.gangs.members import GangMembers
from admission.quota.quota_book import QuotaBook, QuotaNews
from admission.replay.recorder import DecisionRecorder
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import (
    CORE,
    DRA_DRIVER,
    INVENTORY,
    MEMORY,
    NAMESPACE,
    NVIDIA,
    QUOTA_KEY,
    QUOTA_MAP,
    RELEASE_FEATURES,
    Inventory,
    TerminatingShare,
    decode_inventory,
    encode_inventory,
)
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from gpu_manager.domain.rules.request import PodRequest
from gpu_manager.domain.topology import Link, NumaPolicy, Topology
from tests.fakes.ports import FakeClock

Obj = dict[str, Any]
UNIT = DEFAULT_UNIT


def uuid(node: str, index: int) -> CardUuid:
    return CardUuid(f"GPU-{node}-{index}")


def node(
    name: str,
    cards: int = 2,
    *,
    memory: int = 16 * GIB,
    model: str | Sequence[str] = "Tesla-T4",
    unit: int = UNIT,
    link: str = "PHB",
    closed: Sequence[int] = (),
    unhealthy: Sequence[int] = (),
    refused: Sequence[Amount] = (),
    lingering: Sequence[TerminatingShare] = (),
    labels: Mapping[str, str] | None = None,
    inventory: bool = True,
    serving: bool = True,
    released: Sequence[str] | None = None,
    lends: bool = False,
    held: Sequence[int] = (),
    claimed: Sequence[int] = (),
    features: Sequence[str] = (*RELEASE_FEATURES,),
) -> Obj:
    """A core/v1 Node with its inventory, memory in bytes a card; ``held`` cards are lent to pods, ``claimed``
    ones are given by ResourceClaims.
    """
    models = [model] * cards if isinstance(model, str) else model
    states = tuple(
        CardState(
            Card(i, uuid(name, i), models[i], memory),
            healthy=i not in unhealthy,
            cordoned=i in closed,
            held=NVIDIA if i in held else DRA_DRIVER if i in claimed else "",
        )
        for i in range(cards)
    )
    text = encode_inventory(
        Inventory(
            unit,
            states,
            Topology.uniform(cards, Link.parse(link)),
            tuple(refused),
            tuple(lingering),
            serving,
            None if released is None else tuple(released),
            features=frozenset(features),
        )
    )
    counts = {CORE: str(100 * cards), MEMORY: str(cards * (memory // unit))}
    if lends:
        counts[NVIDIA] = str(max(1, cards))
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {INVENTORY: text} if inventory else {},
            "labels": dict(labels or {}),
        },
        "status": {"capacity": counts, "allocatable": counts},
    }


def on_numa_nodes(obj: Obj, policy: NumaPolicy, *numbers: int) -> Obj:
    """The node, its cards on these NUMA nodes, under the kubelet's policy."""
    annotations = obj["metadata"]["annotations"]
    found = decode_inventory(annotations[INVENTORY])
    assert found is not None
    cards = tuple(
        replace(state, card=replace(state.card, numa=number))
        for state, number in zip(found.cards, numbers, strict=True)
    )
    found = replace(found, cards=cards, topology=replace(found.topology, numa_policy=policy))
    annotations[INVENTORY] = encode_inventory(found)
    return obj


def container(name: str, core: object = None, memory: object = None, **extra: Any) -> Obj:
    limits = {key: str(v) for key, v in ((CORE, core), (MEMORY, memory)) if v is not None}
    return {"name": name, "image": "image", "resources": {"limits": limits}, **extra}


def pod(
    name: str,
    core: object = 30,
    memory: object = 4,
    *,
    namespace: str = "default",
    uid: str | None = None,
    on: str = "",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    containers: Sequence[Obj] | None = None,
    init: Sequence[Obj] = (),
    priority: int = 0,
    nominated: str = "",
    phase: str = "Pending",
    deleting: bool = False,
    scheduler: str = "gpu-scheduler",
    created: str = "2026-01-01T00:00:00Z",
) -> Obj:
    """A core/v1 Pod that asks for ``core`` units and ``memory`` units."""
    meta: Obj = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-{namespace}-{name}",
        "creationTimestamp": created,
        "annotations": dict(annotations or {}),
        "labels": dict(labels or {}),
    }
    if deleting:
        meta["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    spec: Obj = {
        "containers": list(containers or [container("main", core, memory)]),
        "initContainers": list(init),
        "priority": priority,
        "schedulerName": scheduler,
    }
    if on:
        spec["nodeName"] = on
    status: Obj = {"phase": phase}
    if nominated:
        status["nominatedNodeName"] = nominated
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def bound(obj: Mapping[str, Any], where: str, annotations: Mapping[str, str]) -> Obj:
    """The pod as a Binding leaves it."""
    meta = {
        **obj["metadata"],
        "annotations": {**obj["metadata"]["annotations"], **annotations},
    }
    return {**obj, "metadata": meta, "spec": {**obj["spec"], "nodeName": where}}


class FakeApi:
    """An API server that keeps pods; ``plan`` says how the next Bindings go, ``down`` lets nobody through."""

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], Obj] = {}
        self.plan: list[str] = []  # "ok", "refuse", "lost" (no effect), "late" (effect, no answer), "hold"
        self.held: list[Callable[[], None]] = []
        self.down = False
        self.before: Callable[[], None] = lambda: None
        self.bindings: list[tuple[str, str, Mapping[str, str]]] = []
        self.shown: Callable[[Obj], None] = lambda _obj: None

    def put(self, obj: Obj) -> None:
        self.pods[obj["metadata"]["namespace"], obj["metadata"]["name"]] = obj

    def bind(self, pod: Pod, node: str, annotations: Mapping[str, str], seconds: float) -> BindAnswer:
        self.before()
        how = self.plan.pop(0) if self.plan else "ok"
        if self.down or how == "lost":
            return BindAnswer(BindOutcome.UNKNOWN, "no answer")
        if how == "refuse":
            return BindAnswer(BindOutcome.REFUSED, "409 refused by plan")
        if how == "raise":
            raise NodeUnready("the wire broke")

        def act() -> BindAnswer:
            obj = self.pods.get((pod.namespace, pod.name))
            if obj is None or obj["metadata"]["uid"] != pod.uid:
                return BindAnswer(BindOutcome.REFUSED, "404 not found")
            if obj["spec"].get("nodeName"):
                return BindAnswer(BindOutcome.REFUSED, f"409 already assigned to {obj['spec']['nodeName']}")
            done = bound(obj, node, annotations)
            self.put(done)
            self.bindings.append((pod.name, node, annotations))
            self.shown(done)
            return BindAnswer(BindOutcome.BOUND)

        if how == "hold":
            self.held.append(lambda: (act(), None)[1])
            return BindAnswer(BindOutcome.UNKNOWN, "timed out")
        answer = act()
        return BindAnswer(BindOutcome.UNKNOWN, "timed out") if how == "late" else answer

    def annotate_now(self, pod: Pod, annotations: Mapping[str, str], seconds: float) -> BindAnswer:
        self.before()
        how = self.plan.pop(0) if self.plan else "ok"
        obj = self.pods.get((pod.namespace, pod.name))
        if self.down or how == "lost":
            return BindAnswer(BindOutcome.UNKNOWN, "no answer")
        if how == "refuse" or obj is None or obj["metadata"]["uid"] != pod.uid:
            return BindAnswer(BindOutcome.REFUSED, "409 refused")
        meta = obj["metadata"]
        done = {**obj, "metadata": {**meta, "annotations": {**meta["annotations"], **annotations}}}
        self.put(done)
        self.shown(done)
        return BindAnswer(BindOutcome.UNKNOWN if how == "late" else BindOutcome.BOUND)

    def fetch(self, namespace: str, name: str) -> Pod | None:
        if self.down:
            raise NodeUnready("the API server is away")
        obj = self.pods.get((namespace, name))
        return None if obj is None else parse_pod(obj)


class PlainPolicy(BestFit):
    """Best fit in the place of the deployed policy: it has no history, and prepares nothing."""

    basis = None

    def begin(self) -> None: ...

    def prepare(self, *_asked: Any) -> None: ...

    def totals(self, *_asked: Any, **_terms: Any) -> None: ...

    def costs(self, request: PodRequest, candidates: Sequence[Any], terms: Any = None) -> list[Any]:
        return super().costs(request, candidates)


class World:
    """A cluster, an API server, and the extender between them. ``watching``: the watch shows Bindings at once.

    ``pause`` is how a bind waits, by default on the clock; ``refused`` hears of pods that no node takes.
    ``expecting``: a node that got the 10 counts as taken until the bind comes. ``deployed``: nodes are chosen as
    in the service, its policy refreshed at once.
    """

    def __init__(
        self,
        nodes: Sequence[Obj] = (),
        pods: Sequence[Obj] = (),
        *,
        budgets: Sequence[Obj] = (),
        quota: Mapping[str, Any] | None = None,
        watching: bool = True,
        policy: Any = None,
        judge: FeasibilityJudge | None = None,
        schedulers: frozenset[str] = frozenset({"gpu-scheduler"}),
        expecting: bool = False,
        by_capacity: bool = False,
        keep_seconds: float = KEEP_SECONDS,
        clock: FakeClock | None = None,
        gang_seconds: float = GANG_SECONDS,
        unread: Callable[[str], bool] = lambda _api: False,
        recorder: DecisionRecorder | None = None,
        deployed: bool = False,
        best_nodes: int = 0,
        pause: Callable[[float], None] | None = None,
        refused: Callable[[PodUid, int], None] = lambda _uid, _turn: None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.api = FakeApi()
        self.cluster = ClusterState(UNIT, by_capacity=by_capacity, keep_seconds=keep_seconds)
        self.quota = QuotaBook()
        recorded = self.recorded = unrecorded if recorder is None else recorder.decided
        if recorder is not None:
            self.cluster.follow(recorder.built)
        if deployed:
            policy = LeastFragmentation(self.cluster, aside=lambda job: job(), quota=self.quota)
        self.leads = True
        self.counts: dict[tuple[str, str], int] = {}
        judge = judge or FeasibilityJudge()
        rules = BindRules(leads=lambda _seconds: self.leads, schedulers=schedulers)
        self.members = GangMembers(self.cluster.lock)
        self.gangs = GangKeeper(
            self.members,
            self.cluster,
            judge,
            self.quota,
            self.clock,
            rules.binds,
            seconds=gang_seconds,
            unread=unread,
            recorded=recorded,
        )
        self.binder = Binder(
            self.cluster,
            self.quota,
            judge,
            self.api,
            self.clock,
            rules,
            self._count,
            self.gangs.hold,
            recorded,
            pause or self.clock.pass_,
        )
        self.judge, self.policy = judge, policy
        self.extender = Extender(
            self.cluster,
            self.quota,
            judge,
            policy or PlainPolicy(),
            self.binder,
            clock=self.clock if expecting else None,
            gangs=self.gangs if expecting else None,
            best_nodes=best_nodes,
            count=self._count,
            refused=refused,
            recorded=recorded,
        )
        self.cluster.replace(NODES, nodes)
        self.cluster.replace(BUDGETS, budgets)
        for obj in pods:
            self.api.put(obj)
            self.members.see(obj, gone=False)
        self.cluster.replace(PODS, pods)
        self.limit(quota)
        if watching:
            self.api.shown = self.show

    def _count(self, name: str, label: str) -> None:
        self.counts[name, label] = self.counts.get((name, label), 0) + 1

    def limit(self, quota: Mapping[str, Any] | None) -> QuotaNews:
        return self.quota.update(None if quota is None else config_map(json.dumps(quota)))

    def create(self, *pods: Obj) -> None:
        """The API server has them, and the watch shows them."""
        for obj in pods:
            self.api.put(obj)
            self.show(obj)

    def show(self, *pods: Obj) -> None:
        """As :mod:`admission.controller` takes in what the watch brings."""
        for obj in pods:
            self.members.see(obj, gone=False)
            self.cluster.apply(PODS, "MODIFIED", obj)

    def delete(self, obj: Obj) -> None:
        self.api.pods.pop((obj["metadata"]["namespace"], obj["metadata"]["name"]), None)
        self.delete_seen(obj)

    def delete_seen(self, obj: Obj) -> None:
        """The watch shows that it is gone."""
        self.members.see(obj, gone=True)
        self.cluster.apply(PODS, "DELETED", obj)

    @property
    def nodes(self) -> list[str]:
        return sorted(self.cluster.snapshot().nodes)

    def filter(self, obj: Obj, names: Sequence[str] | None = None) -> Obj:
        return answer(self.extender.filter(args(obj, self.nodes if names is None else names)))

    def prioritize(self, obj: Obj, names: Sequence[str] | None = None) -> dict[str, int]:
        reply = self.extender.prioritize(args(obj, self.nodes if names is None else names))
        return {entry["Host"]: entry["Score"] for entry in json.loads(reply.body)}

    def bind(self, obj: Obj, where: str) -> str:
        return str(answer(self.extender.bind(json.dumps(binding(obj, where)).encode()))["Error"])

    def schedule(self, obj: Obj) -> str:
        """As kube-scheduler does: filter, prioritize, bind to the one with the highest score. The node, or ""."""
        fitting = self.filter(obj)["NodeNames"]
        if not fitting:
            return ""
        given = self.prioritize(obj, fitting) if len(fitting) > 1 else {}
        where = max(fitting, key=lambda name: given.get(name, 0))
        return "" if self.bind(obj, where) else str(where)

    def booked(self, name: str) -> list[tuple[int, int]]:
        """(cores, units of memory) booked of each card."""
        view = self.cluster.snapshot().nodes[name]
        amounts = [view.ledger.booked(s.card.uuid) for s in view.node.cards]
        return [(a.cores, a.memory // UNIT) for a in amounts]

    def over_committed(self) -> list[str]:
        views = self.cluster.snapshot().nodes.values()
        return [
            f"{view.name} {state.card.index}"
            for view in views
            for state in view.node.cards
            if not Amount(0, 0).fits_in(view.ledger.free(state.card.uuid))
        ]


def config_map(text: str) -> Obj:
    return {"metadata": {"name": QUOTA_MAP, "namespace": NAMESPACE}, "data": {QUOTA_KEY: text}}


def args(obj: Obj, names: Sequence[str]) -> bytes:
    return json.dumps({"Pod": obj, "Nodes": None, "NodeNames": list(names)}).encode()


def binding(obj: Obj, where: str) -> Obj:
    """What a scheduler sends to have the pod bound there."""
    meta = obj["metadata"]
    names = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
    return {**names, "Node": where}


def answer(reply: Reply) -> Obj:
    found: Obj = json.loads(reply.body)
    return found
