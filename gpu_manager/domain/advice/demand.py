"""The observed demand of a template's containers for a card: a sketch of fixed size.

Core time: the *demand* is what a container would use without a limit. Let a program work for B seconds of an
interval of W, be held back by its limit for T with nothing of it on the card, and have work in flight for F.
Then it leaves the card alone for W - F - T seconds by its own choice; alone on a card and without a limit it
would work for B of every B + W - F - T seconds. Only time in which it works counts: a job that runs at night
needs its cores then.

Memory: the greatest amount held in each hour of the last day, and on each day of the last week. That is what
the program *took*, which for a caching allocator is not what it needs; :mod:`gpu_manager.domain.advice.size`
distinguishes the two where it can.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from gpu_manager.domain.resources import CORES_PER_CARD, MIB

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
HOURS: Final = 25  # a day, wherever in an hour it is now
DAYS: Final = 8  # a week, wherever in a day it is now
STRETCH_SECONDS: Final = 10.0  # demand is averaged over this time: shorter bursts wait only a moment
HALF_LIFE_SECONDS: Final = DAY  # an observation weighs half after a day: programs change
_REBASE: Final = 64.0  # half-lives after which weights are divided, so that they stay finite
_AGES: Final = 1000.0  # half-lives; older observations weigh nothing, since the clock may jump by decades
_MOST_MIB: Final = (1 << 32) - 1
_LATEST: Final = 1e11  # seconds since 1970; later times are invalid


@dataclass(frozen=True, slots=True)
class Need:
    """The figures of a sketch; bytes, hundredths of a card, seconds.

    Attributes:
        seconds: how long the containers were observed.
        starts: how many starts were observed.
        worked: seconds in which they used the card, older ones weighing less.
        cores: the demand that the requested part of that time stayed below; None if they never worked.
        hours: the greatest amount of memory in each observed hour of the last day, oldest first.
        days: the greatest amount of memory on each observed day of the last week, oldest first.
        refused: memory that would have been held with the last refused allocation; 0: none in the last day.
    """

    seconds: float
    starts: int
    worked: float
    cores: int | None
    hours: tuple[int, ...]
    days: tuple[int, ...]
    refused: int = 0


@dataclass(slots=True)
class Maxima:
    """The maximum in each of the last ``count`` windows of ``seconds``: a ring, in MiB."""

    seconds: float
    count: int
    _ring: array[int] = field(init=False)
    _window: int = 0

    def __post_init__(self) -> None:
        self._ring = array("I", bytes(4 * self.count))

    def see(self, size: int, now: float) -> None:
        """Record that ``size`` bytes are held ``now``."""
        self._turn(now)
        place = self._window % self.count
        self._ring[place] = max(self._ring[place], min(-(-max(size, 0) // MIB), _MOST_MIB))

    def since(self, first: float, now: float) -> tuple[int, ...]:
        """Bytes in each window since ``first``, oldest first; the last window is still open."""
        self._turn(now)
        watched = min(self.count, self._window - int(first // self.seconds) + 1)
        return tuple(
            self._ring[(self._window - back) % self.count] * MIB for back in range(watched - 1, -1, -1)
        )

    def encode(self) -> list[Any]:
        """The form for JSON."""
        return [self._window, self._ring.tolist()]

    def decode(self, row: Any) -> None:
        """Restore what :meth:`encode` returned. Raises ValueError, TypeError or OverflowError for anything
        else.
        """
        window, sizes = row
        ring = array("I", sizes)
        if len(ring) != self.count:
            raise ValueError(f"{len(ring)} windows, not {self.count}")
        self._window, self._ring = int(window), ring

    def _turn(self, now: float) -> None:
        """Empty the windows since the last record."""
        window = int(now // self.seconds)
        for passed in range(max(self._window, window - self.count) + 1, window + 1):
            self._ring[passed % self.count] = 0
        self._window = max(self._window, window)


@dataclass(slots=True)
class Demand:
    """The sketch. ``now`` is seconds since 1970; readings must come in the order of time."""

    first: float
    starts: int = 1
    half_life: float = HALF_LIFE_SECONDS
    _weights: array[float] = field(default_factory=lambda: array("f", bytes(4 * (CORES_PER_CARD + 1))))
    _base: float = 0.0  # when a second weighed 1
    _hours: Maxima = field(default_factory=lambda: Maxima(HOUR, HOURS))
    _days: Maxima = field(default_factory=lambda: Maxima(DAY, DAYS))
    _refused: int = 0
    _refused_at: float = 0.0

    def __post_init__(self) -> None:
        self._base = self._base or self.first

    def held(self, size: int, now: float) -> None:
        """Record that a container holds ``size`` bytes ``now``."""
        self._hours.see(size, now)
        self._days.see(size, now)

    def refused(self, size: int, now: float) -> None:
        """Record a refused allocation: with it, the container would have held ``size`` bytes."""
        self._refused, self._refused_at = size, now

    def worked(
        self, seconds: float, busy: float, held_back: float, now: float, in_flight: float | None = None
    ) -> None:
        """Record ``seconds`` of a working container up to ``now``: ``busy`` of them on the card,
        ``held_back`` with nothing on it because of its limit. ``in_flight``: seconds with something on the
        card, which neighbours stretch; equals ``busy`` if unknown.
        """
        idle = seconds - min(held_back, seconds) - (busy if in_flight is None else max(busy, in_flight))
        share = min(1.0, busy / (busy + idle)) if idle > 0 and busy > 0 else 1.0
        self._rebase(now)
        if busy > 0:
            self._weights[math.ceil(share * CORES_PER_CARD)] += seconds * self._weight(now)

    def need(self, now: float, percentile: float) -> Need:
        """The figures ``now``; ``percentile``: of the working time, 0 to 100."""
        self._rebase(now)
        total = sum(self._weights)
        return Need(
            seconds=max(0.0, now - self.first),
            starts=self.starts,
            worked=total / self._weight(now),
            cores=self._percentile(total * percentile / 100) if total > 0 else None,
            hours=self._hours.since(self.first, now),
            days=self._days.since(self.first, now),
            refused=self._refused if now - self._refused_at <= DAY else 0,
        )

    def encode(self) -> list[Any]:
        """The sketch in the form for JSON."""
        weights = [[at, round(weight, 3)] for at, weight in enumerate(self._weights) if weight > 0]
        scalars = [self.first, self.starts, self._base, self._refused, self._refused_at]
        return [*scalars, weights, self._hours.encode(), self._days.encode()]

    @classmethod
    def decode(cls, row: Any, half_life: float = HALF_LIFE_SECONDS) -> Demand:
        """Restore what :meth:`encode` returned. Raises ValueError for anything else."""
        try:
            first, starts, base, refused, refused_at, weights, hours, days = row
            made = cls(_time(first), int(starts), half_life, _base=_time(base))
            made._refused, made._refused_at = max(0, int(refused)), _time(refused_at)
            for cores, weight in weights:
                made._weights[_within(int(cores))] = _weight(weight)
            made._hours.decode(hours)
            made._days.decode(days)
        except (ValueError, TypeError, OverflowError, IndexError) as error:
            raise ValueError(f"this is no demand of a container: {error}") from error
        return made

    def _weight(self, now: float) -> float:
        """Weight of a second ``now``; at least 1, so that a clock set back makes nothing older."""
        return float(2 ** (max(0.0, now - self._base) / self.half_life))

    def _rebase(self, now: float) -> None:
        age = (now - self._base) / self.half_life
        if age > _REBASE:
            scale = 2 ** -min(age, _AGES)
            self._weights = array("f", (weight * scale for weight in self._weights))
            self._base = now

    def _percentile(self, below: float) -> int:
        return min(bisect_left(list(accumulate(self._weights)), below), CORES_PER_CARD)


def _time(value: Any) -> float:
    at = float(value)
    if not 0 <= at < _LATEST:
        raise ValueError(f"{at} is no time")
    return at


def _within(cores: int) -> int:
    if not 0 <= cores <= CORES_PER_CARD:
        raise ValueError(f"{cores} cores are not of one card")
    return cores


def _weight(value: Any) -> float:
    weight = float(value)
    if not 0 <= weight < math.inf:
        raise ValueError(f"{weight} is no weight")
    return weight


def pooled(needs: Sequence[Need]) -> Need:
    """The need of a template from those of its replicas (at least one): the greatest of each figure."""
    cores = [need.cores for need in needs if need.cores is not None]
    return Need(
        seconds=max(need.seconds for need in needs),
        starts=sum(need.starts for need in needs),
        worked=sum(need.worked for need in needs),
        cores=max(cores, default=None),
        hours=_greatest([need.hours for need in needs]),
        days=_greatest([need.days for need in needs]),
        refused=max(need.refused for need in needs),
    )


def _greatest(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    length = max(len(row) for row in rows)
    return tuple(map(max, zip(*((0,) * (length - len(row)) + row for row in rows), strict=True)))
