"""T4: what the library costs a program that nobody limits, beside HAMi's benchmarks: whole requests and steps of training."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

from bench.rows import Row
from tests.gpu.beside.arms import limits, note_of
from tests.gpu.beside.models import COSTED
from tests.gpu.beside.workers import Model, Tenant, workers
from tests.gpu.machine import Machine
from tests.gpu.plan import Case, Settings

TURNS = 10
BARS = {100: "≤ 1.003", 99: "≤ 1.01"}
NORMAL = 1.96 * 1.2533
"""Of a median's standard error: half of an interval of 95 %."""
START = 12.0


def cases(settings: Settings) -> Iterator[Case]:
    """Bare and held in turns, since a card's clock drifts by more than a library costs."""
    start = START if settings.seconds >= 1 else 0
    for model in COSTED:
        run = partial(_cost, model, turns=settings.count(TURNS), seconds=settings.seconds / TURNS)
        yield Case(f"cost_{model.arguments[0]}_{model.name}", 4 * settings.seconds + start, run)


def _cost(model: Model, machine: Machine, *, turns: int, seconds: float) -> Iterator[Row]:
    bare, held = workers(machine).ready(Tenant(model), Tenant(model, held=True))
    for limit, bar in BARS.items():
        ratios, alone = [], []
        with limits(machine, [held], (limit,)):
            for _ in range(turns):
                alone.append(bare.run(seconds)["p50"])
                ratios.append(held.run(seconds)["p50"] / alone[-1])
        middle = statistics.median(ratios)
        half = NORMAL * statistics.stdev(ratios) / len(ratios) ** 0.5
        note = note_of(machine, f"p50 {statistics.median(alone):.3f} ms bare; ± {half:.4f} in {turns} turns")
        yield Row(
            f"gpu_cost_{model.arguments[0]}_{model.name}_at_{limit}",
            round(middle, 4),
            "times bare",
            bar,
            1.0,
            note=note,
        )
