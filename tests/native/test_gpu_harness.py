"""The tests of real cards, proven without one: they find what is wrong, and never pass off what they did not measure."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.adapters.driver_files.delivery import find_native_libraries
from tests.gpu import kit
from tests.gpu.container import first_line
from tests.gpu.guesses import questions
from tests.gpu.machine import STAND_IN, stand_in_environment
from tests.native.tools import LIB, ROOT, build_tree

Rows = dict[str, dict[str, Any]]

BROKEN = """
import sys
from dataclasses import replace
from tests.gpu import facts, memory
from tests.gpu.machine import Machine
from tests.gpu.plan import Settings
with Machine() as machine:
    if "past the library" in sys.argv:
        machine.native = replace(machine.native, fronts=machine.native.driver)
    if "nobody listed" in sys.argv:
        machine.memory_of = lambda *pids: None
    machine.charge_contexts(memory.context_reserve(machine))
    for row in next(memory.cases(Settings())).rows(machine):
        print(row.name, row.figure, row.holds, row.note)
"""


AGENT = """
import time
from tests.gpu.container import agent, first_line
from tests.gpu.machine import Machine
from vcuda.page.limits import read_limits
MIB = 1 << 20
with Machine() as machine, machine.container(1024 * MIB) as container, agent(container, 0.02):
    process = container.start(*machine.client("alloc-to-limit", "--most", 256, "--hold", 600))
    assert first_line(process, "held_mib")
    limits = machine.root / "pages" / container.name / "limits"
    deadline = time.monotonic() + 30
    while (seen := read_limits(limits.read_bytes()).cards[0].host_adjust) != 64 * MIB:
        assert time.monotonic() < deadline, seen
"""


FRAMEWORK = """#!{python}
import ctypes, os, sys
if sys.argv[1] == "-c":  # "have you got this package?"
    sys.exit(0)
what = sys.argv[2]
held = "VCUDA_ROOT" in os.environ
if what == "cupy" or (what == "numba" and held):
    sys.exit(f"{what} is broken")
cuda = ctypes.CDLL("libcuda.so.1")
def must(result):
    if result: sys.exit(f"error {result}")
class Block(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("handles", ctypes.c_int), ("where", ctypes.c_int * 2), ("rest", ctypes.c_ulong * 2)]
def communicator():
    "Three buffers of 32 MiB, held by their descriptors alone."
    for _ in range(3):
        handle, descriptor = ctypes.c_ulong(), ctypes.c_int()
        must(cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(32 << 20), ctypes.byref(Block(1, 1, (1, 0))), ctypes.c_ulong(0)))
        must(cuda.cuMemExportToShareableHandle(ctypes.byref(descriptor), handle, 1, ctypes.c_ulong(0)))
        must(cuda.cuMemRelease(handle))
        yield descriptor.value
context = ctypes.c_void_p()
must(cuda.cuInit(0))
must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
must(cuda.cuCtxSetCurrent(context))
for number in range(int(sys.argv[3]) if what == "nccl" else 0):
    descriptors = list(communicator())
    if not number:
        print("first held", flush=True)
        sys.stdin.readline()
    if "leaks" not in sys.argv[0]:
        for descriptor in descriptors: os.close(descriptor)
print("works", what, flush=True)
what == "nccl" and sys.stdin.readline()
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


def first_row(tmp_path: Path, *how: str, **settings: str) -> tuple[str, float, bool, str]:
    """Name, figure, whether it holds, and note."""
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, *how],
        cwd=ROOT, env=stand_in_environment(find_native_libraries(), str(tmp_path)) | settings, capture_output=True, text=True,
        timeout=250, check=True,
    )  # fmt: skip
    name, over, holds, note = done.stdout.splitlines()[0].split(" ", 3)
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
    done = run("--output", str(tmp_path / "gpu.jsonl"), env=env)
    assert done.stdout == (
        "a card, but MPS runs on it, which shows one process for all: end it first; nothing was measured\n"
    )


