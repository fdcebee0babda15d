"""Run every promise on this machine's card; print a table, write JSON for docs/benchmarks.

Without a card it says so in one line, writes nothing and exits 0. ``--stand-in`` runs the same on the
stand-in driver: that proves this program, and measures no card.
"""

# ruff: noqa: T201 - a program that prints, not a library

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from bench.__main__ import table
from bench.rows import Row
from gpu_manager.adapters.driver_files.native_libraries import find_native_libraries
from tests.gpu import cost, memory, runtime, share
from tests.gpu.machine import BUILD, STAND_IN, Absent, Machine, stand_in_environment

GROUPS = ("memory", "runtime", "share", "cost")


def main() -> int:
    """The command line. Exit code 1 if a measured promise does not hold, 2 on a stand-in that is not there."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--only", choices=GROUPS, help="one group")
    parser.add_argument("--full", action="store_true", help="every limit and kernel, for figures docs quote")
    parser.add_argument("--seconds", type=float, default=0.0, help="length of a run (default 5, full 20)")
    parser.add_argument("--stand-in", action="store_true", help="on the stand-in driver: a dry run")
    parser.add_argument("--output", type=Path, help="default: build/gpu.json")
    arguments = parser.parse_args()
    if arguments.stand_in and STAND_IN not in os.environ:
        return _dry_run()
    try:
        machine = Machine()
    except Absent as absent:
        print(f"{absent}; nothing was measured")
        return 0
    with machine:
        measured = list(_rows(machine, arguments))
        _report(machine, measured, arguments.output)
    return 1 if not machine.stand_in and any(row.holds is False for row in measured) else 0


def _rows(machine: Machine, arguments: argparse.Namespace) -> Iterator[Row]:
    seconds = arguments.seconds or (20.0 if arguments.full else 5.0)
    machine.charge_contexts(memory.context_reserve(machine))
    for group in (arguments.only,) if arguments.only else GROUPS:
        print(f"{group} …", file=sys.stderr)
        if group == "memory":
            yield from memory.rows(machine, full=arguments.full)
        elif group == "runtime":
            yield from runtime.rows(machine, full=arguments.full)
        elif group == "share":
            yield from share.rows(machine, full=arguments.full, seconds=seconds)
        else:
            yield from cost.rows(machine, full=arguments.full, seconds=seconds)


def _report(machine: Machine, measured: list[Row], output: Path | None) -> None:
    path = output or BUILD / ("gpu-stand-in.json" if machine.stand_in else "gpu.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {
        "card": machine.card.model,
        "driver": machine.driver,
        "measured_on_a_card": not machine.stand_in,
        "rows": [row.as_json() for row in measured],
    }
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    shown = table(measured)
    shown.title = f"{machine.card.model}, {machine.driver}"
    if machine.stand_in:
        shown.title = f"DRY RUN, NOT A CARD: {shown.title}"
    Console(width=None if sys.stdout.isatty() else 200).print(shown)
    print(f"written to {path}")


def _dry_run() -> int:
    """Start over in an environment where every program finds the stand-in driver."""
    native = find_native_libraries()
    if native.driver is None:
        print("there is no stand-in driver: this package was built without a C compiler", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="vcuda-gpu-card-") as state:
        command = [sys.executable, "-m", "tests.gpu", *sys.argv[1:]]
        return os.spawnve(os.P_WAIT, sys.executable, command, stand_in_environment(native, state))


if __name__ == "__main__":
    sys.exit(main())
