"""The conformance list of the real cluster: each case has a test there, or the reason why none can try it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.cases import CASES, UNTRIED

HERE = Path(__file__).resolve().parents[1] / "cluster"


def marked() -> set[int]:
    """The numbers that tests name."""
    marks = re.findall(
        r"^@pytest\.mark\.case\(([\d, ]+)\)$",
        "\n".join(path.read_text("utf-8") for path in HERE.glob("test_*.py")),
        re.MULTILINE,
    )
    return {int(number) for mark in marks for number in mark.split(",")}


def test_each_case_is_tried_or_has_its_reason() -> None:
    assert CASES.keys() - marked() == UNTRIED.keys()
