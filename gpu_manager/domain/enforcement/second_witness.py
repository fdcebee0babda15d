"""The driver's figure of a container's processes, as a second witness for the account in its page.

The library measures what a container uses of a card, and its limit relies on that account. The driver counts
the same use by samples, which no tenant can write. If the two differ for long, one of them is wrong: the
difference is reported, and a container whose account is too low is limited by the driver's figure.

The driver errs, too, and is trusted only as far as observed on an H100 (driver 580, tests/data/cards): it
counts a kernel for longer than it runs, it rounds down, and it attributes each of some five samples a second
to one process as a whole. A difference that these errors explain is ignored. Figures of processes that do not
agree with the card's own figure are not used at all.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from math import sqrt
from typing import Final

GAP: Final = 0.10
"""Share of a card from which a difference is reported, if no other is set."""
PERIOD_SECONDS: Final = 60.0
"""Nothing is said before so much was read; the figures are means of so long."""
LONGEST_SECONDS: Final = 600.0
"""A difference that the noise may explain in a minute is judged by longer means, up to this one."""
BLOCK_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 5.0
"""Without figures for so long, the mean starts anew."""
LAUNCH_SECONDS: Final = 6e-6
"""What the driver may count for a launch beyond its kernel: 2.4 to 5.6 µs on an H100, by its idle gaps."""
ROUNDING: Final = 0.01
"""A process's figure is whole percent, rounded down: an H100 said 49.3 of kernels of 1 ms at 50."""
LOOKS: Final = 4.0
"""The driver's samples a second, at least: some five were seen. Beside others each is one process's."""
NOISE: Final = 0.02
"""Standard deviation of a block of an undisturbed container: the two are not read at the same instant."""
CERTAIN: Final = 5.0
"""Standard deviations that a difference must exceed: an honest container is never reported."""
NAMED: Final = 0.8
"""Part of the gap from which a mean is named, so that each true difference of the gap is, in a minute."""
MOST_GAIN: Final = 16.0
_STEPS: Final = 256  # of a factor, which is as fine as the limits page allows
_LONGEST_KERNEL: Final = 5.0
_SCALES: Final = (1, 2, 4, 10)  # periods over which the mean is judged


class Verdict(Enum):
    """The verdict on an account, from both figures."""

    AGREES = "agrees"
    BELOW = "below"  # it is below the driver's figure
    ABOVE = "above"


@dataclass(frozen=True, slots=True)
class Reading:
    """A container's figures over ``seconds``, as shares of the card.

    ``account`` is the library's figure, ``driver`` the driver's for all its processes, ``launches`` per
    second. ``processes``: their number. ``shared``: other containers used the card. ``longest``: seconds of
    its longest kernel, which enters the account when it ends. ``card`` is the driver's figure of the whole
    card, None if it has none, ``everyone`` the driver's sum over all processes.
    """

    seconds: float
    account: float
    driver: float
    launches: float = 0.0
    processes: int = 1
    shared: bool = False
    longest: float = 0.0
    card: float | None = None
    everyone: float = 0.0


@dataclass(slots=True)
class _Block:
    seconds: float = 0.0
    account: float = 0.0
    driver: float = 0.0
    launches: float = 0.0
    processes: float = 0.0
    shared: float = 0.0
    longest: float = 0.0
    excess: float = 0.0  # by how much the processes' sum exceeds the card's figure

    def add(self, one: Reading) -> None:
        self.seconds += one.seconds
        self.account += one.account * one.seconds
        self.driver += min(1.0, one.driver) * one.seconds
        self.launches += one.launches * one.seconds
        self.processes += one.processes * one.seconds
        self.shared += one.seconds if one.shared else 0.0
        self.longest = max(self.longest, min(one.longest, _LONGEST_KERNEL))
        if one.card is not None:
            self.excess += (min(1.0, one.everyone) - one.card) * one.seconds


@dataclass(frozen=True, slots=True)
class Means:
    """Means of a period, as shares of the card. The driver's figure proves that the use was between ``least``
    and ``most``.
    """

    account: float
    driver: float
    least: float
    most: float
    excess: float
    spread: float
    late: float

    @property
    def below(self) -> float:
        """By how much the account is too low, at least; negative: the driver's errors explain more."""
        return self.least - self.account - self.late

    @property
    def above(self) -> float:
        """By how much the account is too high, at least."""
        return self.account - self.most - self.late

    @property
    def difference(self) -> float:
        """The driver's figure less the account, as far as the driver's known errors do not explain it."""
        return max(0.0, self.below) - max(0.0, self.above)


