"""The tests of real cards, proven without one: they find what is wrong, and never pass off what they did not measure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_manager.adapters.driver_files.native_libraries import find_native_libraries
from tests.gpu.machine import first_line, stand_in_environment
from tests.native.tools import ROOT

BROKEN = """
import sys
from dataclasses import replace
from tests.gpu import memory
from tests.gpu.machine import Machine
with Machine() as machine:
    if "past the library" in sys.argv:
        machine.native = replace(machine.native, fronts=machine.native.driver)
    if "nobody listed" in sys.argv:
        machine.memory_of = lambda *pids: None
    machine.charge_contexts(memory.context_reserve(machine))
    row = next(memory.rows(machine, full=False))
    print(row.name, row.figure, row.holds, row.note)
"""


AGENT = """
import time
from tests.gpu import memory
from tests.gpu.machine import Machine, first_line
from vcuda import page
MIB = 1 << 20
with Machine() as machine, machine.container(1024 * MIB) as container, memory.agent(container, 0.02):
    process = container.start(*machine.client("alloc-to-limit", "--most", 256, "--hold", 600))
    assert first_line(process, "held_mib")
    limits = machine.root / "pages" / container.name / "limits"
    deadline = time.monotonic() + 30
    while (seen := page.read_limits(limits.read_bytes()).cards[0].host_adjust) != 64 * MIB:
        assert time.monotonic() < deadline, seen
"""


@pytest.fixture(autouse=True)
def built() -> None:
    if None in (
        find_native_libraries().fronts,
        find_native_libraries().driver,
        find_native_libraries().client,
    ):
        pytest.skip("this package was built without the library: there is nothing to run the harness on")


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu", *arguments],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=250, check=False,
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


def first_row(tmp_path: Path, *how: str, **settings: str) -> tuple[str, float, bool, str]:
    """Name, figure, whether it holds, and note."""
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, *how],
        cwd=ROOT, env=stand_in_environment(find_native_libraries(), str(tmp_path)) | settings, capture_output=True, text=True,
        timeout=250, check=True,
    )  # fmt: skip
    name, over, holds, note = done.stdout.split(" ", 3)
    return name, float(over), holds == "True", note


def test_a_library_that_holds_nothing_is_found_out(tmp_path: Path) -> None:
    name, over, holds, _ = first_row(tmp_path, "past the library")
    assert name == "gpu_memory_over_alloc_bytes"
    assert over > 1 << 30
    assert not holds


def test_where_nvml_lists_no_process_the_cards_own_count_judges_and_the_row_says_so(tmp_path: Path) -> None:
    """As in a container, whose processes NVML does not know by the numbers that they have there."""
    _, over, holds, note = first_row(tmp_path, "nobody listed")
    assert (over, holds) == (0, True)
    assert "2048 MiB on the card, limit 2048 MiB; by the card's own count" in note
    _, over, holds, _ = first_row(tmp_path, "nobody listed", "past the library")
    assert over > 1 << 30
    assert not holds


def test_the_card_is_the_same_whatever_the_environment_shows_of_others(tmp_path: Path) -> None:
    _, over, holds, note = first_row(tmp_path, VCUDA_STANDIN_CARDS="2", CUDA_VISIBLE_DEVICES="1")
    assert (over, holds) == (0, True)
    assert "2048 MiB on the card, limit 2048 MiB" in note


def test_what_the_driver_counts_beyond_the_account_is_told_as_the_agent_tells_it(tmp_path: Path) -> None:
    """Here a context that nothing was charged for."""
    done = subprocess.run(
        [sys.executable, "-c", AGENT],
        cwd=ROOT, env=stand_in_environment(find_native_libraries(), str(tmp_path)), capture_output=True, text=True,
        timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_where_mps_runs_nothing_is_measured(tmp_path: Path) -> None:
    (tmp_path / "control").touch()
    env = stand_in_environment(find_native_libraries(), str(tmp_path)) | {
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)
    }
    done = run("--output", str(tmp_path / "gpu.json"), env=env)
    assert done.stdout == (
        "a card, but MPS runs on it, which shows one process for all: end it first; nothing was measured\n"
    )


def test_a_client_that_hangs_is_ended_and_said_nothing() -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first_line(process, "held_mib", seconds=0.1) == ""
    process.communicate()
    assert process.returncode < 0


def test_nvidias_runtime_is_not_measured_on_a_stand_in_and_the_rows_say_why(tmp_path: Path) -> None:
    _, rows = dry_run(tmp_path, "--only", "runtime")
    kinds = [(row["figure"], row["note"]) for row in rows.values()]
    assert (
        kinds == [(None, "a stand-in driver does not give NVIDIA's runtime the proof that it asks for")] * 4
    )
    assert {"gpu_runtime_starts_shared", "gpu_memory_over_cuda_runtime_static_bytes"} <= set(rows)


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
