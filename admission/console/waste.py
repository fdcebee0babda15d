"""Who booked cores of the last hour and did not use them: the console's list of wasters.

By Prometheus the sums are those of the bills (``vcuda_pod_core_*_seconds_total``), the same as on
``/metric``; without one, what the agents said in the last minutes, each share of a card against what the
books hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from admission.cluster.snapshot import Snapshot
from admission.console.promql import Row, quoted
from gpu_manager.domain.cluster.waste import SHOWN, HeldShare, PodWaste

_FIGURES: Final = ("core_wasted_seconds", "core_used_seconds", "core_seconds")


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
