"""Metrics of the host's measures against evaders, of the memory limits behind the library, and of
containers that run without what they were granted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpu_manager.domain.card import CardUuid
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.enforcement.driver_memory_limit import DriverMemoryLimits
from gpu_manager.services.enforcement.evasion_detector import Evader, EvasionDetector
from gpu_manager.services.enforcement.injection_check import InjectionCheck, NotInjected

_EVADING = ("namespace", "pod", "container", "uuid", "card", "reason")
_LACKS = ("host-pid", "cards")


class GuardMetrics(Collector):
    """Read at scrape: a container that is cleared or gone leaves no series."""

    def __init__(
        self,
        state: NodeState,
        evasion: EvasionDetector,
        memory_limits: DriverMemoryLimits,
        injection: InjectionCheck,
    ) -> None:
        self._state = state
        self._evasion = evasion
        self._memory_limits = memory_limits
        self._injection = injection

    def describe(self) -> Iterable[Metric]:
        """Every family without its series."""
        return describe()

    def collect(self) -> Iterator[Metric]:
        """Build every family from the last results."""
        index = {s.card.uuid: s.card.index for s in self._state.node.cards}
        return _families(
            self._evasion.evaders,
            index,
            self._evasion.blind,
            self._memory_limits.kinds,
            self._injection.found,
        )


def describe() -> Iterator[Metric]:
    """The families without series, as while there are no findings."""
    return _families((), {}, frozenset(), {}, ())


def _families(
    evaders: Sequence[Evader],
    index: Mapping[CardUuid, int],
    lacking: Collection[str],
    kinds: Mapping[str, int],
    not_injected: Sequence[NotInjected],
) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "vcuda_evaders",
        "Containers reported as bypassing their limits now",
        value=len({(e.namespace, e.pod, e.container) for e in evaders}),
    )
    evading = GaugeMetricFamily(
        "vcuda_container_evading", "1 while the container is named for the reason", labels=_EVADING
    )
    named = {
        (e.namespace, e.pod, e.container, e.card, str(index.get(e.card, "")), e.reason.value) for e in evaders
    }
    for labels in sorted(named):
        evading.add_metric(labels, 1)
    yield evading
    blind = GaugeMetricFamily(
        "vcuda_evasion_detection_blind",
        "1 where evasion cannot be judged because these are missing: node's processes, driver's figures",
        labels=("lacks",),
    )
    for lack in _LACKS:
        blind.add_metric((lack,), float(lack in lacking))
    yield blind
    limited = GaugeMetricFamily(
        "vcuda_driver_memory_limits",
        "Memory limits of containers that the driver (nvml) or the kernel (dmem) holds too, or nobody",
        labels=("kind",),
    )
    for kind in ("nvml", "dmem", "none"):
        limited.add_metric((kind,), kinds.get(kind, 0))
    yield limited
    bare = GaugeMetricFamily(
        "vcuda_container_not_injected",
        "1 while the container runs without the mounts of its grant",
        labels=("namespace", "pod", "container"),
    )
    for one in sorted({(one.namespace, one.pod, one.container) for one in not_injected}):
        bare.add_metric(one, 1)
    yield bare