def test_a_client_that_hangs_is_ended_and_said_nothing() -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first_line(process, "held_mib", seconds=0.1) == ""
    process.communicate()
    assert process.returncode < 0


def test_a_driver_that_answers_otherwise_is_seen(tmp_path: Path) -> None:
    code = """
from tests.gpu import guesses
from tests.gpu.machine import Machine
guesses.answers = lambda process, at=[0]: at.__setitem__(0, at[0] + 1) or process.communicate() and {"kib": str(at[0])}
with Machine() as machine:
    print(*[(row.figure, row.note) for row in guesses._asked("memory", "odd_sizes", machine)])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=stand_in_environment(find_native_libraries(), str(tmp_path)),
        capture_output=True, text=True, timeout=110, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "(0.0, 'kib: 1, modelled 2')"


@pytest.mark.timeout(300)
def test_the_kit_runs_from_its_folder_in_an_empty_python(tmp_path: Path) -> None:
    """Everything that it needs lies in it: no package is installed there, and no network is asked."""
    assert kit.main() == 0
    folder = tmp_path / "kit"
    shutil.copytree(kit.TARGET, folder)
    venv.create(tmp_path / "empty", with_pip=False)
    clean = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR")}
    command = [tmp_path / "empty/bin/python", "-m", "tests.gpu", "--stand-in", "--quick", "--seconds", "0.1"]
    done = subprocess.run(
        command, cwd=folder, env=clean, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "DRY RUN, NOT A CARD" in done.stdout
    rows = judged(folder / "build/gpu-stand-in.jsonl")
    for judge in (
        machine_rows,
        memory_rows,
        runtime_rows,
        dispatch_rows,
        cost_rows,
        share_rows,
        ending_rows,
        guess_rows,
    ):
        judge(rows)
    trace_rows(rows, folder / "build/gpu-stand-in.traces")


def judged(path: Path) -> Rows:
    """The rows of a results file, by name, after what holds for all of them."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["machine"]["measured_on_a_card"] is False
    assert "left_out" not in lines[-1]
    assert {line["case"][0] for line in lines if "row" in line} == set("abcdefghij"), "every group has rows"
    found = [line["row"] for line in lines if "row" in line]
    rows = {row["name"]: row for row in found}
    assert len(rows) == len(found), "every row has a name of its own"
    assert not [row["note"] for name, row in rows.items() if name.endswith("_ran")], "no case failed"
    assert all(row["note"] for row in found if row["figure"] is None), "what is not measured says why"
    return rows


def machine_rows(rows: Rows) -> None:
    able = {
        name: row["figure"]
        for name, row in rows.items()
        if name.startswith(("gpu_locks_", "gpu_smoke_")) and row["bar"] == "= 1"
    }
    assert len(able) == 6
    assert set(able.values()) == {1}, able
    assert rows["gpu_context_mib"]["figure"] == 64, "what a context takes on this model"
    assert 0.5 < rows["gpu_clock_ratio"]["figure"] < 1.02, "the model's clock is the one that it names"


def memory_rows(rows: Rows) -> None:
    """Every way is tried and held to the byte, and charged as NVML counts it."""
    ways = ("alloc", "pitch", "async", "vmm", "array", "managed", "8_processes")
    for way in ways:
        assert rows[f"gpu_memory_over_{way}_bytes"]["figure"] == 0
        assert rows[f"gpu_memory_charge_minus_nvml_{way}_bytes"]["figure"] == 0
    assert "four fifths" not in json.dumps(rows), "a library that refuses everything is no success"


def runtime_rows(rows: Rows) -> None:
    notes = {row["note"] for name, row in rows.items() if "_runtime_" in name}
    assert notes == {"a stand-in driver does not give NVIDIA's runtime the proof that it asks for"}
    assert {"gpu_runtime_starts_shared", "gpu_memory_over_runtime_static_bytes"} <= set(rows)
    assert rows["gpu_contexts_left_charged_bytes"]["figure"] == 0


