"""``gang_partial``, ``gang_livelocks``, ``gang_throughput_percent``: gangs of 2 to 8 at 95 % load, beside
deletions, preemption, slow Bindings, cards that close and changes of leader, with each kind of scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from bench.gang_load import SCHEDULERS, Load
from bench.gang_scheduler import Model
from bench.rows import Row

PARTIAL_SECONDS: Final = 30.0
_QUICK: Final = Load(gangs=40, nodes=4)
_FULL: Final = Load(gangs=500, nodes=16)
_PATIENCE: Final = 7_200.0  # after the last has come: what is not done by then waits for ever
_SEED: Final = 40


def rows(*, full: bool) -> Iterator[Row]:
    """One row each over all kinds of schedulers, the worst of them."""
    load = _FULL if full else _QUICK
    partial, alone, left, speed, notes = 0, 0, 0, math.inf, []
    for name, scheduler in SCHEDULERS.items():
        model, before = Model(scheduler, load, _SEED), Model(scheduler, replace(load, judged=False), _SEED)
        single = Model(scheduler, replace(load, together=False), _SEED)
        took, took_before = model.run(_PATIENCE), before.run(_PATIENCE)
        took_single = single.run(_PATIENCE)
        here = _partial(model)
        partial, alone = partial + here, alone + _partial(before)
        waits = sum(gang.done is None for gang in model.gangs)
        left, percent = left + waits, 100 * took_single / took
        speed = min(speed, percent)
        worst, disturbed = (
            max(gang.worst for gang in model.gangs),
            sum(gang.disturbed for gang in model.gangs),
        )
        notes.append(
            f"{name}: in part for {worst:.0f} s at most, {disturbed} more since a member was deleted,"
            f" {percent:.0f} % ({100 * took_single / took_before:.0f} % judged alone)"
        )
    note = f"{load.gangs} gangs on {load.nodes} nodes of 8 cards with each; " + "; ".join(notes)
    yield Row("gang_partial", partial, "count", "= 0", alone, full=full, note=note)
    yield Row("gang_livelocks", left, "count", "= 0", full=full, note="gangs that are never done")
    yield Row("gang_throughput_percent", speed, "%", "≥ 80", full=full, note="of the same pods without gangs")


def _partial(model: Model) -> int:
    return sum(gang.worst > PARTIAL_SECONDS for gang in model.gangs)
