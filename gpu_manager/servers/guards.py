"""Metrics of what the host holds against those who get round the library: evaders, and the last limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpu_manager.services.allocator import Allocator
from gpu_manager.services.backstop import Backstops
from gpu_manager.services.watchdog import Watchdog

_EVADING = ("namespace", "pod", "container", "uuid", "card", "reason")
_LACKS = ("host-pid", "cards")


class GuardMetrics(Collector):
    """Read at scrape: a container that is cleared or gone leaves no series."""

    def __init__(self, allocator: Allocator, watchdog: Watchdog, backstops: Backstops) -> None:
        self._allocator = allocator
        self._watchdog = watchdog
        self._backstops = backstops

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of the first scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Build every family from what was found last."""
        evaders = self._watchdog.evaders
        yield GaugeMetricFamily(
            "vcuda_evaders",
            "Containers named as getting round their limits now",
            value=len({(e.namespace, e.pod, e.container) for e in evaders}),
        )
        index = self._allocator.read(lambda _, node: {s.card.uuid: s.card.index for s in node.cards})
        evading = GaugeMetricFamily(
            "vcuda_container_evading", "1 while the container is named for the reason", labels=_EVADING
        )
        for e in evaders:
            card = str(index.get(e.card, ""))
            evading.add_metric((e.namespace, e.pod, e.container, e.card, card, e.reason.value), 1)
        yield evading
        blind = GaugeMetricFamily(
            "vcuda_watchdog_blind",
            "1 where the watchdog lacks what it compares with: the node's processes, the driver's figures",
            labels=("lacks",),
        )
        for lack in _LACKS:
            blind.add_metric((lack,), float(lack in self._watchdog.blind))
        yield blind
        backstop = GaugeMetricFamily(
            "vcuda_memory_backstop",
            "Memory limits of containers that the driver (nvml) or the kernel (dmem) holds too, or nobody",
            labels=("kind",),
        )
        for kind in ("nvml", "dmem", "none"):
            backstop.add_metric((kind,), self._backstops.kinds.get(kind, 0))
        yield backstop
