"""Four programs whose core limits failed most with a card's costs: several streams, several processes, several kinds of
kernels, and one name with two lengths. By their own count of kernels, beside what they were charged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from bench.rows import Row
from tests.gpu.beside.arms import moved, note_of, pause
from tests.gpu.beside.workers import Worker, together
from tests.gpu.container import GIB
from tests.gpu.machine import Machine
from tests.gpu.plan import Case, Settings

SECONDS = 10.0
SETTLE = 0.3
OVER, ERROR, DELIVERED = "≤ 2", "≤ 3", "≥ 0.97"


@dataclass(frozen=True, slots=True)
class Program:
    """The C client's worker with these words, in so many processes of one container."""

    name: str
    limit: int
    words: str
    processes: int = 1


PROGRAMS = (
    Program("4_streams_of_30us", 60, "--us 30 --kernels 4 --streams 4"),
    Program("4_processes_of_4x25us", 30, "--us 25 --kernels 4 --pause 200", processes=4),
    Program("3_kinds_20_60_5us", 99, "--us 20,60,5 --names 3 --kernels 300"),
    Program("pairs_of_20_and_300us", 20, "--us 20,300 --kernels 2 --pause 500"),
)


def cases(settings: Settings) -> Iterator[Case]:
    """Bare, held, and bare again."""
    seconds = min(SECONDS, settings.seconds * 2.5)
    for program in PROGRAMS:
        yield Case(f"program_{program.name}", 2 * seconds + 6, partial(_measured, program, seconds=seconds))


def _measured(program: Program, machine: Machine, *, seconds: float) -> Iterator[Row]:
    name = f"gpu_program_{program.name}_{program.limit}"
    command = machine.client("worker", *program.words.split())
    with ExitStack() as stack:
        container = stack.enter_context(machine.container(4 * GIB, program.limit))
        bare = [Worker(machine.bare(*command)) for _ in range(program.processes)]
        held = [Worker(container.start(*command)) for _ in range(program.processes)]
        for worker in bare:
            stack.callback(worker.end)
        for worker in (*bare, *held):
            worker.wait_ready()
        pause(SETTLE)
        before = _share(machine, bare, seconds / 2)
        charged = container.use().busy_seconds
        answers = together([(worker, 0.0) for worker in held], seconds)
        pause(SETTLE)  # what the library still measures is charged
        charged = container.use().busy_seconds - charged
        after = _share(machine, bare, seconds / 2)
    wall = max(answer["wall"] for answer in answers)
    took = sum(answer["busy"] for answer in answers) / wall / machine.clock * 100
    account, need = charged / wall * 100, (before + after) / 2
    shown = f"needs {need:.1f}, had {took:.1f} by its own count of kernels, charged {account:.1f}, of the card in percent"
    note = note_of(machine, shown, moved(before, after))
    yield Row(f"{name}_over_points", round(max(0.0, took - program.limit), 2), "points", OVER, note=note)
    yield Row(f"{name}_error_points", round(abs(account - took), 2), "points", ERROR, note=note)
    due = min(need, program.limit)
    yield Row(
        f"{name}_delivered_ratio", round(took / due, 3) if due else None, "ratio", DELIVERED, 1.0, note=note
    )


def _share(machine: Machine, bare: list[Worker], seconds: float) -> float:
    """Percent of the card that the program takes without a limit."""
    answers = together([(worker, 0.0) for worker in bare], seconds)
    return sum(answer["share"] for answer in answers) / machine.clock * 100
