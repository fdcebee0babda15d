"""A service beside jobs on one card: what its requests wait alone, beside normal jobs, beside best-effort ones, and what
the latter get meanwhile.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from bench.rows import Row
from gpu_manager.adapters.control_pages.pages import NativeGateWatcher
from gpu_manager.domain.enforcement.protection import CardMember, gated_cards
from gpu_manager.domain.priority import Priority
from gpu_manager.ports.control_pages import Correction, GateWatch, WatchedTenant
from tests.gpu.container import GIB, Container, Failed, first_line, meanwhile, said
from tests.gpu.host_loop import host_loop
from tests.gpu.machine import Machine
from tests.gpu.plan import Case, Settings

SERVICE, JOBS = 40, 60
KERNEL_US = 200
FLOODS_US = (100, 1_000, 10_000)
BAR = "≤ 1.15"
GUARANTEES = ((3, 1_000, 100), (3, 100, 20), (3, 1_000, 5), (1, 1_000, 100))
"""Jobs, microseconds of their kernels, milliseconds of the service's requests."""
READING = 0.1
"""Seconds after which a job says what it had."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``p99``: milliseconds, None if there was no request. Of each job, (seconds, share of the card) by reading:
    ``jobs`` by its own count of kernels, ``accounts`` by what it was charged.
    """

    p99: float | None
    jobs: Sequence[Sequence[tuple[float, float]]]
    accounts: Sequence[Sequence[tuple[float, float]]]


def cases(settings: Settings) -> Iterator[Case]:
    """The p99 of requests of 5 ms, less one kernel of the job, over the p99 of the service alone; then what jobs get."""
    seconds = settings.seconds * 2
    for us in FLOODS_US:
        yield Case(f"service_beside_{us}us", 3 * seconds + 10, partial(_pair, us, seconds=seconds))
    for count, us, size_ms in GUARANTEES:
        length = seconds * 2
        yield Case(
            f"{_jobs(count)}_{us}us_beside_{size_ms}ms",
            length + 6,
            partial(_guarantee, count, us, size_ms, seconds=length),
        )


def _pair(us: int, machine: Machine, *, seconds: float) -> Iterator[Row]:
    found = [
        _run(machine, us, seconds, protected=protected, jobs=jobs).p99
        for protected, jobs in ((False, 0), (False, 1), (True, 1))
    ]
    known = [p99 for p99 in found if p99 is not None]
    name = f"gpu_protected_p99_ratio_{us}us"
    if len(known) < len(found):
        yield Row(name, None, "times alone", BAR, note="the run was shorter than a request")
        return
    alone, unprotected, held = known
    note = f"p99 {alone:.1f} ms alone, {unprotected:.1f} beside a normal job, {held:.1f} beside a best-effort one"
    yield Row(name, round((held - us / 1000) / alone, 3), "times alone", BAR, 1.0, note=note)


def _guarantee(count: int, us: int, size_ms: int, machine: Machine, *, seconds: float) -> Iterator[Row]:
    """The emptiest second of any job, by its own count of kernels: to one kernel exact."""
    found = _run(machine, us, seconds, protected=True, jobs=count, size_ms=size_ms)
    cores = JOBS / count
    seen = [[(length, share * 100 / machine.clock) for length, share in each] for each in found.jobs]
    least = [second for each in seen if (second := least_second(each)) is not None]
    name = f"gpu_best_effort_least_second_{_jobs(count)}_{us}us_beside_{size_ms}ms"
    if not least:
        yield Row(name, None, "of its cores", "≥ 0.97", note="the run was shorter than a second")
        return
    means = "/".join(f"{_mean(each):.1f}" for each in seen)
    charged = "/".join(f"{_mean(each) * 100:.1f}" for each in found.accounts)
    accounts = [second for each in found.accounts if (second := least_second(each)) is not None]
    least_charged = f"{min(accounts) * 100:.1f}" if accounts else "not known"
    p99 = "none" if found.p99 is None else f"{found.p99:.1f} ms"
    note = f"{min(least):.1f} of {cores:.0f} cores; had {means} on average, with kernels of {us} us; charged {charged}, least "
    note += f"{least_charged}; requests' p99 {p99}"
    yield Row(name, round(min(least) / cores, 3), "of its cores", "≥ 0.97", 1.0, note=note)


def _jobs(count: int) -> str:
    return "1_job" if count == 1 else f"{count}_jobs"


