"""``advice_outgrown_percent``: advice is applied after a watch, and three more days judge it.

Containers of which the truth is known: leaks, growth in steps, requests of a lognormal size, idle ones, and
others that are steady. Sixty of each kind at each length of the watch; the row is the worst of the kinds that
its bar names, at any length.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from bench.rows import Row
from gpu_manager.domain.advice.demand import DAY, HOUR, Demand, pooled
from gpu_manager.domain.advice.size import Advice, advise
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount

EACH: Final = 60
WATCHES: Final = (1.2, 2.0, 3.2, 4.0, 6.0, 8.0)  # days
_SECONDS: Final = 300
_AFTER: Final = 3 * DAY
_REPLICAS: Final = 3
Wants = Callable[[float, random.Random], float]
"""Bytes held at a time, of one replica."""


def _leak(chance: random.Random) -> Wants:
    start, a_day = chance.uniform(0.5, 4) * GIB, chance.choice((0.1, 0.25, 0.5, 1)) * GIB
    return lambda at, _: start + a_day * at / DAY


def _steps(chance: random.Random) -> Wants:
    start, phase = chance.uniform(1, 3) * GIB, chance.random()
    return lambda at, _: start * 1.25 ** math.floor(at / (1.5 * DAY) + phase)


def _lognormal(chance: random.Random) -> Wants:
    level = chance.uniform(1, 3) * GIB
    return lambda _, dice: level * math.exp(0.25 * dice.gauss(0, 1))


def _idle(chance: random.Random) -> Wants:
    level = chance.uniform(0.3, 4) * GIB
    return lambda _at, _: level


def _steady(chance: random.Random) -> Wants:
    level = chance.uniform(0.5, 4) * GIB
    return lambda _, dice: level * dice.uniform(0.98, 1)


def _nightly(chance: random.Random) -> Wants:
    low, high, hour = chance.uniform(0.3, 1) * GIB, chance.uniform(2, 4) * GIB, chance.randrange(24)
    return lambda at, _: high if at % DAY // HOUR == hour else low


KINDS: Final[Mapping[str, Callable[[random.Random], Wants]]] = {
    "leak": _leak,
    "growth": _steps,
    "lognormal": _lognormal,
    "idle": _idle,
    "steady": _steady,
    "nightly": _nightly,
}


def rows() -> Iterator[Row]:
    """The row."""
    worst, told = 0.0, list[str]()
    for kind in KINDS:
        found = [outgrown(kind, days, EACH) for days in WATCHES]
        worst = max(worst, *(100 * bad / EACH for bad, _ in found))
        told.append(f"{kind} {', '.join(f'{bad} of {sized}' for bad, sized in found)}")
    note = (
        f"{EACH} workloads of three replicas a kind, outgrown within three days of those that got a smaller "
        f"size, after {', '.join(f'{days:g}' for days in WATCHES)} days: {'; '.join(told)}"
    )
    yield Row("advice_outgrown_percent", round(worst, 1), "%", "≤ 5", note=note)


def outgrown(kind: str, days: float, each: int) -> tuple[int, int]:
    """How many grew past the size that was advised, and how many got a smaller one."""
    bad = sized = 0
    for number in range(each):
        chance = random.Random(f"{kind} {number}")
        wants = KINDS[kind](chance)
        advice, given = advised(wants, days, chance, works=kind != "idle")
        size = advice.memory.value
        if size is None or size >= given.memory:
            continue
        sized += 1
        ahead = (days * DAY + step * _SECONDS for step in range(int(_AFTER // _SECONDS)))
        bad += any(wants(at, chance) > size for at in ahead for _ in range(_REPLICAS))
    return bad, sized


def advised(wants: Wants, days: float, chance: random.Random, *, works: bool = True) -> tuple[Advice, Amount]:
    """The advice for a workload of three replicas that was seen for so many days, and what it was given."""
    given = Amount(50, 24 * GIB)
    demands = [Demand(first=0.0) for _ in range(_REPLICAS)]
    for step in range(1, int(days * DAY // _SECONDS) + 1):
        at = float(step * _SECONDS)
        for demand in demands:
            demand.held(int(min(wants(at, chance), given.memory)), at)
            if works:
                demand.worked(_SECONDS, 0.2 * _SECONDS, 0.0, at)
    return advise(pooled([one.need(days * DAY, 95) for one in demands]), given, DEFAULT_UNIT), given
