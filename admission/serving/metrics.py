"""Metrics of the admission service."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, Info
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from admission.webhook.admission_review import ReviewVerdict
from gpu_manager.runtime import threads
from gpu_manager.runtime.inbound import SampledCounter, scrape

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


class AdmissionMetrics:
    """Counters of one program, in a registry of their own."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        self._decisions = Counter(
            "vcuda_admission_decisions",
            "Answers of the webhooks, by the first rule behind them",
            ("verb", "result", "rule"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "vcuda_admission_duration_seconds",
            "Time to judge one review",
            ("verb",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._responses = Counter(
            "vcuda_admission_http_responses",
            "Answers by path and HTTP status",
            ("path", "code"),
            registry=self.registry,
        )
        self._reloads = Counter(
            "vcuda_admission_certificate_reloads",
            "New serving certificates: taken, or refused because they cannot be used",
            ("result",),
            registry=self.registry,
        )
        self._evicted = Counter(
            "vcuda_admission_connections_evicted",
            "Idle connections to the webhook port that were closed to make room for new ones",
            registry=self.registry,
        )
        for verb in ("mutate", "validate"):
            self._seconds.labels(verb)
        Info("vcuda_admission_build", "The program that answers", registry=self.registry).info(
            {"version": version}
        )
        self.registry.register(
            SampledCounter(
                "vcuda_admission_thread_failures",
                "Unexpected errors in the service's own threads, which went on",
                "thread",
                threads.failures,
            )
        )

    def judged(self, verb: str, verdict: ReviewVerdict, seconds: float) -> None:
        """One review was answered."""
        self._decisions.labels(verb, verdict.result, verdict.rules[0] if verdict.rules else "").inc()
        self._seconds.labels(verb).observe(seconds)

    def answered(self, path: str, code: int) -> None:
        """Count an HTTP answer; ``path`` is one of the service's routes."""
        self._responses.labels(path, str(code)).inc()

    def reloaded(self, *, taken: bool) -> None:
        """A new serving certificate was seen."""
        self._reloads.labels("taken" if taken else "refused").inc()

    def evicted(self) -> None:
        """An idle connection was closed to make room."""
        self._evicted.inc()

    def watch_expiry(self, expiry: Callable[[], float | None]) -> None:
        """Export when the serving certificate ends; nothing while there is none."""
        self.registry.register(_Expiry(expiry))

    def page(self, accept: str) -> tuple[bytes, str]:
        """The scrape and its content type."""
        return scrape(self.registry, accept)


class _Expiry(Collector):
    def __init__(self, expiry: Callable[[], float | None]) -> None:
        self._expiry = expiry

    def collect(self) -> Iterator[Metric]:
        at = self._expiry()
        if at is not None:
            yield GaugeMetricFamily(
                "vcuda_admission_certificate_expiry_timestamp_seconds",
                "When the serving certificate ends, in seconds since 1970",
                value=at,
            )
