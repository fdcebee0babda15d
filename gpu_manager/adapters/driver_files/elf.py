"""Reads the machine type and the SONAME of a shared object.

Just enough of ELF (System V ABI, chapters 4 and 5) for 64-bit little-endian objects; anything else is
"not one of ours", never an error, since driver directories hold 32-bit twins, scripts and text.
"""

from __future__ import annotations

import os
import platform
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_DYNAMIC: Final = struct.Struct("<qQ")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SONAME = 0, 5, 14
_MAX_SEGMENTS: Final = 128
_MAX_DYNAMIC: Final = 1 << 16
_MAX_NAME: Final = 256

MACHINES: Final = {"x86_64": 62, "aarch64": 183}
MULTIARCH: Final = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}


@dataclass(frozen=True, slots=True)
class Elf:
    """A 64-bit shared object. ``machine`` is ELF's e_machine; ``soname`` is empty if it has none."""

    machine: int
    soname: str


def native_machine() -> int:
    """This machine's e_machine; 0 on one that has no driver."""
    return MACHINES.get(platform.machine(), 0)


def multiarch() -> str:
    """The directory under /usr/lib that Debian's loader trusts on this machine."""
    return MULTIARCH.get(platform.machine(), "x86_64-linux-gnu")


def read_elf(path: Path) -> Elf | None:
    """The file's ELF facts; None if it is not a 64-bit shared object or cannot be read."""
    try:
        with path.open("rb") as file:
            return _read(file)
    except (OSError, struct.error, ValueError, OverflowError):
        return None


def _read(file: BinaryIO) -> Elf | None:
    head = file.read(_HEADER.size)
    ident, kind, machine, _, _, table, _, _, _, entry_size, entries, _, _, _ = _HEADER.unpack(head)
    is_shared_object = ident[:6] == b"\x7fELF\x02\x01" and kind == 3
    if not is_shared_object or entry_size != _SEGMENT.size or entries > _MAX_SEGMENTS:
        return None
    file.seek(table)
    segments = list(_SEGMENT.iter_unpack(file.read(entries * _SEGMENT.size)))
    loads = [
        (address, offset, size) for kind, _, offset, address, _, size, _, _ in segments if kind == _PT_LOAD
    ]
    for kind, _, offset, _, _, size, _, _ in segments:
        if kind == _PT_DYNAMIC:
            return Elf(machine, _soname(file, offset, min(size, _MAX_DYNAMIC), loads))
    return None


def _soname(file: BinaryIO, offset: int, size: int, loads: list[tuple[int, int, int]]) -> str:
    file.seek(offset)
    content = file.read(size - size % _DYNAMIC.size)
    tags: dict[int, int] = {}
    for tag, value in _DYNAMIC.iter_unpack(content):
        if tag == _DT_NULL:
            break
        tags.setdefault(tag, value)
    if _DT_SONAME not in tags or _DT_STRTAB not in tags:
        return ""
    strings = tags[_DT_STRTAB]
    for address, start, length in loads:
        if address <= strings < address + length:
            file.seek(start + strings - address + tags[_DT_SONAME], os.SEEK_SET)
            return file.read(_MAX_NAME).split(b"\0", 1)[0].decode("ascii")
    return ""
