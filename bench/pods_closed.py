"""``closed_by_abuse_minutes``: how long tenants keep a node closed to others though their pod has room there,
and ``closed_idle_by_abuse_minutes``: how long while it has none, times the idle part of the node.

The extender of the product over six modelled days; strategies of up to five namespaces that work together,
drawn at random. They have pods of several cards that wait, made anew or not, and small pods that come and go
for one another's wait; they put small pods of their own in the way on idle nodes and take them away; their
large pod comes never, late, at once, or takes its place and is never bound, and leaves at once or stays.
Beside them run pods of others, few of which leave. What counts is time: each stretch in which a node is
closed and the pod that it is closed for has room there, its namespace's own pods not counted; and each in
which it has none, of which the cores of the node that nobody has are counted. What pods then ran for which a
node was closed is taken off the latter, in all, up to that.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.verbs import Extender
from bench.rows import Row
from gpu_manager.domain.score.closing import DAY
from tests.fakes.extender import Obj, World, node, pod

QUICK: Final = 20  # strategies
FULL: Final = 1_000
DAYS: Final = 6
CARDS: Final = 8
MOST_A_DAY: Final = 10  # minutes of one node, by its bar
MOST_IN_ALL: Final = 30
MOST_IDLE: Final = 250  # minutes of one idle node a day, and of each namespace in all: four hours, and a look
_STEPS: Final = (7200.0, 3600.0, 1200.0)  # between two looks while no node is closed
_STEP_DRAINING: Final = 60.0  # while one is, and must drain first
_STEP_CLOSED: Final = 15.0  # while one is for a pod that has room


class Closed(NamedTuple):
    """Minutes, of the worst node and day, and in all: with room for the pod; idle without it, of the worst
    node and day and of the worst namespace.

    ``kept``: the most minutes that places of one pod were kept.
    """

    a_day: float
    in_all: float
    idle_a_day: float
    idle_in_all: float
    kept: float


class _Now(NamedTuple):
    """The node that is closed, for which pod, whether that has room there but for pods of its own namespace,
    and the idle part of the node.
    """

    node: str
    pod: str
    namespace: str
    room: bool
    idle: float


@dataclass(slots=True)
class _Tenant:
    """What one namespace does."""

    name: str
    cards: int  # that its large pods ask for
    large: int  # pods
    small: int  # pods that come and go at each step
    renews: bool  # makes its large pods anew once a node has been open again
    blocks: float  # how often it puts a pod of its own on an idle node, or takes it away
    comes: str  # never, late, soon, keeps: what becomes of the pod for which a node is closed
    stays: float  # seconds
    block: Obj | None = None


def rows(*, full: bool) -> Iterator[Row]:
    """The rows."""
    strategies = FULL if full else QUICK
    found = [run(seed) for seed in range(strategies)]
    worst = [max(each[at] for each in found) for at in range(len(Closed._fields))]
    note = (
        f"worst of {strategies} random strategies of 1 to 5 namespaces over {DAYS} modelled days, while the"
        f" pod has room; on all nodes and days {worst[1]:.1f}; places of one pod were kept for"
        f" {worst[4]:.1f}, charged to its quota"
    )
    idle = (
        "the same strategies, while the node drains: its idle part times the minutes, of one node and day; of"
        f" one namespace in all, what its pods then ran there taken off, {worst[3]:.0f}"
    )
    yield Row("closed_by_abuse_minutes", round(worst[0], 2), "min", f"≤ {MOST_A_DAY}", full=full, note=note)
    yield Row(
        "closed_by_abuse_minutes_in_all", round(worst[1], 2), "min", f"≤ {MOST_IN_ALL}", full=full, note=note
    )
    most = f"≤ {MOST_IDLE}"
    yield Row("closed_idle_by_abuse_minutes", round(max(worst[2:4]), 1), "min", most, full=full, note=idle)


def run(seed: int) -> Closed:
    """One strategy."""
    return _Strategy(seed).run()


class _Strategy:
    def __init__(self, seed: int) -> None:
        dice = self._dice = random.Random(seed)
        nodes = dice.choice((2, 3, 5, 10))
        names = [f"n{at}" for at in range(nodes)]
        idle = dice.randint(0, max(1, nodes // 2))
        others = [
            pod(f"other-{name}-{at}", dice.choice((10, 50)), 1, on=name, namespace="others")
            for name in names[idle:]
            for at in range(dice.randint(1, 8))
        ]
        self.world = World([node(name, cards=CARDS) for name in names], others, expecting=True)
        world = self.world
        self.policy = LeastFragmentation(world.cluster, aside=lambda job: job(), quota=world.quota)
        world.extender = Extender(
            world.cluster, world.quota, world.judge, self.policy, world.binder, clock=world.clock
        )
        self._others, self._names = others, names
        self._leave = dice.choice((0.0, 1 / 86_400, 1 / 14_400))  # of others' pods, a second
        self._tenants = [self._tenant(f"team-{at}") for at in range(dice.randint(1, 5))]
        self._step = dice.choice(_STEPS)
        self._count = 0
        self._running: list[tuple[float, Obj]] = []
        self._given_up: dict[str, float] = {}  # when its scheduler gives up on a place that it took
        self._kept = Counter[str]()  # seconds, by pod
        self._owed = Counter[str]()  # idle seconds, by namespace, less what pods ran for that
        self._most_owed = 0.0
        self._waits: dict[str, list[Obj]] = {t.name: [] for t in self._tenants}

    def _tenant(self, name: str) -> _Tenant:
        dice = self._dice
        return _Tenant(
            name,
            dice.choice((2, 4, 8, 8, 8)),
            dice.choice((1, 2, 10)),
            dice.choice((0, 3, 10)),
            dice.random() < 0.5,
            dice.choice((0.0, 0.0, 0.02, 0.2)),
            dice.choice(("never", "never", "late", "late", "soon", "keeps")),
            dice.choice((0.0, 0.0, 60.0, 7200.0)),
        )

    def run(self) -> Closed:
        """Six days."""
        world, closed = self.world, self._closed()
        days, idle = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
        began = closed_since = world.clock.time
        while world.clock.time < began + DAYS * DAY:
            step = self._step if closed is None else _STEP_CLOSED if closed.room else _STEP_DRAINING
            world.clock.pass_(step)
            now = world.clock.time
            world.cluster.expire(now)
            self._act(closed, now - closed_since)
            self._kept.update(dict.fromkeys(world.cluster.snapshot().reserved, step))
            self.policy.close(now)
            before, closed = closed, self._closed()
            if closed is None or before is None or closed[:2] != before[:2]:
                closed_since = now
            if before is not None and before.room:
                days[int((now - began) // DAY), before.node] += step
            elif before is not None:
                idle[int((now - began) // DAY), before.node] += step * before.idle
                self._owed[before.namespace] += step * before.idle
            for space in (obj["metadata"]["namespace"] for _, obj in self._running):
                self._owed[space] = max(0.0, self._owed[space] - step)
            self._most_owed = max(self._most_owed, *self._owed.values(), 0.0)
        found = max(days.values(), default=0.0), sum(days.values()), max(idle.values(), default=0.0)
        kept = max(self._kept.values(), default=0.0)
        return Closed(*(each / 60 for each in (*found, self._most_owed, kept)))

    def _closed(self) -> _Now | None:
        for view in self.world.cluster.snapshot().nodes.values():
            if view.kept is not None:
                theirs = view.kept.pod.namespace
                busy = {
                    card
                    for uid, charge in view.charges.items()
                    if charge.pod.namespace != theirs
                    for card in {s.card for a in charge.allocations for s in a.shares}
                }
                room = CARDS - len(busy) >= view.kept.cards
                cores = sum(
                    s.amount.cores for c in view.charges.values() for a in c.allocations for s in a.shares
                )
                return _Now(view.name, view.kept.pod.uid, theirs, room, 1 - cores / (100 * CARDS))
        return None

    def _act(self, closed: _Now | None, closed_for: float) -> None:
        world, now, dice = self.world, self.world.clock.time, self._dice
        for until, obj in [each for each in self._running if each[0] <= now]:
            self._running.remove((until, obj))
            world.delete(obj)
        if self._leave and dice.random() < self._leave * self._step * len(self._others):
            gone = dice.choice(self._others)
            world.delete(gone)
            world.create(gone)
        for uid in [uid for uid, at in self._given_up.items() if at <= now]:
            del self._given_up[uid]
            self._gives_up(uid)
        for tenant in self._tenants:
            self._goes_on(tenant, anything_closed=closed is not None)
            if closed is not None and closed.pod.startswith(f"uid-{tenant.name}-"):
                self._is_waited_for(tenant, closed, closed_for)

    def _goes_on(self, tenant: _Tenant, *, anything_closed: bool) -> None:
        world, dice, waits = self.world, self._dice, self._waits[tenant.name]
        while len(waits) < tenant.large:
            waits.append(self._large(tenant))
        if tenant.renews and not anything_closed and dice.random() < 0.01:
            gone = waits.pop(dice.randrange(len(waits)))
            world.delete(gone)
        for _ in range(0 if anything_closed or dice.random() > 0.3 else tenant.small):
            self._count += 1
            passing = pod(f"small-{self._count}", 1, 1, on=self._names[-1], namespace=tenant.name)
            world.create(passing)
            world.delete(passing)
        if dice.random() < tenant.blocks:
            if tenant.block is not None:
                world.delete(tenant.block)
                tenant.block = None
            else:
                self._count += 1
                where = dice.choice(self._names)
                tenant.block = pod(f"block-{self._count}", 1, 1, on=where, namespace=tenant.name)
                world.create(tenant.block)

    def _large(self, tenant: _Tenant) -> Obj:
        self._count += 1
        obj = pod(f"large-{self._count}", 100 * tenant.cards, None, namespace=tenant.name)
        obj["status"]["conditions"] = [_condition("volume not bound")]
        self.world.create(obj)
        return obj

    def _is_waited_for(self, tenant: _Tenant, closed: _Now, closed_for: float) -> None:
        """A node is closed for one of its pods."""
        where, uid = closed.node, closed.pod
        obj = next((each for each in self._waits[tenant.name] if each["metadata"]["uid"] == uid), None)
        due = {"never": False, "soon": True, "late": closed_for >= 300, "keeps": True}[tenant.comes]
        if obj is None or not due or not closed.room or uid in self._given_up:
            return
        if self.world.filter(obj, [where])["NodeNames"] != [where]:
            return
        if tenant.comes == "keeps":
            self._given_up[uid] = self.world.clock.time + self._dice.choice((30.0, 600.0, 3600.0))
            return
        if not self.world.bind(obj, where):
            self._waits[tenant.name].remove(obj)
            stays = self.world.api.pods[tenant.name, obj["metadata"]["name"]]
            self._running.append((self.world.clock.time + tenant.stays, stays))

    def _gives_up(self, uid: str) -> None:
        for waits in self._waits.values():
            for at, obj in enumerate(waits):
                if obj["metadata"]["uid"] == uid:
                    self._count += 1
                    condition = _condition(f"timed out {self._count}")
                    waits[at] = {**obj, "status": {**obj["status"], "conditions": [condition]}}
                    self.world.api.put(waits[at])
                    self.world.show(waits[at])


def _condition(message: str) -> Obj:
    return {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
