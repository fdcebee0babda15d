"""Each container gets its share of the card's time: alone, beside others, and beside one that floods the card."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from statistics import fmean

from bench.rows import Row
from gpu_manager.adapters.clock import SystemClock
from gpu_manager.services.metrics import ServiceMetrics
from tests.gpu.machine import Container, Machine, said

GIB = 1 << 30
QUICK_LIMITS, FULL_LIMITS = (10, 50, 90), (10, 20, 30, 40, 50, 60, 70, 80, 90)
# Microseconds of a kernel, and how it is submitted.
QUICK_KERNELS = ((40, "stream"), (8_000, "sync"), (500_000, "sync"))
FULL_KERNELS = (
    (40, "stream"),
    (200, "graph"),
    (1_000, "sync"),
    (8_000, "sync"),
    (12_000, "graph"),
    (50_000, "sync"),
    (500_000, "sync"),
)
LONG_US = 100_000  # longer kernels fill so much of a window that only the mean says anything
SPLITS = ((50, 50), (30, 70), (25, 25, 25, 25))
MEAN, WINDOWS, SPLIT = "≤ 1", "≤ 3", "≤ 1"


def rows(machine: Machine, *, full: bool, seconds: float) -> Iterator[Row]:
    """Points of a card's time: the error of the mean and of windows of 1 s, for each limit and kernel."""
    machine.clock = _shares(machine.bare(*_spin(machine, 8_000, "stream", seconds)), 1.0)[0]
    note = "time that kernels' work takes at the clock that the driver names, on a card that is never idle; shares are over it"
    yield Row("gpu_clock_ratio", round(machine.clock, 4), "ratio", "≥ 0", 1.0, full, note)
    for us, mode in FULL_KERNELS if full else QUICK_KERNELS:
        for limit in FULL_LIMITS if full else QUICK_LIMITS:
            yield from _alone(machine, limit, us, mode, full=full, seconds=seconds)
    for split in SPLITS:
        yield _together(machine, split, full=full, seconds=seconds)
    yield _protected(machine, full=full, seconds=seconds)


def _spin(machine: Machine, us: int, mode: str, seconds: float) -> tuple[str, ...]:
    return machine.client("spin", "--us", us, "--seconds", seconds, "--mode", mode, "--windows", 1)


def _alone(machine: Machine, limit: int, us: int, mode: str, *, full: bool, seconds: float) -> Iterator[Row]:
    name = f"gpu_share_{limit}_{us}us_{mode}"
    with machine.container(4 * GIB, limit) as container:
        total, windows = _shares(container.start(*_spin(machine, us, mode, seconds)), machine.clock)
    points = [abs(share * 100 - limit) for share in windows[1:]]  # the first holds the start
    mean = abs(total * 100 - limit)
    yield Row(f"{name}_mean_error", round(mean, 2), "points", MEAN, full=full, note=f"got {total:.1%}")
    if us < LONG_US:
        yield Row(
            f"{name}_mae_1s",
            round(fmean(points), 2) if points else None,
            "points",
            WINDOWS,
            full=full,
            note="" if points else "the run was shorter than two windows",
        )


def _together(machine: Machine, split: Sequence[int], *, full: bool, seconds: float) -> Row:
    name = f"gpu_split_{'_'.join(map(str, split))}_error"
    with contextlib.ExitStack() as stack:
        containers = [stack.enter_context(machine.container(2 * GIB, limit)) for limit in split]
        note = stack.enter_context(_host_loop(machine, containers))
        running = [c.start(*_spin(machine, 5_000, "sync", seconds)) for c in containers]
        got = [_shares(process, machine.clock)[0] * 100 for process in running]
    worst = max(abs(share - limit) for share, limit in zip(got, split, strict=True))
    shown = "/".join(f"{share:.1f}" for share in got)
    return Row(name, round(worst, 2), "points", SPLIT, full=full, note=f"got {shown}; {note}")


def _protected(machine: Machine, *, full: bool, seconds: float) -> Row:
    """A job of short kernels that waits for each, beside one that floods the card with work."""
    command = _spin(machine, 1_000, "sync", seconds)
    with machine.container(2 * GIB, 50) as container:
        alone = _shares(container.start(*command), machine.clock)[0]
    with (
        machine.container(2 * GIB, 50) as job,
        machine.container(2 * GIB, 20) as flood,
        _host_loop(machine, [job, flood]) as note,
    ):
        flood.start(*_spin(machine, 40, "stream", seconds + 5))
        beside = _shares(job.start(*command), machine.clock)[0]
    kept = beside / alone if alone else None
    return Row(
        "gpu_protected_job_kept",
        round(kept, 3) if kept is not None else None,
        "ratio",
        "≥ 0.95",
        baseline=1.0,
        full=full,
        note=f"{beside:.1%} of the card beside a flood at 20, {alone:.1%} alone at 50; {note}",
    )


def _shares(process: subprocess.Popen[str], clock: float) -> tuple[float, list[float]]:
    """(of the whole run, of each window), as the client counts its own kernels.

    A kernel is as much work as fits its length at the clock that the driver names; a card seldom runs at just that.
    """
    lines = said(process).splitlines()
    windows = [float(line.split()[-1]) / clock for line in lines if line.startswith("window")]
    return float(lines[-1].split()[-1]) / clock, windows


@contextlib.contextmanager
def _host_loop(machine: Machine, containers: Sequence[Container]) -> Iterator[str]:
    """The agent's own loop that tells containers by how much the card's time is divided, where it exists."""
    if find_spec("gpu_manager.services.enforcement.time_sharing") is None:
        yield "without the host's loop"
        return
    from gpu_manager.services.enforcement.time_sharing import CardTenant, TimeSharing  # noqa: PLC0415  # only where it exists

    def seats() -> list[CardTenant]:
        busy = machine.busy()
        return [
            CardTenant(
                c.name,
                machine.card.uuid,
                at_work=bool(c.pids),
                truth=sum(busy[p] for p in c.pids if p in busy) / 100 if busy else None,
            )
            for c in containers
        ]

    stop = threading.Event()
    loop = TimeSharing(machine.tenants, seats, SystemClock(), ServiceMetrics())
    thread = threading.Thread(target=loop.run, args=(stop,), name="co-activity", daemon=True)
    thread.start()
    try:
        yield "with the host's loop"
    finally:
        stop.set()
        thread.join(10)
