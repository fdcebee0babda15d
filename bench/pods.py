"""Pods beside other controllers: places of pods that are bound late, and nodes closed for pods that wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bench import pods_bound_late, pods_closed
from bench.rows import Row

PARTS: Final = ("late", "closed")


def rows(*, full: bool, only: str = "") -> Iterator[Row]:
    """The rows; ``only`` one part of them."""
    if only in ("", "late"):
        yield from pods_bound_late.rows(full=full)
    if only in ("", "closed"):
        yield from pods_closed.rows(full=full)
