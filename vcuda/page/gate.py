"""Encoder and decoder of a card's gate: the file that tells best-effort containers when to put no work on it.

Only the host writes it. A new gate is open; the watcher (``vcuda/lib/watcher``) closes and opens it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from vcuda.page.layout import PageError

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
