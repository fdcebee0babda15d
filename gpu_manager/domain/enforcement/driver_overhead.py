"""Memory that a container holds beside its account: contexts, code loaded late, other driver libraries.

The library charges what it is asked for; the driver takes more. What the driver counts for the container's
processes beyond the account is the container's too: it is told to the library, which adds it to what is used.

Pure. The driver's count cannot be written by a tenant, the account can. So the correction is never below
nothing: a page that owns up to more than there is makes its container's room smaller, never larger, and one
that owns up to less is corrected upwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SAMPLES: Final = 3
"""Samples in a row that must show it: driver and page are not read at the same instant, and the driver's
count lags behind what is taken and given back. At 1 Hz a context counts after 3 s."""


@dataclass(frozen=True, slots=True)
class Unaccounted:
    """One container on one card, over the last samples. Bytes."""

    last: tuple[int, ...] = ()

    def seen(self, driver: int, account: int, limit: int) -> Unaccounted:
        """One sample more. Past the limit nothing more can be refused than everything."""
        beyond = min(max(0, driver - max(0, account)), limit)
        return Unaccounted((*self.last, beyond)[-SAMPLES:])

    @property
    def bytes(self) -> int:
        """What was there in every one of the last samples: it rises late and falls at once."""
        return min(self.last) if len(self.last) == SAMPLES else 0
