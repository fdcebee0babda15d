"""A quota by model, and nodes of several models: what fits within the room of each is found."""

from __future__ import annotations

from typing import Any

import pytest

from admission.quota.quota_book import quota_refusal
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import DEFAULT_UNIT, ZERO
from gpu_manager.domain.rules.pod_request import judged_request
from tests.fakes.extender import World, container, node, pod

MODELS = ["Tesla-T4", "Tesla-T4", "A100-SXM4-40GB", "A100-SXM4-40GB"]


def mixed(quota: dict[str, Any], *pods: dict[str, Any]) -> World:
    return World([node("n1", 4, model=MODELS)], pods, quota={"default": quota})


def created(world: World, obj: dict[str, Any]) -> str:
    parsed, snapshot = parse_pod(obj), world.cluster.snapshot()
    limits = world.quota.current
    assert limits is not None
    views = tuple(snapshot.nodes.values())
    return quota_refusal(limits, snapshot, parsed, judged_request(parsed, DEFAULT_UNIT), views)


def taken(world: World, obj: dict[str, Any]) -> dict[str, int]:
    """Cores by model where filter, prioritize and bind put it; empty where filter refuses."""
    world.create(obj)
    if not world.schedule(obj):
        return {}
    used = world.cluster.snapshot().used.get("default", {})
    return {model: amount.cores for model, amount in used.items() if amount != ZERO}


HALVES = [container("a", 60, 4), container("b", 60, 4)]
CARDS = [container("a", 100), container("b", 100)]


@pytest.mark.parametrize(
    ("containers", "quota", "wanted"),
    [
        ([container("a", 200)], {"T4": 1, "A100": 1}, [100, 100]),
        (CARDS, {"T4": 1, "A100": 1}, [100, 100]),
        (HALVES, {"T4": 0.6, "A100": 0.6}, [60, 60]),
        ([container("a", 300)], {"T4": 1, "A100": 2}, [100, 200]),
        ([container(n, 30, 4) for n in "abc"], {"T4": 0.6, "A100": 0.3}, [30, 60]),
        ([container("a", 200)], {"T4": 0.5, "A100": 1}, []),
        (HALVES, {"T4": 0.5, "A100": 0.6}, []),
        ([container("a", 200)], {"T4": 1, "A100": 1, "*": 1}, []),
    ],
)
def test_a_pod_takes_of_each_model_what_its_namespace_has_room_for(
    containers: list[dict[str, Any]], quota: dict[str, float], wanted: list[int]
) -> None:
    world = mixed({"quota": quota})
    obj = pod("p", None, None, containers=containers)
    assert bool(created(world, obj)) is (not wanted)
    assert sorted(taken(world, obj).values()) == wanted


def test_what_the_namespace_holds_already_counts_under_its_model() -> None:
    world = mixed({"quota": {"T4": 1, "A100": 1}}, pod("x", 100, None, on="n1"))
    assert created(world, pod("p", 200, None)) == "", "it waits"
    assert taken(world, pod("p", 200, None)) == {}
    assert sorted(taken(world, pod("q", 100, None)).values()) == [100, 100]
