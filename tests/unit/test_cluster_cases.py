"""The conformance list of the real cluster: each case has a test there, or the reason why none can try it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.cases import CASES, untried

HERE = Path(__file__).resolve().parents[1] / "cluster"
NEW = "2.1.0"  # a containerd that lacks nothing


def marked() -> set[int]:
    """The numbers that tests name."""
    marks = re.findall(
        r"^@pytest\.mark\.case\(([\d, ]+)\)$",
        "\n".join(path.read_text("utf-8") for path in HERE.glob("test_*.py")),
        re.MULTILINE,
    )
    return {int(number) for mark in marks for number in mark.split(",")}


def test_each_case_is_tried_or_has_its_reason() -> None:
    assert CASES.keys() - marked() == untried("1.6.20").keys()


def test_no_reason_is_kept_for_what_is_tried() -> None:
    assert not untried(NEW).keys() & marked()


def test_an_old_containerd_is_a_reason_of_its_own() -> None:
    assert "1.6.20 has no CDI" in untried("1.6.20")[39]
    assert 39 not in untried("1.7.0")
