"""The soak's slices: kept one by one, run once, and their sums."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.association import sums
from bench.soak import SEEDS, SLICES, Outcome, run, wanted


def outcome(seed: int) -> Outcome:
    return Outcome(seed, {"admissions": 10, "wrong": int(seed == 3)}, leaked=int(seed == 2), seconds=1.5)


def test_an_interrupted_soak_runs_what_is_missing_and_counts_all(tmp_path: Path) -> None:
    asked: list[int] = []

    def interrupted(seed: int) -> Outcome:
        asked.append(seed)
        if seed == 3 and asked.count(3) == 1:
            raise KeyboardInterrupt
        return outcome(seed)

    with pytest.raises(KeyboardInterrupt):
        run(interrupted, range(1, 5), tmp_path, ThreadPoolExecutor(1))
    found = run(interrupted, range(1, 5), tmp_path, ThreadPoolExecutor(1))
    assert sorted(asked) == [1, 2, 3, 3, 4]
    assert found == [outcome(seed) for seed in range(1, 5)]


def test_the_rows_are_the_sums_of_all_slices() -> None:
    wrong, _, leaked = sums([outcome(seed) for seed in range(1, 5)], "4 of 20 slices", full=False)
    assert (wrong.figure, leaked.figure) == (1, 1)
    assert wrong.note == "4 of 20 slices: 40 admissions, 1 wrong, 6 s"


@pytest.mark.parametrize(
    ("text", "seeds"), [("", range(1, SLICES + 1)), ("4", range(4, 5)), ("2-5", range(2, 6))]
)
def test_some_of_the_slices_can_be_named(monkeypatch: pytest.MonkeyPatch, text: str, seeds: range) -> None:
    monkeypatch.setenv(SEEDS, text)
    assert wanted() == seeds


@pytest.mark.parametrize("text", ["0-3", "5-4", f"1-{SLICES + 1}"])
def test_what_is_no_slice_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(SEEDS, text)
    with pytest.raises(ValueError, match="slices are 1 to"):
        wanted()
