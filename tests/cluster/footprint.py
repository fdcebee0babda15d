"""What the product's own containers take of the node, by the kubelet's account of each (``/stats/summary``)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from tests.cluster import layout, product
from tests.cluster.cluster import Cluster

SUMMARY: Final = f"/api/v1/nodes/{layout.NODE}/proxy/stats/summary"
CONTAINERS: Final = ("gpu-manager", "admission", "kube-scheduler")


@dataclass(slots=True)
class _Seen:
    """Of one container of one pod: CPU seconds at the first and last look, the most memory of all."""

    began: float
    first: float
    last: float
    ended: float
    peak: int = 0  # working set, what limits are held against


@dataclass(slots=True)
class Footprint:
    """Looks now and then; the sums are over the time between the first look at a container and the last."""

    _seen: dict[tuple[str, str], _Seen] = field(default_factory=dict)

    def look(self, cluster: Cluster) -> None:
        """Raises ApiError."""
        now = time.monotonic()
        for pod in cluster.api.get(SUMMARY)["pods"]:
            if pod["podRef"]["namespace"] != product.NAMESPACE:
                continue
            for one in pod.get("containers", ()):
                cpu, memory = one.get("cpu", {}), one.get("memory", {})
                if one["name"] not in CONTAINERS or "usageCoreNanoSeconds" not in cpu:
                    continue
                seconds = cpu["usageCoreNanoSeconds"] / 1e9
                key = pod["podRef"]["name"], one["name"]
                seen = self._seen.setdefault(key, _Seen(now, seconds, seconds, now))
                seen.last, seen.ended = seconds, now
                seen.peak = max(seen.peak, memory.get("workingSetBytes", 0))

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
