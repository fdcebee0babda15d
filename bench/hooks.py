"""What the library costs: each figure is over the bare call, measured in the same run.

To add rows: a function ``(*, full: bool) -> Iterable[Row]``, and its name in ``ROWS``.
"""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from bench import hooks_launch
from bench.native import compiled, container
from bench.rows import Row
from tests.native.driven import Container, interposers
from tests.native.tools import run, tool


def pair(made: Container | None, *arguments: object) -> tuple[float, float]:
    """The two numbers that the program prints: bare and interposer."""
    env = made.env() if made else {"PATH": os.environ["PATH"]}
    command = [str(compiled("calls")), *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300)
    bare, interposer = map(float, done.stdout.split())
    return bare, interposer


def forward(*, full: bool) -> Iterable[Row]:
    """A call that is not hooked: one jump through the table."""
    with container() as made:
        bare, interposer = pair(made, "forward", 401 if full else 61)
    yield Row("forward_ns", round(interposer - bare, 2), "ns", "≤ 2", round(bare, 2), full,
              "cuDriverGetVersion, median of rounds of 100,000")  # fmt: skip


def memory_call(*, full: bool) -> Iterable[Row]:
    """The account, the table of what is held and the limits page, for a call of cuMemAlloc and cuMemFree."""
    with container() as made:
        bare, interposer = pair(made, "memory", 2001 if full else 501, 4096)
        bare_large, large = pair(made, "memory", 2001 if full else 501, 4 << 20)
    yield Row("memory_call_ns", round(interposer - bare, 1), "ns", "≤ 150", round(bare, 1), full,
              "4 KiB that share a granule, median of rounds of 200 pairs, per call; "
              f"{large - bare_large:.0f} ns over {bare_large:.0f} for 4 MiB of their own")  # fmt: skip


def preload_start(*, full: bool) -> Iterable[Row]:
    """A program that uses no card, in a container whose ld.so.preload names the library."""
    build = interposers().parent
    run(tool("ninja"), "-C", build, "vcuda")
    bare, loaded = pair(None, "start", 2001 if full else 501, "/bin/true", build / "libvcuda.so")
    yield Row("preload_start_ms", round((loaded - bare) / 1e6, 3), "ms", "≤ 0.2", round(bare / 1e6, 3), full,
              "/bin/true, median")  # fmt: skip


class Inits:
    """Processes that open a driver and call cuInit at the same instant: they wait on one pipe."""

    def __init__(self, made: Container, library: str, count: int) -> None:
        command = [str(compiled("calls")), "init", library]
        waiting, self._go = os.pipe()
        self._processes = [
            subprocess.Popen(command, env=made.env(), stdin=waiting, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        os.close(waiting)
        for process in self._processes:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"

    def worst_ms(self) -> tuple[float, float]:
        """The slowest one's time: with a core or asleep, and by the clock on the wall.

        The two differ by waiting for a core. Where there are fewer cores than processes, that is what others
        of the crowd and of the machine do, not the library; what is waited for inside it counts in both.
        """
        os.close(self._go)
        said = [process.communicate(timeout=60)[0].split() for process in self._processes]
        times = [(float(took), float(waited)) for took, waited in said]
        return max(took - waited for took, waited in times) / 1e6, max(took for took, _ in times) / 1e6


@dataclass(frozen=True, slots=True)
class Started:
    """The slowest cuInit of many, in ms, medians of rounds: bare, and what the interposer adds."""

    bare: float
    over: float
    wall_over: float


def inits(count: int, rounds: int) -> Started:
    """Bare and interposer follow each other closely, so that what else the machine does weighs on both."""
    bare, over, wall = [], [], []
    for _ in range(rounds):
        with container() as made:
            Inits(made, "libcuda.so.1", 1).worst_ms()  # the modelled card is there from now on
            own, clock = Inits(made, made.env()["REAL_CUDA"], count).worst_ms()
            interposer_own, interposer_clock = Inits(made, "libcuda.so.1", count).worst_ms()
            bare.append(own)
            over.append(interposer_own - own)
            wall.append(interposer_clock - clock)
    return Started(statistics.median(bare), statistics.median(over), statistics.median(wall))


def cuinit(*, full: bool) -> Iterable[Row]:
    """Opening the driver and its companions, mapping the pages, taking a slot."""
    one = inits(1, 101 if full else 21)
    yield Row("cuinit_ms", round(one.wall_over, 3), "ms", "≤ 5", round(one.bare, 3), full,
              "opening the library and cuInit, median")  # fmt: skip
    many = inits(64, 101 if full else 21)
    yield Row("cuinit_64_max_ms", round(many.over, 2), "ms", "≤ 5", round(many.bare, 2), full,
              f"the slowest of 64 processes at once, less the wait for one of {os.cpu_count()} cores; "
              f"{many.wall_over:.1f} with it")  # fmt: skip


class Measure(Protocol):
    """Measures some rows; ``full`` is the size for figures that docs quote."""

    def __call__(self, *, full: bool) -> Iterable[Row]: ...


ROWS: tuple[Measure, ...] = (
    forward,
    memory_call,
    preload_start,
    cuinit,
    hooks_launch.rows,
    hooks_launch.streams,
)


def rows(*, full: bool) -> list[Row]:
    """The group's rows."""
    return [row for measure in ROWS for row in measure(full=full)]
