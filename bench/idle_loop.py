"""The least that a Python program must do to know who uses what: read the pages, ask the cards, each second.

Run as a program with the pages' directory and the profile of the cards; it prints a line once it goes round.
What the agent takes at rest is compared with what this takes beside it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from gpu_manager.adapters.simulated import SimulatedCards
from vcuda.page.usage import SLOT_SIZE, USAGE_HEAD_SIZE, read_usage

_READ = USAGE_HEAD_SIZE + SLOT_SIZE  # the head, and the slot of the one process


def main(pages: Path, profile: str) -> None:
    """Go round once a second until the process is ended."""
    cards = SimulatedCards.named(profile)
    handles = [os.open(path, os.O_RDONLY) for path in sorted(pages.glob("*/usage"))]
    print(len(handles), flush=True)
    while True:
        for handle in handles:
            read_usage(os.pread(handle, _READ, 0), 1)
        cards.usage()
        time.sleep(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
