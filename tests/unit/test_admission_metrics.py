"""What admission's scrape shows: counters as they were counted, and the cluster as it is now."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from admission.extender.cluster_metrics import ClusterFigures, ClusterMetrics
from admission.serving.metrics import AdmissionMetrics
from tests.fakes.extender import World, node, pod


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def shown(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"vcuda_admission_{name}", labels)


def watched(registry: CollectorRegistry, world: World, **more: Any) -> ClusterMetrics:
    metrics = ClusterMetrics(registry)
    ages = {"pods": 3.0}
    figures = {"leads": lambda: True, "ages": lambda: ages, "bypasses": lambda: {"bound-by-hand": 2}}
    figures |= {"unreadable": lambda: {"pods": 4}, **more}
    metrics.show(ClusterFigures(world.cluster, world.quota, **figures))
    return metrics


def test_the_cluster_is_read_at_each_scrape(registry: CollectorRegistry) -> None:
    quota = {"default": {"quota": {"T4": 2}, "memory": {"T4": 4096}}}
    world = World([node("n1"), node("n2")], [pod("x", 80, 4, on="n1")], quota=quota)
    watched(registry, world)
    assert shown(registry, "leader") == 1
    assert shown(registry, "snapshot_age_seconds", resource="pods") == 3
    assert shown(registry, "bypassing_pods", reason="bound-by-hand") == 2
    assert shown(registry, "unreadable_objects_total", resource="pods") == 4
    assert (shown(registry, "nodes"), shown(registry, "waiting_pods")) == (2, 0)
    world.create(pod("late", 30, 4))
    assert shown(registry, "waiting_pods") == 1
    where = {"namespace": "default", "model": "T4"}
    assert shown(registry, "quota_in_force") == 1
    assert shown(registry, "quota_cards_used", **where) == pytest.approx(0.8)
    assert shown(registry, "quota_cards_limit", **where) == 2
    assert shown(registry, "quota_memory_bytes_limit", **where) == 4 << 30
    assert shown(registry, "quota_memory_bytes_used", **where)


def test_without_a_quota_none_is_shown(registry: CollectorRegistry) -> None:
    watched(registry, World([node("n1")], []))
    assert shown(registry, "quota_cards_limit", namespace="default", model="T4") is None


def test_each_step_is_counted_under_its_name(registry: CollectorRegistry) -> None:
    metrics = ClusterMetrics(registry)
    metrics.count("binds", "bound")
    metrics.count("lent", "yes")
    metrics.asked("filter", 200, 0.01)
    metrics.bypassed("bound-by-hand")
    metrics.quota_rejected()
    metrics.show_writes_dropped(lambda: 7)
    assert shown(registry, "scheduling_total", step="bind", result="bound") == 1
    assert shown(registry, "scheduling_total", step="lent", result="yes") == 1
    assert shown(registry, "extender_responses_total", verb="filter", code="200") == 1
    assert shown(registry, "extender_duration_seconds_sum", verb="filter") == 0.01
    assert shown(registry, "bypasses_total", reason="bound-by-hand") == 1
    assert (shown(registry, "quota_rejections_total"), shown(registry, "writes_dropped_total")) == (1, 7)


def test_the_service_shows_its_version_its_connections_and_its_certificate() -> None:
    metrics = AdmissionMetrics("1.2.3")
    expiry: list[float | None] = [None]
    metrics.watch_expiry(lambda: expiry[0])
    assert shown(metrics.registry, "certificate_expiry_timestamp_seconds") is None
    expiry[0] = 1e9
    metrics.answered("/validate", 200)
    metrics.reloaded(taken=True)
    metrics.reloaded(taken=False)
    metrics.evicted()
    assert shown(metrics.registry, "certificate_expiry_timestamp_seconds") == 1e9
    assert shown(metrics.registry, "build_info", version="1.2.3") == 1
    assert shown(metrics.registry, "http_responses_total", path="/validate", code="200") == 1
    assert [shown(metrics.registry, "certificate_reloads_total", result=r) for r in ("taken", "refused")] == [
        1,
        1,
    ]
    assert shown(metrics.registry, "connections_evicted_total") == 1
