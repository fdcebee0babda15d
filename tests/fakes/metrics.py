"""What the services have counted, for tests."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from gpu_manager.services.metrics import ServiceMetrics


def service_metrics() -> ServiceMetrics:
    """In a registry of their own."""
    return ServiceMetrics(CollectorRegistry())


def counts(counter: Counter) -> dict[str, float]:
    """Label value → count, of those that have counted anything; the value is empty for a counter without, and
    of several labels the values that are not empty, with blanks between.
    """
    (family,) = counter.collect()
    return {
        " ".join(filter(None, sample.labels.values())): sample.value
        for sample in family.samples
        if sample.name.endswith("_total") and sample.value
    }
