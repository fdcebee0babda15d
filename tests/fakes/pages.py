"""Control pages as tests look at them, and a process that registers in one as the library does."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.resources import GIB
from gpu_manager.ports.control_pages import Limit
from vcuda.page.limits import Limits, read_limits
from vcuda.page.usage import SLOT_SIZE, USAGE_HEAD_SIZE

NAME = "0123456789abcdef" * 2
CARD = CardUuid("GPU-5fd4f087-86f3-7a43-b711-4771313afc50")
LIMIT = Limit(CARD, 5 * GIB, 30, 30)

_FLOCK = struct.Struct("hhqqi4x")


def usage_file(root: Path, name: str = NAME) -> Path:
    return root / name / "usage"


def limits_of(root: Path, name: str = NAME) -> Limits:
    return read_limits((root / name / "limits").read_bytes())


def put(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as page:
        page.seek(offset)
        page.write(data)


def register(path: Path, index: int, charged: int = 0, pid: int = 7) -> int:
    """Register a process as the library does: lock byte ``index``, then fill the slot. Returns the lock."""
    handle = os.open(path, os.O_RDWR)
    fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, index, 1, 0))
    slot = struct.pack("<IIQQQQ24x16I16Q", 1, pid, 0, 0, 0, 0, *([0] * 16), charged, *([0] * 15))
    os.pwrite(handle, slot, USAGE_HEAD_SIZE + index * SLOT_SIZE)
    os.pwrite(handle, struct.pack("<I", index + 1), 32)  # slot_high
    return handle
