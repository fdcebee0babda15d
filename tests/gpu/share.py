"""Each container gets its share of the card's time: alone, beside others, and beside one that floods the card."""

from __future__ import annotations

import contextlib
import functools
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean

from bench.rows import Row
from tests.gpu.container import GIB, said
from tests.gpu.host_loop import host_loop
from tests.gpu.machine import Machine
from tests.gpu.plan import Case, Settings

FIRST_LIMITS, OTHER_LIMITS = (10, 50, 90), (20, 30, 40, 60, 70, 80)
# Microseconds of a kernel, and how it is submitted.
FIRST_KERNELS = ((40, "stream"), (8_000, "sync"))
OTHER_KERNELS = ((200, "graph"), (1_000, "sync"), (12_000, "graph"), (50_000, "sync"), (500_000, "sync"))
BATCH = {"graph": 16}
LONG_US = 100_000  # longer kernels fill so much of a window that only the mean says anything
SPLITS = ((50, 50), (30, 70), (25, 25, 25, 25))
MEAN, WINDOWS, SPLIT, SETTLE = "≤ 1", "≤ 3", "≤ 1", "≤ 2"
NEAR = 3.0
"""Points: from the window on after which all are so near to the limit, tenants that met have settled."""


def cases(settings: Settings) -> Iterator[Case]:
    """Points of a card's time. A row runs for at least 20 periods of its kernel, which for long ones is minutes."""
    for us, mode in FIRST_KERNELS:
        for limit in FIRST_LIMITS:
            yield _alone_case(settings, limit, us, mode, deep=False)
    for split in SPLITS:
        seconds = max(settings.seconds, 20.0) if settings.seconds >= 1 else settings.seconds
        yield Case(
            f"split_{'_'.join(map(str, split))}", seconds + 5, partial(_together, split, seconds=seconds)
        )
    yield Case("protected", 2 * settings.seconds + 10, partial(_protected, seconds=settings.seconds))
    for us, mode in (*OTHER_KERNELS, *FIRST_KERNELS):
        for limit in OTHER_LIMITS if (us, mode) in FIRST_KERNELS else (*FIRST_LIMITS, *OTHER_LIMITS):
            yield _alone_case(settings, limit, us, mode, deep=True)


def _alone_case(settings: Settings, limit: int, us: int, mode: str, *, deep: bool) -> Case:
    seconds = settings.length(us * BATCH.get(mode, 1), limit)
    run = partial(_alone, limit, us, mode, seconds=seconds)
    return Case(f"{limit}_{us}us_{mode}", seconds + 2, run, deep=deep)


def spin(machine: Machine, us: int, mode: str, seconds: float) -> tuple[str, ...]:
    return machine.client("spin", "--us", us, "--seconds", seconds, "--mode", mode, "--windows", 1)


def _alone(limit: int, us: int, mode: str, machine: Machine, *, seconds: float) -> Iterator[Row]:
    name = f"gpu_share_{limit}_{us}us_{mode}"
    whole = _whole(machine, us, mode)
    with machine.container(4 * GIB, limit) as container:
        total, windows = shares_of(container.start(*spin(machine, us, mode, seconds)), whole)
    points = [abs(share * 100 - limit) for share in windows[1:]]  # the first holds the start
    yield Row(
        f"{name}_mean_error",
        round(abs(total * 100 - limit), 2),
        "points",
        MEAN,
        note=f"got {total:.1%} in {seconds:.1f} s",
    )
    if us < LONG_US:
        figure = round(fmean(points), 2) if points else None
        yield Row(
            f"{name}_mae_1s",
            figure,
            "points",
            WINDOWS,
            note="" if points else "the run was shorter than two windows",
        )


@functools.cache
def _whole(machine: Machine, us: int, mode: str) -> float:
    """What such kernels are told to take of a card that has always one of them: the pauses between two of a stream
    (1.8 µs on an H100) are nobody else's, so they are the share of who has the next one. Who waits for each leaves
    the card idle by himself.
    """
    if mode == "sync":
        return machine.clock
    seconds = max(1.0, 20 * us * BATCH.get(mode, 1) * 1e-6)
    return shares_of(machine.bare(*spin(machine, us, mode, seconds)), 1.0)[0]