def _means(blocks: list[_Block]) -> Means:
    seconds = sum(block.seconds for block in blocks)
    account, driver, launches, processes, shared, excess = (
        sum(getattr(block, name) for block in blocks) / seconds
        for name in ("account", "driver", "launches", "processes", "shared", "excess")
    )
    # For a sample attributed to one process as a whole, assume the probability that makes the mean least
    # sure.
    part = min(max(0.5, min(account, driver)), max(account, driver))
    looks = shared * part * (1 - part) / (LOOKS * seconds)
    return Means(
        account,
        driver,
        max(0.0, driver - launches * LAUNCH_SECONDS),
        driver + ROUNDING * processes,
        excess,
        sqrt(max(NOISE**2 / len(blocks) + looks, _scatter(blocks))),
        max(block.longest for block in blocks) / seconds,
    )


def _scatter(blocks: list[_Block]) -> float:
    """The variance of the mean difference, from the variation between blocks within each part of the work."""
    worked = [(block.driver + block.account) / block.seconds for block in blocks]
    gaps = [(block.driver - block.account) / block.seconds for block in blocks]
    work = sum(one * one for one in worked)
    part = sum(gap * one for gap, one in zip(gaps, worked, strict=True)) / work if work else 0.0
    left = sum((gap - part * one) ** 2 for gap, one in zip(gaps, worked, strict=True))
    return left / max(1, len(blocks) - 1) / len(blocks)


class AccountWitness:
    """Compares one container's account on one card with the driver's figure."""

    def __init__(self, gap: float = GAP) -> None:
        """``gap``: the difference from which it is reported, as a share of the card."""
        self._gap = gap
        self._blocks: deque[_Block] = deque(maxlen=round(LONGEST_SECONDS / BLOCK_SECONDS))
        self._block = _Block()
        self._silent = 0.0
        self.verdict = Verdict.AGREES
        self.gain = 1.0
        """Factor by which the library is to charge more than it measures."""
        self.means: Means | None = None
        """Of the last :data:`PERIOD_SECONDS`; None before so much was read."""

    def add(self, reading: Reading) -> None:
        """Add a reading; ``account`` is the library's measurement, without the factor :attr:`gain`."""
        self._silent = 0.0
        self._block.add(reading)
        if self._block.seconds >= BLOCK_SECONDS:
            self._blocks.append(self._block)
            self._block = _Block()
            self._judge()

    def miss(self, seconds: float) -> None:
        """Record a missing figure: after :data:`SILENCE_SECONDS` of them everything known is dropped."""
        self._silent += seconds
        if self._silent >= SILENCE_SECONDS:
            self._restart()
            self.verdict, self.gain, self.means = Verdict.AGREES, 1.0, None

    def _restart(self) -> None:
        self._blocks.clear()
        self._block = _Block()

    def _judge(self) -> None:
        period = round(PERIOD_SECONDS / BLOCK_SECONDS)
        blocks = list(self._blocks)
        if len(blocks) < period:
            return
        self.means = means = _means(blocks[-period:])
        if self.verdict is not Verdict.AGREES:
            self._look_again(means)
            return
        for scale in _SCALES:
            if len(blocks) >= scale * period:
                self._name(_means(blocks[-scale * period :]))
        self._hold(means)

    def _name(self, means: Means) -> None:
        needed = max(NAMED * self._gap, CERTAIN * means.spread)
        if means.below >= needed and means.excess <= self._gap / 2:
            self.verdict = Verdict.BELOW
        elif means.above >= needed and means.excess >= -self._gap / 2:
            self.verdict = Verdict.ABOVE

    def _look_again(self, means: Means) -> None:
        """Check whether the two agree now; without the correction they might differ by more."""
        left = means.below if self.verdict is Verdict.BELOW else means.above
        if self.gain * left < self._gap / 2 and self.gain * (left + 2 * means.spread) < self._gap:
            self.verdict = Verdict.AGREES
        self._hold(means)

    def _hold(self, means: Means) -> None:
        """Set the factor that raises the account to what the driver's figure proves."""
        wanted = 1.0
        if self.verdict is Verdict.BELOW:
            wanted = min(MOST_GAIN, max(1.0, means.least / max(means.account, 1e-3)))
            wanted = round(wanted * _STEPS) / _STEPS
        if wanted == 1.0 or abs(wanted - self.gain) > 0.05 * self.gain:
            if wanted != self.gain:
                self._restart()  # readings under another factor do not apply to this one
            self.gain = wanted
