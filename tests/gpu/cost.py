"""What the library costs a program: each call beside the bare driver's, and whole loops of work."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.rows import Row
from tests.gpu.machine import Container, Machine, said
from tests.gpu.memory import NO_TORCH, TORCH

GIB = 1 << 30
RECORDED = "≥ 0"  # nobody promised it: it is written down to tune by
# Of the client's figures: row, bar on what the library adds.
CALLS = (
    ("launch_ns", "gpu_launch_{}_ns"),
    ("memory_info_ns", "gpu_memory_info_{}_ns"),
    ("alloc_free_ns", "gpu_alloc_free_{}_ns"),
)
# DESIGN's bars of the modelled driver times five: a real driver's own noise is larger than what we add.
BARS = {
    ("launch_ns", "at_100"): "≤ 25",
    ("launch_ns", "at_99"): "≤ 150",
    ("memory_info_ns", "at_100"): "≤ 250",
    ("memory_info_ns", "at_99"): "≤ 250",
    ("alloc_free_ns", "at_100"): "≤ 1500",
    ("alloc_free_ns", "at_99"): "≤ 1500",
}
DRIVER = ("event_record_ns", "timed_event_record_ns", "event_query_ns", "context_ms", "init_ms")


def rows(machine: Machine, *, full: bool, seconds: float) -> Iterator[Row]:
    """Nanoseconds that the library adds to a call; the driver's own costs; loops under a limit of 100."""
    times = 5 if full else 3
    command = (machine.cost, "0")
    runs = {
        state: _beside(machine, command, cores, times) for state, cores in (("at_100", 100), ("at_99", 99))
    }
    bare = {name: median(run.bare[name] for run in runs["at_100"]) for name in runs["at_100"][0].bare}
    for name in DRIVER:
        unit = name.rpartition("_")[2]
        yield Row(f"gpu_driver_{name}", round(bare[name], 3), unit, RECORDED, full=full, note="bare")
    yield Row(
        "gpu_context_mib",
        round(machine.reserve / (1 << 20), 1),
        "MiB",
        RECORDED,
        full=full,
        note="by NVML's count of a process with a context and nothing else",
    )
    for state, found in runs.items():
        for name, row in CALLS:
            yield _added(row.format(state), found, name, BARS[name, state], full=full)
        yield _added(f"gpu_init_{state}_ms", found, "init_ms", "≤ 25", full=full)
    yield from _loops(machine, full=full, seconds=seconds)


@dataclass(frozen=True, slots=True)
class _Run:
    """What the client measured on the bare driver, and right after it under the library."""

    bare: Mapping[str, float]
    ours: Mapping[str, float]


def _beside(machine: Machine, command: Sequence[str], cores: int, times: int) -> list[_Run]:
    with machine.container(4 * GIB, cores) as container:
        return [
            _Run(_figures(machine.bare(*command)), _figures(container.start(*command))) for _ in range(times)
        ]


def _figures(process: subprocess.Popen[str]) -> dict[str, float]:
    lines = (line.partition(" ") for line in said(process).splitlines())
    return {name: float(value) for name, _, value in lines}


def _added(row: str, runs: Sequence[_Run], name: str, bar: str, *, full: bool) -> Row:
    """The median of what neighbouring runs differ by: machines drift by more than the library adds."""
    added = median(run.ours[name] - run.bare[name] for run in runs)
    least, most = (round(pick(run.ours[name] - run.bare[name] for run in runs), 1) for pick in (min, max))
    bare = median(run.bare[name] for run in runs)
    note = f"{least} to {most} in {len(runs)} pairs of processes"
    return Row(row, round(added, 2), name.rpartition("_")[2], bar, round(bare, 2), full, note)


def _loops(machine: Machine, *, full: bool, seconds: float) -> Iterator[Row]:
    """Work done a second under the library over work done without: kernels, then PyTorch's loops."""
    command = machine.client("spin", "--us", 200, "--seconds", seconds, "--mode", "sync")
    with machine.container(4 * GIB) as container:
        yield _ratio("gpu_loop_kernels", machine, container, command, "kernels", full=full)
    for kind in ("training", "inference"):
        name = f"gpu_loop_torch_{kind}"
        if machine.stand_in or machine.torch is None:
            lacks = "a stand-in driver runs no kernels" if machine.stand_in else NO_TORCH
            yield Row(name, None, "ratio", "≥ 0.97", 1.0, full, lacks)
            continue
        command = (machine.torch, str(TORCH), "loop", kind, str(seconds))
        with machine.container(16 * GIB) as container:
            yield _ratio(name, machine, container, command, "iterations_per_second", full=full)


def _ratio(
    name: str, machine: Machine, container: Container, command: Sequence[str], word: str, *, full: bool
) -> Row:
    """Alternating runs, so that a drifting clock of the card favours neither."""
    with_us, without = [], []
    for _ in range(3 if full else 2):
        without.append(_rate(said(machine.bare(*command)), word))
        with_us.append(_rate(said(container.start(*command)), word))
    kept = median(with_us) / median(without)
    note = f"{median(with_us):.1f} beside {median(without):.1f}"
    return Row(name, round(kept, 4), "ratio", "≥ 0.97", 1.0, full, note)


def _rate(text: str, word: str) -> float:
    words = text.split()
    return float(words[words.index(word) + 1])
