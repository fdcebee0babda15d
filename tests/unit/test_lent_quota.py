"""Pods that hold whole cards as ``nvidia.com/gpu``: what the extender's books and the quota make of them."""

from __future__ import annotations

from typing import Any

import pytest

from admission.cluster.bypass import Bypasses, BypassFinding
from admission.cluster.pod_view import pod_view, read_pod_view
from admission.cluster.snapshot import NODES
from admission.cluster.trim import slim_pod
from admission.explain.explanation import Explanation, explain
from gpu_manager.domain.cluster.kubelet_ids import gpus_of
from gpu_manager.domain.contract import ALLOCATION, CORE, NVIDIA, Assignment, encode_assignment
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import GIB, Amount
from tests.fakes.extender import UNIT, World, bound, node, pod, uuid

Obj = dict[str, Any]


def lent(name: str, count: int = 1, *, on: str = "n1", **more: Any) -> Obj:
    one = {"name": "main", "image": "image", "resources": {"limits": {NVIDIA: str(count)}}}
    return pod(name, containers=[one], on=on, **more)


def granted(obj: Obj, *indices: int) -> Obj:
    """With the annotation that the agent writes once it has given the cards."""
    where = obj["spec"]["nodeName"]
    shares = tuple((uuid(where, i), Amount(100, 16 * GIB)) for i in indices)
    said = Assignment(where, obj["metadata"]["uid"], {"main": shares})
    return bound(obj, where, {ALLOCATION: encode_assignment(said)})


def shown(obj: Obj) -> Obj:
    """As the watch brings it."""
    found = slim_pod(obj)
    assert found is not None
    return dict(found)


def used(world: World) -> dict[str, dict[str, int]]:
    said = world.cluster.snapshot().used
    return {name: {model: a.cores for model, a in models.items()} for name, models in said.items()}


QUOTA = {"team-a": {"quota": {"T4": 2}}}


def test_a_card_lent_under_the_other_name_counts_against_the_quota_like_a_whole_card() -> None:
    world = World([node("n1", 4, lends=True)], quota=QUOTA)
    world.create(shown(lent("theirs", namespace="team-a")))
    assert used(world) == {"team-a": {"Tesla-T4": 100}}
    ours = pod("ours", 200, None, namespace="team-a")
    world.create(ours)
    said = world.filter(ours)
    assert said["NodeNames"] == []
    assert "2 cards of T4, 1 used or being bound, 2 asked: 1 would still fit" in str(said)
    one = pod("one", 100, None, namespace="team-a")
    world.create(one)
    assert world.schedule(one) == "n1"
    world.delete(lent("theirs", namespace="team-a"))
    assert used(world) == {"team-a": {"Tesla-T4": 100}}


