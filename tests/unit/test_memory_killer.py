"""Whom the kernel's memory killer spares: who starts the agent again, and not the agent."""

from __future__ import annotations

from pathlib import Path

from gpu_manager.runtime.program import SPARED, not_spared, spared


def test_the_parent_is_spared_and_its_child_is_judged_as_the_parent_was(tmp_path: Path) -> None:
    score = tmp_path / "oom_score_adj"
    score.write_text("-997\n")
    told = spared(score)
    assert score.read_text() == SPARED
    not_spared(told, score)
    assert score.read_text() == "-997"


def test_a_process_that_may_not_say_so_goes_on_as_it_was(tmp_path: Path) -> None:
    score = tmp_path / "there-is-no-such" / "oom_score_adj"
    told = spared(score)
    not_spared(told, score)
    assert told == {}
