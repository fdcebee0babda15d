"""How fast a gate is closed, and how fast it opens once who holds it closed is killed."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bench.protected_cells import BEST_EFFORT_CORES, PROTECTED_CORES, Cell, gated, measure
from bench.rows import Row, percentile
from gpu_manager.domain.priority import Priority
from gpu_manager.ports.control_pages import Correction
from tests.native.core_world import CARD, World, until, world
from tests.native.tools import build_tests
from vcuda.page.layout import read_gate

MOST_SECONDS: Final = 5.0
_JITTER: Final = """
import time
late = []
for _ in range(1500):
    begin = time.monotonic_ns()
    time.sleep(0.001)
    late.append(time.monotonic_ns() - begin - 1_000_000)
print(sorted(late)[int(len(late) * 0.99)])
"""


def raising(*, full: bool) -> Iterable[Row]:
    """From a protected launch after a pause to a closed gate, beside a job; from a kill to an open one."""
    with subprocess.Popen([sys.executable, "-c", _JITTER], stdout=subprocess.PIPE, text=True) as sleeper:
        held = measure(Cell("slice", 5, 1, 1000), 20.0 if full else 8.0, protected=True)
        jitter = int(sleeper.communicate()[0]) / 1e6
    p99 = percentile(held.raised_us, 99) / 1e3
    yield Row("gate_raise_p99_ms", round(p99, 3), "ms", "≤ 2", round(jitter, 3), full,
              f"{len(held.raised_us)} launches, median {statistics.median(held.raised_us):.0f} us; "
              "beside it the machine's own p99 of waking from a sleep of 1 ms")  # fmt: skip
    times = range(10 if full else 4)
    opened, after_agent = max(_opened_ms() for _ in times), max(_opened_after_agent_ms() for _ in times)
    yield Row("gates_open_ms", round(opened, 1), "ms", "≤ 100", None, full,
              "from kill -9 of the watcher to a gate that has opened by itself, the slowest")  # fmt: skip
    yield Row("gates_open_agent_ms", round(after_agent, 1), "ms", "≤ 100", None, full,
              "the same from kill -9 of the agent, whose watcher ends with it")  # fmt: skip


def _opened_ms() -> float:
    """After a kill of the watcher."""
    with world() as made:
        service = made.tenant(PROTECTED_CORES, priority=Priority.PROTECTED)
        job = made.tenant(BEST_EFFORT_CORES, 100, priority=Priority.BEST_EFFORT)
        with gated(made, service, [job], protected=True) as host:
            made.start(service, "stream", 5000, 3.0, 1000).wait_running()
            return _killed(made, host.pid)


_AGENT: Final = """
import sys
from pathlib import Path
from gpu_manager.adapters.control_pages.pages import NativeGateWatcher
from gpu_manager.domain.card import CardUuid
from gpu_manager.ports.control_pages import GateWatch, WatchedTenant
program, pages, gate, card, service, cores, job = sys.argv[1:]
watcher = NativeGateWatcher(Path(program), Path(pages), lambda _: Path(gate))
told = (WatchedTenant(service, 0, int(cores)),), (WatchedTenant(job, 0, 100 - int(cores)),)
watcher.watch([GateWatch(CardUuid(card), *told)])
print("watching", flush=True)
sys.stdin.read()
"""


def _opened_after_agent_ms() -> float:
    """After a kill of the process that started the watcher with the agent's own code."""
    with world() as made:
        service = made.tenant(PROTECTED_CORES, priority=Priority.PROTECTED)
        job = made.tenant(BEST_EFFORT_CORES, 100, priority=Priority.BEST_EFFORT)
        made.tenants.gates.ensure(CARD)
        program = build_tests("vcuda-gates") / "vcuda-gates"
        words = [program, made.base / "pages", _gate(made), CARD, service.name, PROTECTED_CORES, job.name]
        command = [sys.executable, "-c", _AGENT, *map(str, words)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as agent:
            assert agent.stdout
            while "watching" not in agent.stdout.readline():
                if agent.poll() is not None:
                    raise RuntimeError(f"the agent ended with {agent.returncode}")
            granted = {CARD: Correction(granted=float(PROTECTED_CORES))}
            made.tenants.publish(service.name, time.monotonic_ns(), granted)
            made.start(service, "stream", 5000, 3.0, 1000).wait_running()
            return _killed(made, agent.pid)


def _gate(made: World) -> Path:
    return made.tenants.gates.path(CARD)


def _is_closed(made: World) -> bool:
    return read_gate(_gate(made).read_bytes()).closed_until_ns > time.monotonic_ns()


def _killed(made: World, pid: int) -> float:
    """Milliseconds from the kill of this process, while the gate is closed, until it is open."""
    if not until(lambda: _is_closed(made), MOST_SECONDS):
        raise RuntimeError("the gate was never closed")
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    if not until(lambda: not _is_closed(made), MOST_SECONDS):
        raise RuntimeError("the gate was never opened")
    return (time.monotonic() - killed) * 1e3
