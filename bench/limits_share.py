"""How exactly is a card's time divided? Real processes under the library, a modelled card, a real clock.

Alone: the six shapes of work at limits 10, 30, 50, 80, four containers at a time on four cards. Together:
pairs and fours on one card with the agent's own co-activity loop, its pages and its NVML reader. Errors are
in points, that is hundredths of a card.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.rows import Row
from tests.native.card_watch import Watch
from tests.native.core_world import Load, Tenant, World, one_machine, until, world
from vcuda.page.usage import TIMELINE_CELLS, TIMELINES_OFFSET

LIMITS = (10, 30, 50, 80)
BARE = 100
LONG_US = 20_000
"""Windows of a second are judged for kernels up to this: one longer kernel is a good part of a window."""
LOOK_MS = 50
"""A window of a second begins this often."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Work of one kind: how it is launched, microseconds a kernel, the share it asks for (percent)."""

    name: str
    mode: str
    length_us: int
    demand: float = 100.0


SHAPES = (
    Shape("8 ms, waited for", "sync", 8000),
    Shape("500 ms, waited for", "sync", 500_000),
    Shape("stream of 40 us", "stream", 40),
    Shape("5 ms, filling the card", "stream", 5000),
    Shape("graph of 12 ms", "graph", 750),
    Shape("bursts of 30 x 2 ms", "bursts", 2000, 60.0),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One shape at one limit: the share by the program's own count of finished kernels, and what the card
    served it in windows of a second, one begun every 50 ms, by its own clock: who is late to count makes no
    window fuller. ``kernels`` is the part of the served time that its kernels take without a limit, in the
    same run: the rest is the program's own event records and the pauses between its kernels.
    """

    shape: Shape
    limit: int
    share: float
    windows: Sequence[float]
    kernels: float = 1.0

    @property
    def wanted(self) -> float:
        return min(self.limit * self.kernels, self.shape.demand)

    @property
    def is_held(self) -> bool:
        """Its limit is less than what it needs."""
        return self.limit < self.shape.demand


def measured(shape: Shape, *, full: bool) -> list[Cell]:
    """All limits at once and the bare program, each on a card of its own."""
    long = shape.length_us > LONG_US
    # A long kernel at a small limit runs once in seconds: its first ones, of unknown length, are not judged.
    seconds, first = ((90.0, 15.0) if full else (45.0, 15.0)) if long else (32.0, 2.0) if full else (8.0, 2.0)
    with contextlib.ExitStack() as stack:
        loads: dict[int, tuple[Load, Watch]] = {}
        for limit in (*LIMITS, BARE):
            made = stack.enter_context(world())
            watch = made.watch(LOOK_MS)
            stack.callback(watch.kill)
            load = made.start(made.tenant(limit), shape.mode, shape.length_us, seconds, 1000, first)
            loads[limit] = load, watch
        cells = [
            Cell(shape, limit, load.finish().share, watch.windows(load.process.pid, first, 1000 // LOOK_MS))
            for limit, (load, watch) in loads.items()
        ]
    bare = cells.pop()
    kernels = min(1.0, bare.share / statistics.fmean(bare.windows))
    return [replace(cell, kernels=kernels) for cell in cells]


def _worst(cells: Iterable[tuple[float, str]]) -> tuple[float, str]:
    return max(cells, key=lambda found: found[0])


def alone(*, full: bool) -> Iterable[Row]:
    """One container a card."""
    cells = [cell for shape in SHAPES for cell in measured(shape, full=full)]
    short = [cell for cell in cells if cell.shape.length_us <= LONG_US]
    held = [cell for cell in short if cell.is_held]

    def said(cell: Cell) -> str:
        return f"worst: {cell.shape.name} at {cell.limit}"

    error, where = _worst((abs(cell.share - cell.wanted), said(cell)) for cell in cells if cell.is_held)
    yield Row("share_mean_error_points", round(error, 2), "points", "≤ 1", None, full,
              f"{where}; {len(cells)} cells, each over its whole run, by its kernels: of the limit, the part "
              "that they take of the bare program's time in the same run")  # fmt: skip
    mae, where = _worst(
        (sum(abs(w - cell.limit) for w in cell.windows) / len(cell.windows), said(cell)) for cell in held
    )
    yield Row("share_mae_1s_points", round(mae, 2), "points", "≤ 3", None, full, f"{where}; kernels ≤ 20 ms")
    over, where = _worst((max(cell.windows) - cell.limit, said(cell)) for cell in short)
    yield Row("share_over_points", round(max(0.0, over), 2), "points", "≤ 1", None, full,
              f"{where}; the fullest of all windows of 1 s, one begun every {LOOK_MS} ms, by the card, "
              "of kernels ≤ 20 ms")  # fmt: skip
    # What bursts ask for is less than their limit of 80: their own pauses vary with the machine.
    ratio, where = min((cell.share / cell.wanted, said(cell)) for cell in cells)
    yield Row("share_delivered_ratio", round(ratio, 3), "ratio", "≥ 0.97", None, full, where)


FIRST_SECONDS = 15.0
"""So long after they met, containers are judged by themselves as well as in the whole run."""


def split(cores: Sequence[int], *, full: bool) -> tuple[float, str]:
    """The worst error of containers that always have work, on one card, by the card, from when they met."""
    with world(state=one_machine()) as made:
        tenants = [made.tenant(limit) for limit in cores]
        watch = made.watch(LOOK_MS)
        try:
            with made.host(*tenants, driver=True):
                seconds = 60.0 if full else 24.0
                loads = [made.start(tenant, "stream", 5000, seconds, 1000) for tenant in tenants]
                for load in loads:
                    load.finish()
        finally:
            found = watch.together([load.process.pid for load in loads])
    count = int(FIRST_SECONDS * 1000 / LOOK_MS)
    errors = [
        max(abs(statistics.fmean(shares[:count]) - limit), abs(statistics.fmean(shares) - limit))
        for shares, limit in zip(found, cores, strict=True)
    ]
    return max(errors), "/".join(f"{statistics.fmean(shares[:count]):.1f}" for shares in found)


PHASE_SECONDS = 3.0
SETTLING_SECONDS = 1.0
"""After a change of the limit: what was owed or saved up under the other one is spent by then."""


def waiting(*, full: bool) -> Iterable[Row]:
    """30 and 70 of programs that wait for each kernel before they launch the next.

    Such a program leaves the card idle while it is awake, so it may ask for less than its limit. What it asks
    for is measured in the same run: every other few seconds the second has no limit but the card.
    """
    phases = 20 if full else 8
    with world(state=one_machine()) as made:
        first, second = made.tenant(30), made.tenant(70)
        with made.host(first, second, driver=True):
            seconds = PHASE_SECONDS * phases + 4
            loads = [made.start(tenant, "sync", 5000, seconds, 500, 2.0) for tenant in (first, second)]
            for load in loads:
                load.wait_running()
            threading.Event().wait(3.0)
            changes: list[float] = []
            for turn in range(phases):
                made.limit(second.name, (70, 100)[turn % 2])
                changes.append(time.monotonic())
                threading.Event().wait(PHASE_SECONDS)
            changes.append(time.monotonic())
            for load in loads:
                load.finish()
    held, free = ([_mean(load, changes, turn) for load in loads] for turn in (0, 1))
    reached = min(70.0, free[1])
    error = max(abs(held[0] - 30), abs(held[1] - reached))
    note = f"{held[0]:.1f}/{held[1]:.1f} of 30/70; beside 30 the second reaches {free[1]:.1f} without a limit"
    yield Row("split_waiting_error_points", round(error, 2), "points", "≤ 1", None, full,
              f"{note}; kernels of 5 ms, each waited for, judged by the less of limit and reach")  # fmt: skip


def _mean(load: Load, changes: Sequence[float], turn: int) -> float:
    """Of the windows that lie within every other phase, from ``turn`` on, once it has settled."""
    found = [
        share
        for begin, end in itertools.islice(itertools.pairwise(changes), turn, None, 2)
        for (before, after), share in zip(itertools.pairwise(load.ends), load.windows[1:], strict=True)
        if begin + SETTLING_SECONDS <= before and after <= end
    ]
    return sum(found) / len(found)


def comes_and_goes(*, full: bool) -> tuple[float, str]:
    """A container with work all the time beside one that starts and stops: the first one's error."""
    rounds = 8 if full else 3
    with world(state=one_machine()) as made:
        steady, guest = made.tenant(50), made.tenant(30)
        with made.host(steady, guest, driver=True):
            load = made.start(steady, "stream", 5000, 4.0 * rounds + 3, 1000, 1.0)
            load.wait_running()
            for _ in range(rounds):
                made.start(guest, "stream", 5000, 2.0, 1000).finish()
                threading.Event().wait(1.8)
            share = load.finish().share
    return abs(share - 50), f"{share:.1f} beside one that comes and goes"


def lied_to(*, full: bool) -> tuple[float, str]:
    """A container beside one that says it works and does not: by how much the first is past its limit."""
    with world(state=one_machine()) as made:
        liar, honest = made.tenant(50), made.tenant(30)
        with lying(made, liar), made.host(liar, honest, driver=True):
            share = made.start(honest, "stream", 5000, 20.0 if full else 9.0, 1000, 3.0).finish().share
    return abs(share - 30), f"{share:.1f} of 30 beside a liar"


@contextlib.contextmanager
def lying(made: World, liar: Tenant) -> Iterator[None]:
    """The container's one process is stopped; another hand keeps saying that it has work in flight."""
    load = made.start(liar, "sync", 1000, 60, 1000)
    load.wait_running()
    until(lambda: made.usage(liar).busy_ns > 0)
    load.process.send_signal(19)
    stop = threading.Event()
    thread = threading.Thread(target=_say_in_flight, args=(made, liar, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _say_in_flight(made: World, liar: Tenant, stop: threading.Event) -> None:
    with (made.base / "pages" / liar.name / "usage").open("r+b", buffering=0) as file:
        while not stop.wait(0.01):
            file.seek(made.slot_offset() + 64)
            file.write(b"\x07\0\0\0")
            file.seek(TIMELINES_OFFSET)
            file.write(_always_in_flight(time.monotonic_ns() // 1_000_000))


def _always_in_flight(now_ms: int) -> bytes:
    """A timeline in which seven contexts had work in flight in each of the last milliseconds."""
    last = range(now_ms - TIMELINE_CELLS, now_ms)
    cells = {ms % TIMELINE_CELLS: (ms // TIMELINE_CELLS & 0xFFFF) << 16 | 7000 for ms in last}
    return struct.pack(f"<{TIMELINE_CELLS}I", *(cells[at] for at in range(TIMELINE_CELLS)))


def together(*, full: bool) -> Iterable[Row]:
    """Several containers on one card."""
    found = [split(cores, full=full) for cores in ((50, 50), (30, 70), (25, 25, 25, 25))]
    found += [comes_and_goes(full=full), lied_to(full=full)]
    error = max(one for one, _ in found)
    yield Row("split_error_points", round(error, 2), "points", "≤ 1", None, full,
              f"{'; '.join(text for _, text in found)}; by the card over the first {FIRST_SECONDS:.0f} s "
              "and the whole run, the worse of the two")  # fmt: skip


TURN_SECONDS = 0.7
WITNESSES = 3


def changes(*, full: bool) -> Iterable[Row]:
    """From the agent's write of a limit to the first kernel, or the last, that shows it.

    Several containers, each on a card of its own, are told the same at once, and their median is the change's
    delay: where the machine stalls one of their programs, its kernels come late whatever the library does.
    A library that is late is so in all of them.
    """
    rounds = 20 if full else 6
    writes: list[list[float]] = []
    with contextlib.ExitStack() as stack:
        told: list[tuple[World, Tenant, Load]] = []
        for made in [stack.enter_context(world()) for _ in range(WITNESSES)]:
            tenant = made.tenant(1)
            told.append((made, tenant, made.start(tenant, "sync", 1000, TURN_SECONDS * rounds + 1.5, 0)))
        for _, _, load in told:
            load.wait_running()
        for turn in range(rounds):
            threading.Event().wait(TURN_SECONDS)
            writes.append([_told(made, tenant.name, (100, 1)[turn % 2]) for made, tenant, _ in told])
        ends = [load.finish().ends for _, _, load in told]
    seen = [
        [_seen_after(by, at, raised=turn % 2 == 0) for by, at in zip(ends, ats, strict=True)]
        for turn, ats in enumerate(writes)
    ]
    worst, single = max(map(statistics.median, seen)), max(map(max, seen))
    yield Row("limit_change_ms", round(worst * 1e3, 1), "ms", "≤ 20", None, full,
              f"worst of {rounds} changes between 1 and 100, kernels of 1 ms, each the median of {WITNESSES} "
              f"containers told at once; the slowest container {single * 1e3:.1f} ms")  # fmt: skip


def _told(made: World, name: str, limit: int) -> float:
    """Change the limit; when that was begun."""
    at = time.monotonic()
    made.limit(name, limit)
    return at


def _seen_after(ends: Sequence[float], at: float, *, raised: bool) -> float:
    """Raised: until the first kernel that ends a run of three. Lowered: until the last that does.

    Two are none: at any limit a kernel that took less than it paid leaves credit for the next. A change that
    is not seen before the next one took as long as that.
    """
    close = [c for a, b, c in zip(ends, ends[1:], ends[2:], strict=False) if max(b - a, c - b) < 0.005]
    if raised:
        return min(next((end for end in close if end > at), math.inf) - at, TURN_SECONDS)
    last = at
    for end in close:
        if at < end < last + 0.05:
            last = end
    return last - at
