"""The families of cards and containers on ``/metric``: pure, from one view of books and usage.

Absent is not zero: what is not known is left out. No two series have the same labels, whatever pods are
called: of containers of one name (a namesake not yet gone) the last granted is shown, and one whose pod's
name is not known yet is counted in ``vcuda_unidentified_allocations`` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpu_manager.domain.advice.size import Sized
from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.dra.sides import Sides
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.mig import profile_of
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import CORES_PER_CARD, MIB, Amount
from gpu_manager.ports.cards import CardUse
from gpu_manager.runtime.inbound import series_of
from gpu_manager.services.allocation.books import Grant, Key, NodeCards
from gpu_manager.services.billing import Holder
from gpu_manager.services.cards.card_history import CardXids
from gpu_manager.services.enforcement.usage_sample import Sample, ShareUse, unread

T = TypeVar("T")

CARD = ("uuid", "card")
CONTAINER = ("namespace", "pod", "container", "uuid", "card")
LEGACY = ("container_name", "namespace", "node", "pod_name")


@dataclass(frozen=True, slots=True)
class View:
    """The inputs of one scrape: the present ledger, and the last sample of usage."""

    node: NodeCards
    grants: Mapping[Key, Grant] = field(default_factory=dict)
    booked: Mapping[CardUuid, Amount] = field(default_factory=dict)
    fragmentation: float | None = None
    sample: Sample = field(default_factory=lambda: Sample(0.0))
    sides: Sides = field(default_factory=dict)

    def index(self, uuid: CardUuid) -> str:
        """The card's number, empty for one that vanished."""
        state = self.node.card(uuid)
        return str(state.card.index) if state else ""

    def named(self) -> tuple[Grant, ...]:
        """The grants to export: one for each name, without ended ones."""
        by_name = {
            (g.allocation.namespace, g.allocation.pod_name, g.allocation.container): g
            for key, g in self.grants.items()
            if g.allocation.pod_name and key not in self.sample.ended
        }
        return tuple(by_name.values())

    def by_pod(self) -> Iterable[Sequence[Allocation]]:
        """The holdings of each named pod that has not ended, including its ended init containers."""
        pods: dict[PodUid, list[Allocation]] = {}
        for g in self.grants.values():
            if g.allocation.pod_name and not g.allocation.is_admin:
                pods.setdefault(g.allocation.pod, []).append(g.allocation)
        ended = self.sample.ended
        return [held for held in pods.values() if not ended.issuperset(a.key for a in held)]

    def uses(self) -> dict[tuple[Key, CardUuid], ShareUse]:
        """The last sample, by container and card."""
        return {(use.key, use.share.card): use for use in self.sample.shares}


@dataclass(frozen=True, slots=True)
class Family(Generic[T]):
    """One family of series: its name, help and kind, and the value of each series; None leaves it out."""

    name: str
    help: str
    value: Callable[[T], float | None]
    kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily

    def of(self, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], T]]) -> Metric:
        """The family with a series for each row: its label values, and the object it is about."""
        values = ((values, self.value(row)) for values, row in rows)
        return series_of(self.name, self.help, labels, values, self.kind)


@dataclass(frozen=True, slots=True)
class _CardRow:
    state: CardState
    capacity: Amount
    booked: Amount
    use: CardUse


_CARD_FAMILIES: tuple[Family[_CardRow], ...] = (
    Family("vcuda_card_healthy", "1 if the card may be used", lambda c: float(c.state.healthy)),
    Family(
        "vcuda_card_missing",
        "1 while the driver does not list a card that this node has had; gpu-manager forget ends it",
        lambda c: float(c.state.missing),
    ),
    Family("vcuda_card_cordoned", "1 if the operator has closed the card", lambda c: float(c.state.cordoned)),
    Family(
        "vcuda_card_memory_total_bytes",
        "Memory that can be booked; absent of a card without memory of its own",
        lambda c: c.capacity.memory if c.state.card.memory else None,
    ),
    Family(
        "vcuda_card_memory_used_bytes", "Memory in use, by the driver's count", lambda c: c.use.memory_used
    ),
    Family(
        "vcuda_card_utilization_ratio",
        "Share of time in which the card was busy, by the driver's count",
        lambda c: c.use.utilisation / 100 if c.use.utilisation is not None else None,
    ),
    Family("vcuda_card_temperature_celsius", "Temperature of the GPU", lambda c: c.use.sensors.temperature),
    Family("vcuda_card_power_watts", "Power that the card draws", lambda c: c.use.sensors.power),
    Family("vcuda_card_sm_clock_hertz", "Clock of the SMs", lambda c: c.use.sensors.sm_clock),
    Family("vcuda_card_memory_clock_hertz", "Clock of the memory", lambda c: c.use.sensors.memory_clock),
    Family(
        "vcuda_card_energy_joules",
        "Energy that the card has used since its driver was loaded",
        lambda c: c.use.sensors.energy,
        CounterMetricFamily,
    ),
    Family("vcuda_card_memory_booked_bytes", "Memory promised to containers", lambda c: c.booked.memory),
    Family(
        "vcuda_card_cores_booked_ratio",
        "Share of the card promised to containers",
        lambda c: c.booked.cores / CORES_PER_CARD,
    ),
)


