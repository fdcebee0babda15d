"""The metrics: the predecessor's four by their exact names, and ours beside them.

A collector pulled at scrape: families are built from the last sample and the books and then forgotten,
so no series outlives its subject. Absent is not zero: what is not known is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.ledger import Ledger
from gpu_manager.domain.resources import CORES_PER_CARD, MIB, Amount
from gpu_manager.services.allocator import Allocator
from gpu_manager.services.books import Grant
from gpu_manager.services.planner import Node
from gpu_manager.services.tally import BUCKETS, Tally
from gpu_manager.services.usage import Sample, ShareUse, Usage

CARD = ("uuid", "card")
CONTAINER = ("namespace", "pod", "container", "uuid", "card")
LEGACY = ("container_name", "namespace", "node", "pod_name")


@dataclass(frozen=True, slots=True)
class _View:
    node: Node
    booked: Mapping[CardUuid, Amount]
    fragmentation: float | None
    sample: Sample

    def index(self, uuid: CardUuid) -> str:
        state = self.node.card(uuid)
        return str(state.card.index) if state else ""


class Exporter(Collector):
    """Everything on ``/metric``."""

    def __init__(
        self, allocator: Allocator, usage: Usage, tally: Tally, version: str, *, legacy: bool = True
    ) -> None:
        self._allocator = allocator
        self._usage = usage
        self._tally = tally
        self._version = version
        self._legacy = legacy

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of the first scrape: names are fixed, values are not read twice."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Build every family from the last sample."""
        sample = self._usage.last
        view = self._allocator.read(
            lambda books, node: _View(
                node,
                {s.card.uuid: books.ledger.booked(s.card.uuid) for s in node.cards},
                fragmentation(books.ledger, node),
                sample,
            )
        )
        yield from _cards(view)
        yield from _containers(view)
        if self._legacy:
            yield from _legacy(view)
        yield from self._own(view)

    def _own(self, view: _View) -> Iterator[Metric]:
        build = InfoMetricFamily("vcuda_build", "The program that answers")
        build.add_metric((), {"version": self._version})
        yield build
        if view.fragmentation is not None:
            yield _gauge(
                "vcuda_node_fragmentation_ratio",
                "Free cores that lie on cards too full for a whole card",
                view.fragmentation,
            )
        age = max(0.0, time.monotonic() - view.sample.at)
        yield _gauge("vcuda_sample_age_seconds", "Age of the figures in this scrape", age)
        for name, label, text in _COUNTERS:
            yield self._counter(name, label, text)
        for name, timer, text in (
            ("vcuda_allocate_duration_seconds", "allocate", "Time to answer Allocate"),
            ("vcuda_preferred_duration_seconds", "preferred", "Time to answer GetPreferredAllocation"),
        ):
            family = HistogramMetricFamily(name, text, labels=("resource",))
            for resource, durations in self._tally.durations(timer).items():
                total, buckets = 0, []
                for edge, count in zip((*map(str, BUCKETS), "+Inf"), durations.counts, strict=True):
                    total += count
                    buckets.append((edge, total))
                family.add_metric((resource,), buckets, durations.total)
            yield family

    def _counter(self, name: str, label: str, text: str) -> CounterMetricFamily:
        family = CounterMetricFamily(f"vcuda_{name}", text, labels=(label,) if label else ())
        counts = self._tally.counts(name)
        for value, count in counts.items() if label else {"": sum(counts.values())}.items():
            family.add_metric((value,) if label else (), count)
        return family


# Tally name, label, help. The exported name is vcuda_<name>_total.
_COUNTERS = (
    ("allocations", "result", "Answers to Allocate: granted, refused, unidentified"),
    ("ids_off_card", "resource", "Grants whose ids are not of the decided card"),
    ("unidentified", "resource", "Calls whose pod could not be named with certainty"),
    ("double_offers", "resource", "Ids offered that another active pod holds"),
    ("annotation_yielded", "", "Grants on other cards than the annotation named"),
    ("association_corrected", "", "Grants whose container PreStartContainer corrected"),
    ("proof_refusals", "", "Starts refused because the card was wrong"),
    ("reclaimed", "", "Allocations given back"),
    ("evaders_named", "reason", "Times a container was named as getting round its limits"),
    ("registrations", "resource", "Registrations with the kubelet"),
    ("registration_failures", "", "Runs that ended without a registration"),
    ("recovery_disagreements", "source", "Sources that disagreed when the books were rebuilt"),
    ("scrape_errors", "source", "Readings that failed, by source"),
)


def fragmentation(ledger: Ledger, node: Node) -> float | None:
    """Free cores on partly used cards over all free cores; None when nothing is free."""
    free = {s.card.uuid: max(0, ledger.free(s.card.uuid).cores) for s in node.cards if s.open}
    total = sum(free.values())
    return sum(n for n in free.values() if n < CORES_PER_CARD) / total if total else None


