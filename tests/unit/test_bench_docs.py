"""The page of figures keeps what was measured before, and tells how many bars hold."""

from __future__ import annotations

from typing import Any

from bench.docs import NOTES, PAGE, pages

MACHINE = "2 CPUs"


def row(name: str, holds: bool | None = True, note: str = "") -> dict[str, Any]:
    figure = None if holds is None else 1.5
    return {
        "name": name,
        "figure": figure,
        "unit": "ms",
        "bar": "\u2264 2",
        "holds": holds,
        "baseline": None,
        "full": True,
        "note": note,
    }


def test_rows_of_other_runs_stay_and_new_ones_come_after_those_measured_before_them() -> None:
    first, notes = pages("", "", [row("a"), row("b", None), row("c", False, "a | b\nc")], MACHINE)
    assert "1 of 3 bars hold. Short of the bar: `c`. Not measured here: `b`." in first
    second, more = pages(first, notes, [row("b"), row("new", False)], MACHINE)
    assert "2 of 4 bars hold. Short of the bar: `new`, `c`." in second
    for text in second, more:
        assert [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")] == [
            *("a", "b", "new", "c")
        ]
    assert r"a \| b c" in more
    assert pages(second, more, [], MACHINE) == (second, more)


def test_the_pages_in_docs_are_read_whole() -> None:
    text, notes = PAGE.read_text(encoding="utf-8"), NOTES.read_text(encoding="utf-8")
    machine = text.partition("Last measured on: ")[2].partition(". Rows of")[0]
    assert pages(text, notes, [], machine) == (text, notes)
