"""What the product's own containers take of the node, by the kubelet's account of each (``/metrics/resource``)."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from tests.cluster import layout, product
from tests.cluster.cluster import Cluster

RESOURCES: Final = f"/api/v1/nodes/{layout.NODE}/proxy/metrics/resource"
CPU, MEMORY = "container_cpu_usage_seconds_total", "container_memory_working_set_bytes"


@dataclass(slots=True)
class _Seen:
    """Of one container of one pod: CPU seconds at the first and last look, the most memory of all."""

    began: float
    first: float
    last: float
    ended: float
    peak: float = 0.0  # bytes of the working set, what limits are held against


@dataclass(slots=True)
class Footprint:
    """Looks now and then; the sums are over the time between the first look at a container and the last."""

    _seen: dict[tuple[str, str], _Seen] = field(default_factory=dict)

    def look(self, cluster: Cluster) -> None:
        """Raises ApiError."""
        now = time.monotonic()
        families = text_string_to_metric_families(str(cluster.api.get(RESOURCES, text=True)))
        found: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        for sample in (sample for family in families for sample in family.samples):
            if sample.labels.get("namespace") == product.NAMESPACE and "container" in sample.labels:
                found[sample.labels["pod"], sample.labels["container"]][sample.name] = sample.value
        for key, one in found.items():
            if CPU in one and MEMORY in one:
                seen = self._seen.setdefault(key, _Seen(now, one[CPU], one[CPU], now))
                seen.last, seen.ended, seen.peak = one[CPU], now, max(seen.peak, one[MEMORY])

    def as_json(self) -> dict[str, dict[str, float]]:
        """Container → the most memory in MiB and the mean of cores, of its busiest pod."""
        found: dict[str, dict[str, float]] = {}
        for (_, name), seen in self._seen.items():
            spent = (seen.last - seen.first) / (seen.ended - seen.began) if seen.ended > seen.began else 0.0
            before = found.get(name, {"peak_mib": 0.0, "mean_cores": 0.0})
            found[name] = {
                "peak_mib": max(before["peak_mib"], round(seen.peak / 2**20, 1)),
                "mean_cores": max(before["mean_cores"], round(spent, 3)),
            }
        return found
