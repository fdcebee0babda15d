"""What both control pages share: the version of the format, the most cards, and how a card is named."""

from __future__ import annotations

from typing import Final

ABI_MAJOR: Final = 1
ABI_MINOR: Final = 9
MAX_CARDS: Final = 16


class PageError(Exception):
    """The bytes are not a page that this version can read, or a value does not fit. The text says why."""


def uuid_bytes(text: str) -> bytes:
    """Convert ``GPU-<uuid>`` or ``MIG-<uuid>`` to the 16 bytes of cuDeviceGetUuid_v2. Raises PageError."""
    digits = text.removeprefix("GPU-").removeprefix("MIG-").replace("-", "")
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise PageError(f"{text!r} is no card UUID")
    return raw


def uuid_text(raw: bytes) -> str:
    """Convert the 16 bytes to ``GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx``."""
    digits = raw.hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