def cards(view: View) -> Iterator[Metric]:
    """One series a card."""
    info = GaugeMetricFamily(
        "vcuda_card_info", "A card of this node; always 1", labels=(*CARD, "model", "numa", "mig")
    )
    instances = GaugeMetricFamily(
        "vcuda_mig_instance_info",
        "A MIG instance that is given as a card, and its place; always 1",
        labels=(*CARD, "parent", "profile", "gi", "ci"),
    )
    rows: list[tuple[Sequence[str], _CardRow]] = []
    for state in view.node.cards:
        card, labels = state.card, (state.card.uuid, str(state.card.index))
        numa = "" if card.numa is None else str(card.numa)
        info.add_metric((*labels, card.model, numa, str(card.mig).lower()), 1)
        if place := card.instance:
            profile = profile_of(card.model)
            instances.add_metric((*labels, place.parent, profile, str(place.gi), str(place.ci)), 1)
        use = view.sample.cards.get(card.uuid) or CardUse(card.uuid)
        rows.append((labels, _CardRow(state, card.capacity(view.node.unit), view.booked[card.uuid], use)))
    yield info
    yield instances
    yield _fronts(view)
    yield from (family.of(CARD, rows) for family in _CARD_FAMILIES)


def outside(view: View, held: Mapping[CardUuid, int]) -> Metric:
    """Memory that no pod holds, by card."""
    return series_of(
        "vcuda_card_memory_outside_bytes",
        "Memory of the card that processes of no pod hold, by the driver; absent where it, or a missing "
        "hostPID, hides them",
        CARD,
        (((s.card.uuid, str(s.card.index)), held.get(s.card.uuid)) for s in view.node.cards),
    )


def _fronts(view: View) -> Metric:
    cards = [s.card for s in view.node.cards if s.card.uuid in view.sides]
    return series_of(
        "vcuda_card_front",
        "How a card is given: by extended resources (plugin) or by claims (dra); always 1",
        (*CARD, "front"),
        (((card.uuid, str(card.index), view.sides[card.uuid].value), 1) for card in cards),
    )


def xids(view: View, found: Mapping[CardUuid, CardXids]) -> Iterator[Metric]:
    """The XIDs of each card since the agent's start: counted from 0, so that the first is an increase."""
    count = CounterMetricFamily(
        "vcuda_card_xid_errors",
        "XID errors that the driver reported; closes: whether the card takes no new work because of them",
        labels=(*CARD, "closes"),
    )
    last = GaugeMetricFamily(
        "vcuda_card_last_xid", "Number of the last XID error; absent before the first", labels=CARD
    )
    for state in view.node.cards:
        labels, seen = (state.card.uuid, str(state.card.index)), found.get(state.card.uuid, CardXids())
        count.add_metric((*labels, "true"), seen.closing)
        count.add_metric((*labels, "false"), seen.others)
        if seen.last is not None:
            last.add_metric(labels, seen.last)
    yield count
    yield last


@dataclass(frozen=True, slots=True)
class _ShareRow:
    grant: Grant
    share: Share
    use: ShareUse

    @property
    def limit(self) -> float:
        return self.share.amount.cores / CORES_PER_CARD


_CONTAINER_FAMILIES: tuple[Family[_ShareRow], ...] = (
    Family(
        "vcuda_container_core_limit_ratio",
        "Share of the card's time that the container may use",
        lambda s: s.limit,
    ),
    Family(
        "vcuda_container_core_ceiling_ratio",
        "Share of the card's time that it may reach while nobody else wants the card",
        lambda s: max(s.grant.ceiling, s.share.amount.cores) / CORES_PER_CARD,
    ),
    Family(
        "vcuda_container_core_usage_ratio",
        "Share of the card's time that it used in the last second",
        lambda s: s.use.core,
    ),
    Family(
        "vcuda_container_core_usage_error_ratio",
        "Share of the card's time by which its own account of that second may be wrong, in 95 of 100 cases: "
        "most launches are charged the mean of their kind",
        lambda s: s.use.error,
    ),
    Family(
        "vcuda_container_core_delivered_ratio",
        "What it used of the card's time over what it may use",
        lambda s: s.use.core / s.limit if s.use.core is not None and s.limit else None,
    ),
    Family(
        "vcuda_container_memory_limit_bytes",
        "Memory of the card that the container may use",
        lambda s: s.share.amount.memory,
    ),
    Family("vcuda_container_memory_used_bytes", "Memory of the card that it uses", lambda s: s.use.held),
    Family(
        "vcuda_container_throttled_seconds",
        "Time that the container's processes waited for their share of the card",
        lambda s: s.use.throttled,
        CounterMetricFamily,
    ),
    Family(
        "vcuda_container_memory_refusals",
        "Requests for memory that were refused because of the limit",
        lambda s: s.use.refusals,
        CounterMetricFamily,
    ),
)


