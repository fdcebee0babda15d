"""Metrics of what is found about running containers: evaders, limits behind the library, containers without
what they were granted, accounts compared with the driver's figures, and gates of cards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpu_manager.domain.card import CardUuid
from gpu_manager.runtime.scrape import series_of
from gpu_manager.servers.series import CARD, CONTAINER, Family
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.enforcement.account_check import NOTHING, AccountCheck, Compared
from gpu_manager.services.enforcement.driver_memory_limit import DriverMemoryLimits
from gpu_manager.services.enforcement.evasion_detector import Evader, EvasionDetector
from gpu_manager.services.enforcement.gates import CardGates, CardProtection
from gpu_manager.services.enforcement.injection_check import InjectionCheck, NotInjected
from gpu_manager.services.enforcement.usage_sample import Sample

_LACKS = ("host-pid", "cards")
_Index = Mapping[CardUuid, str]  # each card's number


class _Findings(Collector):
    """Families of the last results, read at scrape: what is gone, or fine again, leaves no series."""

    def __init__(
        self,
        state: NodeState,
        families: Callable[[_Index], Iterator[Metric]],
        without_series: Callable[[], Iterator[Metric]],
    ) -> None:
        self._state = state
        self._families = families
        self._without_series = without_series

    def describe(self) -> Iterable[Metric]:
        """Every family without its series."""
        return self._without_series()

    def collect(self) -> Iterator[Metric]:
        """Build every family from the last results."""
        return self._families({state.card.uuid: str(state.card.index) for state in self._state.node.cards})


class GuardMetrics(_Findings):
    """Evaders, memory limits that driver or kernel hold, and containers that were given nothing."""

    def __init__(
        self,
        state: NodeState,
        evasion: EvasionDetector,
        memory_limits: DriverMemoryLimits,
        injection: InjectionCheck,
    ) -> None:
        super().__init__(
            state,
            lambda index: _guards(
                evasion.evaders, index, evasion.blind, memory_limits.kinds, injection.found
            ),
            describe_guards,
        )


class AccountMetrics(_Findings):
    """The comparison of accounts with the driver's figures."""

    def __init__(self, state: NodeState, last_sample: Callable[[], Sample], check: AccountCheck) -> None:
        super().__init__(
            state,
            lambda index: _accounts(last_sample(), check.found, index),
            lambda: _accounts(Sample(0.0), NOTHING, {}),
        )


class GateMetrics(_Findings):
    """Cards on which protected and best-effort containers are together."""

    def __init__(self, state: NodeState, gates: CardGates) -> None:
        super().__init__(state, lambda index: _gates(gates.told, index), describe_gates)


def describe() -> Iterator[Metric]:
    """All these families without series, as while there is nothing to report."""
    yield from describe_guards()
    yield from describe_gates()
    yield from _accounts(Sample(0.0), NOTHING, {})


def describe_guards() -> Iterator[Metric]:
    """The families of guards without series, as while there are no findings."""
    return _guards((), {}, frozenset(), {}, ())


def describe_gates() -> Iterator[Metric]:
    """The families of gates without series, as while no card has both classes."""
    return _gates({}, {})


def _guards(
    evaders: Sequence[Evader],
    index: _Index,
    lacking: Collection[str],
    kinds: Mapping[str, int],
    not_injected: Sequence[NotInjected],
) -> Iterator[Metric]:
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


def _accounts(sample: Sample, found: Compared, index: _Index) -> Iterator[Metric]:
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


def _gates(told: Mapping[CardUuid, CardProtection], index: _Index) -> Iterator[Metric]:
    rows = [((uuid, index.get(uuid, "")), protection) for uuid, protection in sorted(told.items())]
    yield from (family.of(CARD, rows) for family in _GATES)
