"""Core time in frameworks' shapes: which programs are measured at which limits, and how a cell is judged."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.code_digest import code_digest
from bench.protected_kept import kept
from tests.native.shape_chance import drawn
from tests.native.shape_table import TABLE
from tests.native.shapes import Shape, Use, bare, held
from tests.native.timed import ATTEMPTS, Stalls, StallWitness, real_time

ROOT: Final = Path(__file__).resolve().parents[1]
COSTS: Final = "h100"
LIMITS: Final = (99, 50, 20)
DRAWN: Final = 60
QUICK_DRAWN: Final = 9
SHORT: Final = 0.97
RESOLVED_POINTS: Final = 0.1
"""By so much of the card two runs of a program may differ that needs next to nothing."""


@dataclass(frozen=True, slots=True)
class Program:
    """A shape in so many processes of one container, at these limits."""

    shape: Shape
    processes: int
    limits: Sequence[int] = LIMITS

    @property
    def name(self) -> str:
        return f"{self.shape.name} x {self.processes}"


def chosen(seed: int) -> Program:
    """A program drawn by chance, at one of the limits, in one process or two."""
    return Program(drawn(seed), 1 + seed // len(LIMITS) % 2, (LIMITS[seed % len(LIMITS)],))


PROGRAMS: Final = (
    *(Program(shape, processes) for shape in TABLE for processes in shape.processes),
    *(chosen(seed) for seed in range(1, DRAWN + 1)),
)


def quick_programs() -> Iterator[Program]:
    """Each shape once, limits and numbers of processes in turns; workers in four too; some of those drawn."""
    for at, shape in enumerate(TABLE):
        yield Program(shape, shape.processes[at // len(LIMITS) % 2], (LIMITS[at % len(LIMITS)],))
        if len(shape.processes) > 2:
            yield Program(shape, shape.processes[2], (50, 20))
    yield from (chosen(seed) for seed in range(1, QUICK_DRAWN + 1))


@dataclass(frozen=True, slots=True)
class Cell:
    """One run at a limit; ``need`` is what the program's kernels took bare, ``took`` what it had then.

    Percent of the card's time.
    """

    program: str
    limit: int
    need: float
    took: float
    use: Use

    @property
    def over(self) -> float:
        """By how much the fullest second exceeds the limit; that a kernel runs to its end is no fault."""
        return max(0.0, self.use.fullest - self.limit - self.use.longest * (1 - self.limit / 100))

    @property
    def error(self) -> float:
        """Charged, less what the card served."""
        return self.use.charged - self.use.had

    @property
    def delivered(self) -> float:
        """Its kernels, of what it needs and may have; the longest of them may have been due at the end.

        Of what it may have, the pauses between its kernels take the part that they take bare.
        """
        wanted = min(self.need, self.limit * self.need / max(self.need, self.took))
        return (self.use.work + self.use.longest / self.use.seconds + RESOLVED_POINTS) / wanted

    def __str__(self) -> str:
        return (
            f"{self.program} at {self.limit}: needs {self.need:.1f}, had {self.use.had:.1f} (its kernels "
            f"{self.use.work:.1f}), charged {self.use.charged:.1f}, fullest second {self.use.fullest:.1f}"
        )


def measured(program: Program, seconds: float, costs: str = COSTS) -> list[Cell]:
    """The program at its limits; again where the machine stood still meanwhile."""
    for _ in range(ATTEMPTS):
        cells, stalls = _attempt(program, seconds, costs)
        if not stalls.disturbing:
            break
    return cells


def _attempt(program: Program, seconds: float, costs: str) -> tuple[list[Cell], Stalls]:
    shape, processes = program.shape, program.processes
    with real_time(), StallWitness() as witness:
        alone = bare(shape, processes, seconds, costs)
        uses = [held(shape, limit, processes, seconds, costs) for limit in program.limits]
        cells = [
            Cell(program.name, limit, alone.work, alone.had, use)
            for limit, use in zip(program.limits, uses, strict=True)
        ]
        if any(cell.delivered < SHORT and cell.need < cell.limit for cell in cells):
            again = bare(shape, processes, seconds, costs)  # was it the machine that was quicker?
            alone = min(alone, again, key=lambda use: use.work)
    return [Cell(cell.program, cell.limit, alone.work, alone.had, cell.use) for cell in cells], witness.stalls


def kept_cells(
    measure: Callable[[Program], Sequence[Cell]], goes_on: Callable[[], bool], folder: Path
) -> list[Cell]:
    """The cells of all programs that are kept there, and of those measured now while it ``goes_on``.

    In an order of chance, always the same, so that a part of them is a sample of all.
    """
    cells: list[Cell] = []
    for program in random.Random(1).sample(PROGRAMS, len(PROGRAMS)):

        def measure_it(program: Program = program) -> dict[str, object]:
            return {"cells": [asdict(cell) for cell in measure(program)]}

        found = kept(folder / f"{PROGRAMS.index(program)}.json", measure_it, goes_on)
        cells += [Cell(**{**one, "use": Use(**one["use"])}) for one in (found["cells"] if found else ())]
    return cells


def digest() -> str:
    """Twelve hex digits of what decides a cell: C sources that its program runs, Python that measures it."""
    library, tests = ROOT / "vcuda/lib", ROOT / "tests/native"
    python = ("shapes", "shape_table", "shape_chance", "core_world", "card_watch")
    published = ROOT / "gpu_manager/domain/enforcement/driver_overhead.py"
    measures = [Path(__file__), published, *(tests / f"{name}.py" for name in python)]
    total = hashlib.sha256(code_digest(measures).encode())
    sources = [tests / name for name in ("core_shape.c", "core_program.h", "core_watch.c")]
    for folder in (library / "src", library / "include", library / "test/standin"):
        sources += [path for path in folder.rglob("*.*") if path.suffix in {".c", ".h", ".S", ".def"}]
    for path in sorted(sources):
        total.update(path.read_bytes())
    return total.hexdigest()[:12]
