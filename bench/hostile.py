"""What hostile tenants and lost accounts reach. ``PART=rights``: the accounts on a real API server."""

from __future__ import annotations

from collections.abc import Iterator

from bench import hostile_rights
from bench.rows import Row

PARTS = ("rights",)


def rows(*, full: bool, only: str = "") -> Iterator[Row]:
    """All rows of the group, or those of one part."""
    if only in ("", "rights"):
        yield from hostile_rights.rows(full=full)
