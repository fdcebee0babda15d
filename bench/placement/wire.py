"""The same experiment through the extender: JSON to filter and prioritize, scores 0 to 10, ties at random.

What stands for kube-scheduler here does its own part: host CPU, host memory and the number of pods decide
which nodes the extender is asked about, and of the nodes with the highest score any is taken. Pods without a
card never reach an extender; they go where the same costs send them, as in the replay without a wire, or,
with ``spread``, where kube-scheduler's default scoring does.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from admission.cluster.snapshot import NODES, PODS, ClusterState
from admission.extender.binding import BindAnswer, Binder, BindOutcome, BindRules
from admission.extender.feasibility import FeasibilityJudge, Fit
from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.node_rooms import NodeRooms
from admission.extender.verbs import Extender
from admission.quota.quota_book import QuotaBook
from bench.placement.trace import MOST_PODS, Node, Pod
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import (
    CORE,
    GPU_MODEL,
    INVENTORY,
    MEMORY,
    PRIORITY,
    QUOTA_KEY,
    Inventory,
    encode_inventory,
)
from gpu_manager.domain.kube.pod import Pod as KubePod
from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, DEFAULT_UNIT
from gpu_manager.domain.score.scorer import in_all
from gpu_manager.domain.topology import Link, Topology

Obj = dict[str, Any]
_NOTHING: Final = Fit((), (), ())
_UNITS: Final = (
    CORES_PER_CARD  # of memory on a card; a fraction asks for as many as cores, so they never bind
)


class _Api:
    """Binds at once; the watch shows it at once."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self.pods: dict[str, Obj] = {}

    def bind(self, pod: KubePod, node: str, annotations: Mapping[str, str], seconds: float) -> BindAnswer:
        obj = self.pods.pop(pod.name)
        obj["metadata"]["annotations"] |= annotations
        obj["spec"]["nodeName"] = node
        self._cluster.apply(PODS, "MODIFIED", obj)
        return BindAnswer(BindOutcome.BOUND)

    def fetch(self, namespace: str, name: str) -> KubePod | None:
        obj = self.pods.get(name)
        return None if obj is None else parse_pod(obj)


@dataclass(slots=True)
class _Host:
    """What kube-scheduler itself keeps of a node."""

    name: str
    capacity: int
    cpu: int
    memory: int
    pods: int = field(default=0)

    def takes(self, pod: Pod) -> bool:
        return self.cpu >= pod.shape.cpu and self.memory >= pod.host_memory and self.pods < MOST_PODS

    def put(self, pod: Pod) -> None:
        self.cpu -= pod.shape.cpu
        self.memory -= pod.host_memory
        self.pods += 1


