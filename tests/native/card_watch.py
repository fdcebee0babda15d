"""Whom the modelled card served, and for how long, by the card's own account: read from outside, beside any program.

Late readings are as true as early ones. A reading is the card's clock, which is CLOCK_MONOTONIC, and how long it has
served each process by then; nanoseconds.
"""

from __future__ import annotations

import fcntl
import functools
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.native.programs import compiled
from tests.native.tools import LIB

READING_FRESH_NS = 60_000_000
"""A reading is younger than this: nothing older lies in the pipe."""

_Reading = tuple[int, dict[int, int]]


class Watch:
    """A running ``core_watch``. Of its methods that end it, one can be called, once."""

    def __init__(self, environment: Mapping[str, str], period_ms: int = 1000) -> None:
        self._process = subprocess.Popen(
            [str(_watch()), str(period_ms)], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout
        fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)
        self._seen: list[_Reading] = []

    # While it runs.

    def look(self) -> _Reading:
        """The next reading."""
        assert self._process.stdout
        return _reading(self._process.stdout.readline())

    def served(self, pid: int) -> int:
        """How long the card has served this process by now, nanoseconds; what is read is kept for :meth:`fullest`."""
        while True:
            reading = self.look()
            self._seen.append(reading)
            if time.monotonic_ns() - reading[0] < READING_FRESH_NS:
                return reading[1].get(pid, 0)

    def shares(self, pids: Sequence[int], first_ns: int, length_ns: int) -> list[float]:
        """What the card serves these processes in a window that begins so long from now: percent of its time.

        Waits for the card's clock to pass the window's end.
        """
        begin = time.monotonic_ns() + first_ns
        return self.shares_until(pids, begin, begin + length_ns)

    def shares_until(self, pids: Sequence[int], begin_ns: int, end_ns: int) -> list[float]:
        """What the card served these processes between these times of its clock: percent of its time.

        Waits for the card's clock to pass the end, or for readings of then that are still in the pipe.
        """
        while not self._seen or self._seen[-1][0] < end_ns:
            self._seen.append(self.look())
        return self.between(pids, begin_ns, end_ns)

    def between(self, pids: Sequence[int], begin_ns: int, end_ns: int) -> list[float]:
        """:meth:`shares_until` of a window whose readings are in."""
        within = [reading for reading in self._seen if begin_ns <= reading[0] <= end_ns]
        return [_percent(_of(pid, within[0]), _of(pid, within[-1])) for pid in pids]

    def readings(self, pid: int, begin_ns: int, end_ns: int) -> list[tuple[int, int]]:
        """The card's clock and how long it had served this process, at each reading between these times."""
        return [
            (clock, served[pid])
            for clock, served in self._seen
            if begin_ns <= clock <= end_ns and pid in served
        ]

    # At its end.

    def fullest(self, pid: int, readings: int) -> float:
        """End it: the greatest share of the card's time, in percent, that it served this process in any window.

        A window begins with each reading and is so many readings long.
        """
        ends = [_of(pid, reading) for reading in [*self._seen, *self._rest()]]
        return max(_windows(ends, readings), default=0.0)

    def windows(self, pid: int, first: float, readings: int = 1) -> list[float]:
        """End it: the share of the card's time, in percent, that it served this process in each window.

        A window begins with each reading and is so many periods long. The first seconds, counted from when the
        process was seen, are left out, and what comes after its last work.
        """
        seen = [(clock, served[pid]) for clock, served in self._rest() if pid in served]
        begin, last = seen[0][0] + first * 1e9, seen[-1][1]
        judged = [(clock, served) for clock, served in seen if clock >= begin and served < last]
        return _windows(judged, readings)

    def together(self, pids: Sequence[int], readings: int = 1) -> list[list[float]]:
        """End it: each process's share, in percent, in windows that begin once the card has served all of them.

        A window begins with each reading and is so many periods long. They end with the last work of the first
        process to end.
        """
        rest = self._rest()
        last = {pid: max(served.get(pid, 0) for _, served in rest) for pid in pids}
        met = [reading for reading in rest if all(0 < reading[1].get(pid, 0) < last[pid] for pid in pids)]
        return [_windows([_of(pid, reading) for reading in met], readings) for pid in pids]

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def _rest(self) -> list[_Reading]:
        """End it: the readings that nobody has looked at."""
        out, _ = self._process.communicate("\n", timeout=30)
        assert self._process.returncode == 0
        return [_reading(line) for line in out.splitlines()]


@functools.cache
def _watch() -> Path:
    model = LIB / "test" / "standin"
    sources = [str(model / f"{name}.c") for name in ("card", "turn", "config")]
    return compiled("core_watch.c", f"-I{model}", *sources)


def _reading(line: str) -> _Reading:
    clock, *slots = line.split()
    return int(clock), {int(pid): int(served) for pid, _, served in (slot.partition(":") for slot in slots)}


def _of(pid: int, reading: _Reading) -> tuple[int, int]:
    """The card's clock, and how long it had served this process."""
    return reading[0], reading[1].get(pid, 0)


def _percent(begin: tuple[int, int], end: tuple[int, int]) -> float:
    return 100 * (end[1] - begin[1]) / (end[0] - begin[0])


def _windows(readings: Sequence[tuple[int, int]], length: int) -> list[float]:
    """The share in each window of so many readings."""
    return [_percent(begin, end) for begin, end in zip(readings, readings[length:], strict=False)]
