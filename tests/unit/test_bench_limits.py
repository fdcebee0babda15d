"""The limits group in pieces, and which windows count where a limit changes during a run."""

from __future__ import annotations

import subprocess
from typing import cast

import pytest

from bench import __main__ as bench
from bench import limits, limits_share
from bench.rows import Row
from tests.native.core_world import Load


def test_a_part_is_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*, full: bool) -> list[Row]:
        return [Row("one", 1.0, "s", "≤ 2", full=full)]

    def never(*, full: bool) -> list[Row]:
        raise AssertionError(full)

    monkeypatch.setattr(limits, "PARTS", {"one": measure, "other": never})
    assert [row.name for row in limits.rows(full=True, only="one")] == ["one"]
    with pytest.raises(AssertionError):
        limits.rows(full=False)


def test_a_part_that_is_not_there_is_refused_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {"limits": "memory, evader, alone, split, waiting, change", "bills": "hours, usage"}
    for group, named in parts.items():
        monkeypatch.setattr("sys.argv", ["bench", "--only", group, "--part", "everything"])
        with pytest.raises(SystemExit, match="2"):
            bench.main()
        assert named in capsys.readouterr().err


def test_only_windows_within_a_settled_phase_count() -> None:
    """Phases begin at 10, 13, 16, 19; a window is judged from a second after that on, until the phase ends."""
    ends = [9.5 + 0.5 * step for step in range(24)]
    shares = [70.0 if (end - 10.1) // 3 % 2 == 0 else 99.0 for end in ends]
    load = Load(cast("subprocess.Popen[str]", None), shares, ends)
    changes = [10.0, 13.0, 16.0, 19.0]
    assert limits_share._mean(load, changes, 1) == 99.0
    load.windows[ends.index(11.0)] = load.windows[ends.index(10.5)] = 0.0  # unsettled
    assert limits_share._mean(load, changes, 0) == 70.0


def test_a_raise_lasts_until_kernels_follow_each_other_and_a_lowering_until_they_do_no_more() -> None:
    slow, fast = [0.1 * n for n in range(1, 11)], [1.03 + 0.001 * n for n in range(100)]
    assert limits_share._seen_after(slow + fast, 1.0, raised=True) == pytest.approx(0.032)
    assert limits_share._seen_after(slow, 0.95, raised=True) == limits_share.TURN_SECONDS
    assert limits_share._seen_after(fast, 1.09, raised=False) == pytest.approx(0.039)
    assert limits_share._seen_after([*fast, 1.15, 1.151], 1.09, raised=False) == pytest.approx(0.039)
    assert limits_share._seen_after([*fast, 1.3, 1.4], 1.2, raised=False) == 0.0
