"""Waiting for what happens elsewhere: without a fixed sleep, and without a measure of the machine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

# Seconds until a test gives up what never comes. No time that anything should take: a machine under load makes
# everything late, and a test that measures must model its clock.
PATIENCE: Final = 120.0


def until(holds: Callable[[], Any], *, every: float = 0.01) -> Any:
    """Wait for what another thread or process is about to do; returns what ``holds`` returned.

    Looks are counted, not the clock: a machine that does something else gives it more time.
    """
    tick = threading.Event()
    for _ in range(int(PATIENCE / every)):
        found = holds()
        if found:
            return found
        tick.wait(every)
    raise AssertionError("it did not come to pass")
