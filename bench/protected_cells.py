"""One constellation of a protected service beside best-effort jobs on one modelled card, measured.

Real processes under the library, the agent's own loop, the native watcher.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.rows import percentile
from gpu_manager.domain.enforcement.protection import CardMember
from gpu_manager.domain.priority import Priority
from tests.native.card_watch import Watch
from tests.native.core_world import CARD, Tenant, World, one_machine, world
from tests.native.gates import GatedHost
from tests.native.programs import compiled

PROTECTED_CORES: Final = 40
BEST_EFFORT_CORES: Final = 60
KERNEL_US: Final = 200
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
    job's least share of a second; the watcher's use of a processor (percent); launch to closed gate (us); the
    longest that the machine stood still meanwhile (ms), known where a witness watched.
    """

    latencies: Sequence[float]
    service: float
    jobs: Sequence[float]
    least: Sequence[float]
    watcher: float
    raised_us: Sequence[float]
    stood_still_ms: float = 0.0

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
            process = serve(made, service, cell.size_ms, seconds, gate=host.gate if protected else None)
            out = said(process, seconds)
            ended = time.monotonic_ns()
            used = (host.cpu_ns() - before) / (ended - began) * 100
            for load in loads:
                load.finish()
            ended = min(ended, began + int(seconds * 1e9))  # requests may outlast the jobs
            pids = [process.pid, *(load.process.pid for load in loads)]
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


def serve(
    made: World,
    tenant: Tenant,
    size_ms: int,
    seconds: float,
    *,
    kernel_us: int = KERNEL_US,
    load: float = 0.5,
    gate: Path | None = None,
) -> subprocess.Popen[str]:
    """Begin a service whose requests arrive at random and ask for ``load`` of its cores; it writes on stdout
    when each was answered, and with a ``gate`` how soon that was closed.
    """
    rate = PROTECTED_CORES / 100 * load / (size_ms / 1000)
    program = compiled("core_service.c", "-Wl,--no-as-needed", "-lm")
    requests = [kernel_us, max(1, size_ms * 1000 // kernel_us), rate, seconds, 1]
    command = [str(program), *map(str, requests), *([str(gate)] if gate else [])]
    process = subprocess.Popen(command, env=made.environment(tenant), stdout=subprocess.PIPE, text=True)
    made.pids.setdefault(tenant.name, []).append(process.pid)
    return process


def said(process: subprocess.Popen[str], seconds: float) -> str:
    """What a service that was to run for so long has written, once it has ended."""
    out, _ = process.communicate(timeout=seconds * 20 + 60)
    if process.returncode:
        raise RuntimeError(f"the service ended with {process.returncode}")
    return out


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
                service.name,
                CARD,
                0,
                PROTECTED_CORES,
                PROTECTED_CORES,
                Priority.PROTECTED,
                used=PROTECTED_CORES,
            )
        ]
        members += [CardMember(j.name, CARD, 0, cores, 100, Priority.BEST_EFFORT, used=cores) for j in jobs]
        host.protect(members)
    try:
        yield host
    finally:
        host.close()
