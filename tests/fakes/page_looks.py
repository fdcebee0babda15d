"""A page whose slots a container has marked live, and what the agent asks of a contended card's page in a second."""

from __future__ import annotations

import struct
import time
from pathlib import Path

from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.domain.errors import Tampered
from tests.fakes.pages import CARD, put
from vcuda.page.usage import MAX_SLOTS, SLOT_SIZE, USAGE_HEAD_SIZE


class ModelledClock:
    """Nanoseconds; a second passes when the caller says so."""

    def __init__(self) -> None:
        self.now = 10**9

    def __call__(self) -> int:
        return self.now


def fill_slots(page: Path) -> None:
    """All of them live, with work in flight."""
    slot = struct.pack("<IIQQQQ24x16I16Q", 1, 7, 0, 0, 0, 0, *([1] * 16), *([0] * 16))
    put(page, USAGE_HEAD_SIZE, slot * MAX_SLOTS)
    put(page, 32, struct.pack("<I", MAX_SLOTS))
    assert len(slot) == SLOT_SIZE


def second_of_looks(pages: FileControlPages, clock: ModelledClock, name: str) -> tuple[float, int]:
    """What the agent does with a container of a contended card in a second: (processor seconds, refused)."""
    began, refused = time.thread_time(), 0
    for look in range(40):
        clock.now += 25_000_000
        try:
            pages.unchanged((name,))
            pages.activity(name)
            pages.last_busy_ns([(name, CARD)])
            if look % 4 == 0:
                pages.timeline(name, CARD, 0, 100)
            if look % 40 == 0:
                pages.usage(name)
                pages.registered(name)
        except Tampered:
            refused += 1
    return time.thread_time() - began, refused
