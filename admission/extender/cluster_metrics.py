"""Metrics of the extender: its own counters, and figures read from the cluster's state at each scrape."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from admission.cluster.node_view import NodeView
from admission.cluster.snapshot import ClusterState
from admission.quota.quota_book import QuotaBook
from gpu_manager.domain.cluster.pod_holder import HeldBy
from gpu_manager.domain.cluster.quota import QuotaLine
from gpu_manager.domain.placement.explain import is_protected, neighbours
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.runtime.inbound import counter_by_label

_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
VERBS: Final = ("filter", "prioritize", "bind", "preempt")
# Metric for each name that the extender counts.
_STEPS: Final = {
    "filtered": "filter",
    "preempted": "preempt",
    "binds": "bind",
    "bind_conflicts": "bind_conflict",
    "reservations": "reservation",
}


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """Figures read at each scrape. ``ages``: seconds since the last message of each resource's watch;
    ``unreadable``: number of its objects that could not be read; ``held``: number of pods by what holds them;
    ``placeholders``: number of pods that ask an autoscaler for cards.
    """

    cluster: ClusterState
    quota: QuotaBook
    leads: Callable[[], bool]
    ages: Callable[[], Mapping[str, float]]
    bypasses: Callable[[], Mapping[str, int]]
    unreadable: Callable[[], Mapping[str, int]] = dict
    held: Callable[[], Mapping[str, int]] = dict
    placeholders: Callable[[], int] = int


class ClusterMetrics:
    """Counters of the extender, in the program's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._steps = Counter(
            "vcuda_admission_scheduling",
            "What the scheduler extender decided, by step and result",
            ("step", "result"),
            registry=registry,
        )
        self._seconds = Histogram(
            "vcuda_admission_extender_duration_seconds",
            "Time to answer one call of a scheduler",
            ("verb",),
            buckets=_BUCKETS,
            registry=registry,
        )
        self._answers = Counter(
            "vcuda_admission_extender_responses",
            "Answers to schedulers by verb and HTTP status",
            ("verb", "code"),
            registry=registry,
        )
        self._bypasses = Counter(
            "vcuda_admission_bypasses",
            "GPU pods seen to get past the rules or the scheduler, by reason",
            ("reason",),
            registry=registry,
        )
        self._bad_quotas = Counter(
            "vcuda_admission_quota_rejections",
            "Contents of the quota ConfigMap that could not be used",
            registry=registry,
        )
        # Looking up a child costs more than counting does, and each pod is counted ten times.
        self._step = cache(lambda name, label: self._steps.labels(_STEPS.get(name, name), label))
        self._answer = cache(lambda verb, code: self._answers.labels(verb, str(code)))
        self._took = {verb: self._seconds.labels(verb) for verb in VERBS}

    def count(self, name: str, label: str) -> None:
        """Count one decision of the extender or the binder."""
        self._step(name, label).inc()

    def asked(self, verb: str, code: int, seconds: float) -> None:
        """Count one answered call."""
        self._answer(verb, code).inc()
        self._took[verb].observe(seconds)

    def bypassed(self, reason: str) -> None:
        """Count one pod that bypassed the extender."""
        self._bypasses.labels(reason).inc()

    def quota_rejected(self) -> None:
        """Count a change of the quota ConfigMap that cannot be used."""
        self._bad_quotas.inc()

    def show_writes_dropped(self, count: Callable[[], int]) -> None:
        """Export the number of dropped writes to the API server, read at each scrape."""
        self._registry.register(_Dropped(count))

    def show(self, seen: ClusterFigures) -> None:
        """Export these figures, read at each scrape."""
        self._registry.register(_Cluster(seen))


class _Dropped(Collector):
    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count

    def collect(self) -> Iterator[Metric]:
        text = "Events and annotations given up because too many waited for the API server"
        yield CounterMetricFamily("vcuda_admission_writes_dropped", text, value=self._count())


class _Cluster(Collector):
    def __init__(self, seen: ClusterFigures) -> None:
        self._seen = seen

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        seen = self._seen
        yield _gauge("leader", "1 on the replica that binds", float(seen.leads()))
        text = "Pods that ask an autoscaler for cards which the sums of nodes hide"
        yield _gauge("placeholders", text, float(seen.placeholders()))
        age = GaugeMetricFamily(
            "vcuda_admission_snapshot_age_seconds",
            "Time since the API server was last heard of about a resource",
            labels=("resource",),
        )
        for resource, seconds in seen.ages().items():
            age.add_metric((resource,), seconds)
        yield age
        text = "Objects of the API server that could not be read and were passed over, by resource"
        yield counter_by_label("vcuda_admission_unreadable_objects", text, "resource", seen.unreadable())
        bypassing = GaugeMetricFamily(
            "vcuda_admission_bypassing_pods",
            "GPU pods that run past the rules or the scheduler now, by reason",
            labels=("reason",),
        )
        for reason, count in seen.bypasses().items():
            bypassing.add_metric((reason,), count)
        yield bypassing
        if not seen.cluster.synced:
            return
        snapshot = seen.cluster.snapshot()
        yield _gauge("reservations", "Pods whose place is kept until they are bound", len(snapshot.reserved))
        held = seen.held()
        waiting = sum(not occupant.gates for occupant in seen.cluster.waiting())
        others = sum(count for holder, count in held.items() if holder != HeldBy.GATE.value)
        yield _gauge(
            "waiting_pods",
            "GPU pods that look for a node and that nothing else holds",
            max(0, waiting - others),
        )
        yield from _held(held)
        yield _gauge("nodes", "Nodes known here, with cards or without", len(snapshot.nodes))
        yield from _kept(snapshot.nodes.values())
        yield from _stranded(snapshot.nodes.values())
        yield from _protected(snapshot.nodes.values())
        quota = seen.quota.current
        if quota is None:
            return
        yield _gauge(
            "quota_in_force",
            "0 while the quota ConfigMap cannot be used and an older one holds",
            float(not seen.quota.complaint),
        )
        lines = list(quota.usage(snapshot.used, snapshot.protected))
        for part, words in (("used", "held, or being bound"), ("limit", "granted")):
            yield from _amounts(part, words, lines)


