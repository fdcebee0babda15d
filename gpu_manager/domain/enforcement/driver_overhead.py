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

How wrong a container's account of a card's time may be is half the width of an interval around it. The
library measures some launches by themselves and charges the others the mean of their kind (ADR 14), so the
account has a variance, which its page publishes. Errors that sampling does not show are added, as observed on
the modelled card with an H100's costs (bench/limits_core.py). In 95 of 100 cases the true use must lie in the
interval. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
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


CERTAIN: Final = 2.0
"""Standard deviations: 95 of 100 sums of many launches lie within them."""
LAUNCH_SECONDS: Final = 0.2e-6
"""What the pause between two kernels and the clock leave open of each launch."""
STARTS: Final = 0.005
"""What starts that are told by clocks leave open, as a part of the account, ..."""
SOME: Final = 0.004
"""... and as a share of the card, where anything ran: what waits for a function of the host, for a stream."""
TURNS: Final = 0.01
"""As a part of the account: so much is charged of what the card takes to turn from one process of a busy
container to another, and of what its short kernels wait for one another."""
BUSY: Final = 0.75
"""Share of a card from which several processes of a container seldom leave it a pause between two turns."""
BESIDE: Final = 0.02
"""Share of a card: beside another container a kernel's wait for its turn is told from its work by length."""


def account_error(
    account: float, variance: float, launches: float, *, processes: int = 1, shared: bool = False
) -> float:
    """Half the width of the interval, as a share of the card.

    ``account`` is the account over some time as a share of the card, ``variance`` its variance over that time
    (a share, squared), ``launches`` the launches per second. ``processes``: the number of the container's
    processes; ``shared``: other containers used the card too.
    """
    if account <= 0:
        return 0.0
    turns = TURNS * account if processes > 1 and account > BUSY else 0.0
    unseen = SOME + STARTS * account + launches * LAUNCH_SECONDS + turns + (BESIDE if shared else 0.0)
    return min(1.0, CERTAIN * sqrt(max(0.0, variance)) + unseen)
