"""Pods beside other controllers: bound late, waited for by closed nodes, held by something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bench import pods_bound_late, pods_closed, pods_held
from bench.rows import Row

PARTS: Final = ("late", "closed", "held")


def rows(*, full: bool, only: str = "") -> Iterator[Row]:
    """The rows; ``only`` one part of them."""
    if only in ("", "late"):
        yield from pods_bound_late.rows(full=full)
    if only in ("", "closed"):
        yield from pods_closed.rows(full=full)
    if only in ("", "held"):
        yield from pods_held.rows(full=full)
