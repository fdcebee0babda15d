"""Streams that the library holds for some tens of microseconds to measure a launch alone: when, how often, and never where
that could harm."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.native.core_world import world
from tests.native.tools import ROOT

HEAD = """
from tests.native.standin_driver import *
import time
driver = Driver()
stream = driver.stream()
nothing = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: None)
def launch(kernel, times, stream=stream):
    for _ in range(times):
        driver.launch(kernel, stream)
        driver.cuStreamSynchronize(stream)
        time.sleep(0.002)
"""
MOST = 2 * 84
"""What a process's first budget pays for, and as much again that it earns in a few seconds."""


def holds(directory: Path, code: str, **settings: object) -> int:
    """Host functions that were put on streams, the program's own among them."""
    log = directory / "calls"
    with world() as made:
        tenant = made.tenant(50)
        done = subprocess.run(
            [sys.executable, "-c", HEAD + textwrap.dedent(code)],
            env={**made.environment(tenant, trace=log, **settings), "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False, timeout=60, cwd=ROOT,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return log.read_text().count("call cuLaunchHostFunc\n")


@pytest.mark.parametrize("where", ["stream", "None"])
def test_a_short_kernel_is_held_a_few_times(tmp_path: Path, where: str) -> None:
    """Four as they come, if the machine is quick: what each takes is paid from the first budget."""
    assert 1 <= holds(tmp_path, f"launch(driver.kernel('spin_10us'), 100, {where})") <= MOST


@pytest.mark.parametrize(
    ("code", "own"),
    [
        ("launch(driver.kernel('spin_300us'), 50)", 0),
        ("driver.cuLaunchHostFunc(stream, nothing, None); launch(driver.kernel('spin_10us'), 50)", 1),
        (
            """
            other = driver.stream()
            driver.cuStreamBeginCapture(other, 1)
            launch(driver.kernel('spin_10us'), 50)
            """,
            0,
        ),
    ],
    ids=["a long kernel", "a program with host functions of its own", "beside a capture"],
)
def test_nothing_is_held_where_that_tells_little_or_could_harm(tmp_path: Path, code: str, own: int) -> None:
    assert holds(tmp_path, code) == own


def test_a_launch_that_waits_for_its_stream_goes_on(tmp_path: Path) -> None:
    """And is not held for ever: what its call blocks for tells nothing."""
    code = """
    source = driver.out(c_uint64, "cuMemAlloc", c_size_t(4096))
    target = (ctypes.c_char * 4096)()
    begin = time.monotonic()
    for _ in range(100):
        driver.cuMemcpyDtoH(target, c_uint64(source), c_size_t(4096))
        time.sleep(0.001)
    assert time.monotonic() - begin < 20
    """
    assert holds(tmp_path, code) <= MOST


def test_a_driver_that_refuses_host_functions_is_measured_as_before(tmp_path: Path) -> None:
    assert holds(tmp_path, "launch(driver.kernel('spin_10us'), 50)", fail="cuLaunchHostFunc=801") > 0


def test_a_launch_behind_a_graph_that_waits_for_the_host_returns(tmp_path: Path) -> None:
    """What a graph is expected to take says nothing of how long its host functions wait: perhaps for this thread."""
    code = """
    import threading
    may_go_on = threading.Event()
    wait = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: may_go_on.wait() and None)
    kernel, graph, made = driver.kernel("spin_10us"), c_void_p(), c_void_p()
    driver.cuStreamBeginCapture(stream, 1)
    driver.cuLaunchHostFunc(stream, wait, None)
    driver.cuStreamEndCapture(stream, byref(graph))
    driver.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0))
    for _ in range(5):
        may_go_on.clear()
        driver.cuGraphLaunch(made, stream)
        time.sleep(0.05)
        driver.launch(kernel, stream)
        may_go_on.set()
        driver.cuStreamSynchronize(stream)
    """
    assert holds(tmp_path, code) >= 1
