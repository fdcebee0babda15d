"""Nodes of the predecessor's agent, which publish their capacity and no inventory, beside nodes of ours."""

from __future__ import annotations

import pytest

from gpu_manager.domain.contract import (
    ASSIGNED,
    CORE,
    MEMORY,
    PREDICATE_INDEX,
    PREDICATE_NODE,
    PREDICATE_TIME,
)
from tests.fakes.extender import Obj, World, container, node, pod

OLD = node("old", 2, inventory=False)


def theirs(name: str, core: int, memory: int | None, cards: str) -> Obj:
    """A pod that the predecessor's extender has placed."""
    written = {PREDICATE_NODE: "old", PREDICATE_TIME: "1", ASSIGNED: "true", f"{PREDICATE_INDEX}0": cards}
    return pod(name, core, memory, on="old", annotations=written)


def test_without_the_flag_they_take_no_pod_and_say_why() -> None:
    world = World([OLD, node("new", 1)])
    assert (world.filter(pod("a", 60))["NodeNames"] or []) == ["new"]


def test_with_the_flag_they_are_judged_by_their_capacity_and_their_pods_lie_where_the_predecessor_put_them() -> (
    None
):
    world = World([OLD], [theirs("a", 60, 4, "1"), theirs("b", 30, 4, "1")], by_capacity=True)
    view = world.cluster.snapshot().nodes["old"]
    assert [view.ledger.free(state.card.uuid).cores for state in view.node.cards] == [100, 10]
    assert (world.filter(pod("whole", 100, None))["NodeNames"] or []) == ["old"]
    assert (world.filter(pod("both", 200, None))["NodeNames"] or []) == []


def test_a_pod_is_bound_there_with_the_annotations_that_the_predecessors_agent_reads() -> None:
    world = World([OLD], [theirs("a", 60, 4, "1")], by_capacity=True)
    one = pod("one", containers=[container("log"), container("main", 30, 4)])
    world.create(one)
    assert world.schedule(one) == "old"
    ((_, where, written),) = world.api.bindings
    assert where == "old"
    assert written[f"{PREDICATE_INDEX}1"] == "1", "the fuller card, by its index and the container's"
    assert (written[PREDICATE_NODE], written[ASSIGNED]) == ("old", "false")
    assert written[PREDICATE_TIME].isdecimal()


def test_a_capacity_that_changes_is_seen() -> None:
    world = World([OLD], by_capacity=True)
    more = {CORE: "400", MEMORY: "256"}
    world.cluster.apply("nodes", "MODIFIED", {**OLD, "status": {"capacity": more, "allocatable": more}})
    assert (world.filter(pod("four", 400, None))["NodeNames"] or []) == ["old"]


@pytest.mark.parametrize("cards", ["", "x", "-1", "1,1", "7", "0,1", "9" * 40, "\u0661"])
def test_an_index_that_says_nothing_is_charged_where_the_policy_would_put_it(cards: str) -> None:
    world = World([OLD], [theirs("a", 60, 4, cards)], by_capacity=True)
    view = world.cluster.snapshot().nodes["old"]
    assert sorted(view.ledger.free(state.card.uuid).cores for state in view.node.cards) == [40, 100]


def test_on_a_node_with_an_inventory_an_index_names_no_card() -> None:
    world = World([{**node("old", 2)}], [theirs("a", 60, 4, "1")], by_capacity=True)
    view = world.cluster.snapshot().nodes["old"]
    assert [view.ledger.free(state.card.uuid).cores for state in view.node.cards] == [40, 100]
