"""The tests of real cards, proven without one: they find what is wrong, and never pass off what they did not measure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_manager.sandbox.native import find_native
from tests.gpu.machine import stand_in_environment
from tests.native.tools import ROOT

BROKEN = """
from dataclasses import replace
from tests.gpu import memory
from tests.gpu.machine import Machine
with Machine() as machine:
    machine.native = replace(machine.native, fronts=machine.native.driver)
    machine.charge_contexts(memory.context_reserve(machine))
    row = next(memory.rows(machine, full=False))
    print(row.name, row.figure, row.holds)
"""


@pytest.fixture(autouse=True)
def built() -> None:
    if None in (find_native().fronts, find_native().driver, find_native().client):
        pytest.skip("this package was built without the library: there is nothing to run the harness on")


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu", *arguments],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip


def dry_run(tmp_path: Path, *arguments: str) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
    output = tmp_path / "gpu.json"
    done = run("--stand-in", "--output", str(output), *arguments)
    assert done.returncode == 0, done.stderr
    assert "DRY RUN, NOT A CARD" in done.stdout
    found = json.loads(output.read_text())
    rows = {row["name"]: row for row in found["rows"]}
    assert len(rows) == len(found["rows"]), "every row has a name of its own"
    return found, rows


def test_every_way_to_take_memory_is_tried_and_held_to_the_byte(tmp_path: Path) -> None:
    found, rows = dry_run(tmp_path, "--only", "memory")
    assert found["measured_on_a_card"] is False
    measured = {name: row for name, row in rows.items() if row["figure"] is not None}
    ways = [f"gpu_memory_over_{way}_bytes" for way in ("alloc", "pitch", "async", "vmm", "array", "managed")]
    assert set(measured) == {*ways, "gpu_memory_over_8_processes_bytes"}
    assert all(row["figure"] == 0 for row in measured.values()), measured
    assert all(row["note"] for row in rows.values()), "what is not measured says why"
    assert "four fifths" not in json.dumps(rows), "a library that refuses everything is no success"


def test_a_library_that_holds_nothing_is_found_out(tmp_path: Path) -> None:
    env = stand_in_environment(find_native(), str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", BROKEN],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    name, over, holds = done.stdout.split()
    assert name == "gpu_memory_over_alloc_bytes"
    assert float(over) > 1 << 30
    assert holds == "False"


def test_calls_and_loops_are_measured_beside_the_bare_driver(tmp_path: Path) -> None:
    _, rows = dry_run(tmp_path, "--only", "cost", "--seconds", "0.3")
    launch = rows["gpu_launch_at_100_ns"]
    assert launch["figure"] is not None
    assert launch["baseline"]
    assert float(str(rows["gpu_context_mib"]["figure"])) == 64, "what a context takes on this model"
    assert 0.3 < float(str(rows["gpu_loop_kernels"]["figure"])) < 3


def test_shares_are_measured_for_each_limit_kernel_and_split(tmp_path: Path) -> None:
    _, rows = dry_run(tmp_path, "--only", "share", "--seconds", "0.3")
    assert 0.5 < float(str(rows["gpu_clock_ratio"]["figure"])) < 1.5
    for limit in (10, 50, 90):
        for kernel in ("40us_stream", "8000us_sync", "500000us_sync"):
            assert rows[f"gpu_share_{limit}_{kernel}_mean_error"]["figure"] is not None
        assert rows[f"gpu_share_{limit}_8000us_sync_mae_1s"]["note"], "too short for windows, and it says so"
    for split in ("50_50", "30_70", "25_25_25_25"):
        assert str(rows[f"gpu_split_{split}_error"]["note"]).startswith("got ")
    assert rows["gpu_protected_job_kept"]["baseline"] == 1.0


def test_without_a_card_one_line_says_so_and_nothing_is_written(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"} | {"LD_LIBRARY_PATH": str(tmp_path)}
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")  # also on a machine that has a card
    done = run("--output", str(output), env=env)
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1
    assert done.stdout.startswith("no card here: ")
    assert done.stdout.endswith("nothing was measured\n")
    assert not output.exists()
