"""Is core time right beside another container whose kernels fill the card?

Programs in the shapes of frameworks, whose kernels take microseconds, in a container beside a flood of
kernels of 1 ms: the card gives both turns of milliseconds, and what events show of a short kernel is its
own time or a wait for others' turns. At real-time priority, on a stand-in driver whose calls cost what an
H100's cost; the modelled card is the judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from bench.core_cells import COSTS, Cell
from bench.rows import Row
from tests.native.shape_table import TABLE
from tests.native.shapes import Shape, beside
from tests.native.timed import ATTEMPTS, StallWitness, real_time

SECONDS: Final = 4.0
SHARES: Final = ((20, 80), (50, 50))
QUICK: Final = ("kinds", "eager", "requests", "bursts", "compiled", "loader")


def _cells(shapes: Iterable[Shape]) -> Iterator[Cell]:
    for shape in shapes:
        for limit, flood in SHARES:
            for _ in range(ATTEMPTS):
                with real_time(), StallWitness() as witness:
                    use = beside(shape, limit, flood, SECONDS, COSTS)
                if not witness.stalls.disturbing:
                    break
            yield Cell(f"{shape.name} beside {flood}", limit, use.work, use.had, use)


def rows(*, full: bool) -> Iterable[Row]:
    """How wrong the account of such a container is, and how far its fullest second exceeds its limit."""
    cells = list(_cells(shape for shape in TABLE if full or shape.name in QUICK))
    error, over = max(cells, key=lambda cell: abs(cell.error)), max(cells, key=lambda cell: cell.over)
    past, mean = (
        sum(abs(cell.error) > 3 for cell in cells),
        sum(abs(cell.error) for cell in cells) / len(cells),
    )
    yield Row(
        "core_beside_error_points", round(abs(error.error), 2), "points", "≤ 3", None, full,
        f"worst: {error}; {past} of {len(cells)} cells past the bar, mean {mean:.2f}; one process "
        "beside a flood of kernels of 1 ms, at 20 beside 80 and 50 beside 50",
    )  # fmt: skip
    yield Row("core_beside_over_points", round(over.over, 2), "points", "≤ 2", None, full, f"worst: {over}")
