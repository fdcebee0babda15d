"""The pages of figures, of those that fall short too: ``python -m bench.docs [NAME...]``.

The pages are what is kept of measurements: rows that were not measured this time stay as they are.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.rows import MACHINE, OUTPUT

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
NOTES = PAGE.parent / "internals" / "benchmark-notes.md"
_HOLDS = {True: "yes", False: "**no**", None: "not measured"}
_ROW = re.compile(r"^\| `(?P<name>[^`]+)` \|(?:[^|]*\|){2} (?P<holds>[^|]*) \|.*\n", re.MULTILINE)
_NOTE = re.compile(r"^\| `(?P<name>[^`]+)` \| .*\n", re.MULTILINE)

_HEAD = """\
# Benchmarks

What the project promises in figures, and what was measured.

{summary}

Each figure stands beside its bar.
Where there is a bare loop or a peer to compare with, it was measured in the same run, and is the baseline.
[The notes](internals/benchmark-notes.md) tell what was done for each row, and why one could not be measured.
What a real card gave instead of stand-ins: [on a real card](real-card.md#measured-on-a-card).

`make bench` measures into `build/bench.json`, and `python -m bench.docs` brings those rows up to date here;
`make bench ONLY=<group>` measures one group, `make bench FULL=1` at full size.
Latencies are wall-clock on a machine that does other things too: all stand-ins (kubelet, API server) share
its processors with what is measured.

Last measured on: {machine}. Rows of earlier runs may be of another machine of two processors.

| figure | measured | bar | holds | baseline | size |
| --- | ---: | ---: | --- | ---: | --- |
"""
_NOTES_HEAD = """\
# Notes to the benchmarks

What was done for each row of the [benchmarks](../benchmarks.md).

| figure | note |
| --- | --- |
"""


def pages(before: str, notes: str, rows: Sequence[Mapping[str, Any]], machine: str) -> tuple[str, str]:
    """The page that was ``before`` and its ``notes``, with these rows: each in its place, a new one after the
    row that was measured before it.
    """
    kept = {found["name"]: found[0] for found in _ROW.finditer(before)}
    noted = {found["name"]: found[0] for found in _NOTE.finditer(notes)}
    names = list(kept)
    for at, row in enumerate(rows):
        if row["name"] not in kept:
            follows = rows[at - 1]["name"] if at else None
            names.insert(names.index(follows) + 1 if follows else len(names), row["name"])
        kept[row["name"]], noted[row["name"]] = _lines(row)
    lines = "".join(kept[name] for name in names)
    verdicts = {found["name"]: found["holds"] for found in _ROW.finditer(lines)}
    short, missing = (
        [f"`{n}`" for n, holds in verdicts.items() if holds == _HOLDS[v]] for v in (False, None)
    )
    summary = f"{len(names) - len(short) - len(missing)} of {len(names)} bars hold."
    if short:
        summary += f" Short of the bar: {', '.join(short)}."
    if missing:
        summary += f" Not measured here: {', '.join(missing)}."
    head = _HEAD.format(machine=machine, summary=summary)
    return head + lines, _NOTES_HEAD + "".join(noted[name] for name in names)


def _lines(row: Mapping[str, Any]) -> tuple[str, str]:
    name = f"`{row['name']}`"
    cells = (
        name,
        "" if row["figure"] is None else f"{row['figure']:g} {row['unit']}",
        row["bar"],
        _HOLDS[row["holds"]],
        "" if row["baseline"] is None else f"{row['baseline']:g} {row['unit']}",
        "full" if row["full"] else "quick",
    )
    return _line(cells), _line((name, row["note"]))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def main(names: Sequence[str]) -> int:
    """Bring the pages up to date with the rows of these names, of all that were measured if none is given."""
    if not OUTPUT.exists():
        sys.stderr.write("there are no figures yet: make bench\n")
        return 1
    rows = [
        row for row in json.loads(OUTPUT.read_text(encoding="utf-8")) if not names or row["name"] in names
    ]
    if unknown := set(names).difference(row["name"] for row in rows):
        sys.stderr.write(f"not measured: {', '.join(sorted(unknown))}\n")
        return 1
    machine = MACHINE.read_text(encoding="utf-8").strip()
    before, notes = (page.read_text(encoding="utf-8") for page in (PAGE, NOTES))
    for page, text in zip((PAGE, NOTES), pages(before, notes, rows, machine), strict=True):
        page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
