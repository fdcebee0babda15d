"""Minutes of CI: the targets are those of the Makefile, and a failure is named."""

from __future__ import annotations

import pytest

from bench import ci
from bench.ci import Ran


def test_the_targets_are_those_of_make_ci_with_the_set_up_first() -> None:
    found = ci.steps((ci.ROOT / "Makefile").read_text("utf-8"))
    assert found[:2] == ["setup", "check"]
    assert found[-1] == "demo"
    assert {"unit", "native"} <= set(found)
    assert not any("$(" in step for step in found)


def test_a_makefile_without_the_target_is_refused() -> None:
    with pytest.raises(ValueError, match="no target ci"):
        ci.steps("check:\n\ttrue\n")


def test_the_row_adds_up_the_minutes_and_names_what_failed() -> None:
    row = ci.row(
        [Ran("setup", 60, 0), Ran("--jobs=4 component docs", 630, 2), Ran("native-tsan TSAN=threads", 30, 0)],
        full=True,
    )
    assert row.figure == 12.0
    assert row.note == "setup 1.0, component+docs 10.5, native-tsan 0.5; failed: component+docs"
    assert row.holds
    assert ci.row([Ran("check", 960, 0)], full=False).holds is False
