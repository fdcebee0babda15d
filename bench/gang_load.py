"""What a modelled scheduler of gangs is asked to place, and how the real ones differ."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from bench.gang_faults import Fault
from gpu_manager.domain.resources import CORES_PER_CARD
from tests.fakes.extender import Obj, pod

CARDS: Final = 8  # of a node


@dataclass(frozen=True, slots=True)
class Scheduler:
    """``permit``: seconds that a member waits for the others, 0 for not at all; ``whole``: all members of a
    gang are judged in one cycle; ``mark``: labels, annotations and the PodGroup's API.
    """

    permit: float
    whole: bool
    api: str


SCHEDULERS: Final = {
    "coscheduling": Scheduler(60.0, whole=False, api="scheduling.x-k8s.io"),
    "in-tree": Scheduler(300.0, whole=True, api="scheduling.k8s.io"),
    "kueue": Scheduler(0.0, whole=False, api=""),
}


@dataclass(slots=True)
class Gang:
    """``size`` members that run together for ``seconds`` once all are bound. ``disturbed``: a member was
    deleted or preempted while some were bound and not all.
    """

    name: str
    size: int
    core: int
    priority: int
    seconds: float
    came: float
    pods: dict[str, GangPod] = field(default_factory=dict)  # that there are, by UID
    partly_since: float | None = None
    worst: float = 0.0  # the longest time for which a part of it was bound
    disturbed: bool = False
    runs: bool = False
    done: float | None = None


@dataclass(slots=True)
class GangPod:
    """A member, as its scheduler sees it."""

    obj: Obj
    gang: Gang
    queued: float
    tries: int = 0
    until: float = 0.0  # in backoff until then
    parked: float | None = None  # no event has come since it failed
    deaf: bool = False  # only a pod that is added, or its sibling's success, counts as an event
    node: str = ""  # assumed there
    bound: bool = False
    permit_ends: float | None = None
    cycle: int = 0  # rises whenever it is given up, so that what is under way for it has no effect
    nominated: str = ""

    @property
    def name(self) -> str:
        """Its name; its last part is its number within the gang."""
        return str(self.obj["metadata"]["name"])

    @property
    def uid(self) -> str:
        """Its UID."""
        return str(self.obj["metadata"]["uid"])


@dataclass(frozen=True, slots=True)
class Load:
    """Gangs that come at ``share`` of what the cards can do. Without ``together`` pods are marked by nothing,
    and each runs by itself. ``judged``: the extender judges members together. ``fault`` happens once.
    """

    gangs: int
    nodes: int
    share: float = 0.95
    together: bool = True
    judged: bool = True
    disturbances: bool = True
    fault: Fault | None = None

    def drawn(self, dice: random.Random) -> list[Gang]:
        """Gangs that come evenly over the time in which the cards could do that much."""
        made, card_seconds = [], 0.0
        for number in range(self.gangs):
            size, core = dice.randint(2, 8), dice.choice((30, 50, 100, 100, 200))
            seconds = dice.uniform(60, 240)
            priority = 5 if dice.random() < 0.1 else 0
            made.append(Gang(f"g{number}", size, core, priority, seconds, 0.0))
            card_seconds += size * core / 100 * seconds
        span = card_seconds / (self.nodes * CARDS * self.share)
        for gang in made:
            gang.came = dice.uniform(0.0, span)
        return made


def member(gang: Gang, index: int, uid: str, mark: Scheduler | None) -> Obj:
    """A core/v1 Pod of the gang, marked for that scheduler; None: by nothing."""
    labels, annotations, spec = {}, {}, {}
    if mark is not None and not mark.api:
        labels["kueue.x-k8s.io/pod-group-name"] = gang.name
        annotations["kueue.x-k8s.io/pod-group-total-count"] = str(gang.size)
    elif mark is not None and mark.whole:
        spec["schedulingGroup"] = {"podGroupName": gang.name}
    elif mark is not None:
        labels["scheduling.x-k8s.io/pod-group"] = gang.name
    obj = pod(
        f"{gang.name}-{index}",
        gang.core,
        16 if gang.core < CORES_PER_CARD else None,
        uid=uid,
        labels=labels,
        annotations=annotations,
        priority=gang.priority,
    )
    obj["spec"] |= spec
    return obj


def pod_group(gang: Gang, mark: Scheduler) -> Obj:
    """Its PodGroup, in the API that this scheduler reads."""
    size: Obj = {"minMember": gang.size}
    if mark.whole:
        size = {"schedulingPolicy": {"gang": {"minCount": gang.size}}}
    return {"metadata": {"namespace": "default", "name": gang.name}, "spec": size}


def victims(one: GangPod, there: Iterable[GangPod], free: int) -> list[GangPod]:
    """Pods of lower priority on a node that would leave room by sums; none where there is room, or never."""
    lower = [other for other in there if other.gang.priority < one.gang.priority]
    lower.sort(key=lambda other: other.gang.core)
    found: list[GangPod] = []
    while free < one.gang.core and lower:
        found.append(lower.pop())
        free += found[-1].gang.core
    return found if free >= one.gang.core else []
