"""T5: tenants killed with work in flight beside one that works: has the neighbour an error, how long does it stand still, how
soon does the next tenant start?
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial

from bench.rows import Row
from tests.gpu.beside.arms import limits, note_of
from tests.gpu.beside.models import KERNELS
from tests.gpu.beside.workers import Tenant, workers
from tests.gpu.container import GIB, Failed, first_line
from tests.gpu.machine import Machine
from tests.gpu.plan import Case, Settings

KILLS = 60
KERNEL_US, IN_FLIGHT = 5_000, 40
EACH = 0.6
"""Seconds that one takes to start, at most, as far as is known."""
GAP_MS, START_MS = 50, 1000


def cases(settings: Settings) -> Iterator[Case]:
    """With 200 ms of work in flight each: in containers of 50 cores, and bare."""
    kills = settings.count(KILLS)
    for arm in ("hard", "bare"):
        yield Case(f"killed_{arm}", kills * EACH + 8, partial(_killed, arm, kills=kills))


def _killed(arm: str, machine: Machine, *, kills: int) -> Iterator[Row]:
    name, held = f"gpu_killed_{arm}", arm == "hard"
    (neighbour,) = workers(machine).ready(Tenant(KERNELS, held=held))
    starts: list[float] = []
    command = machine.client("leave", "--how", "kill", "--us", KERNEL_US, "--kernels", IN_FLIGHT)
    seconds = max(2.0, kills * EACH)
    with (
        machine.container(2 * GIB, 50) as other,
        limits(machine, [neighbour] if held else [], (50,) if held else ()),
    ):
        alone = neighbour.run(1.0)["most"]
        begin = time.monotonic()
        neighbour.begin(seconds)
        while len(starts) < kills and time.monotonic() < begin + seconds - EACH:
            at = time.monotonic()
            process = other.start(*command) if held else machine.bare(*command)
            first_line(process, "leaving", 30)
            starts.append((time.monotonic() - at) * 1000)
            process.wait(30)
        try:
            most, error = neighbour.answer(seconds + 60)["most"], ""
        except Failed as failed:
            most, error = None, str(failed)
    note = f"{len(starts)} of {kills} were killed, {KERNEL_US * IN_FLIGHT // 1000} ms of work in flight"
    yield Row(
        f"{name}_neighbours_errors", float(bool(error)), "errors", "= 0", note=note_of(machine, note, error)
    )
    note = f"the longest of a neighbour's kernels of 1 ms; {alone:.1f} ms alone"
    yield Row(f"{name}_longest_gap_ms", most, "ms", f"≤ {GAP_MS}", alone, note=note_of(machine, note, error))
    shown = (
        f"{statistics.median(starts):.0f} ms in the middle, with the program's own start"
        if starts
        else "none was started"
    )
    yield Row(
        f"{name}_start_ms", max(starts, default=None), "ms", f"≤ {START_MS}", note=note_of(machine, shown)
    )
