"""``late_binds_lost``: pods bound 1 to 600 s after filter, for a volume or with their gang, among others.

The extender of the product, a scheduler and a clock that are models. The scheduler does what kube-scheduler
does: it asks about a pod only where its own sums of cores and memory leave room, counts each pod on the node
that it chose from then on, takes the node with the highest score, and binds when the volume is there or the
gang complete. A gang that is not complete after five minutes is given up, and tried again.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

from admission.config import KEEP_SECONDS, SHORTEST_KEEP_SECONDS
from bench.rows import Row
from tests.fakes.extender import Obj, World, node, pod

NODES: Final = 12
CARDS: Final = 4
UNITS: Final = 64  # of memory, a card
QUICK: Final = 500  # late pods
FULL: Final = 5_000
GANG_SECONDS: Final = 300.0
ARRIVAL_SECONDS: Final = 16.0  # between pods or gangs: they ask for about nine tenths of the cluster
LIFE_SECONDS: Final = 600.0
_LOOKED: Final = 20  # pods that wait, each time
_SHAPES: Final = ((100, None), (100, None), (200, None), (50, 4), (50, 64), (30, 8), (30, 40), (10, 60))


class Outcome(NamedTuple):
    """Pods bound late, those of them whose bind was refused, gangs of which a part alone was bound."""

    late: int
    lost: int
    halves: int
    given_up: int


@dataclass(slots=True)
class _Pod:
    obj: Obj
    cores: int
    units: int
    late: float  # seconds from choice to bind; 0 for a member of a gang, which waits for the others
    gang: list[_Pod] = field(default_factory=list)
    chosen: str = ""
    bound: bool = False
    tries: int = 0


def rows(*, full: bool) -> Iterator[Row]:
    """The row; its baseline is the same with places kept for a few seconds."""
    most = FULL if full else QUICK
    found = run(1, most)
    before = run(1, QUICK, keep_seconds=SHORTEST_KEEP_SECONDS)
    note = (
        f"of {found.late} pods bound 1 to 600 s after filter among others, on {NODES} nodes of {CARDS} cards,"
        f" model clock; gangs half bound: {found.halves}, gang members given up: {found.given_up};"
        f" baseline: places kept for 5 s, of {before.late} pods, {before.halves} gangs half bound"
    )
    yield Row("late_binds_lost", found.lost + found.halves, "count", "= 0", before.lost, full=full, note=note)


def run(seed: int, most: int, keep_seconds: float = KEEP_SECONDS) -> Outcome:
    """Pods come until so many have been bound late."""
    return _Cluster(seed, keep_seconds).run(most)


class _Cluster:
    def __init__(self, seed: int, keep_seconds: float) -> None:
        self._dice = random.Random(seed)
        self._world = World(
            [node(f"n{at}", cards=CARDS) for at in range(NODES)], expecting=True, keep_seconds=keep_seconds
        )
        self._sums = {f"n{at}": [100 * CARDS, UNITS * CARDS] for at in range(NODES)}  # kube-scheduler's own
        self._events: list[tuple[float, int, str, _Pod | None]] = []
        self._number = count()
        self._waiting: list[_Pod] = []
        self.late = self.lost = self.halves = self.given_up = 0

    def run(self, most: int) -> Outcome:
        self._at(0.0, "comes", None)
        while self.late < most:
            at, _, what, each = heapq.heappop(self._events)
            self._world.clock.time = at
            if what == "comes":
                self._comes()
            elif each is not None and what == "bind":
                self._bind(each)
            elif each is not None and what == "gang":
                self._gang_is_over(each)
            elif each is not None:
                self._leaves(each)
        return Outcome(self.late, self.lost, self.halves, self.given_up)

    def _at(self, when: float, what: str, each: _Pod | None) -> None:
        heapq.heappush(self._events, (when, next(self._number), what, each))

    @property
    def _now(self) -> float:
        return self._world.clock.time

    def _comes(self) -> None:
        dice = self._dice
        gang = [self._new() for _ in range(dice.choice((1, 1, 1, 1, 2, 4)))]
        for each in gang:
            each.gang = gang
            each.late = dice.choice((0.1, dice.uniform(1, 600))) if len(gang) == 1 else 0.0
            self._waiting.append(each)
        self._at(self._now + dice.expovariate(1 / ARRIVAL_SECONDS), "comes", None)
        self._schedule()

    def _new(self) -> _Pod:
        cores, memory = self._dice.choice(_SHAPES)
        obj = pod(f"p{next(self._number)}", cores, memory, namespace=self._dice.choice(("a", "b")))
        self._world.create(obj)
        return _Pod(obj, cores, memory or 0, 0.0)

    def _schedule(self) -> None:
        """Everyone who waits, the first come first; those that find nothing wait until something leaves."""
        looked, rest = self._waiting[:_LOOKED], self._waiting[_LOOKED:]
        self._waiting = [each for each in looked if not self._place(each)] + rest

    def _place(self, each: _Pod) -> bool:
        able = [n for n, (cores, units) in self._sums.items() if cores >= each.cores and units >= each.units]
        self._dice.shuffle(able)
        fitting = self._world.filter(each.obj, able)["NodeNames"] if able else []
        if not fitting:
            return False
        given = self._world.prioritize(each.obj, fitting) if len(fitting) > 1 else {}
        each.chosen = max(fitting, key=lambda name: given.get(name, 0))
        self._count(each, -1)
        if len(each.gang) == 1:
            self._at(self._now + each.late, "bind", each)
        elif all(member.chosen for member in each.gang):
            for member in each.gang:
                if not member.bound:
                    self._at(self._now + 0.1, "bind", member)
        elif sum(bool(member.chosen) for member in each.gang) == 1:
            self._at(self._now + GANG_SECONDS, "gang", each)
        return True

    def _count(self, each: _Pod, sign: int) -> None:
        sums = self._sums[each.chosen]
        sums[0] += sign * each.cores
        sums[1] += sign * each.units

    def _bind(self, each: _Pod) -> None:
        refused = self._world.bind(each.obj, each.chosen)
        late = each.late >= 1 or len(each.gang) > 1
        self.late += late
        if refused:
            self.lost += late
            self.halves += any(member.bound for member in each.gang if member is not each)
            self._count(each, 1)
            each.chosen = ""
            self._waiting.append(each)
            return
        each.bound = True
        self._at(self._now + self._dice.expovariate(1 / LIFE_SECONDS), "leaves", each)

    def _gang_is_over(self, first: _Pod) -> None:
        """Permit has waited for long enough: whoever has a node gives it up, and its scheduler says so."""
        if all(member.chosen for member in first.gang):
            return
        for member in first.gang:
            if member.chosen and not member.bound:
                self.given_up += 1
                member.tries += 1
                self._count(member, 1)
                member.chosen = ""
                self._waiting.append(member)
                condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                condition["message"] = f"rejected by its gang, try {member.tries}"
                member.obj = {**member.obj, "status": {**member.obj["status"], "conditions": [condition]}}
                self._world.api.put(member.obj)
                self._world.show(member.obj)
        self._schedule()

    def _leaves(self, each: _Pod) -> None:
        meta = each.obj["metadata"]
        self._world.delete(self._world.api.pods[meta["namespace"], meta["name"]])
        self._count(each, 1)
        self._schedule()
