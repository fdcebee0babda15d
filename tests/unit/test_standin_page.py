"""The page of the stand-in driver's behaviour names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.gpu import guesses

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "vcuda/lib/test/standin/README.md"


def rows() -> list[list[str]]:
    """Behaviour, source, test of each row."""
    table = [line.strip("|").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return table[2:]


def test_each_behaviour_has_a_source_and_a_test_that_exists() -> None:
    assert len(rows()) > 40
    for behaviour, source, test in rows():
        assert re.match(r"documentation \(|H100 |guess|known to be wrong", source), behaviour
        named = re.fullmatch(r"`(test_\w+\.py)::(test_\w+)`", test.strip())
        assert named, behaviour
        assert f"def {named[2]}(" in (ROOT / "tests/native" / named[1]).read_text(), behaviour


def test_each_guess_has_a_question_for_a_real_card() -> None:
    unasked = [behaviour for behaviour, source, _ in rows() if "guess" in source and "kit: `" not in source]
    assert unasked == []


def test_each_question_of_the_kit_that_the_page_names_exists() -> None:
    named = {question for _, source, _ in rows() for question in re.findall(r"kit: `(\w+)`", source)}
    assert named
    assert named <= set(guesses.questions())
