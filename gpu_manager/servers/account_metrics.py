"""Metrics of the comparison of accounts with the driver's figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpu_manager.domain.card import CardUuid
from gpu_manager.servers.series import CARD, CONTAINER
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.enforcement.account_check import NOTHING, AccountCheck, Compared
from gpu_manager.services.enforcement.usage_sample import Sample


class AccountMetrics(Collector):
    """Read at scrape: a container that is gone, or not compared, leaves no series."""

    def __init__(self, state: NodeState, last_sample: Callable[[], Sample], check: AccountCheck) -> None:
        self._state = state
        self._last_sample = last_sample
        self._check = check

    def describe(self) -> Iterable[Metric]:
        """Every family without its series."""
        return describe()

    def collect(self) -> Iterator[Metric]:
        """Build every family from the last results."""
        index = {state.card.uuid: str(state.card.index) for state in self._state.node.cards}
        return _families(self._last_sample(), self._check.found, index)


def describe() -> Iterator[Metric]:
    """The families as they are while nothing is compared."""
    return _families(Sample(0.0), NOTHING, {})


def _families(sample: Sample, found: Compared, index: Mapping[CardUuid, str]) -> Iterator[Metric]:
    differs = GaugeMetricFamily(
        "vcuda_container_account_difference_ratio",
        "The driver's figure of the container's processes less its account, in the mean of a minute, as a "
        "share of the card, without what the driver's known errors explain",
        labels=CONTAINER,
    )
    shown: dict[tuple[str, ...], float] = {}
    for (key, card), difference in found.differences.items():
        grant = sample.grants.get(key)
        if grant is not None and grant.allocation.pod_name and key not in sample.ended:
            held = grant.allocation
            name = (held.namespace, held.pod_name, held.container, card, index.get(card, ""))
            shown[name] = difference
    for labels, difference in shown.items():
        differs.add_metric(labels, difference)
    yield differs
    blind = GaugeMetricFamily(
        "vcuda_card_without_witness",
        "1 where accounts of the card's containers cannot be compared with the driver's figures, which lack: "
        "host-pid (the node's processes), mig (the card is in MIG mode), samples (of processes)",
        labels=(*CARD, "lacks"),
    )
    for card, lacks in found.unwitnessed.items():
        blind.add_metric((card, index.get(card, ""), lacks), 1)
    yield blind
