"""The checksum of the control pages."""

from __future__ import annotations

from typing import Final


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC_TABLE: Final = _crc_table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli, reflected 0x82F63B78, RFC 3720); E3069283 for ``123456789``."""
    table = _CRC_TABLE
    value = 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF
