"""Structures of the driver API as a program lays them out in memory."""

from __future__ import annotations

import struct
from typing import Final

POSIX: Final = 1
"""``CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR``."""
FABRIC: Final = 8
"""``CU_MEM_HANDLE_TYPE_FABRIC``."""
PINNED, MANAGED = 1, 2
"""``CUmemAllocationType``."""


def block_props(device: int = 0, *, place: int = 1, handles: int = POSIX, allocation: int = PINNED) -> bytes:
    """``CUmemAllocationProp``. ``place`` is a ``CUmemLocationType``, ``handles`` how it can be exported."""
    return struct.pack("<iiiiQQ", allocation, handles, place, device, 0, 0)


def pool_props(device: int = 0, *, place: int = 1, handles: int = POSIX, allocation: int = PINNED) -> bytes:
    """``CUmemPoolProps``, which begins as ``CUmemAllocationProp`` does."""
    return block_props(device, place=place, handles=handles, allocation=allocation) + bytes(56)


def array_shape(width: int, height: int, form: int, channels: int) -> bytes:
    """``CUDA_ARRAY_DESCRIPTOR``."""
    return struct.pack("<QQiI", width, height, form, channels)


def array_3d_shape(width: int, height: int, depth: int, form: int, channels: int, flags: int = 0) -> bytes:
    """``CUDA_ARRAY3D_DESCRIPTOR``."""
    return struct.pack("<QQQiII", width, height, depth, form, channels, flags) + bytes(4)
