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
from functools import partial
from typing import Final

from admission.extender.verbs import Reply
from bench.gang_cluster import GangCluster
from bench.gang_faults import Kind
from bench.gang_load import Gang, GangPod, victims
from tests.fakes.extender import answer, args

CYCLE_SECONDS: Final = 0.005
_BACKOFF: Final = (1.0, 10.0)
_FLUSH: Final = 300.0
_SAMPLE: Final = 0.7  # of the nodes are asked about


class Model(GangCluster):
    """One run."""

    asked = 0  # calls to the extender
    preempted = 0

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

    # The queue.

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

    def _ask(self, verb: str, body: bytes) -> Reply:
        self.asked += 1
        fault = self._load.fault
        if fault is not None and fault.at == self.asked:
            for name in self._names[: fault.nodes]:
                if fault.kind is not Kind.LINGERS or self._is_idle(name, fault.card):
                    self._nodes.break_(name, fault.kind, fault.card, fault.seconds)
        reply: Reply = getattr(self._world.extender, verb)(body)
        return reply

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
