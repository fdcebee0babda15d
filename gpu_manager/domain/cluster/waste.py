"""Booked but unused cores: sums by pod, and the console's list of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from gpu_manager.domain.cluster.usage_history import ShareKey, ShareSum

SHOWN: Final = 20  # pods, the most wasteful first


class PodWaste(NamedTuple):
    """Cores (100 a card) times seconds of one pod; None if unknown."""

    namespace: str
    pod: str
    wasted: float
    used: float | None
    booked: float | None


class HeldShare(NamedTuple):
    """What a container of a pod holds of one card, in hundredths of it."""

    namespace: str
    pod: str
    key: ShareKey
    cores: int


def waste_of_shares(held: Iterable[HeldShare], used: Mapping[ShareKey, ShareSum]) -> list[PodWaste]:
    """Each pod's booked and used cores, for the time in which use is known."""
    found: dict[tuple[str, str], PodWaste] = {}
    for share in held:
        if (use := used.get(share.key)) is None:
            continue
        name = (share.namespace, share.pod)
        booked, spent = share.cores * use.seconds, use.core_seconds
        before = found.get(name, PodWaste(*name, 0.0, 0.0, 0.0))
        found[name] = PodWaste(
            *name,
            before.wasted + max(0.0, booked - spent),
            (before.used or 0.0) + spent,
            (before.booked or 0.0) + booked,
        )
    return list(found.values())


def waste_json(pods: Iterable[PodWaste], seconds: int, source: str) -> dict[str, Any]:
    """The answer of ``/ui/waste``, the most wasteful pod first; pods without waste are omitted."""
    rows = sorted((one for one in pods if one.wasted >= 1), key=lambda one: (-one.wasted, *one[:2]))
    return {
        "source": source,
        "seconds": seconds,
        "left_out": max(0, len(rows) - SHOWN),
        "pods": [
            {name: round(v, 1) if isinstance(v, float) else v for name, v in one._asdict().items()}
            for one in rows[:SHOWN]
        ],
    }