def dispatch_rows(rows: Rows) -> None:
    for limit in (99, 50, 30):
        row = rows[f"gpu_dispatch_1000us_every_10000us_{limit}_delivered_ratio"]
        assert "needs " in row["note"], "it is judged by what it needs bare"
        assert (row["figure"] is None) == row["note"].startswith("not at rest: bare ")


def trace_rows(rows: Rows, directory: Path) -> None:
    """The replayer reads each, and plays it."""
    traces = sorted(directory.glob("*.trace"))
    assert len(traces) == 9
    player = (
        build_tree("replay-address", "replay", source=LIB / "test/replay", sanitize="address,undefined")
        / "replay"
    )
    for trace in traces:
        launches = trace.read_text().count("\nlaunch ")
        assert rows[f"gpu_trace_{trace.stem}_launches"]["figure"] == launches
        command = [player, "perfect", "--trace", trace, "--limit", "50", "--json"]
        played = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert json.loads(played.stdout)["runs"] == 1, played.stderr  # too short a trace to hold a bar


def cost_rows(rows: Rows) -> None:
    assert rows["gpu_launch_at_100_ns"]["baseline"] > 0
    assert rows["gpu_async_pair_at_99_ns"]["baseline"] > 0
    assert rows["gpu_loop_kernels_at_50"]["figure"] > 0


def share_rows(rows: Rows) -> None:
    for limit in (10, 50, 90):
        for kernel in ("40us_stream", "8000us_sync"):
            assert rows[f"gpu_share_{limit}_{kernel}_mean_error"]["figure"] is not None
    for split in ("50_50", "30_70", "25_25_25_25"):
        assert rows[f"gpu_split_{split}_error"]["note"].startswith("got ")
    assert rows["gpu_protected_job_kept"]["baseline"] == 1.0


def ending_rows(rows: Rows) -> None:
    for name in (
        "exits_wrong",
        "exits_left_charged_bytes",
        "kills_left_charged_bytes",
        "captures_global_failed",
    ):
        assert rows[f"gpu_{name}"]["figure"] == 0, rows[f"gpu_{name}"]


def guess_rows(rows: Rows) -> None:
    """On the driver that the stand-in models, which is itself, every answer is the same."""
    asked = {name: row["figure"] for name, row in rows.items() if name.startswith("gpu_guess_")}
    assert set(asked) == {f"gpu_guess_{question}_right" for question in questions()}
    assert set(asked.values()) == {1}, asked


def test_without_a_card_one_line_says_so_and_nothing_is_written(tmp_path: Path) -> None:
    output = tmp_path / "gpu.jsonl"
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"} | {"LD_LIBRARY_PATH": str(tmp_path)}
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")  # also on a machine that has a card
    done = run("--output", str(output), env=env)
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1
    assert done.stdout.startswith("no card here: ")
    assert done.stdout.endswith("nothing was measured\n")
    assert not output.exists()


@pytest.mark.parametrize("leaks", [False, True])
def test_a_framework_is_judged_beside_itself_without_the_library(tmp_path: Path, leaks: bool) -> None:
    """As on a card: an interpreter that says what each client would say, and makes its calls of the driver."""
    python = tmp_path / ("leaks" if leaks else "frugal")
    python.write_text(FRAMEWORK.replace("{python}", sys.executable))
    python.chmod(0o755)
    env = stand_in_environment(find_native_libraries(), str(tmp_path)) | {"FRAMEWORK_PYTHON": str(python)}
    del env[STAND_IN]
    cases = "h/nccl" if leaks else "h/"
    done = run("--cases", cases, "--seconds", "0.5", "--output", str(tmp_path / "gpu.jsonl"), env=env)
    rows = {
        line["row"]["name"]: line["row"]
        for line in map(json.loads, (tmp_path / "gpu.jsonl").read_text().splitlines())
        if "row" in line
    }
    if leaks:
        assert (done.returncode, rows["gpu_nccl_grows_mib"]["figure"]) == (1, 3 * 96), (
            "four communicators were made"
        )
        return
    works = {name: rows.pop(f"gpu_framework_{name}_works") for name in ("compile", "jax", "cupy")}
    assert {name: row["figure"] for name, row in works.items()} == {"compile": 1, "jax": 1, "cupy": None}
    assert "does not work without the library either" in works["cupy"]["note"]
    assert rows.pop("gpu_nccl_grows_mib")["figure"] == -96, "the first one's is given back too"
    assert rows.pop("gpu_nccl_charge_minus_nvml_mib")["figure"] == 0
    assert list(rows) == ["gpu_numba_ran"], "what fails under the library alone is a row that does not hold"
    assert "numba is broken" in rows["gpu_numba_ran"]["note"]


