"""What the runs of ``make test`` come to: failures by name, and none that is overlooked."""

from __future__ import annotations

import signal

from bench import soak, steady
from bench.soak import Outcome


def test_failed_tests_are_named_once() -> None:
    said = (
        "FAILED tests/unit/test_a.py::test_one - AssertionError: no\n"
        "ERROR tests/unit/test_b.py - ImportError\n"
        "FAILED tests/unit/test_a.py::test_one - again\nmake: *** [unit] Error 1\n"
    )
    assert steady.failures(2, said) == ["tests/unit/test_a.py::test_one", "tests/unit/test_b.py"]


def test_a_run_that_ends_badly_without_a_name_is_a_failure() -> None:
    assert steady.failures(0, "5000 passed") == []
    assert steady.failures(2, "Coverage failure: total of 99 is less than 100") == ["make test ended with 2"]


def test_half_of_the_runs_have_a_load_and_two_are_background_jobs_one_of_each() -> None:
    loaded = [seed for seed in range(1, soak.SLICES + 1) if seed % 2 == 0]
    assert len(loaded) == soak.SLICES / 2
    assert len(steady.BACKGROUND) == 2
    assert len(steady.BACKGROUND & set(loaded)) == 1


def test_the_row_counts_all_failures_and_says_which_runs_they_were() -> None:
    found = [Outcome(1, {"failures": 0}, 0, 10.0), Outcome(2, {"failures": 3, "under load": 1}, 0, 20.0)]
    row = steady.row(found, full=False)
    assert (row.figure, row.holds, row.note) == (3, False, "2 of 20 runs (1 under load), 30 s")


def test_the_load_ends_with_its_block() -> None:
    with steady.load(2) as beside:
        assert [program.poll() for program in beside] == [None, None]
    assert [program.poll() for program in beside] == [-signal.SIGKILL] * 2
