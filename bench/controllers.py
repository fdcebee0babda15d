"""What is promised beside other controllers: gangs, and what autoscalers ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from bench import cluster, dry_run, gangs, placeholders
from bench.rows import Measure, Row, rows_of


def _joins(*, full: bool) -> Iterator[Row]:
    """Recorded on the real cluster."""
    del full
    yield cluster.startup_joins(cluster.recorded().get("joins"))


PARTS: Final[Mapping[str, Measure]] = {
    "gangs": gangs.rows,
    "dryrun": dry_run.rows,
    "placeholders": placeholders.rows,
    "joins": _joins,
}


def rows(*, full: bool, only: str = "") -> Iterator[Row]:
    """All rows of the group, or those of one part."""
    return rows_of(PARTS, only, full=full)
