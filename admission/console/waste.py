"""Who booked cores of the last hour and did not use them: the console's list of wasters.

By Prometheus the sums are those of the bills (``vcuda_pod_core_*_seconds_total``), the same as on
``/metric``; without one, what the agents said in the last minutes, each share of a card against what the
books hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from admission.cluster.snapshot import Snapshot
from admission.console.promql import Row, quoted
from gpu_manager.domain.cluster.usage_history import ShareKey, ShareSum

SHOWN: Final = 20  # pods, the one that wasted most first
_FIGURES: Final = ("core_wasted_seconds", "core_used_seconds", "core_seconds")


class PodWaste(NamedTuple):
    """Cores (100 a card) times seconds of one pod; None where it is not known."""

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


def held_shares(snapshot: Snapshot) -> Iterator[HeldShare]:
    """Everything that containers hold now, by the books; an init container that has ended uses nothing
    more.
    """
    for view in snapshot.nodes.values():
        for one in view.ledger:
            bound = view.bound.get(one.pod)
            if bound is None or one.container in bound.pod.ended_inits:
                continue
            for share in one.shares:
                key = (one.pod, one.container, share.card)
                yield HeldShare(one.namespace, one.pod_name, key, share.amount.cores)


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


def waste_promql(namespace: str, seconds: int) -> tuple[str, ...]:
    """Wasted, used and booked by pod, of the pods that wasted most. ``namespace``: the only one, empty for
    all.
    """
    selector = f"{{namespace={quoted(namespace)}}}" if namespace else ""
    sums = [
        f"sum by (namespace, pod) (increase(vcuda_pod_{figure}_total{selector}[{seconds}s]))"
        for figure in _FIGURES
    ]
    most = f"topk({SHOWN}, {sums[0]})"
    return (most, *(f"{one} and on (namespace, pod) {most}" for one in sums[1:]))


def waste_of_rows(answers: Sequence[Sequence[Row]]) -> list[PodWaste]:
    """The answers to :func:`waste_promql`, asked for one moment."""
    wasted, used, booked = (
        {
            (labels.get("namespace", ""), labels.get("pod", "")): value
            for labels, values in answer
            for value in values.values()
        }
        for answer in answers
    )
    return [PodWaste(*name, value, used.get(name), booked.get(name)) for name, value in wasted.items()]


def waste_json(pods: Iterable[PodWaste], seconds: int, source: str) -> dict[str, Any]:
    """What ``/ui/waste`` answers, the pod that wasted most first; who wasted nothing is not in it."""
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
