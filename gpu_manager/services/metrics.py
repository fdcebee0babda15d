"""What the services count: each counter and histogram of the agent, with its name, help and labels.

The one place of the services that knows ``prometheus_client``. A family that is sampled at each scrape is in
:mod:`gpu_manager.servers`.
"""

from __future__ import annotations

from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.enforcement.library_messages import LibraryMessageKind

# Upper edges in seconds: an Allocate is one fsync, a GetPreferredAllocation a few round trips.
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0)
_RESOURCES = (CORE, MEMORY)
_NOTES = tuple(kind.value for kind in LibraryMessageKind)


class ServiceMetrics:
    """Counters since the start. Thread-safe; label values that are known ahead start at 0.

    A counter ``vcuda_x`` is scraped as ``vcuda_x_total``.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        # Else the time of each counter's birth is a series of its own.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # untyped upstream

        def counter(name: str, text: str, label: str = "", known: Collection[str] = ()) -> Counter:
            made = Counter(f"vcuda_{name}", text, (label,) if label else (), registry=registry)
            for value in known:
                made.labels(value)
            return made

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(name, text, ("resource",), buckets=BUCKETS, registry=registry)

        self.allocations = counter(
            "allocations", "Answers to Allocate, by result", "result", ("granted", "refused", "unidentified")
        )
        self.unidentified = counter(
            "unidentified",
            "Preferences asked for a pod that could not be named for certain",
            "resource",
            _RESOURCES,
        )
        self.double_offers = counter(
            "double_offers",
            "Ids on offer that another active pod holds; they are left out",
            "resource",
            _RESOURCES,
        )
        self.preferred_failures = counter(
            "preferred_failures", "Preferences not given because of a fault of ours", "resource", _RESOURCES
        )
        self.annotation_yielded = counter(
            "annotation_yielded", "Grants on other cards than the pod's annotation named"
        )
        self.association_corrected = counter(
            "association_corrected", "Grants whose container was corrected when it started"
        )
        self.association_fetches = counter(
            "association_fetches", "Pods asked for at the API server because the watch did not show them yet"
        )
        self.association_unconfirmed = counter(
            "association_unconfirmed", "Pods named without asking the API server, which did not answer"
        )
        self.proof_mismatches = counter(
            "proof_mismatches", "Starts put off because the kubelet's checkpoint did not show their ids"
        )
        self.proof_refusals = counter(
            "proof_refusals", "Starts refused because the container cannot run with what it was given"
        )
        self.unproven = counter(
            "unproven", "Starts without proof because the kubelet's checkpoint could not be read"
        )
        self.stranded = counter(
            "stranded", "Pods found that were admitted before this node offered our resources"
        )
        self.reclaimed = counter("reclaimed", "Allocations given back because their pod has gone")
        self.evaders_named = counter(
            "evaders_named", "Times a container was reported as bypassing its limits", "reason"
        )
        self.library_notes = counter(
            "library_notes",
            "What libvcuda told the agent from inside containers; the log has the words",
            "kind",
            _NOTES,
        )
        self.registrations = counter(
            "registrations", "Registrations with the kubelet", "resource", _RESOURCES
        )
        self.registration_failures = counter(
            "registration_failures", "Attempts to serve and register that failed"
        )
        self.recovery_disagreements = counter(
            "recovery_disagreements", "Sources that disagreed when the books were rebuilt", "source"
        )
        self.scrape_errors = counter("scrape_errors", "Readings that failed, by source", "source")
        self.allocate_seconds = seconds("vcuda_allocate_duration_seconds", "Time to answer Allocate")
        self.preferred_seconds = seconds(
            "vcuda_preferred_duration_seconds", "Time to answer GetPreferredAllocation"
        )
