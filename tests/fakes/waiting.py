"""Waiting for what happens elsewhere, with a deadline and without a fixed sleep."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_TICK_SECONDS = 0.01


def until(holds: Callable[[], Any], seconds: float = 15.0) -> Any:
    """Wait for what another thread or process is about to do; returns what ``holds`` returned.

    Looks are counted, not the clock: a machine that does something else gives it more time.
    """
    tick = threading.Event()
    for _ in range(int(seconds / _TICK_SECONDS)):
        found = holds()
        if found:
            return found
        tick.wait(_TICK_SECONDS)
    raise AssertionError("it did not come to pass")
