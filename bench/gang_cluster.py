"""The cluster of a modelled scheduler of gangs: its clock, pods that come and end, watches, what disturbs."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from admission.cluster.snapshot import NODES
from admission.config import GANG_SECONDS
from admission.extender.requeue import Requeue
from admission.replay.recorder import DecisionRecorder
from bench.gang_faults import NodeStates
from bench.gang_load import CARDS, Gang, GangPod, Load, Scheduler, member, pod_group
from gpu_manager.domain.kube.pod import Pod, PodUid
from tests.fakes.extender import Obj, World, uuid
from tests.fakes.ports import FakeClock

_LAG: Final = (0.0, 1.0)  # of a watch


class GangCluster:
    """``gangs`` are all that came. ``recorder`` makes one for each leader."""

    def __init__(
        self,
        scheduler: Scheduler,
        load: Load,
        seed: int,
        recorder: Callable[[], DecisionRecorder | None] = lambda: None,
    ) -> None:
        self._recorder = recorder
        self._random = random.Random(seed)
        self._scheduler, self._load = scheduler, load
        self._clock = FakeClock(0.0)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._pods: dict[str, GangPod] = {}
        self._names = [f"n{i}" for i in range(load.nodes)]
        self._groups: dict[str, Obj] = {}
        self._nodes = NodeStates(self._names, CARDS, self._random, self._after, self._show_node)
        self._world = self._new_world([])
        self.touches = 0  # of pods, that they are asked about again
        self._shown: dict[str, float] = {}
        self._running: set[str] = set()
        self._ended: dict[str, int] = {}
        self._singles: list[Gang] = []
        self._quiet = 0.0  # from then on nothing is disturbed
        self._free = dict.fromkeys(self._names, 100 * CARDS)
        self.gangs: list[Gang] = []
        self.changes = 0  # of leader

    @property
    def time(self) -> float:
        return self._clock.time

    def over_committed(self) -> list[str]:
        """Cards on which the extender knows more shares than they have room for."""
        return self._world.over_committed()

    # What comes.

    def bring(self, gangs: Sequence[Gang], late: int = 0, late_seconds: float = 0.0) -> None:
        """Let these come, each at its time; of the first so many members only that much later."""
        self.gangs = list(gangs)
        for gang in self.gangs:
            self._at(gang.came, partial(self._come, gang, late if gang is self.gangs[0] else 0, late_seconds))

    def _come(self, gang: Gang, late: int, late_seconds: float) -> None:
        if self._scheduler.api and self._load.together:
            self._groups[gang.name] = group = pod_group(gang, self._scheduler)
            self._world.members.take_group(self._scheduler.api, group, gone=False)
        for index in range(gang.size):
            pause = late_seconds if index < late else self._random.uniform(0.0, 3.0)
            self._after(pause, partial(self._create, gang, index))

    def _create(self, gang: Gang, index: int) -> None:
        self._number += 1
        mark = self._scheduler if self._load.together else None
        obj = member(gang, index, f"uid-{self._number}", mark)
        self._world.api.put(obj)
        one = GangPod(obj, gang, self.time)
        self._pods[one.uid] = gang.pods[one.uid] = one
        self._show(obj)

    # The clock.

    def _at(self, time: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, act))

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._at(self.time + seconds, act)

    def _every(self, seconds: float, act: Callable[[], None]) -> None:
        def again() -> None:
            if act == self._chores or self.time < self._quiet:
                act()
            self._after(seconds, again)

        self._after(seconds, again)

    def _pause(self, seconds: float) -> None:
        """A call of the extender waits: what happens meanwhile."""
        ends = self.time + seconds
        while self._events and self._events[0][0] <= ends:
            time, _, act = heapq.heappop(self._events)
            self._clock.time = max(self.time, time)
            act()
        self._clock.time = max(self.time, ends)

    # What watches show.

    def _as_shown(self, one: GangPod) -> Obj:
        return self._world.api.pods["default", one.name]

    def _show(self, obj: Obj) -> None:
        """The watch of the extender shows it, late."""
        world, time = self._world, self.time + self._random.uniform(*_LAG)
        uid = obj["metadata"]["uid"]
        time = max(time, self._shown.get(uid, 0.0))  # one watch shows changes in their order
        self._shown[uid] = time

        def show() -> None:
            if uid in self._pods:
                world.show(obj)

        self._at(time, show)
        self._after(self._random.uniform(*_LAG), partial(self._event, added=True))

    def _show_node(self, obj: Obj) -> None:
        self._world.cluster.apply(NODES, "MODIFIED", obj)
        self._event()

    def _event(self, *, added: bool = False) -> None:
        """Something happened: the pods that failed are looked at again, once their pause is over."""
        for one in self._pods.values():
            if added or not one.deaf:
                one.parked = None

    # What ends.

    def _delete(self, one: GangPod) -> None:
        gang = one.gang
        if not gang.runs and any(other.bound for other in gang.pods.values()):
            gang.disturbed = True
        self._remove(one)
        self._count(gang)
        index = int(one.name.rpartition("-")[2])
        self._after(self._random.uniform(0.2, 2.0), lambda: self._create(gang, index))

    def _remove(self, one: GangPod) -> None:
        if self._pods.pop(one.uid, None) is None:
            return
        one.gang.pods.pop(one.uid)
        one.cycle += 1
        if one.node:
            self._free[one.node] += one.gang.core
        view = self._world.cluster.snapshot().nodes.get(one.node) if self._load.disturbances else None
        if one.bound and view is not None:
            self._nodes.outlive(one.node, one.uid, view.ledger.of_pod(PodUid(one.uid)).values())
        gone = self._world.api.pods.pop(("default", one.name))
        world = self._world
        self._after(self._random.uniform(*_LAG), lambda: world.delete_seen(gone))
        self._after(self._random.uniform(*_LAG), self._event)

    def _count(self, gang: Gang) -> None:
        """See whether the gang runs, or a part of it lies on cards in vain."""
        bound = [one for one in gang.pods.values() if one.bound]
        if not self._load.together or gang.size == 1:
            self._count_singles(gang, bound)
            return
        if gang.partly_since is not None and not gang.disturbed and not gang.runs:
            gang.worst = max(gang.worst, self.time - gang.partly_since)
        if not gang.runs and len(bound) >= gang.size:
            gang.runs = True
            self._after(gang.seconds, lambda: self._end(gang))
        partly = bound and len(bound) < gang.size and not gang.runs
        gang.partly_since = (gang.partly_since or self.time) if partly else None

    def _end(self, gang: Gang) -> None:
        gang.done = self.time
        for one in list(gang.pods.values()):
            self._remove(one)

    def _count_singles(self, gang: Gang, bound: list[GangPod]) -> None:
        for one in bound:
            if one.uid not in self._running:
                self._running.add(one.uid)
                self._after(gang.seconds, partial(self._end_single, one))

    def _end_single(self, one: GangPod) -> None:
        if one.uid not in self._pods:
            return
        self._remove(one)
        self._ended[one.gang.name] = self._ended.get(one.gang.name, 0) + 1
        if self._ended[one.gang.name] == one.gang.size:
            one.gang.done = self.time

    # What happens beside.

    def _chores(self) -> None:
        world = self._world
        world.binder.settle()
        world.cluster.expire(self.time)
        world.gangs.settle()
        self._waker.tick(world.cluster.lapsed + world.binder.lapsed)

    def _note_refused(self, uid: PodUid, turn: int) -> None:
        self._waker.refused(uid, turn)

    def _touch(self, found: Pod, _value: str) -> None:
        """Its annotation changes: kube-scheduler looks at it again, once its pause is over."""
        self.touches += 1
        if (one := self._pods.get(found.uid)) is not None and not one.deaf:
            one.parked = None

    def _delete_one(self) -> None:
        """Somebody deletes a pod, a controller makes another of its name."""
        young = [one for one in self._pods.values() if not one.gang.runs]
        pods = young if young and self._random.random() < 0.8 else list(self._pods.values())
        if pods:
            self._delete(self._random.choice(pods))

    def _urgent(self) -> None:
        """A pod of high priority, by itself, for half a minute."""
        gang = Gang(f"urgent-{self._number}", 1, 100, 9, 30.0, self.time)
        together, self._load = self._load, replace(self._load, together=False)
        self._create(gang, 0)
        self._load = together
        self._singles.append(gang)

    def _is_idle(self, name: str, card: int) -> bool:
        """True if no pod is bound to that card."""
        ledger, where = self._world.cluster.snapshot().nodes[name].ledger, uuid(name, card)
        there = (uid for uid in ledger.pods if any(where in one.cards for one in ledger.of_pod(uid).values()))
        return all(map(self._world.cluster.expected_on, there))

    def _change_leader(self) -> None:
        """Scheduler and extender begin anew, by what the API server has."""
        self.changes += 1
        self._world.leads = False
        self._world.binder.end()
        self._world = self._new_world(list(self._world.api.pods.values()))
        for one in self._pods.values():
            if one.node and not one.bound:
                self._free[one.node] += one.gang.core
                one.node = ""
            one.cycle += 1
            one.permit_ends = one.parked = None
            one.tries, one.until, one.nominated = 0, 0.0, ""
        self._world.binder.begin()
        self._world.gangs.begin()

    def _new_world(self, pods: list[Obj]) -> World:
        seconds = GANG_SECONDS if self._load.judged else 0.0
        nodes = self._nodes.all()
        world = World(
            nodes,
            pods,
            watching=False,
            expecting=True,
            clock=self._clock,
            gang_seconds=seconds,
            pause=self._pause,
            refused=self._note_refused,
            recorder=self._recorder(),
        )
        self._waker = Requeue(world.cluster.pod, world.extender.has_room, self._touch, self._clock)
        for obj in self._groups.values():
            world.members.take_group(self._scheduler.api, obj, gone=False)
        return world
