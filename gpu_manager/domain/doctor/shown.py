"""What the API server showed, or :class:`Unseen` with its reason where it did not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from gpu_manager.domain.doctor.check import Unseen
from gpu_manager.domain.doctor.facts import ClusterFacts, DoctorNode, PodFacts

_SHOWN: Final = 10  # cases of one check that are named; the rest is counted

T = TypeVar("T")


def known(cluster: ClusterFacts, value: T | None, part: str) -> T:
    """The part. Raises Unseen with what the API server said."""
    if value is None:
        raise Unseen(cluster.refused.get(part, f"the API server did not show {part}"))
    return value


def nodes_of(cluster: ClusterFacts) -> Sequence[DoctorNode]:
    """All nodes. Raises Unseen."""
    return known(cluster, cluster.nodes, "nodes")


def pods_of(cluster: ClusterFacts) -> Sequence[PodFacts]:
    """All pods that ask for a share. Raises Unseen."""
    return known(cluster, cluster.pods, "pods")


def counted(count: int, what: str) -> str:
    """``1 card``, ``2 cards``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def bounded(lines: Sequence[str]) -> Iterator[str]:
    """The first of the cases; the rest is counted."""
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield f"and {len(lines) - _SHOWN} more like these"
