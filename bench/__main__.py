"""Run the groups and print the table. Exit code 1 if a measured bar does not hold."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
import time

import structlog
from rich.console import Console
from rich.table import Table

from bench.rows import MACHINE, OUTPUT, Row, machine

# Group → module with rows(full: bool) -> Iterable[Row].
GROUPS = (
    "association",
    "numa",
    "allocate",
    "agent",
    "alerts",
    "bills",
    "advice",
    "resize",
    "shapes",
    "nodes",
    "cli",
    "migrate",
    "console",
    "admission",
    "pods",
    "controllers",
    "replay",
    "objects",
    "hostile",
    "placement",
    "dra",
    "hooks",
    "limits",
    "protected",
    "cluster",
)
ALONE = ("steady", "ci")  # groups that take long and want the machine for themselves: run by their name alone


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=GROUPS + ALONE, help="one group")
    parser.add_argument("--part", default="", help="one part of a group that has parts")
    parser.add_argument("--full", action="store_true", help="the full size, for figures that docs quote")
    arguments = parser.parse_args()
    if arguments.part and arguments.part not in (known := parts(arguments.only)):
        there = ", ".join(known) or "its parts"
        parser.error(f"--part {arguments.part}: one of {there}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    found: list[Row] = []
    for group in (arguments.only,) if arguments.only else GROUPS:
        started = time.monotonic()
        part = {"only": arguments.part} if arguments.part else {}
        found += importlib.import_module(f"bench.{group}").rows(full=arguments.full, **part)
        print(f"{group}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    rows = list({row.name: row for row in found}.values())  # some recorded rows are of two groups
    keep([row.as_json() for row in rows], others=bool(arguments.only))
    Console().print(table(rows))
    return 1 if any(row.holds is False for row in rows) else 0


def parts(group: str | None) -> tuple[str, ...]:
    """What a group can be measured in, piece by piece; empty if only as a whole."""
    return tuple(getattr(importlib.import_module(f"bench.{group}"), "PARTS", ())) if group else ()


def keep(rows: list[dict[str, object]], *, others: bool) -> None:
    """Write build/bench.json. After a run of one group the rows of the ``others`` stay as they were."""
    before = json.loads(OUTPUT.read_text(encoding="utf-8")) if others and OUTPUT.exists() else []
    new = {row["name"]: row for row in rows}
    place = {row["name"] for row in before}
    rows = [new.get(row["name"], row) for row in before] + [row for row in rows if row["name"] not in place]
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    MACHINE.write_text(machine() + "\n", encoding="utf-8")


def table(rows: list[Row]) -> Table:
    """The rows for people."""
    shown = Table(title=machine())
    for heading in ("name", "figure", "unit", "bar", "holds", "baseline", "note"):
        shown.add_column(heading)
    for row in rows:
        figure = "not measured" if row.figure is None else f"{row.figure:g}"
        holds = {True: "yes", False: "NO", None: "-"}[row.holds]
        baseline = "" if row.baseline is None else f"{row.baseline:g}"
        shown.add_row(row.name, figure, row.unit, row.bar, holds, baseline, row.note)
    return shown


if __name__ == "__main__":
    sys.exit(main())
