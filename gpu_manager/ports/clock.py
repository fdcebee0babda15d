"""Time."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Time, so that tests own it."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that only go forward."""
