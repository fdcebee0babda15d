"""The driver's count of a container's memory, compared with its account.

The library charges what programs request; the driver takes more, for contexts, code loaded late and other
driver libraries. The agent reports the driver's count beyond the account to the library, which adds it to the
usage.

A tenant can write the account, but not the driver's count. So the correction is never negative: an account
that is too high only reduces the container's own room, and one that is too low is corrected upwards.

The account can also be too high by itself: exported memory stays charged if the library cannot tell whether
another process holds it. The driver's count shows how much of it is gone: the excess.

Memory that one process exported and another imported is counted by the driver for both (observed on an H100,
driver 580) and once for the card. So the amount by which the processes' sum exceeds the card's figure is
counted more than once.
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
    """By how much the sum of a card's processes exceeds the card's own figure, over the last samples, in
    bytes.

    A tenant can write neither figure.
    """

    last: tuple[int, ...] = ()

    def seen(self, processes: int, used: int) -> CountedTwice:
        """Add a sample: bytes of all the card's processes, and bytes used on the card."""
        return CountedTwice((*self.last, max(0, processes - used))[-SAMPLES:])

    @property
    def now(self) -> int:
        """The last sample, in bytes: sufficient for not accusing a container."""
        return self.last[-1] if self.last else 0

    @property
    def bytes(self) -> int:
        """The minimum of the last samples, since the two figures are not read at the same instant."""
        return min(self.last) if len(self.last) == SAMPLES else 0


def divide_twice(twice: int, beyond: Mapping[Place, int]) -> dict[Place, int]:
    """Divide bytes that are counted more than once among containers: in proportion to each one's memory
    beyond its account, and never more than that.

    The driver does not tell which containers share them. A container that takes memory past its account is
    credited only if some memory is really shared, and with no more than that.
    """
    parts = {key: max(0, bytes_) for key, bytes_ in beyond.items()}
    whole = sum(parts.values())
    if whole <= twice:
        return parts
    return {key: twice * part // whole for key, part in parts.items()}


@dataclass(frozen=True, slots=True)
class Excess:
    """By how much a container's account exceeds the driver's count (``counted``), in bytes, in one sample.

    ``looked_ns`` (CLOCK_MONOTONIC) is before both were read: memory released later is not judged by it. This
    correction reduces the charge, so one sample is enough; if it was too large, later samples correct it.
    """

    bytes: int = 0
    looked_ns: int = 0
    counted: int = 0

    @classmethod
    def seen(cls, looked_ns: int, driver: int, account: int, movable: int) -> Excess:
        """Compute it from a sample. ``movable`` bytes of the account need not be on the card: managed
        memory.
        """
        beyond = account - movable - driver
        return cls(beyond, looked_ns, driver) if beyond > 0 else NO_EXCESS


NO_EXCESS: Final = Excess()
