"""A service beside a job on one card: what its requests wait alone, beside a normal job, beside a best-effort one."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from functools import partial

from bench.rows import Row
from gpu_manager.adapters.control_pages.gate_watcher import NativeGateWatcher
from gpu_manager.domain.enforcement.protection import CardMember, gated_cards
from gpu_manager.domain.priority import Priority
from gpu_manager.ports.control_pages import Correction
from gpu_manager.ports.gates import GateWatch, WatchedTenant
from tests.gpu.container import GIB, Container, Failed, first_line, said
from tests.gpu.host_loop import host_loop
from tests.gpu.machine import Machine
from tests.gpu.plan import Case, Settings

SERVICE, JOB = 40, 60
KERNEL_US, KERNELS = 200, 25
RATE = SERVICE / 100 / 2 / (KERNEL_US * KERNELS * 1e-6)
"""Requests a second: half of the service's share."""
FLOODS_US = (100, 1_000, 10_000)
BAR = "≤ 1.15"


def cases(settings: Settings) -> Iterator[Case]:
    """The p99 of requests of 5 ms, less one kernel of the job, over the p99 of the service alone."""
    seconds = settings.seconds * 2
    for us in FLOODS_US:
        yield Case(f"service_beside_{us}us", 3 * seconds + 10, partial(_pair, us, seconds=seconds))


def _pair(us: int, machine: Machine, *, seconds: float) -> Iterator[Row]:
    found = [
        _p99(machine, us, seconds, protected=protected, job=job)
        for protected, job in ((False, False), (False, True), (True, True))
    ]
    known = [p99 for p99 in found if p99 is not None]
    name = f"gpu_protected_p99_ratio_{us}us"
    if len(known) < len(found):
        yield Row(name, None, "times alone", BAR, note="the run was shorter than a request")
        return
    alone, unprotected, held = known
    note = f"p99 {alone:.1f} ms alone, {unprotected:.1f} beside a normal job, {held:.1f} beside a best-effort one"
    yield Row(name, round((held - us / 1000) / alone, 3), "times alone", BAR, 1.0, note=note)


def _p99(machine: Machine, us: int, seconds: float, *, protected: bool, job: bool) -> float | None:
    """Milliseconds; None if there was no request."""
    classes = (Priority.PROTECTED, Priority.BEST_EFFORT) if protected else (Priority.NORMAL, Priority.NORMAL)
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(machine.container(2 * GIB, SERVICE, priority=classes[0]))
        containers = [service]
        if job:
            other = stack.enter_context(machine.container(2 * GIB, JOB, 100, classes[1]))
            containers.append(other)
            stack.enter_context(host_loop(machine, containers))
            if protected:
                stack.enter_context(_gates(machine, service, other))
            spin = machine.client("spin", "--us", us, "--seconds", seconds + 5, "--mode", "stream")
            first_line(other.start(*spin), "running")
        command = machine.client(
            "serve", "--us", KERNEL_US, "--kernels", KERNELS, "--rate", RATE, "--seconds", seconds
        )
        found = re.search(r"p99 ([0-9.]+) ms", said(service.start(*command), 600))
    return float(found[1]) if found else None


@contextlib.contextmanager
def _gates(machine: Machine, service: Container, job: Container) -> Iterator[None]:
    """What the agent does on a card with both classes."""
    if machine.native.libraries is None:
        raise Failed("this package was built without the watcher of gates")
    uuid, tenants = machine.card.uuid, machine.tenants
    members = (
        CardMember(service.name, uuid, 0, SERVICE, SERVICE, Priority.PROTECTED, works=True),
        CardMember(job.name, uuid, 0, JOB, 100, Priority.BEST_EFFORT, works=True),
    )
    (card,) = gated_cards(members)
    for name, share in card.shares().items():
        tenants.publish(name, time.monotonic_ns(), {uuid: Correction(granted=share)})
    program = machine.native.libraries / "vcuda-gates"
    watcher = NativeGateWatcher(program, machine.root / "pages", tenants.gates.path)
    told = (WatchedTenant(service.name, 0, SERVICE),), (WatchedTenant(job.name, 0, JOB),)
    watcher.watch([GateWatch(uuid, *told)])
    try:
        yield
    finally:
        watcher.close()
