"""docs/benchmarks.md from the last figures, those that fall short too: ``python -m bench.docs``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.rows import MACHINE, OUTPUT

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
_HOLDS = {True: "yes", False: "**no**", None: "not measured"}

_HEAD = """\
# Benchmarks

What the project promises in figures, and what was measured.
This page is generated from `build/bench.json` by `python -m bench.docs`; `make bench` measures,
`make bench ONLY=<group>` one group, `make bench FULL=1` at full size.

Each figure stands beside its bar.
Where there is a bare loop or a peer to compare with, it was measured in the same run, and is the baseline;
the note says what exactly was done.
A row that cannot be measured on the machine says why.
Latencies are wall-clock on a machine that does other things too: all stand-ins (kubelet, API server) share
its processors with what is measured.

Measured on: {machine}.

{summary}

| figure | measured | bar | holds | baseline | size | note |
| --- | ---: | ---: | --- | ---: | --- | --- |
"""


def page(rows: Sequence[Mapping[str, Any]], machine: str) -> str:
    """The page's text."""
    short = [f"`{row['name']}`" for row in rows if row["holds"] is False]
    missing = [f"`{row['name']}`" for row in rows if row["holds"] is None]
    kept = len(rows) - len(short) - len(missing)
    summary = f"{kept} of {len(rows)} bars hold."
    if short:
        summary += f" Short of the bar: {', '.join(short)}."
    if missing:
        summary += f" Not measured here: {', '.join(missing)}."
    return _HEAD.format(machine=machine, summary=summary) + "".join(map(_line, rows))


def _line(row: Mapping[str, Any]) -> str:
    cells = (
        f"`{row['name']}`",
        "" if row["figure"] is None else f"{row['figure']:g} {row['unit']}",
        row["bar"],
        _HOLDS[row["holds"]],
        "" if row["baseline"] is None else f"{row['baseline']:g} {row['unit']}",
        "full" if row["full"] else "quick",
        row["note"],
    )
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def main() -> int:
    """Write the page."""
    if not OUTPUT.exists():
        sys.stderr.write("there are no figures yet: make bench\n")
        return 1
    rows = json.loads(OUTPUT.read_text(encoding="utf-8"))
    PAGE.write_text(page(rows, MACHINE.read_text(encoding="utf-8").strip()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
