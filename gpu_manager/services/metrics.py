"""Counts and durations of what the services did, for whoever publishes them."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

# Upper edges in seconds: an Allocate is one fsync, a GetPreferredAllocation a few round trips.
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0)


@dataclass
class Durations:
    """A histogram: counts per bucket (the last one is everything beyond), and the sum in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0


class ServiceMetrics:
    """Thread-safe counters, keyed by name and one label value."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}
        self._durations: dict[tuple[str, str], Durations] = {}

    def count(self, name: str, label: str = "", by: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name, label] = self._counts.get((name, label), 0) + by

    def observe(self, name: str, seconds: float, label: str = "") -> None:
        """Add one duration."""
        with self._lock:
            durations = self._durations.setdefault((name, label), Durations())
            durations.counts[bisect_left(BUCKETS, seconds)] += 1
            durations.total += seconds

    def counts(self, name: str) -> Mapping[str, int]:
        """Label value → count."""
        with self._lock:
            return {label: n for (counter, label), n in self._counts.items() if counter == name}

    def durations(self, name: str) -> Mapping[str, Durations]:
        """Label value → histogram."""
        with self._lock:
            return {
                label: Durations(list(d.counts), d.total)
                for (timer, label), d in self._durations.items()
                if timer == name
            }
