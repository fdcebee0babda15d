"""The metrics: the predecessor's four by their exact names, and ours beside them.

A collector pulled at scrape: families are built from the books and the last sample and then forgotten, so
no series outlives its subject. A pod's bill stays for some minutes after its end, so that the shortest job is
on some scrape; a namespace's for months, so that rare scrapes miss no job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from gpu_manager.domain.advice.size import Sized
from gpu_manager.domain.billing import FIGURES, Bills, booked_peak
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CORE, EVICT, MEMORY
from gpu_manager.domain.dra.sides import Front, sides_of
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.resources import CORES_PER_CARD, DEFAULT_UNIT
from gpu_manager.domain.topology import Topology
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.runtime import threads
from gpu_manager.runtime.inbound import counter_by_label, series_of
from gpu_manager.servers import series
from gpu_manager.servers.series import CARD, CONTAINER, Family, View
from gpu_manager.services.allocation.books import NodeCards
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.billing import Holder
from gpu_manager.services.cards.card_history import CardXids
from gpu_manager.services.enforcement.account_check import Compared
from gpu_manager.services.enforcement.container_starts import NotInjected
from gpu_manager.services.enforcement.evasion_detector import Evader
from gpu_manager.services.enforcement.gates import CardProtection
from gpu_manager.services.enforcement.usage import UsageSampler
from gpu_manager.services.enforcement.usage_sample import Sample

_RESOURCES = (CORE, MEMORY)
# Name, help, label.
_EVENTS = ("vcuda_card_events", "What happened to the cards since the start, by event", "event")
_UNREADABLE = (
    "vcuda_watch_unreadable_objects",
    "Objects of the API server that could not be read and were passed over, by resource",
    "resource",
)
_FAILURES = ("vcuda_thread_failures", "Unexpected errors in the agent's own threads, which went on", "thread")


@dataclass(eq=False, kw_only=True)
class _Sources:
    """The sources of a scrape beside books and usage; by default they report nothing.

    ``events`` counts what happened to the cards, ``xids`` the XIDs of each, ``offered_elsewhere`` names those
    that another device plugin offers too, ``energy`` is what was used of each, ``outside`` what processes of
    no pod hold of it, ``writes_dropped`` counts what the API server was never told, ``unreadable`` what could
    not be read of it, ``sized`` is the advice for containers, ``front`` how the node gives its cards,
    ``kubelet_unverified`` whether the kubelet's certificate could not be verified, ``pages_among_others`` how
    many containers' pages lie on the file system of the node's ``/run``, ``evicts_itself`` says whether the
    agent evicts by its own right, ``pods`` are the node's, by name.
    """

    legacy: bool = True
    bills: Callable[[], Bills] = Bills
    events: Callable[[], Mapping[str, int]] = dict
    xids: Callable[[], Mapping[CardUuid, CardXids]] = dict
    offered_elsewhere: Callable[[], Mapping[CardUuid, str]] = dict
    energy: Callable[[], Mapping[tuple[CardUuid, Holder], float]] = dict
    outside: Callable[[], Mapping[CardUuid, int]] = dict
    writes_dropped: Callable[[], int] = int
    unreadable: Callable[[], Mapping[str, int]] = dict
    kubelet_unverified: Callable[[], bool] = bool
    pages_among_others: Callable[[], int] = int
    evicts_itself: bool = False
    pods: Callable[[], Mapping[str, Sequence[KnownPod]]] = dict
    sized: Callable[[], Sequence[Sized]] = tuple
    front: Callable[[], Front] = lambda: Front.PLUGIN

    def families(self, view: View, version: str, age: float) -> Iterator[Metric]:
        """Every family, of a sample that is ``age`` seconds old."""
        yield from series.cards(view)
        yield from series.xids(view, self.xids())
        yield from series.containers(view)
        yield from series.claims(view)
        yield from series.energy(view, self.energy())
        yield series.outside(view, self.outside())
        yield from series.advised(self.sized())
        if self.legacy:
            yield from series.legacy(view)
        yield from booked_shares(view)
        yield from bills(self.bills(), view.node.name)
        yield from _node(view, version, age)
        yield _other_plugins(view, self.offered_elsewhere())
        yield counter_by_label(*_EVENTS, self.events())
        yield counter_by_label(*_UNREADABLE, self.unreadable())
        yield from (family.of((), [((), self)]) for family in _OF_AGENT)
        yield _marked(self.pods())


_OF_AGENT: tuple[Family[_Sources], ...] = (
    Family(
        "vcuda_api_writes_dropped",
        "Events and annotations given up because too many waited for the API server",
        lambda agent: agent.writes_dropped(),
        CounterMetricFamily,
    ),
    Family(
        "vcuda_kubelet_unverified",
        "1 while the kubelet's certificate cannot be verified: it gets no token, and the API server is asked",
        lambda agent: float(agent.kubelet_unverified()),
    ),
    Family(
        "vcuda_pages_on_node_file_system",
        "Containers whose control pages lie on the file system of the node's /run, which they can fill",
        lambda agent: agent.pages_among_others(),
    ),
    Family(
        "vcuda_evicts_itself",
        "1 if the agent evicts pods with its own account, which may evict those of every node too",
        lambda agent: float(agent.evicts_itself),
    ),
)


@dataclass(eq=False)
class Exporter(_Sources, Collector):
    """What is sampled for ``/metric`` of books and usage; what is counted is in :class:`ServiceMetrics`."""

    state: NodeState
    usage: UsageSampler
    version: str

    def describe(self) -> Iterable[Metric]:
        """Every family without its series, so that the registry refuses a name that is taken."""
        return describe(legacy=self.legacy)

    def collect(self) -> Iterator[Metric]:
        """Build every family from the present state."""
        sample = self.usage.last
        now = self.state.view
        booked = {s.card.uuid: now.ledger.booked(s.card.uuid) for s in now.node.cards}
        part = fragmentation(now.ledger, now.node)
        sides = now.sides if now.sides is not None else sides_of(self.front(), now.node.cards)
        view = View(now.node, now.grants, booked, part, sample, sides)
        yield from self.families(view, self.version, max(0.0, time.monotonic() - sample.at))
        yield counter_by_label(*_FAILURES, threads.failures())


def describe(*, legacy: bool = True) -> Iterator[Metric]:
    """The families as they are without cards, containers and history."""
    view = View(NodeCards.of("", DEFAULT_UNIT, (), Topology(())))
    yield from _Sources(legacy=legacy).families(view, "", 0.0)
    yield counter_by_label(*_FAILURES, {})


def _other_plugins(view: View, offers: Mapping[CardUuid, str]) -> Metric:
    cards = [state.card for state in view.node.cards if state.card.uuid in offers]
    return series_of(
        "vcuda_card_offered_elsewhere",
        "1 while another device plugin of the node offers the card under the resource; it is closed here",
        ("uuid", "card", "resource"),
        (((card.uuid, str(card.index), offers[card.uuid]), 1) for card in cards),
    )


def _node(view: View, version: str, age: float) -> Iterator[Metric]:
    build = InfoMetricFamily("vcuda_build", "The program that answers")
    build.add_metric((), {"version": version})
    yield build
    yield series_of(
        "vcuda_node_fragmentation_ratio",
        "Share of the free cores that lie on cards partly used; absent while none are free",
        (),
        [((), view.fragmentation)],
    )
    yield GaugeMetricFamily("vcuda_sample_age_seconds", "Age of the usage in this scrape", value=age)
    yield GaugeMetricFamily(
        "vcuda_unidentified_allocations",
        "Allocations whose pod's name is not known; they have no series of their own",
        value=sum(not g.allocation.pod_name for g in view.grants.values()),
    )
    yield series_of(
        "vcuda_allocations_id_card_mismatch",
        "Allocations whose device ids are of other cards than the share, by resource",
        ("resource",),
        (((resource,), _off_card(view, resource)) for resource in _RESOURCES),
    )


def _off_card(view: View, resource: str) -> int:
    ids = view.node.ids
    return sum(
        not ids.cards_of(resource, g.ids.get(resource, ())) <= set(g.allocation.cards)
        for g in view.grants.values()
    )


def fragmentation(ledger: Ledger, node: NodeCards) -> float | None:
    """Free cores on partly used cards over all free cores; None if nothing is free."""
    free = {s.card.uuid: max(0, ledger.free(s.card.uuid).cores) for s in node.cards if s.open}
    total = sum(free.values())
    return sum(n for n in free.values() if n < CORES_PER_CARD) / total if total else None


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
    """One series for every namespace and pod; ``_created`` has the time since which it counts."""
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


def booked_shares(view: View) -> Iterator[Metric]:
    """The booked amount of each pod over all its cards: the peak over its phases."""
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


def _marked(known: Mapping[str, Sequence[KnownPod]]) -> Metric:
    text = "1 while the pod has the agent's mark, by which the evictor evicts it"
    rows = (
        ((found.pod.namespace, found.pod.name), 1)
        for found in chain.from_iterable(known.values())
        if EVICT in found.pod.annotations and not (found.tombstone or found.pod.deleting)
    )
    return series_of("vcuda_pod_marked_for_eviction", text, ("namespace", "pod"), rows)


# Metrics of what is found about running containers: evaders, limits behind the library, containers without
# what they were granted, accounts compared with the driver's figures, and gates of cards.


_LACKS = ("host-pid", "cards")
CardIndex = Mapping[CardUuid, str]
"""Each card's number."""


