"""What both control pages share: the version of the format, the most cards, and how a card is named."""

from __future__ import annotations

import re
from typing import Final

ABI_MAJOR: Final = 1
ABI_MINOR: Final = 9
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
