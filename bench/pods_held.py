"""``held_told_wrong``: pods held by a gate, their workload, a volume, another scheduler or their quota, and
pods that nothing holds: who explain says holds them, and whether an Event is sent.

Clusters and pods are drawn at random, each with one holder by construction; the words of gates and volumes
are those of kube-scheduler and of controllers that people run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from admission.explain.explanation import FITS, Explanation, explain
from admission.explain.pending_events import PendingEvents
from bench.rows import Row
from gpu_manager.domain.cluster.pod_holder import HeldBy
from gpu_manager.domain.kube.pod import Pod
from tests.fakes.extender import Obj, World, node, pod

QUICK: Final = 100  # pods of each holder
FULL: Final = 2_000
OURS: Final = frozenset({"gpu-scheduler"})
_CARDS: Final = 2
_GATES: Final = (
    "kueue.x-k8s.io/admission",
    "kueue.x-k8s.io/topology",
    "example.com/wait",
    "x.io/gang",
)
_OTHERS: Final = ("volcano", "default-scheduler", "kai-scheduler", "yunikorn")
_OF_THE_POD: Final = (
    "0/{n} nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
    '0/{n} nodes are available: persistentvolumeclaim "data" not found. preemption: not helpful',
    '0/{n} nodes are available: persistentvolumeclaim "data" bound to non-existent persistentvolume "pv"',
    'running PreBind plugin "VolumeBinding": binding volumes: timed out waiting for the condition',
    'waiting for ephemeral volume controller to create the persistentvolumeclaim "d"',
)
_OF_NODES: Final = (
    "0/{n} nodes are available: {n} node(s) had volume node affinity conflict.",
    "0/{n} nodes are available: {n} node(s) didn't find available persistent volumes to bind.",
    "0/{n} nodes are available: {n} node(s) had no available volume zone.",
    "0/{n} nodes are available: {n} node(s) did not have enough free storage.",
    "0/{n} nodes are available: {n} node(s) exceed max volume count.",
)


class _Rolled(NamedTuple):
    """Who owns a pod of a template, and the labels that its controller writes."""

    owner: str
    name: str
    labels: Mapping[str, str]


_ROLLED: Final = (
    _Rolled("ReplicaSet", "vllm-{}", {"pod-template-hash": "{}"}),
    _Rolled("ReplicaSet", "vllm-{}", {"rollouts-pod-template-hash": "{}"}),
    _Rolled(
        "ReplicaSet",
        "vllm-{0}-deployment-{0}",
        {
            "serving.knative.dev/service": "vllm",
            "serving.knative.dev/revision": "vllm-{}",
            "pod-template-hash": "{}",
        },
    ),
    _Rolled("RayCluster", "vllm-{}", {"ray.io/originated-from-cr-name": "vllm", "ray.io/cluster": "vllm-{}"}),
    _Rolled("ReplicationController", "vllm-{}", {"deploymentconfig": "vllm", "deployment": "vllm-{}"}),
)


class _Voice:
    def __init__(self) -> None:
        self.events = 0

    def event(self, pod: Pod, reason: str, message: str, *, warning: bool = True) -> None:
        """Count it."""
        self.events += 1


def rows(*, full: bool) -> Iterator[Row]:
    """The row."""
    each = FULL if full else QUICK
    wrong = {name: sum(map(told_wrong, (name,) * each, range(each))) for name in CASES}
    said = ", ".join(f"{name} {count}" for name, count in wrong.items())
    note = f"{each} pods of each holder, and as many that nothing holds; wrong: {said}"
    yield Row("held_told_wrong", sum(wrong.values()), "count", "= 0", full=full, note=note)


def told_wrong(holder: str, seed: int) -> bool:
    """True if another holder is told than the one that the case has, or an Event where none helps."""
    dice = random.Random(f"{holder} {seed}")
    world, obj = CASES[holder](dice)
    view = world.cluster.pod(obj["metadata"]["uid"])
    if view is None:
        return True
    found: list[Explanation] = []

    def explained(_view: object) -> Explanation:
        found.append(
            explain(view, world.cluster.snapshot(), world.quota.current, world.judge, schedulers=OURS)
        )
        return found[-1]

    voice = _Voice()
    events = PendingEvents(world.cluster.pod, explained, voice, world.clock)
    for _ in range(2):
        events.waiting([view.uid])
    events.tell()
    told = found[-1]
    ours = not told.counts.get(FITS) if holder == "none" else HeldBy(holder).is_told
    counted = events.held() == ({} if holder == "none" else {holder: 1})
    return told.held != ("" if holder == "none" else holder) or voice.events != ours or not counted


def _cluster(dice: random.Random, *pods: Obj, full: bool, quota: Mapping[str, object] | None = None) -> World:
    """One to three nodes; ``full``: other pods hold every card of those that have no pod of ``pods``."""
    names = [f"n{at}" for at in range(dice.randint(1, 3))]
    taken = {obj["spec"].get("nodeName") for obj in pods}
    others = [
        pod(f"other-{name}", 100 * _CARDS, None, on=name, namespace="others")
        for name in names
        if full and name not in taken
    ]
    return World([node(name, cards=_CARDS) for name in names], [*others, *pods], quota=quota)


def _asking(dice: random.Random) -> Obj:
    cores = dice.choice((10, 50, 100, 200))
    return pod("p", cores, 4 if cores < 100 else None)


def _gated(dice: random.Random) -> tuple[World, Obj]:
    obj = _asking(dice)
    obj["spec"]["schedulingGates"] = [{"name": name} for name in dice.sample(_GATES, dice.randint(1, 3))]
    if dice.random() < 0.5:
        obj = _said(obj, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
    return _cluster(dice, obj, full=dice.random() < 0.5), obj


def _of_another_scheduler(dice: random.Random) -> tuple[World, Obj]:
    obj = _asking(dice)
    obj["spec"]["schedulerName"] = dice.choice(_OTHERS)
    return _cluster(dice, obj, full=dice.random() < 0.5), obj


def _without_volume(dice: random.Random) -> tuple[World, Obj]:
    whole = dice.random() < 0.5
    message = dice.choice(_OF_THE_POD if whole else _OF_NODES).format(n=dice.randint(1, 9))
    obj = _said(_asking(dice), dice.choice(("Unschedulable", "SchedulerError")), message)
    return _cluster(dice, obj, full=whole and dice.random() < 0.5), obj


def _rolled_out(dice: random.Random) -> tuple[World, Obj]:
    many, by = dice.random() < 0.5, dice.choice(_ROLLED)
    old = [_of(by, "old", at, "5d9", 100 if many else 200, "n0") for at in range(2 if many else 1)]
    obj = _of(by, "new", 0, "7f2", dice.choice((100, 200)), "")
    message = dice.choice(("", "0/1 nodes are available: 1 Insufficient tencent.com/vcuda-core."))
    obj = _said(obj, "Unschedulable", message) if message else obj
    return _cluster(dice, *old, obj, full=True), obj


def _of(by: _Rolled, name: str, at: int, template: str, cores: int, where: str) -> Obj:
    obj = pod(f"{name}-{at}", cores, None, on=where)
    obj["metadata"]["labels"] |= {key: value.format(template) for key, value in by.labels.items()}
    obj["metadata"]["ownerReferences"] = [
        {"kind": by.owner, "name": by.name.format(template), "controller": True}
    ]
    return obj


def _over_quota(dice: random.Random) -> tuple[World, Obj]:
    used = dice.choice((0, 1))
    taken = [pod("taken", 100, None, on="n0")] if used else []
    model = dice.choice(("*", "T4"))
    obj = _asking(dice)
    return _cluster(dice, *taken, obj, full=False, quota={"default": {"quota": {model: used}}}), obj


def _free(dice: random.Random) -> tuple[World, Obj]:
    obj = _asking(dice)
    if dice.random() < 0.3:
        obj = _said(obj, "Unschedulable", "0/3 nodes are available: 3 Insufficient tencent.com/vcuda-core.")
    quota = {"default": {"quota": {"*": 50}}} if dice.random() < 0.5 else None
    return _cluster(dice, obj, full=dice.random() < 0.7, quota=quota), obj


def _said(obj: Obj, reason: str, message: str) -> Obj:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {**obj, "status": {**obj["status"], "conditions": [condition]}}


CASES: Final[Mapping[str, Callable[[random.Random], tuple[World, Obj]]]] = {
    "gate": _gated,
    "owner": _rolled_out,
    "volume": _without_volume,
    "scheduler": _of_another_scheduler,
    "quota": _over_quota,
    "none": _free,
}
