"""Time from the machine (implements :class:`gpu_manager.ports.clock.Clock`)."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import uuid4


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        return time.monotonic()


def boot_id(proc: Path = Path("/proc")) -> str:
    """The name of this boot of the node (``random/boot_id`` of proc(5)); a new one if it cannot be read."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return str(uuid4())
