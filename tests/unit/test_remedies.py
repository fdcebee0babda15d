"""The smallest change: of all that would let a pod run, the one that gives up least is said."""

from __future__ import annotations

from typing import Any

import pytest

from admission.cluster.pod_view import pod_view
from admission.explain.remedies import JudgedNode, Remedy, WaitingPod, cheapest_remedy
from admission.extender.feasibility import Fit
from gpu_manager.domain.contract import GPU_MODEL
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.topology import NumaPolicy
from tests.fakes.extender import UNIT, World, node, on_numa_nodes, pod


def cure(world: World, obj: dict[str, Any]) -> Remedy | None:
    occupant, snapshot = pod_view(parse_pod(obj), obj), world.cluster.snapshot()
    quota = world.quota.current
    limits = quota.of(occupant.pod.namespace) if quota else None
    case = WaitingPod(
        occupant, judged_request(occupant.pod, UNIT), snapshot, limits, world.judge, occupant.pod.namespace
    )
    question = case.ask(case.request)
    found = [(view, question.on(view)) for _, view in sorted(snapshot.nodes.items())]
    assert not any(isinstance(fit, Fit) for _, fit in found), "it waits"
    return cheapest_remedy(case, question, [JudgedNode(view, fit, "", "") for view, fit in found])


@pytest.mark.parametrize(("free", "change"), [(25, "ask 25 cores"), (10, f"widen annotation {GPU_MODEL}")])
def test_a_wish_for_a_model_weighs_as_a_quarter_of_the_amount(free: int, change: str) -> None:
    """Asking 25 cores instead of 30 gives up a sixth, asking 10 gives up two thirds."""
    world = World(
        [node("n1", cards=1), node("n2", cards=1, model="Tesla-V100")],
        [pod("x", 100 - free, 4, on="n1")],
    )
    found = cure(world, pod("a", 30, 1, annotations={GPU_MODEL: "T4"}))
    assert found is not None
    assert found.text.startswith(change)


def test_under_a_numa_policy_a_pod_of_more_cards_than_a_numa_node_has_is_told_how_many_it_may_have() -> None:
    parts = [pod(f"x{at}", 60, 4, on="n1") for at in range(4)]
    world = World([on_numa_nodes(node("n1", cards=4), NumaPolicy.SINGLE, 0, 0, 0, 1)], parts)
    found = cure(world, pod("many", 400, None))
    assert found is not None
    assert found.text.startswith(
        'ask 3 whole cards instead of 4 whole cards for "main", as no node that it may go to gives one container'
        " more (the kubelet's policy single-numa-node), and wait for them"
    )


def test_what_is_given_up_of_memory_counts_like_cores() -> None:
    nodes = [node("n1", cards=1, memory=64 * UNIT), node("n2", cards=1, memory=64 * UNIT)]
    world = World(nodes, [pod("x", 10, 54, on="n1"), pod("y", 71, 4, on="n2")])
    found = cure(world, pod("a", 30, 20))  # n1 has half of the memory, n2 all but one of the cores
    assert found is not None
    assert found.text.startswith("ask 29 cores, 5 GiB instead of 30 cores, 5 GiB")


def test_what_a_quota_leaves_is_said_in_whole_units() -> None:
    world = World([node("n1")], quota={"default": {"memory": {"T4": 1000}}})
    found = cure(world, pod("a", 30, 4))
    assert found is not None
    assert found.text.startswith("ask 30 cores, 768 MiB instead of 30 cores, 1 GiB")
    assert found.nearest is not None
    assert found.nearest.containers[0].request.memory == 3 * UNIT


def test_where_no_node_has_cards_there_is_nothing_to_change() -> None:
    assert cure(World([node("n1", cards=0)]), pod("a")) is None


def test_a_pod_of_several_cards_is_told_of_whole_cards_or_to_wait_and_never_of_a_part_of_one() -> None:
    held = [pod(f"x{i}", 60, 4, on="n1") for i in range(2)]
    world = World([node("n1", cards=2)], held)
    busy = cure(world, pod("pair", 200, None))
    assert busy is not None
    assert busy.text == "wait for pods to end: every node that could hold it is taken"
    never = cure(world, pod("many", 1600, None))
    assert never is not None
    assert never.text.startswith(
        'ask 2 whole cards instead of 16 whole cards for "main", as no node that it may go to has more'
    )
    idle = cure(World([node("n1", cards=2)], held[:1]), pod("pair", 200, None))
    assert idle is not None
    assert idle.text.startswith("ask 1 whole card instead of 2 whole cards")


def test_the_smallest_change_passes_the_quota_too_where_no_node_could_hold_the_pod() -> None:
    for granted, change in (
        (0.5, "let the quota grow, and ask 7 whole cards"),
        (4, "ask 4 whole cards instead of 8 whole cards"),
    ):
        world = World([node("n1", cards=8, unhealthy=[6])], quota={"default": {"quota": {"*": granted}}})
        found = cure(world, pod("p", 800, None))
        assert found is not None
        assert found.text.startswith(change)
    assert found.text.endswith("the quota of its namespace grants no more, and wait for them")


def test_nobody_is_told_to_wait_for_what_the_quota_never_grants() -> None:
    full = [pod("full", 800, None, on="n1", namespace="others")]
    world = World([node("n1", cards=8)], full, quota={"default": {"quota": {"*": 4}}})
    found = cure(world, pod("p", 700, None))
    assert found is not None
    assert found.text.startswith("let the quota grow, and wait for pods to end: ExceedsGPUQuota")
    found = cure(world, pod("q", 400, None))
    assert found is not None
    assert found.text.startswith("wait for pods to end")
