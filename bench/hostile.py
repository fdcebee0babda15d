"""What hostile tenants and lost accounts reach. ``PART=rights``: the accounts on a real API server;
``files``, ``sampling`` and ``tokens``: a container's root on its node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from bench import hostile_files, hostile_rights
from bench.rows import Measure, Row, rows_of

PARTS: Final[Mapping[str, Measure]] = {
    "rights": hostile_rights.rows,
    "files": hostile_files.file_rows,
    "sampling": hostile_files.sampling_rows,
    "tokens": hostile_files.token_rows,
}


def rows(*, full: bool, only: str = "") -> Iterator[Row]:
    """All rows of the group, or those of one part."""
    return rows_of(PARTS, only, full=full)