def least_second(readings: Sequence[tuple[float, float]]) -> float | None:
    """The least share of any time of a second or a little more that readings begin and end; None if there is none."""
    found: list[float] = []
    for first in range(len(readings)):
        length = had = 0.0
        for seconds, share in readings[first:]:
            length, had = length + seconds, had + seconds * share
            if length >= 1 - READING / 2:
                found.append(had / length)
                break
    return min(found, default=None)


def _mean(readings: Sequence[tuple[float, float]]) -> float:
    length = sum(seconds for seconds, _ in readings)
    return sum(seconds * share for seconds, share in readings) / length if length else 0.0


def _run(
    machine: Machine, us: int, seconds: float, *, protected: bool, jobs: int, size_ms: int = 5
) -> Outcome:
    classes = (Priority.PROTECTED, Priority.BEST_EFFORT) if protected else (Priority.NORMAL, Priority.NORMAL)
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(machine.container(2 * GIB, SERVICE, priority=classes[0]))
        others = [
            stack.enter_context(machine.container(2 * GIB, JOBS // jobs, 100, classes[1]))
            for _ in range(jobs)
        ]
        running: list[subprocess.Popen[str]] = []
        accounts: list[list[tuple[float, float]]] = [[] for _ in others]
        if jobs:
            stack.enter_context(host_loop(machine, [service, *others]))
            if protected:
                stack.enter_context(gates(machine, service, others))
            spin = machine.client(
                "spin", "--us", us, "--seconds", seconds + 3, "--mode", "stream", "--windows", READING
            )
            running = [other.start(*spin) for other in others]
            for process in running:
                first_line(process, "running")
        kernels = size_ms * 1000 // KERNEL_US
        rate = SERVICE / 100 / 2 / (size_ms / 1000)  # half of the service's share
        command = machine.client(
            "serve", "--us", KERNEL_US, "--kernels", kernels, "--rate", rate, "--seconds", seconds
        )
        with _watched(others, accounts):
            found = re.search(r"p99 ([0-9.]+) ms", said(service.start(*command), 600))
        read = [_readings(said(process, 600)) for process in running]
    return Outcome(float(found[1]) if found else None, read, accounts)


@contextlib.contextmanager
def _watched(containers: Sequence[Container], into: Sequence[list[tuple[float, float]]]) -> Iterator[None]:
    """Read meanwhile what containers are charged."""

    def watch(stop: threading.Event) -> None:
        before = [(time.monotonic(), c.use().busy_seconds) for c in containers]
        while not stop.wait(READING):
            for at, container in enumerate(containers):
                now, busy = time.monotonic(), container.use().busy_seconds
                length = now - before[at][0]
                into[at].append((length, (busy - before[at][1]) / length))
                before[at] = (now, busy)

    with meanwhile("accounts", watch):
        yield


def _readings(text: str) -> list[tuple[float, float]]:
    words = [line.split() for line in text.splitlines() if line.startswith("window")]
    return [(float(line[1]), float(line[3])) for line in words]


@contextlib.contextmanager
def gates(
    machine: Machine, service: Container, jobs: Sequence[Container], served: int = SERVICE
) -> Iterator[None]:
    """What the agent does on a card with both classes: the service has so many cores, the jobs the others."""
    if machine.native.libraries is None:
        raise Failed("this package was built without the watcher of gates")
    uuid, tenants = machine.card.uuid, machine.tenants
    cores = (100 - served) // len(jobs)
    members = (
        CardMember(service.name, uuid, 0, served, served, Priority.PROTECTED, used=served),
        *(CardMember(job.name, uuid, 0, cores, 100, Priority.BEST_EFFORT, used=cores) for job in jobs),
    )
    (card,) = gated_cards(members)
    for name, granted in card.granted().items():
        correction = Correction(granted=granted.share, beside=granted.beside)
        tenants.publish(name, time.monotonic_ns(), {uuid: correction})
    program = machine.native.libraries / "vcuda-gates"
    watcher = NativeGateWatcher(program, machine.root / "pages", tenants.gates.path)
    told = (
        (WatchedTenant(service.name, 0, served),),
        tuple(WatchedTenant(job.name, 0, cores) for job in jobs),
    )
    watcher.watch([GateWatch(uuid, *told)])
    try:
        yield
    finally:
        watcher.close()
