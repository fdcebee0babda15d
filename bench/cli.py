"""Processor time of whole commands of ``kubectl vcuda``, against a stand-in API server."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from bench.rows import Row
from sandbox.api import StandInApi

BAR = "≤ 0.3"
_PROGRAM = "from gpu_manager.cli.kubectl.main import main; main()"


def rows(*, full: bool) -> Iterator[Row]:
    """One row a command; the baseline is an interpreter that does nothing."""
    runs = 31 if full else 11
    bare = min(seconds(["-c", "pass"]) for _ in range(runs))
    with tempfile.TemporaryDirectory(prefix="vcuda-cli-") as name, StandInApi() as api:
        login = ["--kubeconfig", str(_as_yaml(api.kubeconfig(Path(name) / "config")))]
        for words in (["version"], ["top", *login]):
            figure = min(seconds(["-c", _PROGRAM, *words]) for _ in range(runs))
            yield Row(f"cli_start_seconds_{words[0]}", round(figure, 3), "s", BAR, round(bare, 3), full,
                      f"user and system, the least of {runs}")  # fmt: skip


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
