"""Pods beside other controllers: bound late, waited for by closed nodes, held, translated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from bench import pods_bound_late, pods_cases, pods_changes, pods_closed, pods_held
from bench.rows import Measure, Row, rows_of

PARTS: Final[Mapping[str, Measure]] = {
    "late": pods_bound_late.rows,
    "closed": pods_closed.rows,
    "held": pods_held.rows,
    "cases": pods_cases.rows,
    "changes": pods_changes.rows,
}


def rows(*, full: bool, only: str = "") -> Iterator[Row]:
    """All rows of the group, or those of one part."""
    return rows_of(PARTS, only, full=full)
