"""Avoids pauses: long-lived objects are hidden from the garbage collector."""

from __future__ import annotations

import gc
from typing import Final

_YOUNG: Final = 5_000  # new objects before they are looked at: most of a call's are gone by then
_NEVER: Final = 1 << 30  # collections of the middle generation before the oldest is collected too


def spare_pauses() -> None:
    """Freeze long-lived objects. Call once the first lists are read, and every 10 seconds or so after.

    A million objects of 5,000 nodes cost a full collection 0.35 s, in which no call is answered; objects
    created since the last call cost 25 ms. They hold no cycles, so reference counting frees them whether the
    collector knows them or not. So the collector examines only young objects.
    """
    gc.set_threshold(_YOUNG, gc.get_threshold()[1], _NEVER)
    gc.collect(1)
    gc.freeze()
