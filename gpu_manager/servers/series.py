"""The families of cards and containers on ``/metric``: pure, from one view of books and usage.

Absent is not zero: what is not known is left out. No two series have the same labels, whatever pods are
called: of containers of one name (a namesake not yet gone) the last granted is shown, and one whose pod's
name is not known yet is counted in ``vcuda_unnamed_allocations`` instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import CORES_PER_CARD, MIB, Amount
from gpu_manager.services.allocation.books import Grant, Key
from gpu_manager.services.allocation.planner import NodeCards
from gpu_manager.services.enforcement.usage import Sample, ShareUse, unread

CARD = ("uuid", "card")
CONTAINER = ("namespace", "pod", "container", "uuid", "card")
LEGACY = ("container_name", "namespace", "node", "pod_name")


@dataclass(frozen=True, slots=True)
class View:
    """What one scrape shows: the books now, the last sample of usage."""

    node: NodeCards
    grants: Mapping[Key, Grant] = field(default_factory=dict)
    booked: Mapping[CardUuid, Amount] = field(default_factory=dict)
    fragmentation: float | None = None
    sample: Sample = field(default_factory=lambda: Sample(0.0))

    def index(self, uuid: CardUuid) -> str:
        """The card's number, empty for one that vanished."""
        state = self.node.card(uuid)
        return str(state.card.index) if state else ""

    def named(self) -> tuple[Grant, ...]:
        """The grants that can be shown: one for each name."""
        by_name = {
            (g.allocation.namespace, g.allocation.pod_name, g.allocation.container): g
            for g in self.grants.values()
            if g.allocation.pod_name
        }
        return tuple(by_name.values())

    def uses(self) -> dict[tuple[Key, CardUuid], ShareUse]:
        """The last sample, by container and card."""
        return {(use.key, use.share.card): use for use in self.sample.shares}


def cards(view: View) -> Iterator[Metric]:
    """One series a card."""
    info = GaugeMetricFamily(
        "vcuda_card_info", "A card of this node; always 1", labels=(*CARD, "model", "numa", "mig")
    )
    families = {
        name: GaugeMetricFamily(f"vcuda_card_{name}", text, labels=CARD)
        for name, text in (
            ("healthy", "1 if the card may be used"),
            ("cordoned", "1 if the operator has closed the card"),
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
            ("cordoned", float(state.cordoned)),
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
    ("core_limit_ratio", "Share of the card's time that the container may use"),
    ("core_ceiling_ratio", "Share of the card's time that it may reach while nobody else wants the card"),
    ("core_usage_ratio", "Share of the card's time that it used in the last second"),
    ("core_delivered_ratio", "What it used of the card's time over what it may use"),
    ("memory_limit_bytes", "Memory of the card that the container may use"),
    ("memory_used_bytes", "Memory of the card that it uses"),
)


def containers(view: View) -> Iterator[Metric]:
    """One series for each container and card of its own."""
    gauges = {
        name: GaugeMetricFamily(f"vcuda_container_{name}", text, labels=CONTAINER)
        for name, text in _CONTAINER_GAUGES
    }
    throttled = CounterMetricFamily(
        "vcuda_container_throttled_seconds",
        "Time that the container's processes waited for their share of the card",
        labels=CONTAINER,
    )
    refusals = CounterMetricFamily(
        "vcuda_container_memory_refusals",
        "Requests for memory that were refused because of the limit",
        labels=CONTAINER,
    )
    enforcement = GaugeMetricFamily(
        "vcuda_container_enforcement",
        "How its limits are held, 1 for its state: active, exclusive (a whole card), tampered, or unknown",
        labels=(*CONTAINER, "state"),
    )
    uses = view.uses()
    for grant in view.named():
        allocation = grant.allocation
        for share in allocation.shares:
            use = uses.get((grant.key, share.card)) or unread(grant, share)
            labels = (
                allocation.namespace,
                allocation.pod_name,
                allocation.container,
                share.card,
                view.index(share.card),
            )
            for name, value in _figures(grant, share, use).items():
                if value is not None:
                    gauges[name].add_metric(labels, value)
            if use.throttled is not None:
                throttled.add_metric(labels, use.throttled)
            if use.refusals is not None:
                refusals.add_metric(labels, use.refusals)
            enforcement.add_metric((*labels, use.enforcement), 1)
    yield from gauges.values()
    yield from (throttled, refusals, enforcement)


def _figures(grant: Grant, share: Share, use: ShareUse) -> dict[str, float | None]:
    limit = share.amount.cores / CORES_PER_CARD
    return {
        "core_limit_ratio": limit,
        "core_ceiling_ratio": max(grant.ceiling, share.amount.cores) / CORES_PER_CARD,
        "core_usage_ratio": use.core,
        "core_delivered_ratio": use.core / limit if use.core is not None and limit else None,
        "memory_limit_bytes": share.amount.memory,
        "memory_used_bytes": use.held,
    }


def legacy(view: View) -> Iterator[Metric]:
    """The predecessor's: MiB and percent, and one extra label whose name differs per metric."""
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
