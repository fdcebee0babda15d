"""Counters and histograms of the agent's services: name, help text and labels of each.

Only this module of the services imports ``prometheus_client``. Families that are computed at each scrape
are in :mod:`gpu_manager.servers`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from gpu_manager.domain.contract import CORE, DRA_DRIVER, MEMORY
from gpu_manager.domain.dra.sides import Front
from gpu_manager.domain.enforcement.library_messages import LibraryMessageKind
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid, VcudaError

# Upper edges in seconds: an Allocate is one fsync, a GetPreferredAllocation a few round trips.
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0)
_RESOURCES = (CORE, MEMORY)
CLAIM_REASONS: Final[Mapping[type[VcudaError], str]] = {
    RequestInvalid: "invalid",  # there is no such claim, or what it was allocated cannot be given
    DoesNotFit: "no-room",  # its cards have no room, or take no new work
    NodeUnready: "not-ready",  # API server, books, pages or specs
}
_NOTES = tuple(kind.value for kind in LibraryMessageKind)


class ServiceMetrics:
    """Counters and histograms since the agent started. Thread-safe.

    Label values that are known in advance start at 0. A counter ``vcuda_x`` is scraped as ``vcuda_x_total``.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        # Otherwise each counter also has a series with the time of its creation.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # untyped upstream

        def counter(name: str, text: str, label: str = "", known: Collection[str] = ()) -> Counter:
            made = Counter(f"vcuda_{name}", text, (label,) if label else (), registry=registry)
            for value in known:
                made.labels(value)
            return made

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(name, text, ("resource",), buckets=BUCKETS, registry=registry)

        self.allocations = counter(
            "allocations",
            "Answers to Allocate calls, by result; deleted: refused, because the pod was deleted before the "
            "kubelet admitted it",
            "result",
            ("granted", "refused", "deleted", "unidentified"),
        )
        self.preferred_allocation_unidentified = counter(
            "preferred_allocation_unidentified",
            "GetPreferredAllocation calls whose pod could not be identified for certain",
            "resource",
            _RESOURCES,
        )
        self.double_offers = counter(
            "double_offers",
            "Device ids that the kubelet offered although another active pod holds them; they are not used",
            "resource",
            _RESOURCES,
        )
        self.preferred_allocation_failures = counter(
            "preferred_allocation_failures",
            "GetPreferredAllocation calls left unanswered because of an internal error",
            "resource",
            _RESOURCES,
        )
        self.annotation_overridden = counter(
            "annotation_overridden", "Grants on cards other than those in the pod's annotation"
        )
        self.association_corrected = counter(
            "association_corrected", "Grants whose container was corrected when the container started"
        )
        self.association_fetches = counter(
            "association_fetches", "Pods read from the API server because the watch did not show them yet"
        )
        self.association_unconfirmed = counter(
            "association_unconfirmed", "Pods identified without the API server, because it did not answer"
        )
        self.container_starts_delayed = counter(
            "container_starts_delayed",
            "Container starts delayed because the kubelet's checkpoint did not show their device ids",
        )
        self.container_starts_refused = counter(
            "container_starts_refused",
            "Container starts refused because the container cannot run with the cards it was given",
        )
        self.container_starts_unverified = counter(
            "container_starts_unverified",
            "Container starts without verification because the kubelet's checkpoint could not be read",
        )
        self.pods_without_devices = counter(
            "pods_without_devices",
            "Pods reported because the kubelet has no devices for containers of theirs: admitted before this "
            "node offered the vcuda resources, or lost from the kubelet's checkpoint",
        )
        self.stranded_containers = Gauge(
            "vcuda_stranded_containers",
            "Containers of this node's pods that cannot be started again, because the kubelet has no devices "
            "for them",
            registry=registry,
        )
        self.injection_possible = Gauge(
            "vcuda_injection_possible",
            "1 while containers can be given cards: the driver's libraries and device nodes are there",
            registry=registry,
        )
        self.allocations_reclaimed = counter(
            "allocations_reclaimed", "Allocations released because their pod no longer exists"
        )
        self.evaders_named = counter(
            "evaders_named", "Times a container was reported as bypassing its limits", "reason"
        )
        self.library_messages = counter(
            "library_messages",
            "Messages from libvcuda inside containers, by kind; the agent's log has their text",
            "kind",
            _NOTES,
        )
        self.claims = Counter(
            "vcuda_claims",
            "Answers to NodePrepareResources and NodeUnprepareResources, a claim each, by result; reason, of "
            "refused ones: invalid, no-room or not-ready",
            ("result", "reason"),
            registry=registry,
        )
        for result in ("prepared", "released", "lingering"):
            self.claims.labels(result, "")
        for reason in CLAIM_REASONS.values():
            self.claims.labels("refused", reason)
        self.lingering_claims = Gauge(
            "vcuda_lingering_claims",
            "Claims that the kubelet is done with and that are held all the same, because processes of their "
            "pods live",
            registry=registry,
        )
        self.slice_failures = counter(
            "slice_failures", "Failed attempts to publish the cards as devices of a ResourceSlice"
        )
        self.slice_unpublished = Gauge(
            "vcuda_slice_unpublished",
            "1 while the ResourceSlice of the node's cards cannot be written",
            registry=registry,
        )
        self.registrations = counter(
            "registrations",
            "Registrations with the kubelet, of each resource and of the driver for claims; from 0 for what "
            "the node's front needs",
            "resource",
        )
        self.registration_failures = counter(
            "registration_failures", "Failed attempts to serve the device plugin or to register it"
        )
        self.recovery_disagreements = counter(
            "recovery_disagreements",
            "Sources that disagreed when the allocations were rebuilt at the start",
            "source",
        )
        self.scrape_errors = counter("scrape_errors", "Failed readings, by source", "source")
        self.allocate_seconds = seconds("vcuda_allocate_duration_seconds", "Time to answer Allocate")
        self.prepare_seconds = Histogram(
            "vcuda_prepare_duration_seconds",
            "Time to prepare a claim, with the API server's answer",
            buckets=BUCKETS,
            registry=registry,
        )
        self.preferred_seconds = seconds(
            "vcuda_preferred_allocation_duration_seconds", "Time to answer GetPreferredAllocation"
        )

    def reading_failed(self, source: str) -> None:
        """Count a failed reading."""
        self.scrape_errors.labels(source).inc()

    def expect_registrations(self, front: Front) -> None:
        """Count from 0 what a node of this front registers, so that what never does can be seen."""
        by_plugin = () if front is Front.DRA else _RESOURCES
        for name in (*by_plugin, *(() if front is Front.PLUGIN else (DRA_DRIVER,))):
            self.registrations.labels(name)