def _held(held: Mapping[str, int]) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "vcuda_pods_held",
        "GPU pods that wait for something else than cards, by who holds them; told by the leader",
        labels=("by",),
    )
    for holder in HeldBy:
        family.add_metric((holder.value,), held.get(holder.value, 0))
    yield family


def _kept(nodes: Iterable[NodeView]) -> Iterator[Metric]:
    left = [view.kept.left for view in nodes if view.kept is not None]
    text = "Nodes closed to smaller pods, kept for a pod of several cards that has waited for long"
    yield _gauge("kept_nodes", text, len(left))
    text = "Pods of the cluster that may leave their nodes before the kept node is open to smaller pods again"
    yield _gauge("kept_departures_left", text, max(left, default=0))


def _stranded(nodes: Iterable[NodeView]) -> Iterator[Metric]:
    text = "Room on the cards of a node that has no device ids left, since pods there shrank and keep theirs"
    parts = GaugeMetricFamily("vcuda_admission_core_stranded_ratio", f"{text}, in cards", labels=("node",))
    old = "Deprecated, 100 x vcuda_admission_core_stranded_ratio; the next release leaves it out"
    cores = GaugeMetricFamily("vcuda_admission_stranded_cores", old, labels=("node",))
    memory = GaugeMetricFamily("vcuda_admission_stranded_memory_bytes", text, labels=("node",))
    for view in nodes:
        if view.ids is not None:
            parts.add_metric((view.name,), view.ids.stranded.cores / CORES_PER_CARD)
            cores.add_metric((view.name,), view.ids.stranded.cores)
            memory.add_metric((view.name,), view.ids.stranded.memory)
    yield from (parts, cores, memory)


def _protected(nodes: Iterable[NodeView]) -> Iterator[Metric]:
    every = GaugeMetricFamily(
        "vcuda_admission_protected_pods", "Pods of priority protected that are bound", labels=("namespace",)
    )
    broken = GaugeMetricFamily(
        "vcuda_admission_unprotected_pods",
        "Pods of priority protected beside a normal or another protected tenant, from which nothing protects "
        "them, or on a node whose agent makes no tenant wait",
        labels=("namespace",),
    )
    pods, without = Tally[str](), Tally[str]()
    for view in nodes:
        for charge in view.charges.values() if view.ledger.prioritised else ():
            if charge.protected and charge.allocations:
                cards = [share.card for a in charge.allocations for share in a.shares]
                pods[charge.pod.namespace] += 1
                held = view.node.gates and is_protected(neighbours(view.ledger, charge.pod.uid, cards))
                without[charge.pod.namespace] += not held
        for claim in view.held_claims.values() if view.ledger.prioritised else ():
            within = [a for a in claim.allocations if a.priority is Priority.PROTECTED]
            if within:
                cards = [share.card for a in within for share in a.shares]
                beside = neighbours(view.ledger, claim.claim.uid, cards)
                pods[claim.claim.namespace] += len(claim.claim.pods)
                broken_here = not (view.node.gates and is_protected(beside))
                without[claim.claim.namespace] += len(claim.claim.pods) * broken_here
    for namespace, count in sorted(pods.items()):
        every.add_metric((namespace,), count)
        broken.add_metric((namespace,), without[namespace])
    yield every
    yield broken


def _amounts(part: str, words: str, lines: Sequence[tuple[str, QuotaLine]]) -> Iterator[Metric]:
    text = f"What of the quota is {words}, by the model that the quota names"
    labels = ("namespace", "model")
    cards = GaugeMetricFamily(f"vcuda_admission_quota_cards_{part}", text, labels=labels)
    memory = GaugeMetricFamily(f"vcuda_admission_quota_memory_bytes_{part}", text, labels=labels)
    protected = GaugeMetricFamily(
        f"vcuda_admission_quota_protected_cards_{part}",
        f"What of the right to protected shares is {words}, by the model that the quota names",
        labels=labels,
    )
    for namespace, line in lines:
        if part == "used":
            cards.add_metric((namespace, line.key), line.used.cores / CORES_PER_CARD)
            memory.add_metric((namespace, line.key), line.used.memory)
            if line.protected is not None:
                protected.add_metric((namespace, line.key), line.protected_used / CORES_PER_CARD)
            continue
        if line.cores is not None:
            cards.add_metric((namespace, line.key), line.cores / CORES_PER_CARD)
        if line.memory is not None:
            memory.add_metric((namespace, line.key), line.memory)
        if line.protected is not None:
            protected.add_metric((namespace, line.key), line.protected / CORES_PER_CARD)
    yield cards
    yield memory
    yield protected


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"vcuda_admission_{name}", text, value=value)
