"""A protected service beside best-effort jobs on one modelled card: what requests wait, what the jobs get.

Real processes under the library, the agent's own loop, the native watcher. The service's requests arrive at
random (Poisson) at half of its share and are kernels of 0.2 ms in a row; the jobs always have kernels to run.
Three columns: alone (solo), beside normal containers (unprotected), beside best-effort ones (protected).

Two models of how a card is shared, since no document says which holds for which card: in slices of time that
interrupt kernels, and kernel by kernel, each running out. ``vcuda/lib/test/standin/README.md`` names sources.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.rows import Row, percentile
from gpu_manager.domain.enforcement.protection import CardMember
from gpu_manager.domain.priority import Priority
from tests.native.core_world import CARD, Tenant, Watch, World, compiled, one_machine, until, world
from tests.native.gates import GatedHost
from tests.native.timed import real_time

PROTECTED_CORES: Final = 40
BEST_EFFORT_CORES: Final = 60
KERNEL_US: Final = 200
MODELS: Final = ("slice", "kernel")
SIZES_MS: Final = (5, 20, 100)
FLOODS_US: Final = (100, 1_000, 10_000, 50_000)
LONG_US: Final = 50_000
"""Floods of such kernels have a bar of their own: a launch waits for the one that runs."""
SETTLE_SECONDS: Final = 1.0
WINDOW_READINGS: Final = 10
READING_MS: Final = 100


@dataclass(frozen=True, slots=True)
class Cell:
    """One constellation: the model of the card, the size of requests, the jobs, their kernels' length."""

    model: str
    size_ms: int
    jobs: int
    flood_us: int

    def __str__(self) -> str:
        return f"{self.size_ms} ms, {self.jobs} x {self.flood_us / 1000:g} ms, {self.model}s"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Latencies of requests (ms), and in percent of the card's time what the service and each job had; each
    job's least share of a second; the watcher's use of a processor (percent); launch to closed gate (us).
    """

    latencies: Sequence[float]
    service: float
    jobs: Sequence[float]
    least: Sequence[float]
    watcher: float
    raised_us: Sequence[float]

    @property
    def p99(self) -> float:
        """The 99th percentile of the latencies, ms."""
        return percentile(self.latencies, 99)


def measure(cell: Cell, seconds: float, *, protected: bool, alone: bool = False) -> Outcome:
    """Run the constellation for so long; ``alone``: the service without the jobs."""
    jobs = 0 if alone else cell.jobs
    classes = (Priority.PROTECTED, Priority.BEST_EFFORT) if protected else (Priority.NORMAL, Priority.NORMAL)
    with world(state=one_machine(), settings={"turns": cell.model}) as made:
        service = made.tenant(PROTECTED_CORES, priority=classes[0])
        tenants = [made.tenant(BEST_EFFORT_CORES // jobs, 100, priority=classes[1]) for _ in range(jobs)]
        watch = made.watch(READING_MS)
        with made.host(service, *tenants), gated(made, service, tenants, protected=protected) as host:
            loads = [
                made.start(t, "stream", cell.flood_us, seconds + SETTLE_SECONDS + 0.5, 1000) for t in tenants
            ]
            for load in loads:
                load.wait_running()
            threading.Event().wait(SETTLE_SECONDS)
            before, began = host.cpu_ns(), time.monotonic_ns()
            out, pid = _serve(made, service, cell.size_ms, seconds, host.gate if protected else None)
            ended = time.monotonic_ns()
            used = (host.cpu_ns() - before) / (ended - began) * 100
            for load in loads:
                load.finish()
            ended = min(ended, began + int(seconds * 1e9))  # requests may outlast the jobs
            pids = [pid, *(load.process.pid for load in loads)]
            shares = watch.shares_until(pids, began, ended)
            least = [_least(watch, each, began, ended) for each in pids[1:]]
    found: dict[str, list[float]] = {"request": [], "raised": []}
    for line in out.splitlines():
        kind, *words = line.split()
        if kind in found:
            found[kind].append(float(words[-1]))
    return Outcome(
        found["request"], shares[0], shares[1:], least, used, [us for us in found["raised"] if us >= 0]
    )


def _serve(made: World, tenant: Tenant, size_ms: int, seconds: float, gate: Path | None) -> tuple[str, int]:
    rate = PROTECTED_CORES / 100 / 2 / (size_ms / 1000)
    program = compiled("core_service.c", "-Wl,--no-as-needed", "-lm")
    arguments = [KERNEL_US, size_ms * 1000 // KERNEL_US, rate, seconds, 1, *([gate] if gate else [])]
    process = subprocess.Popen(
        [str(program), *map(str, arguments)], env=made.environment(tenant), stdout=subprocess.PIPE, text=True
    )
    made.pids.setdefault(tenant.name, []).append(process.pid)
    out, _ = process.communicate(timeout=seconds * 20 + 60)
    if process.returncode:
        raise RuntimeError(f"the service ended with {process.returncode}")
    return out, process.pid


def _least(watch: Watch, pid: int, begin: int, end: int) -> float:
    """The least that the card served this process of any second, percent of the card."""
    readings = watch.readings(pid, begin, end)
    pairs = zip(readings, readings[WINDOW_READINGS:], strict=False)
    return min((100 * (b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs), default=100.0)


@contextlib.contextmanager
def gated(made: World, service: Tenant, jobs: Sequence[Tenant], *, protected: bool) -> Iterator[GatedHost]:
    """What the agent does on a card with both classes; on one without, nothing."""
    host = GatedHost(made)
    if protected and jobs:
        cores = BEST_EFFORT_CORES // len(jobs)
        members = [
            CardMember(
                service.name, CARD, 0, PROTECTED_CORES, PROTECTED_CORES, Priority.PROTECTED, works=True
            )
        ]
        members += [CardMember(j.name, CARD, 0, cores, 100, Priority.BEST_EFFORT, works=True) for j in jobs]
        host.protect(members)
    try:
        yield host
    finally:
        host.close()


# ---- rows --------------------------------------------------------------------------------------------------


def ratio(cell: Cell, protected: Outcome, solo: float) -> float:
    """The p99 less one kernel of a job, over the p99 of the service alone."""
    return (protected.p99 - cell.flood_us / 1000) / solo


def latency(jobs: int, *, full: bool) -> Iterable[Row]:
    """Requests beside so many jobs, under both models."""
    seconds = 20.0 if full else 8.0
    sizes = SIZES_MS if full else SIZES_MS[:1]
    table, ratios, harvests, guarantees, watchers = [], {}, {}, {}, []
    for size in sizes:
        length = seconds * (3 if size == SIZES_MS[-1] else 1)
        solo = measure(Cell("slice", size, 0, 0), length, protected=False, alone=True)
        for model in MODELS:
            for flood in FLOODS_US:
                cell = Cell(model, size, jobs, flood)
                bare, held = (measure(cell, length, protected=protected) for protected in (False, True))
                ratios[cell] = ratio(cell, held, solo.p99)
                harvests[cell] = sum(held.jobs) / (100 - held.service)
                guarantees[cell] = min(held.least) / (BEST_EFFORT_CORES / jobs)
                watchers.append(held.watcher)
                table.append(f"{cell}: {solo.p99:.0f} / {bare.p99:.0f} / {held.p99:.1f} ms")
    yield from _rows(jobs, ratios, harvests, guarantees, watchers, table, full=full)


def _rows(
    jobs: int,
    ratios: Mapping[Cell, float],
    harvests: Mapping[Cell, float],
    guarantees: Mapping[Cell, float],
    watchers: Sequence[float],
    table: Sequence[str],
    *,
    full: bool,
) -> Iterable[Row]:
    cores = f"{PROTECTED_CORES} cores beside {BEST_EFFORT_CORES}"
    told = f"p99 alone / unprotected / protected: {'; '.join(table)}; {cores}"
    suffix = "" if jobs == 1 else f"_{jobs}_jobs"
    for name, bar, long in (
        (f"protected_p99_ratio{suffix}", 1.15, False),
        (f"protected_p99_ratio_long{suffix}", 1.3, True),
    ):
        worst = max((cell for cell in ratios if (cell.flood_us >= LONG_US) == long), key=ratios.__getitem__)
        yield Row(
            name, round(ratios[worst], 3), "times alone", f"≤ {bar}", None, full, f"worst: {worst}; {told}"
        )
    worst = min(harvests, key=harvests.__getitem__)
    yield Row(f"harvest_ratio{suffix}", round(harvests[worst], 3), "of the time left", "≥ 0.95", None, full,
              f"worst: {worst}; the card's own account")  # fmt: skip
    worst = min(guarantees, key=guarantees.__getitem__)
    name = f"best_effort_guarantee_ratio{suffix}"
    yield Row(name, round(guarantees[worst], 3), "of its cores", "≥ 0.97", None, full,
              f"the emptiest second of any job, worst: {worst}")  # fmt: skip
    if jobs == 1:
        yield Row("gate_watcher_percent", round(max(watchers), 2), "% of a processor", "≤ 0.5", None, full,
                  "the watcher's own time while both classes work, the most of all runs")  # fmt: skip


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
    opened = max(_opened_ms() for _ in range(10 if full else 4))
    yield Row("gates_open_ms", round(opened, 1), "ms", "≤ 100", None, full,
              "from kill -9 of the watcher while the gate is closed until it is open by itself, the slowest; "
              "kill -9 of the agent ends the watcher's input, which opens gates at once")  # fmt: skip


def _opened_ms() -> float:
    with world() as made:
        service = made.tenant(PROTECTED_CORES, priority=Priority.PROTECTED)
        job = made.tenant(BEST_EFFORT_CORES, 100, priority=Priority.BEST_EFFORT)
        with gated(made, service, [job], protected=True) as host:
            load = made.start(service, "stream", 5000, 3.0, 1000)
            load.wait_running()
            if not until(host.closed, 5.0):
                raise RuntimeError("the gate was never closed")
            os.kill(host.pid, signal.SIGKILL)
            killed = time.monotonic()
            until(lambda: not host.closed(), 5.0)
            return (time.monotonic() - killed) * 1e3


def one(*, full: bool) -> Iterable[Row]:
    """Beside one job."""
    return latency(1, full=full)


def three(*, full: bool) -> Iterable[Row]:
    """Beside three jobs."""
    return latency(3, full=full)


PARTS: Final = {"raising": raising, "one": one, "three": three}


def rows(*, full: bool, only: str = "") -> list[Row]:
    """The group's rows, or those of one part; at real-time priority, as a card runs whatever else does."""
    with real_time():
        return [row for name, part in PARTS.items() if only in ("", name) for row in part(full=full)]
