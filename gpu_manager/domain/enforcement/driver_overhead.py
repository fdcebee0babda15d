"""What the driver counts of a container's memory against its account.

Beyond the account are contexts, code loaded late, other driver libraries.

The library charges what programs request; the driver takes more. The agent reports to the library what the
driver counts for the container's processes beyond the account, and the library adds it to the usage.

A tenant can write the account, but not the driver's count. So the correction is never negative: an account
that is too high only reduces the container's own room, and one that is too low is corrected upwards.

The account can also be too high by itself: memory that was exported stays charged where the library
cannot tell whether others hold it. How much of that is gone, the driver's count shows: the excess.

Memory that one process exported and another imported, the driver counts for both (seen on an H100, driver
580), and once for the card: by how much its processes exceed it is counted more than once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

Place = TypeVar("Place")

SAMPLES: Final = 3
"""Consecutive samples needed: driver and page are not read at the same instant, and the driver's count
lags behind allocations and frees. At 1 Hz a context counts after 3 s."""


@dataclass(frozen=True, slots=True)
class Unaccounted:
    """The uncharged memory of one container on one card over the last samples, in bytes."""

    last: tuple[int, ...] = ()

    def seen(self, driver: int, account: int, limit: int) -> Unaccounted:
        """Add a sample, capped at the limit: beyond it every request is refused anyway."""
        beyond = min(max(0, driver - max(0, account)), limit)
        return Unaccounted((*self.last, beyond)[-SAMPLES:])

    @property
    def bytes(self) -> int:
        """The minimum of the last samples, in bytes: it rises late and falls at once."""
        return min(self.last) if len(self.last) == SAMPLES else 0


@dataclass(frozen=True, slots=True)
class CountedTwice:
    """By how much a card's processes exceed what the card says is used, over the last samples, in bytes.

    A tenant can write neither figure.
    """

    last: tuple[int, ...] = ()

    def seen(self, processes: int, used: int) -> CountedTwice:
        """Add a sample: the bytes of all the card's processes, and those used of the card."""
        return CountedTwice((*self.last, max(0, processes - used))[-SAMPLES:])

    @property
    def now(self) -> int:
        """The last sample, in bytes: enough to accuse nobody."""
        return self.last[-1] if self.last else 0

    @property
    def bytes(self) -> int:
        """The minimum of the last samples: the two are not read at the same instant."""
        return min(self.last) if len(self.last) == SAMPLES else 0


def divide_twice(twice: int, beyond: Mapping[Place, int]) -> dict[Place, int]:
    """Whose it is that so many bytes are counted more than once: in proportion to what each has beyond its
    account, and never more than that.

    The driver does not say whose they are. A container that takes memory past its account gets a part of it
    only where others really share some, and no more than they share.
    """
    parts = {key: max(0, bytes_) for key, bytes_ in beyond.items()}
    whole = sum(parts.values())
    if whole <= twice:
        return parts
    return {key: twice * part // whole for key, part in parts.items()}


@dataclass(frozen=True, slots=True)
class Excess:
    """What a container's account holds beyond the driver's count (``counted``), in bytes, of one sample.

    ``looked_ns`` (CLOCK_MONOTONIC) lies before both were read: what is let go of later is not judged by it.
    As a correction it falls, so one sample is enough, and if it was too much the next ones correct upwards.
    """

    bytes: int = 0
    looked_ns: int = 0
    counted: int = 0

    @classmethod
    def seen(cls, looked_ns: int, driver: int, account: int, movable: int) -> Excess:
        """Of a sample. ``movable`` bytes of the account need not be on the card: managed memory."""
        beyond = account - movable - driver
        return cls(beyond, looked_ns, driver) if beyond > 0 else NO_EXCESS


NO_EXCESS: Final = Excess()
