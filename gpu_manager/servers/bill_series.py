"""The families of the bills on ``/metric``: counters by namespace and by pod, with when each began.

A pod's are told for some minutes after its end, so that the shortest job is on some scrape; a namespace's for
months, so that no job is missed by who looks seldom.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpu_manager.domain.billing import FIGURES, Bills, booked_peak
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.servers.series import View

# A figure of domain.billing → what it is, with a gap for whose.
_HELP = {
    "core_seconds": "Cores (100 a card) times seconds that {} was booked with, at the peak over its phases",
    "core_used_seconds": "Cores times seconds that {} used, where it is measured",
    "core_wasted_seconds": "Cores times seconds that {} held and did not use, where it is measured",
    "memory_byte_seconds": "Bytes times seconds that {} was booked with, at the peak over its phases",
    "memory_used_byte_seconds": "Bytes times seconds that {} used, where it is measured",
    "memory_wasted_byte_seconds": "Bytes times seconds that {} held and did not use, where it is measured",
}
NAMESPACE = ("namespace", "node")
POD = ("namespace", "pod", "uid")


def bills(told: Bills, node: str) -> Iterator[Metric]:
    """A series each for every namespace and pod; ``_created`` beside it says since when it counts."""
    for figure in FIGURES:
        by_namespace = CounterMetricFamily(
            f"vcuda_namespace_{figure}", _HELP[figure].format("a namespace"), labels=NAMESPACE
        )
        by_pod = CounterMetricFamily(f"vcuda_pod_{figure}", _HELP[figure].format("a pod"), labels=POD)
        for name, sums in told.namespaces.items():
            by_namespace.add_metric((name, node), getattr(sums, figure), created=sums.since)
        for uid, pod in told.pods.items():
            whose, value = (pod.namespace, pod.pod, uid), getattr(pod.sums, figure)
            by_pod.add_metric(whose, value, created=pod.sums.since)
        yield by_namespace
        yield by_pod


def booked(view: View) -> Iterator[Metric]:
    """What each pod is booked with now, over all its cards: the peak over its phases."""
    cores = GaugeMetricFamily(
        "vcuda_pod_core_booked_ratio", "Cards' worth of time that the pod is booked with", labels=POD
    )
    memory = GaugeMetricFamily(
        "vcuda_pod_memory_booked_bytes", "Card memory that the pod is booked with", labels=POD
    )
    for held in view.by_pod():
        amount, first = booked_peak(held), held[0]
        whose = (first.namespace, first.pod_name, first.pod)
        cores.add_metric(whose, amount.cores / CORES_PER_CARD)
        memory.add_metric(whose, amount.memory)
    yield cores
    yield memory
