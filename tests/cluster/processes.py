"""Processes of the cluster, any of which may end by itself between two lines of a test."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def end(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process; one that has ended already needs no signal."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def members(listed: Path) -> list[int]:
    """The processes that a ``cgroup.procs`` lists: none once the group is removed, also while it is read."""
    try:
        return [int(number) for number in listed.read_text("utf-8").split()]
    except OSError:  # ENOENT before it is opened, ENODEV afterwards
        return []
