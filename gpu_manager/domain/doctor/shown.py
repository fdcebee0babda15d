"""Access to the parts of the cluster's facts; :class:`Unseen` with the reason if a part is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from gpu_manager.domain.doctor.check import Unseen
from gpu_manager.domain.doctor.facts import ClusterFacts, DoctorNode, PodFacts

_SHOWN: Final = 10  # cases of one check that are named; the rest is counted

T = TypeVar("T")


def known(cluster: ClusterFacts, value: T | None, part: str) -> T:
    """Return the part. Raises Unseen with the API server's reason if it is None."""
    if value is None:
        raise Unseen(cluster.refused.get(part, f"the API server did not show {part}"))
    return value


def nodes_of(cluster: ClusterFacts) -> Sequence[DoctorNode]:
    """Return all nodes. Raises Unseen if they are unknown."""
    return known(cluster, cluster.nodes, "nodes")


def pods_of(cluster: ClusterFacts) -> Sequence[PodFacts]:
    """Return all pods that request a share. Raises Unseen if they are unknown."""
    return known(cluster, cluster.pods, "pods")


def counted(count: int, what: str) -> str:
    """Format a count with its noun: ``1 card``, ``2 cards``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def bounded(lines: Sequence[str]) -> Iterator[str]:
    """Yield the first cases, then the number of the others."""
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield f"and {len(lines) - _SHOWN} more like these"
