"""No pauses: what the service keeps for long is taken out of the garbage collector's sight."""

from __future__ import annotations

import gc


def spare_pauses() -> None:
    """Call once the first lists are in, and every 10 seconds or so after.

    A million objects of 5,000 nodes cost a full collection 0.35 s, in which no call is answered. They hold
    no cycles: reference counting frees them when their time comes, seen by the collector or not.
    """
    gc.collect(1)
    gc.freeze()
