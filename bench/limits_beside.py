"""Is core time right beside other containers, whose kernels fill the card, or which run their own programs?

Programs in the shapes of frameworks, whose kernels take microseconds, in a container beside one to three with
a flood of kernels of 1 ms each, or beside one that runs such a program too. The card gives all of them turns
of milliseconds, and what events show of a short kernel is its own time or a wait for others' turns. At
real-time priority, on a stand-in driver whose calls cost what an H100's cost; the modelled card is the judge.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from bench.core_cells import COSTS, Cell, Program
from bench.rows import Row
from tests.native.shape_table import TABLE
from tests.native.shapes import Shape, beside, together
from tests.native.timed import ATTEMPTS, StallWitness, real_time

SECONDS: Final = 4.0
SHARES: Final = ((20, 80), (20, 40), (50, 50))
"""Of the program, and of those beside it: some fill the card, some leave room."""
LONG: Final = tuple(
    Shape(f"{us / 1000:g} ms", f"k:step:{us}:1 s:1", "one long kernel, and its result waited for")
    for us in (1000, 2000, 2420, 2440, 3000, 5000, 20000)
)
"""Kernels of about a time slice of the card, and of several."""
OTHERS: Final = (
    Shape("experts", "6{ k:expert:5~1200:1 b:8 k:expert:5~1200:2 b:8 } s:1 s:2", "a mixture of experts"),
    Shape("cascade", "8{ k:fwd:300/2500:1 b:10 } s:1", "a network whose layers take now little, now a slice"),
    Shape(
        "chain",
        " ".join(
            f"k:step:{1500 if at == 15 else 30}:{at % 8 + 1} e:{at % 8 + 1}:{(at + 1) % 8 + 1}"
            for at in range(16)
        )
        + " S",
        "eight streams that wait for each other, one step in 16 long",
    ),
    Shape("answers", "k:answer:~300:1 s:1 b:5", "answers of any length, each waited for"),
    Shape(
        "routed",
        "16{ k:gate:12:1 r:1 8{ k:expert:8~900:1 } e:1:2 o:a2a:150:2 e:2:1 }",
        "experts behind a gate, whose results all cards exchange",
    ),
    Shape(
        "resnet",
        "53{ k:conv:15/40/90:1 b:5 k:bn:6:1 b:4 k:relu:4:1 b:4 } r:1 b:200",
        "convolutions of any size",
    ),
    Shape("renderer", "6{ k:bounce:2100~3300:1 } s:1 p:2000", "rays that take about a time slice"),
    Shape("lookups", "k:lookup:70:1 s:1", "one short kernel at a time, waited for"),
    Shape(
        "handed",
        "16{ k:route:14:1 e:1:2 k:a2a:60~700:2 e:2:1 k:expert:50/120/900:1 e:1:2 k:comb:60~300:2 e:2:1 } s:1",
        "experts between two streams, handed on by events",
    ),
    Shape(
        "tracks",
        "p:1500 k:nv12:40:1 k:det:2200:1 e:1:2 k:trk:300:2 k:cls:90~350:2 s:2",
        "frames of a video: a network of a time slice, then small ones on another stream",
    ),
    Shape(
        "dynamics",
        "20{ k:nb:410:1 k:pme:190:2 e:2:1 k:bond:35:1 k:integ:12:1 e:1:2 } k:neigh:2700:1 r:1",
        "steps of molecules, and now and then their neighbours",
    ),
    Shape("paths", "k:paths:38000:1 s:1", "a kernel of many time slices"),
    Shape(
        "joins",
        "k:hist:450:1 k:scan:16:1 8{ k:radix:1100:1 } r:1 k:build:5200:1 k:probe:800~9000:1 r:1 b:1500",
        "a join of a database",
    ),
)
"""Programs that somebody wrote who had not read how the library measures."""
QUICK: Final = (
    "kinds",
    "eager",
    "requests",
    "bursts",
    "compiled",
    "3 ms",
    "5 ms",
    "cascade",
    "answers",
    "handed",
    "tracks",
)


CROWDS: Final = (2, 3)
CROWDED: Final = (
    "kinds",
    "eager",
    "compiled",
    "requests",
    "llama",
    "2.44 ms",
    "3 ms",
    "5 ms",
    "20 ms",
    "cascade",
    "chain",
    "answers",
    "routed",
    "resnet",
    "handed",
    "tracks",
    "paths",
)
QUICK_CROWDED: Final = ("kinds", "compiled", "3 ms", "cascade", "routed", "paths")

PAIRED: Final = ("eager", "kinds", "persistent", "loader", "ddp", "cascade", "renderer", "lookups", "joins")
QUICK_PAIRED: Final = (
    ("eager", "ddp"),
    ("cascade", "eager"),
    ("kinds", "persistent"),
    ("lookups", "renderer"),
    ("lookups", "joins"),
)
PAIR_LIMITS: Final = (30, 60)

PROGRAMS: Final = (
    *(Program(shape, 1) for shape in (*TABLE, *LONG)),
    *(Program(shape, processes) for shape in OTHERS for processes in shape.processes),
)


def _cells(programs: Iterable[Program], containers: int = 1) -> Iterator[Cell]:
    for program in programs:
        for limit, flood in SHARES:
            for _ in range(ATTEMPTS):
                with real_time(), StallWitness() as witness:
                    use = beside(
                        program.shape, limit, flood, SECONDS, COSTS,
                        processes=program.processes, containers=containers,
                    )  # fmt: skip
                if not witness.stalls.disturbing:
                    break
            crowd = f" of {containers}" if containers > 1 else ""
            yield Cell(f"{program.name} beside {flood}{crowd}", limit, use.work, use.had, use)


def _pairs(names: Iterable[tuple[str, str]]) -> Iterator[Cell]:
    shapes = {shape.name: shape for shape in (*TABLE, *OTHERS)}
    for pair in names:
        for _ in range(ATTEMPTS):
            with real_time(), StallWitness() as witness:
                uses = together([shapes[name] for name in pair], PAIR_LIMITS, SECONDS, COSTS)
            if not witness.stalls.disturbing:
                break
        for name, other, limit, use in zip(pair, reversed(pair), PAIR_LIMITS, uses, strict=True):
            yield Cell(f"{name} beside {other}", limit, use.work, use.had, use)


def rows(*, full: bool) -> Iterable[Row]:
    """How wrong the account of such a container is, and how far its fullest second exceeds its limit."""
    cells = list(_cells(program for program in PROGRAMS if full or program.shape.name in QUICK))
    yield from _judged(
        "core_beside", cells,
        "one process or two beside a flood of kernels of 1 ms, at 20 beside 80 or 40, and 50 beside 50",
        full=full,
    )  # fmt: skip
    names = CROWDED if full else QUICK_CROWDED
    programs = [program for program in PROGRAMS if program.processes == 1 and program.shape.name in names]
    crowded = [cell for containers in CROWDS for cell in _cells(programs, containers)]
    yield from _judged(
        "core_crowded", crowded,
        "one process beside floods in two and in three containers, which share 80, 40 or 50 evenly",
        full=full,
    )  # fmt: skip
    pairs = list(_pairs(itertools.product(PAIRED, PAIRED) if full else QUICK_PAIRED))
    yield from _judged(
        "core_programs", pairs, "two containers of 30 and 60, each with a program of one process", full=full
    )


def _judged(name: str, cells: Sequence[Cell], shapes: str, *, full: bool) -> Iterator[Row]:
    error, over = max(cells, key=lambda cell: abs(cell.error)), max(cells, key=lambda cell: cell.over)
    past = sum(abs(cell.error) > 3 for cell in cells)
    mean = sum(abs(cell.error) for cell in cells) / len(cells)
    yield Row(
        f"{name}_error_points", round(abs(error.error), 2), "points", "≤ 3", None, full,
        f"worst: {error}; {past} of {len(cells)} cells past the bar, mean {mean:.2f}; {shapes}",
    )  # fmt: skip
    yield Row(f"{name}_over_points", round(over.over, 2), "points", "≤ 2", None, full, f"worst: {over}")
