"""T1: two language models on one card, beside NVIDIA Dynamo's table: tokens a second of both, in percent of one with as many
requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import partial

from bench.rows import Row
from tests.gpu.beside.arms import (
    ALONE,
    ELASTIC,
    HARD,
    TWO,
    left_out,
    limits,
    moved,
    not_there,
    note_of,
    watched,
)
from tests.gpu.beside.models import HALF_LLM, RESIDENTS, WHOLE_LLM
from tests.gpu.beside.workers import Answer, Tenant, Worker, together, workers
from tests.gpu.machine import Machine
from tests.gpu.plan import Case, Settings

HALVES_ROW: Mapping[int, float] = {2: 63.5, 8: 68.0, 32: 87.9}
"""What Dynamo's table gives for MPS halves at these requests a card."""
START = 50.0
"""Seconds that four models take to start, with their graphs."""


def cases(settings: Settings) -> Iterator[Case]:
    """A case for each number of requests; the first one starts the models."""
    for residents in RESIDENTS:
        run = partial(_table, residents, seconds=settings.seconds)
        start = START if residents == RESIDENTS[0] and settings.seconds >= 1 else 0
        yield Case(f"two_llms_{residents}", 5 * settings.seconds + 5 + start, run)


def _table(residents: int, machine: Machine, *, seconds: float) -> Iterator[Row]:
    tenants = (
        Tenant(WHOLE_LLM),
        Tenant(HALF_LLM),
        Tenant(HALF_LLM, held=True),
        Tenant(HALF_LLM, held=True, number=1),
    )
    whole, second, *held = workers(machine).ready(*tenants)
    for worker, size in ((whole, residents), *((one, residents // 2) for one in (whole, second, *held))):
        worker.run(0, size)  # what its parts take alone
    before = _tokens([(whole, residents)], seconds)
    arms = {
        TWO: ([whole, second], nullcontext(), "≥ 0"),
        HARD: (held, limits(machine, held, (50, 50)), "≥ 0"),
        ELASTIC: (held, limits(machine, held, (50, 50), 100), f"≥ {HALVES_ROW[residents]:g}"),
    }
    found: dict[str, tuple[list[Answer], str]] = {}
    for arm, (pair, held_so, _) in arms.items():
        with held_so, watched(machine) as clock:
            found[arm] = _answers([(one, residents // 2) for one in pair], seconds), str(clock)
    after = _tokens([(whole, residents)], seconds)
    bare = (before + after) / 2
    yield Row(
        f"gpu_two_llms_{residents}_{ALONE}_tokens",
        round(bare, 1),
        "1/s",
        "≥ 0",
        note=note_of(machine, moved(before, after)),
    )
    for arm, (answers, clock) in found.items():
        tokens = sum(answer.rate for answer in answers)
        note = note_of(
            machine,
            f"{tokens:.0f} tokens a second beside {bare:.0f}",
            *_waits(answers),
            clock,
            moved(before, after),
        )
        yield Row(
            f"gpu_two_llms_{residents}_{arm}_percent",
            round(100 * tokens / bare, 1),
            "%",
            arms[arm][2],
            100.0,
            note=note,
        )
    for arm, why in not_there(machine).items():
        yield from left_out(machine, [f"gpu_two_llms_{residents}_{arm}_percent"], "%", "≥ 0", why)


def _answers(runs: list[tuple[Worker, int]], seconds: float) -> list[Answer]:
    return together([(worker, float(size)) for worker, size in runs], seconds)


def _tokens(runs: list[tuple[Worker, int]], seconds: float) -> float:
    return sum(answer.rate for answer in _answers(runs, seconds))


def _waits(answers: list[Answer]) -> Iterator[str]:
    """The first token and the time between two, of the tenant that had it worse."""
    for name, what in (("first", "first token"), ("between", "between two")):
        known = [a.figures for a in answers if f"{name}_p50" in a.figures]
        if known:
            p50, p99 = (max(figures[f"{name}_{part}"] for figures in known) for part in ("p50", "p99"))
            yield f"{what} p50 {p50:.1f} ms, p99 {p99:.1f} ms"
    if any(answer.figures.get("captured") == 0 for answer in answers):
        yield "a step is no CUDA graph here"
