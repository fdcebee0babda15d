"""What the library costs a program: each call beside the bare driver's, and whole loops of work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from bench.rows import Row
from tests.gpu.container import GIB, said
from tests.gpu.dispatch import TRACED, torch_command
from tests.gpu.machine import Machine
from tests.gpu.observe import observe
from tests.gpu.plan import Case, Settings, missing

RECORDED = "≥ 0"  # nobody promised it: it is written down to tune by
LIMITS = (100, 99)
# Of the client's figures: bar on what the library adds at limit 100 and at 99.
# DESIGN's bars of the modelled driver times five: a real driver's own noise is larger than what we add.
CALLS = {
    "launch_ns": ("≤ 25", "≤ 150"),
    "memory_info_ns": ("≤ 250", "≤ 250"),
    "alloc_free_ns": ("≤ 1500", "≤ 1500"),
    "async_pair_ns": ("≤ 1500", "≤ 1500"),
    "init_ms": ("≤ 25", "≤ 25"),
}
DRIVER = (
    "event_record_ns",
    "timed_event_record_ns",
    "first_pair_ns",
    "held_pair_ns",
    "event_query_ns",
    "round_trip_ns",
    "context_ms",
    "init_ms",
)
LOOP_LIMITS = (99, 50)


def cases(settings: Settings) -> Iterator[Case]:
    """Calls first. Then whole loops: iterations at 99 over bare, at 50 over half of bare."""
    times = 3 if settings.seconds >= 1 else 1
    yield Case("calls", 4 * times * 4, partial(_calls, times=times))
    runs, seconds = 1 + len(LOOP_LIMITS), settings.seconds
    yield Case("loop_kernels", 3 * runs * (seconds + 2), partial(_loop, "kernels", seconds=seconds, times=3))
    for kind in TRACED:  # starting PyTorch takes longer than the loop: once each
        case = partial(_loop, kind, seconds=seconds, times=1)
        yield Case(f"loop_torch_{kind}", runs * (seconds + 10), case, needs="torch")


@dataclass(frozen=True, slots=True)
class _Run:
    """What the client measured on the bare driver, and right after it under the library."""

    bare: Mapping[str, float]
    ours: Mapping[str, float]


def _calls(machine: Machine, *, times: int) -> Iterator[Row]:
    """Nanoseconds that the library adds to a call, and the driver's own costs."""
    runs = {limit: _beside(machine, (machine.compiled("cost"), "0"), limit, times) for limit in LIMITS}
    for name in DRIVER:
        bare = [run.bare[name] for run in runs[LIMITS[0]]]
        note = f"bare, {min(bare):.1f} to {max(bare):.1f} in {len(bare)} processes"
        yield Row(f"gpu_driver_{name}", round(median(bare), 3), name.rpartition("_")[2], RECORDED, note=note)
    for at, limit in enumerate(LIMITS):
        for name, bars in CALLS.items():
            stem, _, unit = name.rpartition("_")
            yield _added(f"gpu_{stem}_at_{limit}_{unit}", runs[limit], name, bars[at])


def _beside(machine: Machine, command: Sequence[str], cores: int, times: int) -> list[_Run]:
    with machine.container(4 * GIB, cores) as container:
        return [
            _Run(_parsed(said(machine.bare(*command))), _parsed(said(container.start(*command))))
            for _ in range(times)
        ]


def _parsed(text: str) -> dict[str, float]:
    lines = (line.partition(" ") for line in text.splitlines())
    return {name: float(value) for name, _, value in lines}


def _added(row: str, runs: Sequence[_Run], name: str, bar: str) -> Row:
    """The median of what neighbouring runs differ by: machines drift by more than the library adds."""
    added = [run.ours[name] - run.bare[name] for run in runs]
    bare = median(run.bare[name] for run in runs)
    note = f"{min(added):.1f} to {max(added):.1f} in {len(runs)} pairs of processes"
    return Row(row, round(median(added), 2), name.rpartition("_")[2], bar, round(bare, 2), note=note)


def _loop(kind: str, machine: Machine, *, seconds: float, times: int) -> Iterator[Row]:
    """Alternating runs, so that a drifting clock of the card favours neither."""
    name = kind if kind == "kernels" else f"torch_{kind}"
    rows = [f"gpu_loop_{name}_at_{limit}" for limit in LOOP_LIMITS]
    lacks = None if kind == "kernels" else machine.lacks("torch")
    if lacks:
        yield from missing(rows, "ratio", "≥ 0.97", lacks)
        return
    spin = machine.client("spin", "--us", 200, "--seconds", seconds, "--mode", "sync")
    command = spin if kind == "kernels" else torch_command(machine, "loop", kind, seconds)
    rates: dict[int, list[float]] = {limit: [] for limit in (0, *LOOP_LIMITS)}
    for _ in range(times):
        rates[0].append(observe(machine, command).rate)
        for limit in LOOP_LIMITS:
            with machine.container(16 * GIB, limit) as container:
                rates[limit].append(observe(machine, command, container).rate)
    bare = median(rates[0])
    for row, limit in zip(rows, LOOP_LIMITS, strict=True):
        due = bare * (1.0 if limit == 99 else limit / 100)
        kept = median(rates[limit]) / due
        note = f"{median(rates[limit]):.1f} a second over {due:.1f}; bare {bare:.1f}, {times} pairs"
        yield Row(row, round(kept, 4), "ratio", "≥ 0.97", 1.0, note=note)
