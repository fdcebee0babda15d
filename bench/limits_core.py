"""Is a core limit held, and core time charged, whatever a program looks like? Frameworks' shapes, and others.

24 programs at three limits, in one process of a container and in two (a server's workers in four and eight as
well), and 60 programs drawn by chance, on a stand-in driver whose calls cost what an H100's cost. Each runs
bare in the same minute, at real-time priority. The judge is the modelled card, and the program's own count of
its kernels. All take some 20 minutes, so that a call measures for five and keeps what it has under
``build/core``, with a digest of the code; the next call goes on, and the note counts.
``python -m bench.limits_core`` writes what is kept to ``bench/results/core.csv``.
"""

from __future__ import annotations

import csv
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from bench.core_cells import (
    PROGRAMS,
    ROOT,
    SHORT,
    Cell,
    chosen,
    digest,
    kept_cells,
    measured,
    quick_programs,
)
from bench.rows import OUTPUT, Row

KEPT: Final = OUTPUT.with_name("core")
RESULTS: Final = ROOT / "bench" / "results" / "core.csv"
QUICK_SECONDS, SECONDS = 2.5, 3.0
CALL_SECONDS: Final = 300.0
WIDE_POINTS: Final = 2


def rows(*, full: bool) -> Iterable[Row]:
    """The fullest second, the errors of the account and what was delivered: the worst cells by name."""
    ends = time.monotonic() + CALL_SECONDS
    cells = measured(chosen(random.SystemRandom().randrange(1000, 1 << 31)), QUICK_SECONDS)
    wanted = PROGRAMS if full else tuple(quick_programs())
    if full:
        cells += kept_cells(
            lambda program: measured(program, SECONDS), lambda: time.monotonic() < ends, KEPT / digest()
        )
    else:
        cells += [cell for program in wanted for cell in measured(program, QUICK_SECONDS)]
    return rows_of(cells, sum(len(program.limits) for program in wanted) + 1, full=full)


def rows_of(cells: Sequence[Cell], wanted: int, *, full: bool) -> Iterator[Row]:
    """The rows of these cells, the first one drawn today, of so many ``wanted``."""
    full = full and len(cells) == wanted
    over, delivered = max(cells, key=lambda cell: cell.over), min(cells, key=lambda cell: cell.delivered)
    error, mean = max(cells, key=lambda cell: abs(cell.error)), fmean(abs(cell.error) for cell in cells)
    fuller, wrong = sum(cell.over > 2 for cell in cells), sum(abs(cell.error) > 3 for cell in cells)
    short = sum(cell.delivered < SHORT for cell in cells)
    yield Row(
        "core_over_points", round(over.over, 2), "points", "≤ 2", None, full,
        f"worst: {over}; {fuller} of {len(cells)} cells past the bar, {wanted} wanted, drawn today: "
        f"{cells[0].program}; windows of 1 s, one begun every 25 ms after the first second, less the part of "
        "a kernel that runs; on the stand-in driver with an H100's call costs, by the modelled card",
    )  # fmt: skip
    yield Row(
        "core_error_points", round(abs(error.error), 2), "points", "≤ 3", None, full,
        f"worst: {error}; {wrong} cells past the bar",
    )  # fmt: skip
    yield Row(
        "core_error_mean_points", round(mean, 2), "points", "≤ 0.5", None, full, "of all cells, either sign"
    )
    outside = [cell for cell in cells if abs(cell.error) > cell.use.error]
    wide = sum(cell.use.error > WIDE_POINTS for cell in cells)
    widest = max(cells, key=lambda cell: cell.use.error)
    yield Row(
        "core_published_error_holds_percent", _part(len(cells) - len(outside), cells), "percent", "≥ 95",
        None, full, f"the account's error lies within the published one; it does not: {_names(outside)}",
    )  # fmt: skip
    yield Row(
        "core_published_error_narrow_percent", _part(len(cells) - wide, cells), "percent", "≥ 90",
        None, full,
        f"published: {WIDE_POINTS} points or less; widest {widest.use.error:.1f} (bar 5): {widest}",
    )  # fmt: skip
    yield Row(
        "core_delivered_ratio", round(min(1.0, delivered.delivered), 3), "ratio", f"≥ {SHORT}", None, full,
        f"worst: {delivered}; {short} cells short of the bar",
    )  # fmt: skip


def _part(count: int, cells: Sequence[Cell]) -> float:
    return round(100 * count / len(cells), 1)


def _names(cells: Sequence[Cell]) -> str:
    return "; ".join(f"{cell.program} at {cell.limit}: {cell.error:+.1f}" for cell in cells[:5]) or "nowhere"


def write(cells: Sequence[Cell], path: Path = RESULTS) -> None:
    """A line a cell, the worst error first: what its kernels take bare, also with pauses, then the run."""
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(
            (
                *("program", "limit", "needed", "bare", "had", "kernels", "charged"),
                *("fullest", "over", "error", "delivered", "published"),
            )
        )
        for cell in sorted(cells, key=lambda cell: -abs(cell.error)):
            use = cell.use
            bare, held = (cell.need, cell.took), (use.had, use.work, use.charged, use.fullest)
            lines.writerow(
                (
                    cell.program,
                    cell.limit,
                    *(f"{figure:.2f}" for figure in (*bare, *held, cell.over, cell.error)),
                    f"{cell.delivered:.3f}",
                    f"{use.error:.2f}",
                )
            )


if __name__ == "__main__":
    write(kept_cells(lambda _: (), lambda: False, KEPT / digest()))
