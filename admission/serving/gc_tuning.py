"""No pauses: what the service keeps for long is taken out of the garbage collector's sight."""

from __future__ import annotations

import gc
from typing import Final

_YOUNG: Final = 5_000  # new objects before they are looked at: most of a call's are gone by then
_NEVER: Final = 1 << 30  # collections of the middle generation before the oldest is collected too


def spare_pauses() -> None:
    """Call once the first lists are in, and every 10 seconds or so after.

    A million objects of 5,000 nodes cost a full collection 0.35 s, in which no call is answered; what came
    in since the last call alone costs 25 ms. They hold no cycles: reference counting frees them when their
    time comes, seen by the collector or not. So the collector looks at the young objects alone.
    """
    gc.set_threshold(_YOUNG, gc.get_threshold()[1], _NEVER)
    gc.collect(1)
    gc.freeze()