class Findings(Collector):
    """Families of the last results, read at scrape: what is gone, or fine again, leaves no series."""

    def __init__(self, state: NodeState, families: Callable[[CardIndex], Iterator[Metric]]) -> None:
        self._state = state
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Build every family from the last results."""
        return self._families({state.card.uuid: str(state.card.index) for state in self._state.node.cards})


def guards(
    evaders: Sequence[Evader],
    index: CardIndex,
    lacking: Collection[str],
    kinds: Mapping[str, int],
    not_injected: Sequence[NotInjected],
) -> Iterator[Metric]:
    """Evaders, memory limits that driver or kernel hold, and containers that were given nothing."""
    yield GaugeMetricFamily(
        "vcuda_evaders",
        "Containers reported as bypassing their limits now",
        value=len({(e.namespace, e.pod, e.container) for e in evaders}),
    )
    named = {
        (e.namespace, e.pod, e.container, e.card, index.get(e.card, ""), e.reason.value) for e in evaders
    }
    yield series_of(
        "vcuda_container_evading",
        "1 while the container is named for the reason",
        (*CONTAINER, "reason"),
        ((labels, 1) for labels in sorted(named)),
    )
    yield series_of(
        "vcuda_evasion_detection_blind",
        "1 where evasion cannot be judged because these are missing: node's processes, driver's figures",
        ("lacks",),
        (((lack,), float(lack in lacking)) for lack in _LACKS),
    )
    yield series_of(
        "vcuda_driver_memory_limits",
        "Memory limits of containers that the driver (nvml) or the kernel (dmem) holds too, or nobody",
        ("kind",),
        (((kind,), kinds.get(kind, 0)) for kind in ("nvml", "dmem", "none")),
    )
    yield series_of(
        "vcuda_container_not_injected",
        "1 while the container runs without the mounts of its grant",
        CONTAINER[:3],
        ((one, 1) for one in sorted({(one.namespace, one.pod, one.container) for one in not_injected})),
    )


def accounts(sample: Sample, found: Compared, index: CardIndex) -> Iterator[Metric]:
    """The comparison of accounts with the driver's figures."""
    shown: dict[tuple[str, ...], float] = {}
    for (key, card), difference in found.differences.items():
        grant = sample.grants.get(key)
        if grant is not None and grant.allocation.pod_name and key not in sample.ended:
            held = grant.allocation
            name = (held.namespace, held.pod_name, held.container, card, index.get(card, ""))
            shown[name] = difference
    yield series_of(
        "vcuda_container_account_difference_ratio",
        "The driver's figure of the container's processes less its account, in the mean of a minute, as a "
        "share of the card, without what the driver's known errors explain",
        CONTAINER,
        shown.items(),
    )
    yield series_of(
        "vcuda_card_without_witness",
        "1 where accounts of the card's containers cannot be compared with the driver's figures, which lack: "
        "host-pid (the node's processes), mig (the card is in MIG mode), samples (of processes)",
        (*CARD, "lacks"),
        (((card, index.get(card, ""), lacks), 1) for card, lacks in found.unwitnessed.items()),
    )


_GATES: Final[tuple[Family[CardProtection], ...]] = (
    Family(
        "vcuda_protected_wait_seconds",
        "How long a launch of a protected container may wait for best-effort work in flight on its card: "
        "the longest kernel or graph so far of any best-effort container, and what one or two launch ahead",
        lambda card: card.wait,
    ),
    Family(
        "vcuda_gate_closed_seconds",
        "Time for which the card's gate was closed to best-effort containers",
        lambda card: card.closed,
        CounterMetricFamily,
    ),
    Family(
        "vcuda_protected_beside_normal",
        "1 if a normal container, which does not make way for protected ones, is on the card beside one",
        lambda card: float(card.beside_normal),
    ),
)


def gates(told: Mapping[CardUuid, CardProtection], index: CardIndex) -> Iterator[Metric]:
    """Cards on which protected and best-effort containers are together."""
    rows = [((uuid, index.get(uuid, "")), protection) for uuid, protection in sorted(told.items())]
    yield from (family.of(CARD, rows) for family in _GATES)