@functools.cache
def whole_of(machine: Machine, count: int, us: int = 5_000) -> float:
    """What so many bare processes get of a card together: a switch between two takes time that is nobody's (6 to 14 % of
    it on an H100, with more to save for kernels that fill it).
    """
    running = [machine.bare(*spin(machine, us, "stream", 3.0)) for _ in range(count)]
    return min(1.0, sum(shares_of(process, 1.0)[0] for process in running))


def _together(split: Sequence[int], machine: Machine, *, seconds: float) -> Iterator[Row]:
    """All from their first launch on: nothing is left out at the start.

    With two kernels in flight: who waits for each leaves the card idle in between, and cannot reach 70 beside 30.
    """
    name = f"gpu_split_{'_'.join(map(str, split))}"
    whole = whole_of(machine, len(split))
    with contextlib.ExitStack() as stack:
        containers = [stack.enter_context(machine.container(2 * GIB, limit)) for limit in split]
        stack.enter_context(host_loop(machine, containers))
        running = [c.start(*spin(machine, 5_000, "stream", seconds)) for c in containers]
        got = [shares_of(process, whole) for process in running]
    worst = max(abs(total * 100 - limit) for (total, _), limit in zip(got, split, strict=True))
    shown = "/".join(f"{total:.1%}" for total, _ in got)
    yield Row(
        f"{name}_error",
        round(worst, 2),
        "points",
        SPLIT,
        note=f"got {shown} with the host's loop, in {seconds:.1f} s from the start; {len(split)} bare ones together "
        f"have {whole:.1%} of the card",
    )
    settled = [
        _settled([share * 100 for share in windows], limit)
        for (_, windows), limit in zip(got, split, strict=True)
    ]
    late = max((s for s in settled if s is not None), default=None) if None not in settled else None
    note = f"of {min(len(windows) for _, windows in got)} windows of 1 s"
    note += "" if late is not None else ": one of them never came near, or there were none"
    yield Row(f"{name}_settle_s", late, "s", SETTLE, note=note)


def _settled(windows: Sequence[float], limit: float) -> float | None:
    """Seconds after which every window of 1 s is near; None if the last is not, or there is none."""
    far = [at for at, share in enumerate(windows, 1) if abs(share - limit) > NEAR]
    if not windows or (far and far[-1] == len(windows)):
        return None
    return float(far[-1] if far else 0)


def _protected(machine: Machine, *, seconds: float) -> Iterator[Row]:
    """A job of short kernels that waits for each, beside one that floods the card with work."""
    command = spin(machine, 1_000, "sync", seconds)
    with machine.container(2 * GIB, 50) as container:
        alone = shares_of(container.start(*command), machine.clock)[0]
    with (
        machine.container(2 * GIB, 50) as job,
        machine.container(2 * GIB, 20) as flood,
        host_loop(machine, [job, flood]),
    ):
        flood.start(*spin(machine, 40, "stream", seconds + 5))
        beside = shares_of(job.start(*command), machine.clock)[0]
    note = f"{beside:.1%} of the card beside a flood at 20, {alone:.1%} alone at 50; with the host's loop"
    yield Row(
        "gpu_protected_job_kept",
        round(beside / alone, 3) if alone else None,
        "ratio",
        "≥ 0.95",
        1.0,
        note=note,
    )


def shares_of(process: subprocess.Popen[str], whole: float) -> tuple[float, list[float]]:
    """(of the whole run, of each window), as the client counts its own kernels.

    ``whole``: what it counts where it has all of the card. A kernel is as much work as fits its length at the clock that
    the driver names, and a card seldom runs at just that.
    """
    lines = said(process, 600).splitlines()
    windows = [float(line.split()[-1]) / whole for line in lines if line.startswith("window")]
    return float(lines[-1].split()[-1]) / whole, windows
