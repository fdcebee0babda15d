"""What ends by itself between two lines of a test of the cluster fails no test."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from tests.cluster import processes


def test_a_process_that_has_ended_needs_no_signal() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    processes.end(ended.pid)


def test_a_process_that_runs_gets_the_signal() -> None:
    with subprocess.Popen(["sleep", "1000"]) as program:
        processes.end(program.pid, signal.SIGTERM)
        assert program.wait() == -signal.SIGTERM


def test_a_control_group_that_was_removed_has_no_processes(tmp_path: Path) -> None:
    listed = tmp_path / "cgroup.procs"
    assert processes.members(listed) == []
    listed.write_text("12\n345\n")
    assert processes.members(listed) == [12, 345]