def _cards(view: _View) -> Iterator[Metric]:
    info = GaugeMetricFamily("vcuda_card_info", "A card of this node", labels=(*CARD, "model", "numa", "mig"))
    families = {
        name: GaugeMetricFamily(f"vcuda_card_{name}", text, labels=CARD)
        for name, text in (
            ("healthy", "1 if the card may be used"),
            ("memory_total_bytes", "Memory that can be booked"),
            ("memory_used_bytes", "Memory in use, by the driver's count"),
            ("utilization_ratio", "Share of time in which the card was busy, by the driver's count"),
            ("memory_booked_bytes", "Memory promised to containers"),
            ("cores_booked_ratio", "Share of the card promised to containers"),
        )
    }
    for state in view.node.cards:
        card, labels = state.card, (state.card.uuid, str(state.card.index))
        numa = "" if card.numa is None else str(card.numa)
        info.add_metric((*labels, card.model, numa, str(card.mig).lower()), 1)
        use, booked = view.sample.cards.get(card.uuid), view.booked[card.uuid]
        for name, value in (
            ("healthy", float(state.healthy)),
            ("memory_total_bytes", card.capacity(view.node.unit).memory),
            ("memory_used_bytes", use.memory_used if use else None),
            ("utilization_ratio", use.utilisation / 100 if use and use.utilisation is not None else None),
            ("memory_booked_bytes", booked.memory),
            ("cores_booked_ratio", booked.cores / CORES_PER_CARD),
        ):
            if value is not None:
                families[name].add_metric(labels, value)
    yield info
    yield from families.values()


_CONTAINER_GAUGES = (
    ("core_limit_ratio", "Share of the card's time it may use"),
    ("core_ceiling_ratio", "Share it may reach while nobody else wants the card"),
    ("core_usage_ratio", "Share of the card's time it used in the last second"),
    ("core_delivered_ratio", "What it used over what it may use"),
    ("memory_limit_bytes", "Memory it may use"),
    ("memory_used_bytes", "Memory it uses"),
)


def _containers(view: _View) -> Iterator[Metric]:
    gauges = {
        name: GaugeMetricFamily(f"vcuda_container_{name}", text, labels=CONTAINER)
        for name, text in _CONTAINER_GAUGES
    }
    throttled = CounterMetricFamily(
        "vcuda_container_throttled_seconds", "Time it waited for its share", labels=CONTAINER
    )
    refusals = CounterMetricFamily("vcuda_container_memory_refusals", "Allocations refused", labels=CONTAINER)
    enforcement = GaugeMetricFamily(
        "vcuda_container_enforcement",
        "How its limits are held (1 for the state it is in)",
        labels=(*CONTAINER, "state"),
    )
    for use in view.sample.shares:
        grant = view.sample.grants[use.key]
        labels = (
            grant.allocation.namespace,
            grant.allocation.pod_name,
            grant.allocation.container,
            use.share.card,
            view.index(use.share.card),
        )
        limit = use.share.amount.cores / CORES_PER_CARD
        for name, value in (
            ("core_limit_ratio", limit),
            ("core_ceiling_ratio", max(grant.ceiling, use.share.amount.cores) / CORES_PER_CARD),
            ("core_usage_ratio", use.core),
            ("core_delivered_ratio", use.core / limit if use.core is not None and limit else None),
            ("memory_limit_bytes", use.share.amount.memory),
            ("memory_used_bytes", use.memory),
        ):
            if value is not None:
                gauges[name].add_metric(labels, value)
        if use.throttled is not None:
            throttled.add_metric(labels, use.throttled)
        if use.refusals is not None:
            refusals.add_metric(labels, use.refusals)
        enforcement.add_metric((*labels, use.enforcement), 1)
    yield from gauges.values()
    yield from (throttled, refusals, enforcement)


def _legacy(view: _View) -> Iterator[Metric]:
    """The predecessor's: MiB and percent, and one extra label whose name differs per metric."""
    memory = GaugeMetricFamily(
        "container_gpu_memory_total", "gpu memory usage in MiB", labels=(LEGACY[0], "gpu_memory", *LEGACY[1:])
    )
    core = GaugeMetricFamily(
        "container_gpu_utilization", "gpu utilization in percent", labels=(LEGACY[0], "gpu", *LEGACY[1:])
    )
    asked_memory = GaugeMetricFamily(
        "container_request_gpu_memory", "requested gpu memory in MiB", labels=(*LEGACY, "req_of_gpu_memory")
    )
    asked_core = GaugeMetricFamily(
        "container_request_gpu_utilization",
        "requested gpu utilization in cards",
        labels=(*LEGACY, "req_of_gpu"),
    )
    uses: dict[object, list[ShareUse]] = {}
    for use in view.sample.shares:
        uses.setdefault(use.key, []).append(use)
    for key, grant in view.sample.grants.items():
        name, rest = grant.allocation.container, _rest(view, grant)
        shares = grant.allocation.shares
        asked_memory.add_metric((name, *rest, "total"), sum(s.amount.memory for s in shares) / MIB)
        asked_core.add_metric((name, *rest, "total"), sum(s.amount.cores for s in shares) / CORES_PER_CARD)
        for family, values in (
            (memory, [(u, u.memory / MIB) for u in uses.get(key, ()) if u.memory is not None]),
            (core, [(u, u.core * 100) for u in uses.get(key, ()) if u.core is not None]),
        ):
            for use, value in values:
                family.add_metric((name, f"gpu{view.index(use.share.card)}", *rest), value)
            if values:
                family.add_metric((name, "total", *rest), sum(value for _, value in values))
    yield from (memory, core, asked_memory, asked_core)


def _rest(view: _View, grant: Grant) -> tuple[str, str, str]:
    return grant.allocation.namespace, view.node.name, grant.allocation.pod_name


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def states(cards: Iterable[CardState]) -> dict[str, int]:
    """How many cards are open, closed, sick: for the readiness answer."""
    counted = {"open": 0, "cordoned": 0, "unhealthy": 0, "mig": 0}
    for state in cards:
        kind = (
            "mig"
            if state.card.mig
            else "unhealthy"
            if not state.healthy
            else "cordoned"
            if state.cordoned
            else "open"
        )
        counted[kind] += 1
    return counted
