"""Is core time GPU time whatever the program's rhythm? Programs that dispatch slower than the card runs.

Each is measured bare and in containers at 99, 50 and 30, in the same run; the modelled card says what it
served them. All 576 cells are replayed as traces by tests/native/test_replay.py; here they run in real time:
24 named cells, all of them with ``full``.
"""

from __future__ import annotations

from collections.abc import Iterable

from bench.rows import Row
from tests.native.dispatch import ALL, LIMITS, NAMED, Cell, UnsteadyError, cells

SECONDS = 2.5


def rows(*, full: bool) -> Iterable[Row]:
    """The worst accounted error, delivered ratio and fullest second over all cells."""
    found: list[Cell] = []
    unsteady: list[UnsteadyError] = []
    for shape in ALL if full else NAMED:
        try:
            found += cells(shape, LIMITS, SECONDS)
        except UnsteadyError as busy:
            unsteady.append(busy)
    note = f"{len(found)} cells on the stand-in driver: a model, not yet a card"
    if unsteady:
        why = f"not judged, the machine was too busy: {unsteady[0]}"
        why += f"; and {len(unsteady) - 1} more" if len(unsteady) > 1 else ""
        yield Row("dispatch_accounted_error_points", None, "points", "≤ 2", None, full, why)
        yield Row("dispatch_delivered_ratio", None, "ratio", "≥ 0.97", None, full, why)
        yield Row("dispatch_over_points", None, "points", "≤ 1", None, full, why)
        return
    error = max(found, key=lambda cell: cell.accounted_error)
    delivered = min(found, key=lambda cell: cell.delivered)
    over = max(found, key=lambda cell: cell.over)
    yield Row("dispatch_accounted_error_points", round(error.accounted_error, 2), "points", "≤ 2", None, full,
              f"worst: {error}; {note}")  # fmt: skip
    yield Row("dispatch_delivered_ratio", round(delivered.delivered, 3), "ratio", "≥ 0.97", None, full,
              f"worst: {delivered}")  # fmt: skip
    yield Row("dispatch_over_points", round(max(0.0, over.over), 2), "points", "≤ 1", None, full,
              f"worst: {over}; the fullest of all windows of 1 s")  # fmt: skip
