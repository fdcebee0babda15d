"""The bench of core time in frameworks' shapes: which cells there are, how one is judged, and what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.core_cells import LIMITS, PROGRAMS, Cell, Program, kept_cells, quick_programs
from bench.limits_core import rows_of, write
from tests.native.shape_table import TABLE
from tests.native.shapes import Use

CELLS = sum(len(program.limits) for program in PROGRAMS)


def cell(limit: int = 20, *, need: float = 80.0, took: float = 0.0, **figures: float) -> Cell:
    as_it_should = {"work": float(limit), "had": float(limit), "charged": float(limit)}
    use = {**as_it_should, "fullest": float(limit), "longest": 0.1, "seconds": 3.0, "launches": 1000}
    return Cell("a program x 1", limit, need, took or need, Use(**{**use, **figures}))  # type: ignore[arg-type]  # launches is whole


def measured(program: Program) -> Sequence[Cell]:
    return [cell(limit) for limit in program.limits]


def test_every_shape_is_measured_at_every_limit_in_one_process_and_in_two() -> None:
    named = {
        (program.shape.name, program.processes, limit) for program in PROGRAMS for limit in program.limits
    }
    assert len(TABLE) == len({shape.name for shape in TABLE}) == 24
    assert named >= {(shape.name, count, limit) for shape in TABLE for count in (1, 2) for limit in LIMITS}
    assert named >= {("workers", count, limit) for count in (4, 8) for limit in LIMITS}
    assert len(PROGRAMS) == 2 * 24 + 2 + 60


def test_a_quick_run_has_every_shape_and_every_limit() -> None:
    quick = list(quick_programs())
    assert {program.shape.name for program in quick} >= {shape.name for shape in TABLE}
    assert {program.processes for program in quick} == {1, 2, 4}
    assert {limit for program in quick for limit in program.limits} == set(LIMITS)


def test_a_kernel_that_runs_to_its_end_is_no_excess_and_what_exceeds_it_is() -> None:
    assert cell(fullest=24.0, longest=5.0).over == 0
    assert cell(fullest=26.5, longest=5.0).over == pytest.approx(2.5)


def test_what_is_delivered_is_judged_by_the_need_where_that_is_less_than_the_limit() -> None:
    assert cell(50, need=30.0, work=29.9, had=33.0).delivered >= 1
    assert cell(50, need=30.0, work=24.0).delivered == pytest.approx(0.8, abs=0.01)
    assert cell(50, need=80.0, work=40.0).delivered == pytest.approx(0.8, abs=0.01)


def test_pauses_between_kernels_take_of_the_limit_what_they_take_bare() -> None:
    assert cell(50, need=80.0, took=100.0, work=40.0, had=50.0).delivered == pytest.approx(1.0, abs=0.01)
    assert cell(50, need=80.0, took=100.0, work=36.0, had=50.0).delivered == pytest.approx(0.9, abs=0.01)
    assert cell(50, need=30.0, took=45.0, work=30.0, had=45.0).delivered == pytest.approx(1.0, abs=0.01)


def test_the_rows_name_the_worst_cell_of_each_kind() -> None:
    cells = [
        cell(),
        cell(fullest=31.0),
        cell(charged=15.0),
        cell(charged=21.0),
        cell(work=10.0, had=10.0, charged=10.0),
    ]
    over, error, mean, holds, narrow, delivered = rows_of(cells, len(cells), full=True)
    assert [row.figure for row in (over, error, mean, delivered)] == [10.92, 5.0, 1.2, 0.507]
    assert [row.holds for row in (over, error, mean, delivered)] == [False] * 4
    assert "charged 15.0" in error.note
    assert (holds.figure, holds.holds, narrow.figure, narrow.holds) == (60.0, False, 100.0, True)
    assert holds.note.endswith("it does not: a program x 1 at 20: -5.0; a program x 1 at 20: +1.0")
    assert all(row.full for row in (over, error, mean, delivered))
    assert not any(row.full for row in rows_of(cells, len(cells) + 1, full=True))


def test_a_call_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    asked: list[Program] = []

    def measure(program: Program) -> Sequence[Cell]:
        asked.append(program)
        return measured(program)

    first = kept_cells(measure, lambda: len(asked) < 3, tmp_path)
    assert len(asked) == 3
    everything = kept_cells(measure, lambda: True, tmp_path)
    assert everything[: len(first)] == first
    assert (len(asked), len(everything)) == (len(PROGRAMS), CELLS)


def test_the_results_have_a_line_a_cell_and_the_worst_error_first(tmp_path: Path) -> None:
    write([cell(), cell(charged=15.0)], tmp_path / "core.csv")
    head, worst, other = (tmp_path / "core.csv").read_text().splitlines()
    assert head.startswith("program,limit,needed,bare,had,kernels,charged,")
    assert worst == "a program x 1,20,80.00,80.00,20.00,20.00,15.00,20.00,0.00,-5.00,1.007,0.00"
    assert other.split(",")[6] == "20.00"
