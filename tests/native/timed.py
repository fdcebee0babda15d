"""How tests that measure time are run: at real-time priority, and again if the machine stood still meanwhile.

A test's bounds hold on a machine whose processors run when they are wanted. Real-time priority keeps other programs
out of the way. A host that takes the processors from a virtual machine it does not keep out: :class:`StallWitness`
sees that, and a test that failed beside it is repeated, :data:`ATTEMPTS` times in all. On a machine that ran, the
second failure is the test's: a fault fails each time, and what a host slows without a stall seldom does so twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from _pytest.runner import runtestprotocol

from tests.native.programs import compiled

ATTEMPTS = 5
PRIORITY = 5
WORST_US = 10_000
"""A thread that wakes this late makes a judgement of time doubtful."""
SUM_PER_MILLE = 10
"""So does lateness that adds up to this part of the time."""
ALONE = Path(tempfile.gettempdir()) / "vcuda-real-time.lock"
"""Whoever runs at real-time priority holds this file locked: two of them would keep each other from running."""
FAILURES = 2
"""So many of them on a machine that ran are the test's own."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """How late threads that sleep for a millisecond woke, on the processor where they were latest: microseconds."""

    worst_us: int
    sum_us: int
    watched_us: int

    @property
    def disturbing(self) -> bool:
        return self.worst_us >= WORST_US or self.adds_up

    @property
    def adds_up(self) -> bool:
        """True where lateness had a part of the time that spoils a measurement of many seconds as well."""
        return self.sum_us * 1000 >= self.watched_us * SUM_PER_MILLE

    def __str__(self) -> str:
        return (
            f"a thread that sleeps for 1 ms woke up to {self.worst_us / 1000:.1f} ms late, "
            f"{self.sum_us / 1000:.1f} ms in all of {self.watched_us / 1e6:.1f} s"
        )


class StallWitness:
    """Watches whether the machine stands still while a block runs; ``stalls`` afterwards."""

    stalls: Stalls

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [str(compiled("core_stalls.c"))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        assert self.process.stdout.readline() == "watching\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        out, _ = self.process.communicate(timeout=30)
        self.stalls = Stalls(*map(int, out.split()))


def repeated(attempt: Callable[[], tuple[bool, Stalls]], say: Callable[[str], None]) -> None:
    """Make an attempt until it passes, has failed :data:`FAILURES` times on a machine that ran, or was made
    :data:`ATTEMPTS` times; ``say`` tells of each failure that is not the last.
    """
    failures = 0
    for number in range(1, ATTEMPTS + 1):
        passed, stalls = attempt()
        failures += not passed and not stalls.disturbing
        if passed or failures == FAILURES:
            return
        what = f"the machine stood still ({stalls})" if stalls.disturbing else f"failed ({stalls})"
        say(f"{what}: {'repeated' if number < ATTEMPTS else f'failed {ATTEMPTS} times'}")


def run_timed(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """A test's whole protocol, with fixtures of its own in each attempt; the last attempt is reported."""
    reports: list[pytest.TestReport] = []

    def attempt() -> tuple[bool, Stalls]:
        with StallWitness() as witness:
            reports[:] = runtestprotocol(item, log=False, nextitem=nextitem)
        return not any(report.failed for report in reports), witness.stalls

    def say(text: str) -> None:
        terminal = item.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.write_line(f"{item.nodeid}: {text}")

    with real_time():
        repeated(attempt, say)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)


@contextlib.contextmanager
def real_time() -> Iterator[None]:
    """This thread, and what it starts, at real-time priority where the system allows it.

    On one machine one at a time: a second one waits for the first.
    """
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    except PermissionError:
        yield
        return
    try:
        with alone():
            yield
    finally:
        os.sched_setscheduler(0, *before)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until nobody else on this machine measures at real-time priority, and keep others waiting."""
    held = os.open(ALONE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