def test_its_memory_counts_too() -> None:
    world = World([node("n1", 2, lends=True)], quota={"team-a": {"memory": {"T4": 20 * 1024}}})
    world.create(shown(lent("theirs", namespace="team-a")))
    part = pod("part", 30, 5 * GIB // UNIT, namespace="team-a")
    world.create(part)
    assert "4 GiB would still fit" in str(world.filter(part))


def test_once_its_node_is_deleted_it_counts_where_the_agent_has_named_its_card() -> None:
    """Without that nobody can tell it from a pod of another vendor's plugin."""
    world = World([node("n1", 4, lends=True)], quota=QUOTA)
    world.create(shown(granted(lent("named", namespace="team-a"), 2)), shown(lent("new", namespace="team-a")))
    assert used(world) == {"team-a": {"Tesla-T4": 200}}
    world.cluster.apply(NODES, "DELETED", node("n1"))
    assert used(world) == {"team-a": {"": 100}}
    assert world.cluster.snapshot().used["team-a"][""].memory == 16 * GIB


def test_a_card_is_kept_for_it_from_its_binding_on_before_the_agent_has_said_which() -> None:
    world = World([node("n1", 2, lends=True)])
    world.create(shown(lent("theirs")))
    whole, part = pod("whole", 200, None), pod("part")
    world.create(whole, part)
    assert world.filter(whole)["NodeNames"] == []
    assert world.schedule(part) == "n1"
    world.create(shown(lent("more")))  # the node has no card for it any more, and will refuse it
    last = pod("last", 80)
    world.create(last)
    assert world.filter(last)["NodeNames"] == []


def test_its_cards_are_those_that_the_agent_named() -> None:
    world = World([node("n1", 4, model=["A100", "T4", "T4", "A100"], lends=True)])
    world.create(shown(granted(lent("theirs", 2), 0, 3)))
    assert used(world) == {"default": {"A100": 200}}
    assert [cores for cores, _ in world.booked("n1")] == [100, 0, 0, 100]


def test_on_a_node_that_lends_no_cards_it_holds_none_of_ours() -> None:
    world = World([node("n1", 2), node("n2", 0, inventory=False, lends=True)])
    world.create(shown(lent("here")), shown(lent("there", on="n2")))
    assert used(world) == {}
    assert world.booked("n1") == [(0, 0), (0, 0)]


def test_one_that_a_node_lent_before_keeps_its_card_there() -> None:
    world = World([node("n1", 2)])
    world.create(shown(granted(lent("theirs"), 1)))
    assert used(world) == {"default": {"Tesla-T4": 100}}
    assert [cores for cores, _ in world.booked("n1")] == [0, 100]


def test_a_node_that_begins_to_lend_is_seen_to() -> None:
    world = World([node("n1", 2)])
    world.create(shown(lent("theirs")))
    assert used(world) == {}
    world.cluster.apply("nodes", "MODIFIED", node("n1", 2, lends=True))
    assert used(world) == {"default": {"Tesla-T4": 100}}


def test_before_it_is_on_a_node_it_is_not_this_schedulers() -> None:
    assert slim_pod(lent("waits", on="")) is None
    assert read_pod_view(lent("waits", on="")) is None


def test_one_that_asks_under_both_names_is_charged_for_nothing_as_the_agent_gives_it_nothing() -> None:
    both = lent("both")
    both["spec"]["containers"][0]["resources"]["limits"][CORE] = "100"
    world = World([node("n1", 2, lends=True)])
    world.create(shown(both))
    assert used(world) == {}


@pytest.mark.parametrize("annotations", [{}, {"tencent.com/placement": "nonsense"}])
def test_it_is_no_bypass_for_it_passes_by_no_rule_of_ours(annotations: dict[str, str]) -> None:
    found: list[BypassFinding] = []
    occupant = read_pod_view(lent("theirs", annotations=annotations))
    assert occupant is not None
    Bypasses(UNIT, 1, (), found.append).look(occupant)
    assert found == []


def test_it_is_nobodys_victim_for_its_card_comes_over_to_our_names_only_later() -> None:
    world = World([node("n1", 1, lends=True)])
    world.create(shown(granted(lent("theirs", priority=0), 0)))
    urgent = pod("urgent", 100, None, priority=1000)
    world.create(urgent)
    occupant = read_pod_view(urgent)
    assert occupant is not None
    told = explain(occupant, world.cluster.snapshot(), None, world.judge, everywhere=True)
    assert [line.victims for line in told.nodes] == [()]


def explained(world: World, obj: Obj) -> Explanation:
    return explain(pod_view(parse_pod(obj)), world.cluster.snapshot(), None, world.judge, everywhere=True)


def test_lent_cards_are_full_and_not_impossible() -> None:
    world = World([node("n1", 2, lends=True, held=(0, 1))])
    found = explained(world, pod("train", 30, 8))
    assert found.counts == {"room": 1}
    assert "given away whole as nvidia.com/gpu" in found.nodes[0].line
    assert "wait for pods to end" in found.change
    assert explained(world, pod("huge", 300, None)).counts == {"never": 1}


def test_a_pending_pod_with_nvidias_name_is_told_what_it_waits_for() -> None:
    waiting = lent("theirs", 2, on="")
    nodes = [node("n1", 4, lends=True, held=(0,)), node("n2", 4)]
    world = World(nodes)
    world.create(pod("part", 30, 8, on="n1"))
    world.create(pod("more", 80, 8, on="n1"))
    found = explained(world, waiting)
    assert found.counts == {"room": 2}
    assert found.line == (
        "waits: asks for 2 nvidia.com/gpu, which the scheduler counts by itself: a card counts while no pod holds "
        "any part of it; n1: 1 of 4 cards are empty, 1 are given away as nvidia.com/gpu, 2 are held in part"
    )
    found = explained(world, lent("small", 1, on=""))
    assert found.counts == {"fits": 1, "room": 1}
    assert "room now on 1 of 1 nodes: n1: 1 of 4 cards are empty" in found.line
    assert "no node with our cards offers any" in explained(World([node("n2")]), waiting).line
    assert explained(world, pod("cpu", None, None)).line == "asks for no part of a card: any node will do"


def test_many_lending_nodes_are_counted_and_closed_cards_are_said() -> None:
    world = World([node(f"n{n}", 2, lends=True, closed=(0,), held=(1,)) for n in range(5)])
    line = explained(world, lent("theirs", on="")).line
    assert "n0: 0 of 2 cards are empty, 1 are given away as nvidia.com/gpu, 1 are closed" in line
    assert line.endswith("; and 2 more nodes")


def test_what_a_pod_needs_at_a_time_is_its_apps_or_its_largest_init_container() -> None:
    def gpus(count: int) -> Obj:
        return {"name": f"c{count}", "image": "image", "resources": {"limits": {NVIDIA: str(count)}}}

    obj = pod("p", containers=[gpus(1), gpus(2)], init=[gpus(5)])
    assert gpus_of(parse_pod(obj)) == 5
    assert gpus_of(parse_pod(pod("q", containers=[gpus(1), gpus(2)]))) == 3
    assert gpus_of(parse_pod(pod("r", 30, 8))) == 0
