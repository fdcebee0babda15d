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
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.explain import is_protected, neighbours
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.runtime.inbound import counter_by_label, series_of

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
        text = "Time since the API server was last heard of about a resource"
        yield _by("resource", "vcuda_admission_snapshot_age_seconds", text, seen.ages())
        text = "Objects of the API server that could not be read and were passed over, by resource"
        yield counter_by_label("vcuda_admission_unreadable_objects", text, "resource", seen.unreadable())
        text = "GPU pods that run past the rules or the scheduler now, by reason"
        yield _by("reason", "vcuda_admission_bypassing_pods", text, seen.bypasses())
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
        text = "GPU pods that wait for something else than cards, by who holds them; told by the leader"
        yield _by("by", "vcuda_pods_held", text, {one.value: held.get(one.value, 0) for one in HeldBy})
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


def _kept(nodes: Iterable[NodeView]) -> Iterator[Metric]:
    left = [view.kept.left for view in nodes if view.kept is not None]
    text = "Nodes closed to smaller pods, kept for a pod of several cards that has waited for long"
    yield _gauge("kept_nodes", text, len(left))
    text = "Pods of the cluster that may leave their nodes before the kept node is open to smaller pods again"
    yield _gauge("kept_departures_left", text, max(left, default=0))


def _stranded(nodes: Iterable[NodeView]) -> Iterator[Metric]:
    text = "Room on the cards of a node that has no device ids left, since pods there shrank and keep theirs"
    old = "Deprecated, 100 x vcuda_admission_core_stranded_ratio; the next release leaves it out"
    room = {view.name: view.ids.stranded for view in nodes if view.ids is not None}
    cores = {name: one.cores for name, one in room.items()}
    parts = {name: one / CORES_PER_CARD for name, one in cores.items()}
    yield _by("node", "vcuda_admission_core_stranded_ratio", f"{text}, in cards", parts)
    yield _by("node", "vcuda_admission_stranded_cores", old, cores)
    memory = {name: one.memory for name, one in room.items()}
    yield _by("node", "vcuda_admission_stranded_memory_bytes", text, memory)


def _protected(nodes: Iterable[NodeView]) -> Iterator[Metric]:
    pods, without = Tally[str](), Tally[str]()
    for view in nodes:
        for namespace, uid, allocations, count in _protected_on(view) if view.ledger.prioritised else ():
            cards = [share.card for a in allocations for share in a.shares]
            pods[namespace] += count
            kept = view.node.gates and is_protected(neighbours(view.ledger, uid, cards))
            without[namespace] += 0 if kept else count
    text = "Pods of priority protected that are bound"
    yield _by("namespace", "vcuda_admission_protected_pods", text, dict(sorted(pods.items())))
    text = (
        "Pods of priority protected beside a normal or another protected tenant, from which nothing protects "
        "them, or on a node whose agent makes no tenant wait"
    )
    yield _by(
        "namespace", "vcuda_admission_unprotected_pods", text, {one: without[one] for one in sorted(pods)}
    )


def _protected_on(view: NodeView) -> Iterator[tuple[str, PodUid, Sequence[Allocation], int]]:
    """Namespace, UID and allocations of each pod or claim with protected shares, and how many pods it is."""
    for charge in view.charges.values():
        if charge.protected and charge.allocations:
            yield charge.pod.namespace, charge.pod.uid, charge.allocations, 1
    for held in view.held_claims.values():
        if within := [a for a in held.allocations if a.priority is Priority.PROTECTED]:
            yield held.claim.namespace, held.claim.uid, within, len(held.claim.pods)


def _amounts(part: str, words: str, lines: Sequence[tuple[str, QuotaLine]]) -> Iterator[Metric]:
    used, text = part == "used", f"is {words}, by the model that the quota names"
    figures: tuple[tuple[str, str, Callable[[QuotaLine], int | None], int], ...] = (
        ("cards", "the quota", lambda one: one.used.cores if used else one.cores, CORES_PER_CARD),
        ("memory_bytes", "the quota", lambda one: one.used.memory if used else one.memory, 1),
        (
            "protected_cards",
            "the right to protected shares",
            lambda one: one.protected_used if used and one.protected is not None else one.protected,
            CORES_PER_CARD,
        ),
    )
    for name, whose, read, unit in figures:
        found = (((namespace, line.key), read(line)) for namespace, line in lines)
        rows = ((labels, None if value is None else value / unit) for labels, value in found)
        family = f"vcuda_admission_quota_{name}_{part}"
        yield series_of(family, f"What of {whose} {text}", ("namespace", "model"), rows)


def _by(label: str, name: str, text: str, values: Mapping[str, float]) -> Metric:
    return series_of(name, text, (label,), (((key,), value) for key, value in values.items()))


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"vcuda_admission_{name}", text, value=value)
