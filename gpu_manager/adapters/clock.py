"""Time from the machine (implements :class:`gpu_manager.ports.Clock`)."""

from __future__ import annotations

import time


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        return time.monotonic()
