"""Spends the minutes that are there: group by group, the most telling cases first, the long ones last."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.rows import Row
from tests.gpu.machine import Machine
from tests.gpu.results import Results
from tests.gpu.unbroken import bounded, say

PERIODS = 20
"""A row runs for at least so many periods of its slowest kernel: fewer can hold no bar."""
BOUND, LEAST_BOUND = 4.0, 60.0
"""A case is cut after so many times what it should take, and no earlier than after so many seconds."""
GRACE = 30.0
"""Seconds by which the last case may exceed the whole time."""


@dataclass(frozen=True, slots=True)
class Settings:
    """``seconds``: length of a timed run. Below one second everything is only proven to run, and counts are small."""

    seconds: float = 4.0

    def length(self, kernel_us: float, limit: float = 100.0) -> float:
        """Seconds that a run of such kernels takes: at this limit a period is the kernel and its wait."""
        return max(self.seconds, PERIODS * kernel_us * 1e-6 * 100 / limit)

    def count(self, wanted: int) -> int:
        """How often something is repeated."""
        return wanted if self.seconds >= 1 else min(wanted, max(4, round(wanted * self.seconds / 10)))


@dataclass(frozen=True, slots=True)
class Case:
    """Rows that are measured together. ``seconds`` is about how long they take; ``deep`` ones come last.

    ``needs`` names a Python package without which they take no time, and say so.
    """

    name: str
    seconds: float
    rows: Callable[[Machine], Iterable[Row]]
    deep: bool = False
    needs: str = ""


Groups = Mapping[str, Callable[[Settings], Iterable[Case]]]


def spend(
    machine: Machine,
    groups: Groups,
    results: Results,
    *,
    settings: Settings,
    seconds: float,
    deep: bool = True,
    named: str = "",
    patience: float = 1.0,
) -> Iterator[Row]:
    """Run the cases that fit into the time, and say which did not.

    ``deep``: with the long ones. ``named``: only those whose ``GROUP/CASE`` has this in it, or one of several with commas between.
    ``patience``: how many times longer a case may take than on a card, as where a processor runs its models.
    """
    until = time.monotonic() + seconds
    left_out: list[str] = []
    planned = [
        (group, case) for group, cases in groups.items() for case in cases(settings) if deep or not case.deep
    ]
    for group, case in sorted(planned, key=lambda one: one[1].deep):  # stable: the groups keep their order
        name = f"{group}/{case.name}"
        if results.has(name) or not any(part in name for part in named.split(",")):
            continue
        begin = time.monotonic()
        expected = 0 if case.needs and machine.lacks(case.needs) else case.seconds
        if begin + expected > until:
            left_out.append(name)
            continue
        say(f"{name} …", sys.stderr)
        bound = min(patience * max(LEAST_BOUND, BOUND * case.seconds), until + GRACE - begin)
        for row in _measured(machine, case, begin + bound):
            results.row(name, row)
            yield row
        results.done(name, time.monotonic() - begin)
    if left_out:
        results.left_out(left_out)
        say(f"no time was left for {len(left_out)} cases: {', '.join(left_out)}", sys.stderr)


def _measured(machine: Machine, case: Case, until: float) -> Iterator[Row]:
    """The case's rows, until this moment of the monotonic clock.

    Whatever goes wrong in one ends that case alone: time on a card is too dear to lose the rest.
    """
    rows: Iterator[Row] | None = None
    while True:
        try:
            with bounded(max(0.001, until - time.monotonic())):
                rows = iter(case.rows(machine)) if rows is None else rows
                row = next(rows, None)
        except Exception as error:  # noqa: BLE001 - see above; it becomes a row that does not hold
            machine.end_started()
            yield Row(
                f"gpu_{case.name}_ran", 0.0, "yes", "= 1", note=f"{type(error).__name__}: {error}"[:2000]
            )
            return
        if row is None:
            return
        yield row


def missing(names: Sequence[str], unit: str, bar: str, why: str) -> Iterator[Row]:
    """Rows that cannot be measured here, with the reason."""
    for name in names:
        yield Row(name, None, unit, bar, note=why)
