"""Processor time of whole commands of ``kubectl vcuda``, against a stand-in API server."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import yaml

from bench.rows import Row
from sandbox.api import StandInApi

BARS = {"version": "≤ 0.2", "top": "≤ 0.35"}
_PROGRAM = "from gpu_manager.cli.kubectl.main import main; main()"


def rows(*, full: bool) -> Iterator[Row]:
    """One row a command that asks the API server; the baseline is an interpreter that does nothing."""
    runs = 31 if full else 11
    bare = median(seconds(["-c", "pass"]) for _ in range(runs))
    with tempfile.TemporaryDirectory(prefix="vcuda-cli-") as name, StandInApi() as api:
        login = ["--kubeconfig", str(_as_yaml(api.kubeconfig(Path(name) / "config")))]
        for command, bar in BARS.items():
            taken = sorted(seconds(["-c", _PROGRAM, command, *login]) for _ in range(runs))
            note = f"user and system, the median of {runs}, {taken[0]:.3f} to {taken[-1]:.3f}"
            figure = round(median(taken), 3)
            yield Row(f"cli_start_seconds_{command}", figure, "s", bar, round(bare, 3), full, note)


def seconds(arguments: Sequence[str]) -> float:
    """User and system time of one run of Python, which keeps bytecode as it does for users."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=kept)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _as_yaml(path: Path) -> Path:
    """As people's kubeconfigs are written."""
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text("utf-8"))), encoding="utf-8")
    return path
