"""What the driver counts of a container's memory against its account.

Beyond the account are contexts, code loaded late, other driver libraries.

The library charges what programs request; the driver takes more. The agent reports to the library what the
driver counts for the container's processes beyond the account, and the library adds it to the usage.

A tenant can write the account, but not the driver's count. So the correction is never negative: an account
that is too high only reduces the container's own room, and one that is too low is corrected upwards.

The account can also be too high by itself: memory that was exported stays charged where the library
cannot tell whether others hold it. How much of that is gone, the driver's count shows: the excess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
