"""Metrics of cards on which protected and best-effort containers are together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpu_manager.domain.card import CardUuid
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.enforcement.gates import CardGates, CardProtection

_CARD = ("uuid", "card")


class GateMetrics(Collector):
    """Metrics of gates, read at each scrape; a card without both classes has no series."""

    def __init__(self, state: NodeState, gates: CardGates) -> None:
        self._state = state
        self._gates = gates

    def describe(self) -> Iterable[Metric]:
        """Every family without its series."""
        return describe()

    def collect(self) -> Iterator[Metric]:
        """Build every family from the last results."""
        index = {s.card.uuid: s.card.index for s in self._state.node.cards}
        return _families(self._gates.told, index)


def describe() -> Iterator[Metric]:
    """The metric families without series, as while no card has both classes."""
    return _families({}, {})


def _families(told: Mapping[CardUuid, CardProtection], index: Mapping[CardUuid, int]) -> Iterator[Metric]:
    wait = GaugeMetricFamily(
        "vcuda_protected_wait_seconds",
        "How long a launch of a protected container may wait for best-effort work in flight on its card: "
        "the longest kernel or graph so far of any best-effort container, and what one or two launch ahead",
        labels=_CARD,
    )
    closed = CounterMetricFamily(
        "vcuda_gate_closed_seconds",
        "Time for which the card's gate was closed to best-effort containers",
        labels=_CARD,
    )
    normal = GaugeMetricFamily(
        "vcuda_protected_beside_normal",
        "1 if a normal container, which does not make way for protected ones, is on the card beside one",
        labels=_CARD,
    )
    for uuid, protection in sorted(told.items()):
        labels = (uuid, str(index.get(uuid, "")))
        wait.add_metric(labels, protection.wait)
        if protection.closed is not None:
            closed.add_metric(labels, protection.closed)
        normal.add_metric(labels, float(protection.beside_normal))
    yield wait
    yield closed
    yield normal
