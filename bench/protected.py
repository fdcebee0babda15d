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
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.protected_kept import KEPT, digest, kept
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
CALL_SECONDS: Final = 170.0
"""A call at full size begins no measurement after so long; the longest takes a minute."""


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


@dataclass(slots=True)
class Table:
    """What was found of constellations, and how many there are in all."""

    wanted: int
    lines: list[str] = field(default_factory=list)
    ratios: dict[Cell, float] = field(default_factory=dict)
    harvests: dict[Cell, float] = field(default_factory=dict)
    guarantees: dict[Cell, float] = field(default_factory=dict)
    watcher: float = 0.0

    def add(self, cell: Cell, solo: Outcome, bare: Outcome, held: Outcome) -> None:
        """Judge one constellation by its three columns."""
        self.ratios[cell] = ratio(cell, held, solo.p99)
        self.harvests[cell] = sum(held.jobs) / (100 - held.service)
        self.guarantees[cell] = min(held.least) / (BEST_EFFORT_CORES / cell.jobs)
        self.watcher = max(self.watcher, held.watcher)
        self.lines.append(f"{cell}: {solo.p99:.0f} / {bare.p99:.0f} / {held.p99:.1f} ms")


def constellations(jobs: int, sizes: Sequence[int]) -> list[Cell]:
    """In an order of chance, always the same, so that a part of them is a sample of all."""
    cells = [Cell(model, size, jobs, flood) for size in sizes for model in MODELS for flood in FLOODS_US]
    return random.Random(1).sample(cells, len(cells))


def latency(jobs: int, *, full: bool) -> Iterable[Row]:
    """Requests beside so many jobs, under both models."""
    ends = time.monotonic() + CALL_SECONDS
    code = digest() if full else ""

    def outcome(cell: Cell, column: str) -> Outcome | None:
        seconds = (20.0 if full else 8.0) * (3 if cell.size_ms == SIZES_MS[-1] else 1)

        def measured() -> dict[str, Any]:
            return asdict(measure(cell, seconds, protected=column == "protected", alone=column == "alone"))

        if not full:
            return Outcome(**measured())
        name = f"{code}-{cell.model}-{cell.size_ms}-{cell.jobs}-{cell.flood_us}-{column}.json"
        found = kept(KEPT / name, measured, lambda: time.monotonic() < ends)
        return Outcome(**found) if found is not None else None

    cells = constellations(jobs, SIZES_MS if full else SIZES_MS[:1])
    table = Table(len(cells))
    solo: dict[int, Outcome | None] = {}
    for cell in cells:
        if cell.size_ms not in solo:
            solo[cell.size_ms] = outcome(Cell("slice", cell.size_ms, 0, 0), "alone")
        alone, bare, held = solo[cell.size_ms], outcome(cell, "unprotected"), outcome(cell, "protected")
        if alone and bare and held:
            table.add(cell, alone, bare, held)
    yield from _rows(jobs, table, full=full)


def _rows(jobs: int, table: Table, *, full: bool) -> Iterable[Row]:
    suffix = "" if jobs == 1 else f"_{jobs}_jobs"
    all_there = len(table.ratios) == table.wanted
    part = "" if all_there else f"{len(table.ratios)} of {table.wanted} constellations; "
    full = full and all_there
    cores = f"{PROTECTED_CORES} cores beside {BEST_EFFORT_CORES}"
    told = f"p99 alone / unprotected / protected: {'; '.join(sorted(table.lines))}; {cores}"
    short = {cell: found for cell, found in table.ratios.items() if cell.flood_us < LONG_US}
    long = {cell: found for cell, found in table.ratios.items() if cell.flood_us >= LONG_US}
    for name, ratios, unit, bar, note, worst_of in (
        (f"protected_p99_ratio{suffix}", short, "times alone", "≤ 1.15", told, max),
        (f"protected_p99_ratio_long{suffix}", long, "times alone", "≤ 1.3", told, max),
        (f"harvest_ratio{suffix}", table.harvests, "of the time left", "≥ 0.95",
         "the card's own account", min),
        (f"best_effort_guarantee_ratio{suffix}", table.guarantees, "of its cores", "≥ 0.97",
         "the emptiest second of any job", min),
    ):  # fmt: skip
        if not ratios:
            yield Row(name, None, unit, bar, None, full, f"{part}call again to go on")
            continue
        worst = worst_of(ratios, key=ratios.__getitem__)
        yield Row(name, round(ratios[worst], 3), unit, bar, None, full, f"{part}worst: {worst}; {note}")
    if jobs == 1 and table.ratios:
        yield Row("gate_watcher_percent", round(table.watcher, 2), "% of a processor", "≤ 0.5", None, full,
                  f"{part}the watcher's own time while both classes work, the most of all runs")  # fmt: skip


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