def begun(output: Path) -> subprocess.Popen[str]:
    """A dry run of the first group."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.gpu", "--stand-in", "--quick", "--seconds", "0.1", "--groups", "a",
         "--output", str(output)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def cases_of(output: Path) -> set[str]:
    return {line["case"] for line in map(json.loads, output.read_text().splitlines()) if "seconds" in line}


def test_a_run_goes_on_when_nobody_reads_what_it_prints_and_its_terminal_hangs_up(tmp_path: Path) -> None:
    run = begun(tmp_path / "gpu.jsonl")
    with run:
        assert run.stdout
        assert run.stderr
        assert "DRY RUN" in run.stdout.readline()
        run.stdout.close()
        run.stderr.close()
        os.killpg(run.pid, signal.SIGHUP)
        assert run.wait(100) == 0
    assert cases_of(tmp_path / "gpu.jsonl") == {"a/machine", "a/locks", "a/smoke", "a/prepared"}


def test_a_run_that_is_ended_says_so_and_goes_on_with_the_same_command(tmp_path: Path) -> None:
    output = tmp_path / "gpu.jsonl"
    run = begun(output)
    with run:
        assert run.stdout
        while "gpu_locks_freed_ms" not in run.stdout.readline():
            assert run.poll() is None
        run.terminate()
        _, err = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGTERM
    assert "ended by SIGTERM" in err
    assert json.loads(output.read_text().splitlines()[-1]) == {"ended": "SIGTERM"}
    before = cases_of(output)
    with begun(output) as again:
        shown, _ = again.communicate(timeout=100)
    assert again.returncode == 0
    assert before < cases_of(output)
    assert "gpu_machine_packages" not in shown, "what was measured is not measured again"


def test_a_case_that_never_ends_is_cut_by_its_own_bound_and_the_next_one_asked_for_runs(
    tmp_path: Path,
) -> None:
    code = f"""
import json, threading
from pathlib import Path
from tests.gpu import plan
from tests.gpu.machine import Machine
from tests.gpu.results import Results
plan.LEAST_BOUND = 0.3
def hangs(machine):
    machine.bare("sleep", "1000")
    threading.Event().wait()
def three(settings):
    yield plan.Case("first_hangs", 0.01, hangs)
    yield plan.Case("next", 0.01, lambda machine: [plan.Row("after", 1, "yes", "= 1")])
    yield plan.Case("unasked", 0.01, lambda machine: [plan.Row("never", 1, "yes", "= 1")])
with Machine() as machine:
    results = Results(Path({str(tmp_path / "r.jsonl")!r}), {{}})
    for named in "x/first", "next":
      for row in plan.spend(machine, {{"x": three}}, results, settings=plan.Settings(), seconds=100, named=named):
        print(row.name, row.figure, row.note, len(machine._started))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=stand_in_environment(find_native_libraries(), str(tmp_path)),
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    cut, after = done.stdout.splitlines()
    assert cut.startswith("gpu_first_hangs_ran 0.0 Overtime: cut after 0."), cut
    assert (cut.split()[-1], after) == ("0", "after 1  0"), "its processes were ended, the next case measured"
