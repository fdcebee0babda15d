"""The page of figures keeps what was measured before, and tells how many bars hold."""

from __future__ import annotations

from typing import Any

from bench.docs import PAGE, page

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
    first = page("", [row("a"), row("b", None), row("c", False, "a | b\nc")], MACHINE)
    assert "1 of 3 bars hold. Short of the bar: `c`. Not measured here: `b`." in first
    second = page(first, [row("b"), row("new", False)], MACHINE)
    assert "2 of 4 bars hold. Short of the bar: `new`, `c`." in second
    names = [line.split("`")[1] for line in second.splitlines() if line.startswith("| `")]
    assert names == ["a", "b", "new", "c"]
    assert page(second, [], MACHINE) == second


def test_the_page_in_docs_is_read_whole() -> None:
    text = PAGE.read_text(encoding="utf-8")
    machine = text.partition("Last measured on: ")[2].partition(". Rows of")[0]
    assert page(text, [], machine) == text
