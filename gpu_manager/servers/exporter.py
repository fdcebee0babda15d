"""The metrics: the predecessor's four by their exact names, and ours beside them.

A collector pulled at scrape: families are built from the books and the last sample and then forgotten, so
no series outlives its subject.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.enforcement.library_messages import LibraryMessageKind
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.resources import CORES_PER_CARD, DEFAULT_UNIT
from gpu_manager.domain.topology import Topology
from gpu_manager.servers import series
from gpu_manager.servers.series import View
from gpu_manager.services.allocation.allocator import Allocator
from gpu_manager.services.allocation.planner import NodeCards
from gpu_manager.services.enforcement.usage import UsageSampler
from gpu_manager.services.metrics import BUCKETS, Durations, ServiceMetrics

_RESOURCES = (CORE, MEMORY)
# Tally name, label, values known ahead (they start at 0), help. The exported name is vcuda_<name>_total.
COUNTERS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("allocations", "result", ("granted", "refused", "unidentified"), "Answers to Allocate, by result"),
    (
        "unidentified",
        "resource",
        _RESOURCES,
        "Preferences asked for a pod that could not be named for certain",
    ),
    (
        "double_offers",
        "resource",
        _RESOURCES,
        "Ids on offer that another active pod holds; they are left out",
    ),
    ("preferred_failures", "resource", _RESOURCES, "Preferences not given because of a fault of ours"),
    ("annotation_yielded", "", (), "Grants on other cards than the pod's annotation named"),
    ("association_corrected", "", (), "Grants whose container was corrected when it started"),
    (
        "association_fetches",
        "",
        (),
        "Pods asked for at the API server because the watch did not show them yet",
    ),
    ("association_unconfirmed", "", (), "Pods named without asking the API server, which did not answer"),
    ("proof_mismatches", "", (), "Starts put off because the kubelet's checkpoint did not show their ids"),
    ("proof_refusals", "", (), "Starts refused because the container cannot run with what it was given"),
    ("unproven", "", (), "Starts without proof because the kubelet's checkpoint could not be read"),
    ("stranded", "", (), "Pods found that were admitted before this node offered our resources"),
    ("reclaimed", "", (), "Allocations given back because their pod has gone"),
    ("evaders_named", "reason", (), "Times a container was named as getting round its limits"),
    (
        "library_notes",
        "kind",
        tuple(kind.value for kind in LibraryMessageKind),
        "What libvcuda told the agent from inside containers; the log has the words",
    ),
    ("registrations", "resource", _RESOURCES, "Registrations with the kubelet"),
    ("registration_failures", "", (), "Attempts to serve and register that failed"),
    ("recovery_disagreements", "source", (), "Sources that disagreed when the books were rebuilt"),
    ("scrape_errors", "source", (), "Readings that failed, by source"),
)
_TIMERS = (
    ("vcuda_allocate_duration_seconds", "allocate", "Time to answer Allocate"),
    ("vcuda_preferred_duration_seconds", "preferred", "Time to answer GetPreferredAllocation"),
)


class Exporter(Collector):
    """Everything on ``/metric`` about books and usage.

    ``events`` counts what happened to the cards, ``writes_dropped`` what the API server was never told.
    """

    def __init__(
        self,
        allocator: Allocator,
        usage: UsageSampler,
        tally: ServiceMetrics,
        version: str,
        *,
        legacy: bool = True,
        events: Callable[[], Mapping[str, int]] = dict,
        writes_dropped: Callable[[], int] = int,
    ) -> None:
        self._allocator = allocator
        self._usage = usage
        self._tally = tally
        self._version = version
        self._legacy = legacy
        self._events = events
        self._writes_dropped = writes_dropped

    def describe(self) -> Iterable[Metric]:
        """Every family without its series, so that the registry refuses a name that is taken."""
        return describe(legacy=self._legacy)

    def collect(self) -> Iterator[Metric]:
        """Build every family from what is known now."""
        sample = self._usage.last
        view = self._allocator.read(
            lambda books, node: View(
                node,
                dict(books.grants),
                {s.card.uuid: books.ledger.booked(s.card.uuid) for s in node.cards},
                fragmentation(books.ledger, node),
                sample,
            )
        )
        yield from series.cards(view)
        yield from series.containers(view)
        if self._legacy:
            yield from series.legacy(view)
        yield from _node(view, self._version, max(0.0, time.monotonic() - sample.at))
        yield from _counted(self._tally.counts, self._tally.durations, self._events())
        yield _writes_dropped(self._writes_dropped())


def describe(*, legacy: bool = True) -> Iterator[Metric]:
    """The families as they are without cards, containers and history."""
    view = View(NodeCards.of("", DEFAULT_UNIT, (), Topology(())))
    yield from series.cards(view)
    yield from series.containers(view)
    if legacy:
        yield from series.legacy(view)
    yield from _node(view, "", 0.0)
    yield from _counted(lambda _: {}, lambda _: {}, {})
    yield _writes_dropped(0)


def _writes_dropped(count: int) -> Metric:
    text = "Events and annotations given up because too many waited for the API server"
    return CounterMetricFamily("vcuda_writes_dropped", text, value=count)


def _node(view: View, version: str, age: float) -> Iterator[Metric]:
    build = InfoMetricFamily("vcuda_build", "The program that answers")
    build.add_metric((), {"version": version})
    yield build
    part = GaugeMetricFamily(
        "vcuda_node_fragmentation_ratio",
        "Share of the free cores that lie on cards partly used; absent while none are free",
    )
    if view.fragmentation is not None:
        part.add_metric((), view.fragmentation)
    yield part
    yield GaugeMetricFamily("vcuda_sample_age_seconds", "Age of the usage in this scrape", value=age)
    yield GaugeMetricFamily(
        "vcuda_unnamed_allocations",
        "Allocations whose pod's name is not known; they have no series of their own",
        value=sum(not g.allocation.pod_name for g in view.grants.values()),
    )
    off = GaugeMetricFamily(
        "vcuda_ids_off_card",
        "Allocations whose device ids are of other cards than the share, by resource",
        labels=("resource",),
    )
    for resource in _RESOURCES:
        off.add_metric((resource,), _off_card(view, resource))
    yield off


def _off_card(view: View, resource: str) -> int:
    ids = view.node.ids
    return sum(
        not ids.cards_of(resource, g.ids.get(resource, ())) <= set(g.allocation.cards)
        for g in view.grants.values()
    )


def _counted(
    counts: Callable[[str], Mapping[str, int]],
    durations: Callable[[str], Mapping[str, Durations]],
    events: Mapping[str, int],
) -> Iterator[Metric]:
    for name, label, known, text in COUNTERS:
        family = CounterMetricFamily(f"vcuda_{name}", text, labels=(label,) if label else ())
        found = counts(name)
        if label:
            for value, count in (dict.fromkeys(known, 0) | dict(found)).items():
                family.add_metric((value,), count)
        else:
            family.add_metric((), sum(found.values()))
        yield family
    happened = CounterMetricFamily(
        "vcuda_card_events", "What happened to the cards since the start, by event", labels=("event",)
    )
    for event, count in sorted(events.items()):
        happened.add_metric((event,), count)
    yield happened
    for name, timer, text in _TIMERS:
        histogram = HistogramMetricFamily(name, text, labels=("resource",))
        for resource, timed in durations(timer).items():
            histogram.add_metric((resource,), _buckets(timed), timed.total)
        yield histogram


def _buckets(timed: Durations) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for edge, count in zip((*map(str, BUCKETS), "+Inf"), timed.counts, strict=True):
        total += count
        buckets.append((edge, float(total)))
    return buckets


def fragmentation(ledger: Ledger, node: NodeCards) -> float | None:
    """Free cores on partly used cards over all free cores; None when nothing is free."""
    free = {s.card.uuid: max(0, ledger.free(s.card.uuid).cores) for s in node.cards if s.open}
    total = sum(free.values())
    return sum(n for n in free.values() if n < CORES_PER_CARD) / total if total else None
