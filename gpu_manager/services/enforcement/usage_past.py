"""The agent's memory of what its containers used, written with each sample. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from gpu_manager.domain.cluster.node_past import NodePast
from gpu_manager.domain.cluster.usage_history import HistoryQuery, Series, ShareKey, ShareSum
from gpu_manager.domain.cluster.usage_json import UsedShare
from gpu_manager.services.enforcement.usage_sample import Sample


class UsagePast:
    """Of one node. Times are monotonic seconds."""

    def __init__(self, node: str) -> None:
        self._lock = threading.Lock()
        self._past = NodePast(node)
        self._told: tuple[Sample | None, Mapping[ShareKey, UsedShare]] = (None, {})

    def record(self, sample: Sample) -> None:
        """Take in a sample."""
        before, usage = self._told
        if before is None or sample.shares is not before.shares or sample.grants is not before.grants:
            usage = _usage_of(sample)
        self._told = sample, usage
        with self._lock:
            self._past.record(sample.at, usage)

    def read(self, query: HistoryQuery, now: float, *, hour: bool) -> tuple[list[Series], int]:
        """The series, and the number of shares for which there was no room."""
        with self._lock:
            return self._past.read(query, now, hour=hour), self._past.left_out

    def sums(self, now: float) -> dict[ShareKey, ShareSum]:
        """What each share used within the hour."""
        with self._lock:
            return self._past.sums(now)

    def trends(self, now: float) -> dict[str, list[int | None]]:
        """Each card's use over the last minutes."""
        with self._lock:
            return self._past.trends(now)

    def as_json(self, now: float, covers: Callable[[str], bool]) -> Mapping[str, Any]:
        """JSON of ``/usage/history``."""
        with self._lock:
            return self._past.as_json(now, covers)


def _usage_of(sample: Sample) -> Mapping[ShareKey, UsedShare]:
    usage: dict[ShareKey, UsedShare] = {}
    for use in sample.shares:
        grant = sample.grants.get(use.key)
        if grant is None:
            continue
        held = grant.allocation
        percent = None if use.core is None else 100 * use.core
        key = (*use.key, use.share.card)
        usage[key] = UsedShare(percent, use.held, use.throttled, held.namespace, held.pod_name)
    return usage
