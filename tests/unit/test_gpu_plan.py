"""Minutes on a card are dear: a run that is cut keeps what it measured, goes on there, and no case takes the others with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.rows import Row
from tests.gpu.plan import Case, Settings, spend
from tests.gpu.results import OtherMachine, Results, rows

CARD = {"card": "a", "driver": "1"}


class AnyMachine:
    """No case here looks at it."""

    def lacks(self, package: str) -> str | None:
        return "it is not here" if package == "torch" else None

    def end_started(self) -> None:
        """No case starts a process."""


def measured(*figures: float) -> Any:
    return lambda machine: [Row(f"row_{figure:g}", figure, "points", "≤ 1") for figure in figures]


def run(path: Path, *cases: Case, seconds: float = 60.0, groups: int = 1) -> list[str]:
    """The names of the rows that were measured in this run."""
    results = Results(path, CARD)
    split = {str(at): (lambda settings, at=at: cases[at::groups]) for at in range(groups)}
    found = list(spend(AnyMachine(), split, results, settings=Settings(), seconds=seconds))  # type: ignore[arg-type]
    results.close()
    return [row.name for row in found]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_row_is_on_the_disk_before_the_next_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"

    def two(machine: object) -> Iterator[Row]:
        yield Row("first", 1, "points", "≤ 1")
        assert [line["row"]["name"] for line in lines(path) if "row" in line] == ["first"]
        yield Row("second", 2, "points", "≤ 1")

    assert run(path, Case("both", 0, two)) == ["first", "second"]
    assert [row["holds"] for row in rows(path)] == [True, False]


def test_a_run_goes_on_after_the_last_whole_case(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert run(path, Case("one", 0, measured(1))) == ["row_1"]
    with path.open("a") as file:
        file.write(
            json.dumps({"case": "0/two", "row": Row("row_2", 5, "points", "≤ 1").as_json()})
            + '\n{"case": "0/tw'
        )
    assert run(path, Case("one", 0, measured(1)), Case("two", 0, measured(2, 3))) == ["row_2", "row_3"]
    assert {row["name"]: row["figure"] for row in rows(path)} == {"row_1": 1, "row_2": 2, "row_3": 3}


def test_another_cards_file_is_not_mixed_with(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    run(path, Case("one", 0, measured(1)))
    with pytest.raises(OtherMachine, match="name another file"):
        Results(path, {"card": "b", "driver": "1"})


def test_what_does_not_fit_into_the_time_is_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    cases = Case("long", 100, measured(1)), Case("short", 1, measured(2))
    assert run(path, *cases, seconds=50) == ["row_2"]
    assert lines(path)[-1] == {"left_out": ["0/long"]}
    assert run(path, *cases, seconds=200) == ["row_1"], "it is measured once there is time"


def test_a_case_whose_package_is_missing_takes_no_time(tmp_path: Path) -> None:
    assert run(tmp_path / "rows.jsonl", Case("torch", 100, measured(1), needs="torch"), seconds=50) == [
        "row_1"
    ]


def test_groups_keep_their_order_and_deep_cases_come_last(tmp_path: Path) -> None:
    cases = (
        Case("a", 0, measured(1), deep=True),
        Case("b", 0, measured(2)),
        Case("c", 0, measured(3)),
        Case("d", 0, measured(4)),
    )
    assert run(tmp_path / "rows.jsonl", *cases, groups=2) == ["row_3", "row_2", "row_4", "row_1"]


def test_a_case_that_fails_is_a_row_that_does_not_hold_and_the_next_one_runs(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"

    def broken(machine: object) -> Iterator[Row]:
        yield Row("before", 1, "points", "≤ 1")
        raise RuntimeError("the driver went away")

    assert run(path, Case("broken", 0, broken), Case("next", 0, measured(1))) == [
        "before",
        "gpu_broken_ran",
        "row_1",
    ]
    failed = {str(row["name"]): row for row in rows(path)}["gpu_broken_ran"]
    assert (failed["holds"], failed["note"]) == (False, "RuntimeError: the driver went away")


@pytest.mark.parametrize(
    ("us", "limit", "seconds"), [(50, 100, 5), (500_000, 10, 100), (12_000, 30, 5), (50_000, 10, 10)]
)
def test_a_row_runs_for_twenty_periods_of_its_kernel(us: float, limit: float, seconds: float) -> None:
    assert Settings(5.0).length(us, limit) == pytest.approx(seconds)
