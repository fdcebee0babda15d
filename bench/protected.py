"""A protected service beside best-effort jobs on one modelled card: what requests wait, what the jobs get.

The service's requests arrive at random (Poisson) at half of its share and are kernels of 0.2 ms in a row; the
jobs always have kernels to run. Three columns: alone (solo), beside normal containers (unprotected), beside
best-effort ones (protected).

Two models of how a card is shared, since no document says which holds for which card: in slices of time that
interrupt kernels, and kernel by kernel, each running out. ``vcuda/lib/test/standin/README.md`` names sources.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from bench.protected_accounts import accounts
from bench.protected_cells import BEST_EFFORT_CORES, PROTECTED_CORES, Cell, Outcome, measure
from bench.protected_kept import KEPT, digest, kept
from bench.protected_raising import raising
from bench.rows import Row
from tests.native.timed import ATTEMPTS, StallWitness, real_time

MODELS: Final = ("slice", "kernel")
SIZES_MS: Final = (5, 20, 100)
FLOODS_US: Final = (100, 1_000, 10_000, 50_000)
LONG_US: Final = 50_000
"""Floods of such kernels have a bar of their own: a launch waits for the one that runs."""
CALL_SECONDS: Final = 170.0
"""A call at full size begins no measurement after so long; the longest takes a minute."""


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
    stood_still_ms: dict[Cell, float] = field(default_factory=dict)
    watcher: float = 0.0

    def add(self, cell: Cell, solo: Outcome, bare: Outcome, held: Outcome) -> None:
        """Judge one constellation by its three columns."""
        self.ratios[cell] = ratio(cell, held, solo.p99)
        self.harvests[cell] = sum(held.jobs) / (100 - held.service)
        self.guarantees[cell] = min(held.least) / (BEST_EFFORT_CORES / cell.jobs)
        self.stood_still_ms[cell] = held.stood_still_ms
        self.watcher = max(self.watcher, held.watcher)
        self.lines.append(f"{cell}: {solo.p99:.0f} / {bare.p99:.0f} / {held.p99:.1f} ms")


def constellations(jobs: int, sizes: Sequence[int]) -> list[Cell]:
    """In an order of chance, always the same, so that a part of them is a sample of all."""
    cells = [Cell(model, size, jobs, flood) for size in sizes for model in MODELS for flood in FLOODS_US]
    return random.Random(1).sample(cells, len(cells))


def watched(cell: Cell, seconds: float, column: str) -> Outcome:
    """One measurement, made again if the machine stood still for too much of its time."""
    for _ in range(ATTEMPTS):
        with StallWitness() as witness:
            found = measure(cell, seconds, protected=column == "protected", alone=column == "alone")
        if not witness.stalls.adds_up:
            break
    return replace(found, stood_still_ms=witness.stalls.worst_us / 1000)


def latency(jobs: int, *, full: bool) -> Iterable[Row]:
    """Requests beside so many jobs, under both models."""
    ends = time.monotonic() + CALL_SECONDS
    code = digest() if full else ""

    def outcome(cell: Cell, column: str) -> Outcome | None:
        seconds = (20.0 if full else 8.0) * (3 if cell.size_ms == SIZES_MS[-1] else 1)

        def measured() -> dict[str, Any]:
            return asdict(watched(cell, seconds, column))

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
        yield Row(
            name,
            round(ratios[worst], 3),
            unit,
            bar,
            None,
            full,
            f"{part}worst: {worst}; {note}; "
            f"the machine stood still for up to {table.stood_still_ms[worst]:.0f} ms at a time",
        )
    if jobs == 1 and table.ratios:
        yield Row("gate_watcher_percent", round(table.watcher, 2), "% of a processor", "≤ 0.5", None, full,
                  f"{part}the watcher's own time while both classes work, the most of all runs")  # fmt: skip


def one(*, full: bool) -> Iterable[Row]:
    """Beside one job."""
    return latency(1, full=full)


def three(*, full: bool) -> Iterable[Row]:
    """Beside three jobs."""
    return latency(3, full=full)


PARTS: Final = {"raising": raising, "one": one, "three": three, "accounts": accounts}


def rows(*, full: bool, only: str = "") -> list[Row]:
    """The group's rows, or those of one part; at real-time priority, as a card runs whatever else does."""
    with real_time():
        return [row for name, part in PARTS.items() if only in ("", name) for row in part(full=full)]
