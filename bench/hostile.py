"""What hostile tenants and lost accounts reach. ``PART=rights``: the accounts on a real API server;
``files``, ``sampling`` and ``tokens``: a container's root on its node.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench import hostile_files, hostile_rights
from bench.rows import Row

PARTS = ("rights", "files", "sampling", "tokens")


def rows(*, full: bool, only: str = "") -> Iterator[Row]:
    """All rows of the group, or those of one part."""
    if only in ("", "rights"):
        yield from hostile_rights.rows(full=full)
    if only in ("", "files"):
        yield from hostile_files.file_rows(full=full)
    if only in ("", "sampling"):
        yield from hostile_files.sampling_rows(full=full)
    if only in ("", "tokens"):
        yield from hostile_files.token_rows(full=full)