def containers(view: View) -> Iterator[Metric]:
    """One series for each container and card of its own."""
    enforcement = GaugeMetricFamily(
        "vcuda_container_enforcement",
        "How its limits are held, 1 for its state: active, exclusive (a whole card), admin (a claim that "
        "looks at the card and has no other series of it), tampered, or unknown",
        labels=(*CONTAINER, "state"),
    )
    uses = view.uses()
    rows: list[tuple[Sequence[str], _ShareRow]] = []
    for grant in view.named():
        held = grant.allocation
        for share in held.shares:
            use = uses.get((grant.key, share.card)) or unread(grant, share)
            labels = (held.namespace, held.pod_name, held.container, share.card, view.index(share.card))
            state = use.enforcement
            if not held.is_admin:
                rows.append((labels, _ShareRow(grant, share, use)))
            elif state == "active":
                state = "admin"
            enforcement.add_metric((*labels, state), 1)
    yield from (family.of(CONTAINER, rows) for family in _CONTAINER_FAMILIES)
    yield enforcement


def claims(view: View) -> Iterator[Metric]:
    """The pods that use a ResourceClaim's shares, which have one common series of usage."""
    info = GaugeMetricFamily(
        "vcuda_claim_info",
        "A pod that uses a request of a ResourceClaim; container is the request's name in other series",
        labels=("namespace", "claim", "request", "pod", "container"),
    )
    for grant in view.grants.values():
        held, claim = grant.allocation, grant.allocation.claim
        if claim is not None:
            for _, pod in claim.pods:
                info.add_metric((held.namespace, claim.name, claim.request, pod, held.container), 1)
    yield info


def energy(view: View, told: Mapping[tuple[CardUuid, Holder], float]) -> Iterator[Metric]:
    """Every card's energy since the agent's start, by its users."""
    yield series_of(
        "vcuda_container_energy_joules",
        "The card's energy by the time that the container used of the card; without pod: what nobody used",
        CONTAINER,
        (((*holder, uuid, view.index(uuid)), joules) for (uuid, holder), joules in told.items()),
        CounterMetricFamily,
    )


_ADVISED: tuple[Family[Sized], ...] = (
    Family(
        "vcuda_container_core_advised_ratio",
        "Part of a card that the container should have; absent while that cannot be told",
        lambda one: None if (cores := one.advice.cores.value) is None else cores / CORES_PER_CARD,
    ),
    Family(
        "vcuda_container_advised_cores",
        "Deprecated, 100 x vcuda_container_core_advised_ratio; the next release leaves it out",
        lambda one: one.advice.cores.value,
    ),
    Family(
        "vcuda_container_advised_memory_bytes",
        "Memory that the container should have; absent while that cannot be told",
        lambda one: one.advice.memory.value,
    ),
)


def advised(sized: Iterable[Sized]) -> Iterator[Metric]:
    """The advised size of each container; every replica of a template has the same."""
    rows = [((one.workload[0], pod, one.workload[2]), one) for one in sized for pod in one.pods]
    yield from (family.of(CONTAINER[:3], rows) for family in _ADVISED)


def legacy(view: View) -> Iterator[Metric]:
    """The predecessor's metrics: MiB and percent, and one extra label whose name differs per metric."""
    memory = GaugeMetricFamily(
        "container_gpu_memory_total",
        "Card memory that the container uses, in MiB (the predecessor's)",
        labels=(LEGACY[0], "gpu_memory", *LEGACY[1:]),
    )
    core = GaugeMetricFamily(
        "container_gpu_utilization",
        "Card time that the container uses, in percent of one card (the predecessor's)",
        labels=(LEGACY[0], "gpu", *LEGACY[1:]),
    )
    asked_memory = GaugeMetricFamily(
        "container_request_gpu_memory",
        "Card memory that the container asked for, in MiB (the predecessor's)",
        labels=(*LEGACY, "req_of_gpu_memory"),
    )
    asked_core = GaugeMetricFamily(
        "container_request_gpu_utilization",
        "Card time that the container asked for, in cards (the predecessor's)",
        labels=(*LEGACY, "req_of_gpu"),
    )
    uses = view.uses()
    for grant in view.named():
        allocation = grant.allocation
        if allocation.is_admin:
            continue
        rest = (allocation.namespace, view.node.name, allocation.pod_name)
        name, shares = allocation.container, allocation.shares
        asked_memory.add_metric((name, *rest, "total"), sum(s.amount.memory for s in shares) / MIB)
        asked_core.add_metric((name, *rest, "total"), sum(s.amount.cores for s in shares) / CORES_PER_CARD)
        read = [(s, uses.get((grant.key, s.card)) or unread(grant, s)) for s in shares]
        for family, values in (
            (memory, [(s, use.held / MIB) for s, use in read if use.held is not None]),
            (core, [(s, use.core * 100) for s, use in read if use.core is not None]),
        ):
            for share, value in values:
                if at := view.index(share.card):
                    family.add_metric((name, f"gpu{at}", *rest), value)
            if values:
                family.add_metric((name, "total", *rest), sum(value for _, value in values))
    yield from (memory, core, asked_memory, asked_core)