class Wire:
    """A cluster, the extender over it, and a stand-in for kube-scheduler."""

    def __init__(
        self,
        nodes: Sequence[Node],
        seed: int,
        *,
        spread: bool = False,
        beside: bool = False,
        priority: Callable[[Pod, int], Priority] | None = None,
    ) -> None:
        """``spread``: pods without a card go where kube-scheduler's default scoring sends them. ``beside``: a
        new mix is made in a thread, as deployed. ``priority`` of each fraction by its number.
        """
        self._priority = priority
        self._chance = random.Random(f"ties {seed}")
        self._spread = spread
        self._cluster = ClusterState(DEFAULT_UNIT)
        self._api = _Api(self._cluster)
        quota, judge, clock = QuotaBook(), FeasibilityJudge(), SystemClock()
        right = {"data": {QUOTA_KEY: '{"*": {"protected": {"*": 1000000}}}'}}
        quota.update(right if priority else None)
        rules = BindRules(leads=lambda _seconds: True)
        binder = Binder(self._cluster, quota, judge, self._api, clock, rules)
        aside = None if beside else lambda job: job()
        ranking = self._ranking = LeastFragmentation(self._cluster, aside)
        self._extender = Extender(self._cluster, quota, judge, ranking, binder, clock=clock)
        self._hosts = {node.name: _Host(node.name, node.cpu, node.cpu, node.memory) for node in nodes}
        self._cluster.replace(NODES, [node_object(node, node.name) for node in nodes])
        self._cluster.replace(PODS, [])
        self._rooms = NodeRooms()
        self.uneven = 0  # answers in which not exactly one node got the 10

    def place(self, pod: Pod, number: int) -> str:
        """The node, empty if none takes it."""
        able = [host.name for host in self._hosts.values() if host.takes(pod)] if pod.cores else []
        obj = pod_object(pod, number)
        if self._priority and 0 < pod.cores < CORES_PER_CARD:
            obj["metadata"]["annotations"][PRIORITY] = self._priority(pod, number).value
        name = obj["metadata"]["name"]
        if not pod.cores:
            chosen = self._without_card(pod)
            if chosen:
                obj["spec"]["nodeName"] = chosen
                self._cluster.apply(PODS, "ADDED", obj)
        else:
            self._api.pods[name] = obj
            self._cluster.apply(PODS, "ADDED", obj)
            chosen = self._by_extender(obj, able)
            if not chosen:
                self._api.pods.pop(name)
                self._cluster.apply(PODS, "DELETED", obj)
        if chosen:
            self._hosts[chosen].put(pod)
        return chosen

    def neighbours(self) -> Iterator[tuple[Priority, frozenset[Priority]]]:
        """The priority of each part of a card, and those of the other pods on its card."""
        for view in self._cluster.snapshot().nodes.values():
            for allocation in view.ledger:
                for share in allocation.shares:
                    if not share.whole:
                        yield allocation.priority, view.ledger.priorities(share.card, allocation.pod)

    def _without_card(self, pod: Pod) -> str:
        able = [host for host in self._hosts.values() if host.takes(pod)]
        if not able:
            return ""
        if self._spread:  # NodeResourcesFit as kube-scheduler has it: LeastAllocated, by whole percent
            score = {host.name: 100 * host.cpu // host.capacity for host in able}
            best = max(score.values())
            return self._chance.choice([name for name, each in score.items() if each == best])
        nodes = self._cluster.snapshot().nodes
        moves = [self._rooms.change(PodUid(""), nodes[host.name], _NOTHING, pod.shape.cpu) for host in able]
        scorer, prices = self._ranking.scorer, self._ranking.prices()
        costs = scorer.costs([(move.before, move.after) for move in moves])
        losses = [scorer.places.lost(move.before, move.after) for move in moves]
        dear = [in_all(cost, loss, prices) for cost, loss in zip(costs, losses, strict=True)]
        ranked = zip(dear, (host.memory for host in able), (host.name for host in able), strict=True)
        return min(ranked)[-1]

    def _by_extender(self, obj: Obj, able: Sequence[str]) -> str:
        fitting = json.loads(self._extender.filter(_args(obj, able)).body)["NodeNames"]
        if not fitting:
            return ""
        chosen = str(fitting[0])
        if len(fitting) > 1:  # as kube-scheduler: one node needs no score
            given = json.loads(self._extender.prioritize(_args(obj, fitting)).body)
            best = max(entry["Score"] for entry in given)
            ties = [str(entry["Host"]) for entry in given if entry["Score"] == best]
            self.uneven += best != 10 or len(ties) != 1
            chosen = self._chance.choice(ties)
        meta = obj["metadata"]
        asked = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
        error = json.loads(self._extender.bind(json.dumps({**asked, "Node": chosen}).encode()).body)["Error"]
        if error:
            raise RuntimeError(f"bind of {meta['name']} to {chosen}: {error}")
        return chosen


def replay(nodes: Sequence[Node], pods: Sequence[Pod], wire: Wire, until: int = 100) -> dict[int, float]:
    """Allocation by whole percent of arrived demand, up to ``until``."""
    capacity = CORES_PER_CARD * sum(node.cards for node in nodes)
    asked = held = 0
    columns: dict[int, list[int]] = {}
    for number, pod in enumerate(pods):
        asked += pod.cores
        percent = int(100 * asked / capacity + 0.5)
        if percent > until:
            break
        if wire.place(pod, number):
            held += pod.cores
        columns.setdefault(percent, []).append(held)
    return {percent: 100 * sum(seen) / len(seen) / capacity for percent, seen in columns.items()}


def few(nodes: Sequence[Node], pods: Sequence[Pod], parts: int) -> tuple[list[Node], list[Pod]]:
    """Return one node in ``parts``, and the first pods, which ask for a little more than its cards."""
    some = list(nodes[::parts])
    room, asked, coming = CORES_PER_CARD * sum(n.cards for n in some), 0, list[Pod]()
    for pod in pods:
        coming.append(pod)
        asked += pod.cores
        if asked > 1.02 * room:
            break
    return some, coming


def _args(pod: Obj, names: Sequence[str]) -> bytes:
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(names)}).encode()


def node_object(node: Node, name: str) -> Obj:
    """The node under this name, as its agent describes it."""
    cards = tuple(
        CardState(Card(i, CardUuid(f"GPU-{name}-{i}"), node.model, _UNITS * DEFAULT_UNIT))
        for i in range(node.cards)
    )
    inventory = Inventory(DEFAULT_UNIT, cards, Topology.uniform(node.cards, Link.parse("SYS")))
    return {
        "metadata": {
            "name": name,
            "annotations": {INVENTORY: encode_inventory(inventory)},
            "labels": {},
        },
        "status": {"allocatable": {"cpu": f"{node.cpu}m"}},
    }


def pod_object(pod: Pod, number: int) -> Obj:
    """The pod, of one container, before it has a node."""
    limits = {CORE: str(pod.cores)} if pod.cores else {}
    if 0 < pod.cores < CORES_PER_CARD:
        limits[MEMORY] = str(pod.cores)
    resources = {"limits": limits, "requests": {"cpu": f"{pod.shape.cpu}m"}}
    notes = {GPU_MODEL: ",".join(pod.shape.models)} if pod.shape.models else {}
    return {
        "metadata": {
            "name": f"p-{number}",
            "namespace": "openb",
            "uid": f"uid-{number}",
            "annotations": notes,
        },
        "spec": {"containers": [{"name": "main", "resources": resources}]},
        "status": {"phase": "Pending"},
    }
