"""``gang_partial``, ``gang_livelocks``, ``gang_throughput_percent``: gangs of 2 to 8 at 95 % load, beside
deletions, preemption, slow Bindings, cards that close and changes of leader, with each kind of scheduler.

Each kind runs three times: judged together, each pod judged alone, and the same pods without gangs. A run at
full size takes minutes; it is kept under ``build/gangs`` with a digest of the code that it ran on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from bench import soak
from bench.gang_load import SCHEDULERS, Load
from bench.gang_scheduler import Model
from bench.rows import OUTPUT, Row

PARTIAL_SECONDS: Final = 30.0
_QUICK: Final = Load(gangs=40, nodes=4)
_FULL: Final = Load(gangs=500, nodes=16)
_PATIENCE: Final = 7_200.0  # after the last has come: what is not done by then waits for ever
_SEED: Final = 40
_CHANGES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"judged": False},
    {"together": False},
)  # of the load, by run
_CODE: Final = ("admission", "gpu_manager/domain", "tests/fakes")


def measure(load: Load, number: int) -> soak.Outcome:
    """One run of a kind: modelled seconds until all are done, and for how long gangs ran in part."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING)
    )  # in each process
    began = time.monotonic()
    kind, change = divmod(number, len(_CHANGES))
    model = Model(list(SCHEDULERS.values())[kind], replace(load, **_CHANGES[change]), _SEED)
    counts = {
        "ms": round(model.run(_PATIENCE) * 1e3),
        "partial": sum(gang.worst > PARTIAL_SECONDS for gang in model.gangs),
        "waiting": sum(gang.done is None for gang in model.gangs),
        "worst": round(max(gang.worst for gang in model.gangs)),
        "disturbed": sum(gang.disturbed for gang in model.gangs),
    }
    return soak.Outcome(number, counts, 0, time.monotonic() - began)


def rows(*, full: bool) -> Iterator[Row]:
    """One row each over all kinds of schedulers, the worst of them."""
    load, numbers = _FULL if full else _QUICK, range(len(SCHEDULERS) * len(_CHANGES))
    if full:
        kept = OUTPUT.with_name("gangs")
        ran = [one.counts for one in soak.run(partial(measure, load), numbers, kept, files=sorted(_files()))]
    else:
        ran = [measure(load, number).counts for number in numbers]
    kinds = dict(zip(SCHEDULERS, zip(ran[::3], ran[1::3], ran[2::3], strict=True), strict=True))
    notes = [
        f"{name}: in part for {here['worst']} s at most, {here['disturbed']} more since a member was deleted,"
        f" {100 * single['ms'] / here['ms']:.0f} % ({100 * single['ms'] / before['ms']:.0f} % judged alone)"
        for name, (here, before, single) in kinds.items()
    ]
    note = f"{load.gangs} gangs on {load.nodes} nodes of 8 cards with each; " + "; ".join(notes)
    together, alone, _ = zip(*kinds.values(), strict=True)
    wrong, before = (sum(one["partial"] for one in runs) for runs in (together, alone))
    yield Row("gang_partial", wrong, "count", "= 0", before, full=full, note=note)
    left = sum(one["waiting"] for one in together)
    yield Row("gang_livelocks", left, "count", "= 0", full=full, note="gangs that are never done")
    speed = min(100 * single["ms"] / here["ms"] for here, _, single in kinds.values())
    yield Row("gang_throughput_percent", speed, "%", "≥ 80", full=full, note="of the same pods without gangs")


def _files() -> Iterator[Path]:
    for room in _CODE:
        yield from (soak.ROOT / room).rglob("*.py")
    yield from (soak.ROOT / "bench").glob("gang*.py")
