"""A scheduler that asks the extender as kube-scheduler does, with gangs, on a clock that is set forward.

It is the least friendly that the real ones allow: pods of equal priority come in the order in which they came
to the queue, so that gangs are mixed; it sees a sample of the nodes, in another order each time; its own
scores outvote the extender's; members wait in Permit, are bound in any order and some of the Bindings take
long; a member that fails takes those that wait with it; what watches show comes late. ``SCHEDULERS`` has what
differs between the real ones.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from admission.cluster.snapshot import NODES
from admission.config import GANG_SECONDS
from admission.extender.requeue import Requeue
from admission.extender.verbs import Reply
from admission.replay.recorder import DecisionRecorder
from bench.gang_faults import Kind, NodeStates
from bench.gang_load import CARDS, Gang, GangPod, Load, Scheduler, member, pod_group, victims
from gpu_manager.domain.kube.pod import Pod, PodUid
from tests.fakes.extender import Obj, World, answer, args, uuid
from tests.fakes.ports import FakeClock

CYCLE_SECONDS: Final = 0.005
_LAG: Final = (0.0, 1.0)  # of a watch
_BACKOFF: Final = (1.0, 10.0)
_FLUSH: Final = 300.0
_SAMPLE: Final = 0.7  # of the nodes are asked about


class Model:
    """One run. ``gangs`` are all that came. ``recorder`` makes one for each leader."""

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
        self.asked = 0  # calls to the extender
        self.touches = 0  # of pods, that they are asked about again
        self._shown: dict[str, float] = {}
        self._running: set[str] = set()
        self._ended: dict[str, int] = {}
        self._singles: list[Gang] = []
        self._quiet = 0.0  # from then on nothing is disturbed
        self._free = dict.fromkeys(self._names, 100 * CARDS)
        self.gangs: list[Gang] = []
        self.changes = 0  # of leader
        self.preempted = 0

    def run(self, most_seconds: float) -> float:
        """Let all gangs come and end; when the last did, or when nothing more is waited for."""
        if self._load.gangs:
            self.bring(self._load.drawn(self._random))
        came = max(gang.came for gang in self.gangs)
        self._every(1.0, self._chores)
        if self._load.disturbances:
            self._every(9.0, self._delete_one)
            self._every(150.0, self._change_leader)
            self._every(25.0, self._urgent)
            self._every(40.0, partial(self._nodes.break_some, Kind.CLOSES, 20.0))
            self._every(70.0, partial(self._nodes.break_some, Kind.LEAVES, 6.0))
        self._quiet, ends = came, came + most_seconds
        while self.time < ends and any(gang.done is None for gang in self.gangs):
            self._step()
        return max((gang.done or ends) for gang in self.gangs)

    def bring(self, gangs: Sequence[Gang], late: int = 0, late_seconds: float = 0.0) -> None:
        """Let these come, each at its time; of the first so many members only that much later."""
        self.gangs = list(gangs)
        for gang in self.gangs:
            self._at(gang.came, partial(self._come, gang, late if gang is self.gangs[0] else 0, late_seconds))

    @property
    def time(self) -> float:
        return self._clock.time

    def over_committed(self) -> list[str]:
        """Cards that bear more than they have, by what the extender knows."""
        return self._world.over_committed()

    # What comes.

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

    def _step(self) -> None:
        """The next event, or the next pod of the queue."""
        found = self._next()
        if found is None:
            time, _, act = heapq.heappop(self._events)
            self._clock.time = max(self.time, time)
            act()
            return
        self._clock.time += CYCLE_SECONDS
        while self._events and self._events[0][0] <= self.time:
            heapq.heappop(self._events)[2]()
        if self._scheduler.whole and self._load.together:
            self._cycle_of_gang(found.gang)
        elif found.uid in self._pods:
            self._cycle(found)

    def _next(self) -> GangPod | None:
        ready = [one for one in self._pods.values() if self._is_ready(one)]
        return min(ready, key=lambda one: (-one.gang.priority, one.queued, one.name), default=None)

    def _is_ready(self, one: GangPod) -> bool:
        if one.node or one.bound or one.until > self.time:
            return False
        if one.parked is not None and self.time - one.parked < _FLUSH:
            return False
        if not self._load.together:
            return True
        return len(one.gang.pods) >= one.gang.size or one.gang.runs  # PreEnqueue, PreFilter; Kueue's gate

    # A scheduling cycle.

    def _cycle(self, one: GangPod) -> None:
        where = self._place(one)
        if not where:
            return
        self._assume(one, where)
        gang = one.gang
        if not self._scheduler.permit or not self._load.together:
            self._bind_soon(one)
            return
        self._permit(one)
        there = [other for other in gang.pods.values() if other.node or other.bound]
        if len(there) >= gang.size:
            self._release(gang)
        elif len(there) == 1:
            for other in gang.pods.values():  # the others are asked about at once
                other.parked, other.until = None, 0.0

    def _cycle_of_gang(self, gang: Gang) -> None:
        """All members in one cycle: if less than the minimum has a node, none has."""
        waiting = [one for one in gang.pods.values() if not (one.node or one.bound)]  # wherever they wait
        self._random.shuffle(waiting)
        for one in waiting:
            self._clock.time += CYCLE_SECONDS
            if where := self._place(one):
                self._assume(one, where)
                self._permit(one)
        there = [one for one in gang.pods.values() if one.node or one.bound]
        if len(there) >= gang.size or gang.runs:
            self._release(gang)
            return
        for one in waiting:
            if one.node and not one.bound:
                self._fail(one, "the gang does not fit")

    def _place(self, one: GangPod) -> str:
        """A node for the pod: by sums, by the extender, then by scores that know nothing of cards."""
        names = [name for name in self._names if self._free[name] >= one.gang.core]
        self._random.shuffle(names)
        names = names[: max(8, int(len(names) * _SAMPLE))]
        if one.nominated in self._names and one.nominated not in names:
            names.append(one.nominated)
        if not names:
            self._unfit(one, self._names)
            return ""
        shown = self._as_shown(one)
        found = answer(self._ask("filter", args(shown, names)))
        if found["Error"]:
            self._fail(one, found["Error"], error=True)
            return ""
        fitting = found["NodeNames"] or []
        if not fitting:
            self._unfit(one, [*(found["FailedNodes"] or {}), *(set(self._names) - set(names))])
            return ""
        if len(fitting) == 1:
            return str(fitting[0])
        scores = json.loads(self._ask("prioritize", args(shown, fitting)).body)
        given = {each["Host"]: each["Score"] for each in scores}
        others = {name: self._random.randint(0, 300) for name in fitting}  # the other plugins' scores
        return str(max(fitting, key=lambda name: 10 * given[name] + others[name]))

    def _as_shown(self, one: GangPod) -> Obj:
        return self._world.api.pods["default", one.name]

    def _unfit(self, one: GangPod, nodes: list[str]) -> None:
        """No node took it: PostFilter of preemption, and of coscheduling."""
        self._evict_for(one, nodes)
        if self._scheduler.permit and not self._scheduler.whole and self._load.together:
            for other in one.gang.pods.values():
                if other.permit_ends is not None:
                    self._fail(other, "another member has no node", deaf=True)
        self._fail(one, f"0/{len(self._names)} nodes are available")

    def _evict_for(self, one: GangPod, nodes: list[str]) -> None:
        """By sums, as the in-tree plugin tries it: a node with room by sums has no victims."""
        offered = {}
        for name in nodes:
            here = [other for other in self._pods.values() if other.bound and other.node == name]
            if found := victims(one, here, self._free[name]):
                offered[name] = {"Pods": [{"UID": other.uid} for other in found], "NumPDBViolations": 0}
        if not offered:
            return
        question = {"Pod": self._as_shown(one), "NodeNameToMetaVictims": offered}
        chosen = answer(self._ask("preempt", json.dumps(question).encode()))["NodeNameToMetaVictims"]
        if not chosen:
            return
        name = min(chosen, key=lambda found: (len(chosen[found]["Pods"]), found))
        one.nominated = name
        for victim in chosen[name]["Pods"]:
            if (other := self._pods.get(victim["UID"])) is not None:
                self.preempted += 1
                self._delete(other)

    # Between choice and bind.

    def _assume(self, one: GangPod, where: str) -> None:
        one.node, one.parked, one.nominated = where, None, ""
        self._free[where] -= one.gang.core

    def _permit(self, one: GangPod) -> None:
        one.permit_ends = self.time + self._scheduler.permit
        cycle = one.cycle

        def ends() -> None:
            if one.cycle == cycle and one.permit_ends is not None:
                for other in list(one.gang.pods.values()):
                    if other.permit_ends is not None:
                        self._fail(other, "rejected due to timeout after waiting at plugin", deaf=True)

        self._at(one.permit_ends, ends)

    def _release(self, gang: Gang) -> None:
        for one in gang.pods.values():
            if one.permit_ends is not None:
                one.permit_ends = None
                self._bind_soon(one)

    def _bind_soon(self, one: GangPod) -> None:
        """PreBind takes longer for some: a volume, an image's secret."""
        slow = self._random.random() < 0.1
        cycle = one.cycle

        def bind() -> None:
            if one.cycle == cycle and one.uid in self._pods and not one.bound:
                self._bind(one)

        self._after(self._random.uniform(2.0, 15.0) if slow else self._random.uniform(0.0, 0.3), bind)

    def _bind(self, one: GangPod) -> None:
        meta = one.obj["metadata"]
        body = {"PodName": one.name, "PodNamespace": "default", "PodUID": meta["uid"], "Node": one.node}
        cycle = one.cycle
        error = answer(self._ask("bind", json.dumps(body).encode()))["Error"]
        if one.cycle != cycle or one.uid not in self._pods:
            return  # it was deleted, or another leads
        if error:
            self._fail(one, error, error=True)
            for other in one.gang.pods.values():  # Unreserve
                if other.permit_ends is not None and self._load.together:
                    self._fail(other, error, deaf=True)
            return
        one.bound = True
        self._show(self._as_shown(one))
        self._count(one.gang)

    def _fail(self, one: GangPod, reason: str, *, error: bool = False, deaf: bool = False) -> None:
        """It goes back to the queue: to wait for an event, or after an error for a moment.

        ``deaf``: coscheduling has rejected it in Permit, which registers for pods that are added alone.
        """
        if one.node:
            self._free[one.node] += one.gang.core
        one.node, one.permit_ends = "", None
        one.cycle += 1
        one.tries += 1
        one.until = self.time + min(_BACKOFF[1], _BACKOFF[0] * 2 ** min(one.tries - 1, 8))
        one.queued = self.time
        one.parked, one.deaf = None if error else self.time, deaf and not self._scheduler.whole
        if one.uid not in self._pods:
            return
        shown = self._as_shown(one)
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reason}
        status = {**shown["status"], "conditions": [condition]}
        if one.nominated:
            status["nominatedNodeName"] = one.nominated
        new = {**shown, "status": status}
        if new != shown:
            self._world.api.put(new)
            self._show(new)

    def _ask(self, verb: str, body: bytes) -> Reply:
        self.asked += 1
        fault = self._load.fault
        if fault is not None and fault.at == self.asked:
            for name in self._names[: fault.nodes]:
                if fault.kind is not Kind.LINGERS or self._is_idle(name, fault.card):
                    self._nodes.break_(name, fault.kind, fault.card, fault.seconds)
        reply: Reply = getattr(self._world.extender, verb)(body)
        return reply

    def _pause(self, seconds: float) -> None:
        """A call of the extender waits: what happens meanwhile."""
        ends = self.time + seconds
        while self._events and self._events[0][0] <= ends:
            time, _, act = heapq.heappop(self._events)
            self._clock.time = max(self.time, time)
            act()
        self._clock.time = max(self.time, ends)

    def _is_idle(self, name: str, card: int) -> bool:
        """True if no pod is bound to that card."""
        ledger, where = self._world.cluster.snapshot().nodes[name].ledger, uuid(name, card)
        there = (uid for uid in ledger.pods if any(where in one.cards for one in ledger.of_pod(uid).values()))
        return all(map(self._world.cluster.expected_on, there))

    def _show_node(self, obj: Obj) -> None:
        self._world.cluster.apply(NODES, "MODIFIED", obj)
        self._event()

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

    def _event(self, *, added: bool = False) -> None:
        """Something happened: the pods that failed are looked at again, once their pause is over."""
        for one in self._pods.values():
            if added or not one.deaf:
                one.parked = None

    def _urgent(self) -> None:
        """A pod of high priority, by itself, for half a minute."""
        gang = Gang(f"urgent-{self._number}", 1, 100, 9, 30.0, self.time)
        together, self._load = self._load, replace(self._load, together=False)
        self._create(gang, 0)
        self._load = together
        self._singles.append(gang)

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
