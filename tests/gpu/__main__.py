"""Spend some minutes on this machine's card: each promise a row, written to a file before the next is measured.

Without a card it says so in one line, writes nothing and exits 0. A run that was cut goes on where it was with the
same --output. ``--stand-in`` runs the same on the stand-in driver: that proves this program, and measures no card.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import structlog

from bench.rows import Row
from gpu_manager.adapters.driver_files.delivery import find_native_libraries
from tests.gpu import cost, dispatch, endings, facts, frameworks, guesses, memory, protected, runtime, share
from tests.gpu.beside import killed, latency, overhead, probe, programs, splits, two_llms
from tests.gpu.beside.workers import DRY_MODELS
from tests.gpu.machine import BUILD, STAND_IN, Absent, Machine, stand_in_environment
from tests.gpu.plan import Groups, Settings, spend
from tests.gpu.results import OtherMachine, Results, rows
from tests.gpu.unbroken import Ended, bounded, leave_terminal, say

GROUPS = {
    "a": facts, "b": memory, "c": runtime, "d": dispatch, "e": cost, "f": share, "g": endings, "h": frameworks,
    "i": guesses, "j": protected,
}  # fmt: skip
BESIDE: Final[Groups] = {
    "0": probe.cases, "1": two_llms.cases, "2": latency.cases, "3": latency.server_cases, "4": overhead.cases,
    "5": killed.cases, "6": splits.cases, "p": programs.cases,
}  # fmt: skip
"""Measured where they are asked for: beside what others have published, and the programs that failed most."""


DRY_PATIENCE: Final = 10.0  # models on a processor
DRY_RUN_MISSED: Final = (
    "A dry run proves that the rows can be taken. Those of time (dispatch, launch, loop, share, split, protected) hold only "
    "while other programs leave the processors alone; a row of memory that does not hold is a fault."
)
PREPARED_WITHIN = 120.0
"""Seconds: without what it finds no row can be judged."""


def main() -> int:
    """The command line. Exit code 1 if a measured promise does not hold, 2 if it cannot begin."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=25.0, help="how long it may take (default 25)")
    parser.add_argument(
        "--groups",
        default="".join(GROUPS),
        help=f"some of {''.join(GROUPS)} (all, by default) and {''.join(BESIDE)}, measured in this order",
    )
    parser.add_argument(
        "--cases",
        default="",
        help="those whose name (GROUP/CASE) has this in it; several with commas between",
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a timed run (default 4)")
    parser.add_argument("--quick", action="store_true", help="without the long cases, which come last")
    parser.add_argument("--stand-in", action="store_true", help="on the stand-in driver: a dry run")
    parser.add_argument(
        "--output", type=Path, help="JSON lines, continued if it is there; default: build/gpu.jsonl"
    )
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if set(arguments.groups) - {*GROUPS, *BESIDE}:
        parser.error(f"--groups {arguments.groups}: some of {''.join([*GROUPS, *BESIDE])}")
    if arguments.stand_in and STAND_IN not in os.environ:
        return _dry_run()
    leave_terminal()
    try:
        machine = Machine()
    except Absent as absent:
        say(f"{absent}; nothing was measured")
        return 0
    with machine:
        return _measure(machine, arguments)


def _measure(machine: Machine, arguments: argparse.Namespace) -> int:
    path = arguments.output or BUILD / ("gpu-stand-in.jsonl" if machine.stand_in else "gpu.jsonl")
    try:
        results = Results(path, facts.identity(machine))
    except OtherMachine as other:
        say(str(other), sys.stderr)
        return 2
    machine.traces = path.with_suffix(".traces")
    title = f"{machine.card.model}, {machine.driver}"
    say(f"DRY RUN, NOT A CARD: {title}" if machine.stand_in else title)
    known = {**{name: group.cases for name, group in GROUPS.items()}, **BESIDE}
    chosen = {name: known[name] for name in arguments.groups}
    settings = Settings(arguments.seconds)
    seconds = arguments.minutes * 60
    ended = 0
    try:
        with bounded(PREPARED_WITHIN):
            facts.prepare(machine, settings)
        for row in spend(
            machine,
            chosen,
            results,
            settings=settings,
            seconds=seconds,
            deep=not arguments.quick,
            named=arguments.cases,
            patience=DRY_PATIENCE if DRY_MODELS else 1.0,
        ):
            say(line(row))
    except Ended as end:
        ended = 128 + end.signal
        results.ended(str(end))
        say(f"ended by {end}: the same command goes on after the last whole case", sys.stderr)
    results.close()
    measured = rows(path)
    missed = [row for row in measured if row["holds"] is False]
    absent = sum(row["figure"] is None for row in measured)
    names = ", ".join(str(row["name"]) for row in missed) or "none"
    say(f"{len(measured)} rows in {path}, {absent} of them not measured; {len(missed)} do not hold: {names}")
    if machine.stand_in and missed:
        say(DRY_RUN_MISSED)
    return ended or int(bool(missed) and not machine.stand_in)


def line(row: Row) -> str:
    """A row for people: the note where it says why a promise does not hold, or was not measured."""
    holds = {True: "yes", False: "NO", None: "-"}[row.holds]
    figure = "not measured" if row.figure is None else f"{row.figure:g} {row.unit}"
    note = "" if row.holds else " ".join(row.note.split())[:200]
    return f"{holds:4}{row.name:64} {figure:24} {row.bar:8} {note}".rstrip()


def _dry_run() -> int:
    """Start over in an environment where every program finds the stand-in driver."""
    native = find_native_libraries()
    if native.driver is None:
        say("there is no stand-in driver: this package was built without a C compiler", sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="vcuda-gpu-card-") as state:
        command = [sys.executable, "-m", "tests.gpu", *sys.argv[1:]]
        process = subprocess.Popen(command, env=stand_in_environment(native, state))
        leave_terminal(process.send_signal)
        status = process.wait()
        return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
