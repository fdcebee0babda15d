"""The dispatch bench at full size: kept shape by shape, and a row that says how much of it there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.limits_dispatch import kept_cells, rows_of
from tests.native.dispatch import ALL, LIMITS, Cell, Shape, UnsteadyError, Use


def measured(shape: Shape) -> Iterator[Cell]:
    return (Cell(shape, limit, 20.0, Use(20.0, 20.5, 20.2, 19.8)) for limit in LIMITS)


def unexpected(error: UnsteadyError) -> None:
    raise error


def test_a_call_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    asked: list[Shape] = []

    def measure(shape: Shape) -> Iterator[Cell]:
        asked.append(shape)
        return measured(shape)

    first = list(kept_cells(measure, unexpected, lambda: len(asked) < 3, tmp_path, "code"))
    assert len(first) == 3 * len(LIMITS)
    everything = list(kept_cells(measure, unexpected, lambda: True, tmp_path, "code"))
    assert everything[: len(first)] == first
    assert len(asked) == len(set(asked)) == len(ALL)
    assert not list(kept_cells(measure, unexpected, lambda: False, tmp_path, "other code"))


def test_a_shape_that_met_a_busy_machine_is_measured_again_by_the_next_call(tmp_path: Path) -> None:
    heard: list[UnsteadyError] = []

    def busy(shape: Shape) -> Iterator[Cell]:
        raise UnsteadyError(shape, 20.0, 25.0)

    assert not list(kept_cells(busy, heard.append, lambda: len(heard) < 2, tmp_path, "code"))
    assert len(heard) == 2
    assert len(list(kept_cells(measured, unexpected, lambda: True, tmp_path, "code"))) == len(ALL) * len(
        LIMITS
    )


@pytest.mark.parametrize(("count", "full"), [(1, False), (len(LIMITS), True)])
def test_a_row_is_full_once_every_cell_is_there(count: int, full: bool) -> None:
    found = list(measured(ALL[0]))[:count]
    error, delivered, over = rows_of(found, [], wanted=len(LIMITS), full=True)
    assert (error.figure, delivered.figure, over.figure) == (0.5, 1.0, 0.0)
    assert error.full is full
    assert f"{count} of {len(LIMITS)} cells" in error.note


def test_a_busy_machine_gives_no_figure() -> None:
    rows = list(rows_of(list(measured(ALL[0])), [UnsteadyError(ALL[1], 1.0, 9.0)], wanted=6, full=False))
    assert {row.figure for row in rows} == {None}
    assert all("too busy" in row.note for row in rows)
