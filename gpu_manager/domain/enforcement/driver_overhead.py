"""Memory that a container holds beyond its account: contexts, code loaded late, other driver libraries.

The library charges what programs request; the driver takes more. The agent reports to the library what the
driver counts for the container's processes beyond the account, and the library adds it to the usage.

A tenant can write the account, but not the driver's count. So the correction is never negative: an account
that is too high only reduces the container's own room, and one that is too low is corrected upwards.
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
