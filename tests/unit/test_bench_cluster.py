"""Rows of the real cluster's last results: nothing is better than it was, and what is absent says so."""

from __future__ import annotations

from typing import Any

import pytest

from bench.cluster import rows_of
from bench.rows import Row

VERSIONS = {"kubernetes": "v1.36.3"}
SOAK = {"seconds": 900.0, "starts": 1000, "wrong": 0, "unexpected_admission_errors": 0, "leaks": 0}
STARTS = {"added_ms": 80, "plain_ms": 900, "shared_ms": 980, "pairs": 30}
TESTS = {"test_a.py::one": "passed", "test_a.py::two": "failed"}
SUITE = {"seconds": 600.0, "passed": 1, "failed": 1, "skipped": 0, "tests": TESTS}


def rows(**results: dict[str, Any]) -> dict[str, Row]:
    return {row.name: row for row in rows_of({k: {**v, "versions": VERSIONS} for k, v in results.items()})}


def test_what_was_never_run_has_no_figure_and_says_how_to_get_it() -> None:
    found = rows()
    assert {row.figure for row in found.values()} == {None}
    assert all("make " in row.note for row in found.values())


def test_a_run_with_a_failed_test_does_not_hold_and_names_it() -> None:
    row = rows(e2e=SUITE)["e2e_failed"]
    assert row.holds is False
    assert "test_a.py::two" in row.note


@pytest.mark.parametrize(("starts", "full"), [(999, False), (1000, True)])
def test_a_soak_counts_as_full_from_a_thousand_starts(starts: int, full: bool) -> None:
    row = rows(soak={**SOAK, "starts": starts})["soak_wrong"]
    assert (row.full, row.holds) == (full, True)


def test_a_leak_is_a_row_of_its_own() -> None:
    found = rows(soak={**SOAK, "leaks": 2})
    assert found["soak_leaks"].holds is False
    assert found["soak_wrong"].holds is True


def test_a_pods_start_stands_beside_the_same_pods_without_a_share() -> None:
    row = rows(starts=STARTS)["pod_start_added_ms"]
    assert (row.figure, row.baseline, row.holds) == (80, 900, True)
    assert "v1.36.3" in row.note
