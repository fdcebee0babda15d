"""What the control pages share: version, most cards, names of cards, checksum; and a card's gate."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final

# Encoder and decoder of a card's gate: the file that tells best-effort containers when to put no work on
# it.
# Only the host writes it. A new gate is open; the watcher (`vcuda/lib/watcher`) closes and opens it.


GATE_SIZE: Final = 4096
GATE_MAGIC: Final = b"VCUDAGAT"

_GATE: Final = struct.Struct("<8sQI4xQQQQ")


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate. Times are CLOCK_MONOTONIC in ns: closed until ``closed_until_ns`` (0 or past: open), last
    closed at ``closed_at_ns``, last opened at ``opened_at_ns``. ``openings`` and ``closings`` count;
    ``closed_ns`` is for how long it was closed, ever.
    """

    closed_until_ns: int
    openings: int
    closed_at_ns: int
    closings: int
    closed_ns: int
    opened_at_ns: int


def build_gate() -> bytes:
    """Return the content of a new gate, which is open."""
    return GATE_MAGIC.ljust(GATE_SIZE, b"\0")


def read_gate(image: bytes) -> Gate:
    """Decode a gate. Raises PageError if it is none."""
    if len(image) != GATE_SIZE:
        raise PageError(f"a gate has {GATE_SIZE} bytes, not {len(image)}")
    magic, until, openings, closed_at, closings, closed, opened_at = _GATE.unpack_from(image)
    if magic != GATE_MAGIC:
        raise PageError("the gate has no magic")
    return Gate(until, openings, closed_at, closings, closed, opened_at)


# The checksum of the control pages.


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


ABI_MAJOR: Final = 1
ABI_MINOR: Final = 11
MAX_CARDS: Final = 16


class PageError(Exception):
    """The bytes are not a page that this version can read, or a value does not fit. The text says why."""


_PLACED: Final = re.compile(r"MIG-(GPU-[0-9a-f-]{36})/([0-9]{1,3})/([0-9]{1,3})")
_BY_UUID, _BY_PLACE = 1, 2  # how an instance is named


def uuid_bytes(text: str) -> bytes:
    """Convert ``GPU-<uuid>`` or ``MIG-<uuid>`` to the 16 bytes of cuDeviceGetUuid_v2. Raises PageError.

    A MIG instance that is named by its place (``MIG-GPU-<uuid>/7/0``) has its parent's: drivers that name
    instances so know no other.
    """
    placed = _PLACED.fullmatch(text)
    digits = (placed[1] if placed else text).removeprefix("GPU-").removeprefix("MIG-").replace("-", "")
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise PageError(f"{text!r} is no card UUID")
    return raw


def instance_word(text: str) -> int:
    """Return what a page says beside the 16 bytes of a card's name: 0, or how it names a MIG instance."""
    if placed := _PLACED.fullmatch(text):
        return _BY_PLACE | int(placed[2]) << 8 | int(placed[3]) << 20
    return _BY_UUID if text.startswith("MIG-") else 0


def uuid_text(raw: bytes, instance: int = 0) -> str:
    """Convert the 16 bytes to ``GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx``, or to the name of an instance."""
    digits = raw.hex()
    uuid = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    if instance & 0xFF == _BY_PLACE:
        return f"MIG-GPU-{uuid}/{instance >> 8 & 0xFFF}/{instance >> 20}"
    return f"{'MIG' if instance else 'GPU'}-{uuid}"
