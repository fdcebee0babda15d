"""Nodes kept for requests for several cards that wait: which, for whom, and that smaller pods avoid them."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.cluster.pod_view import read_pod_view
from admission.cluster.snapshot import PODS
from admission.cluster.trim import slim_pod
from admission.extender.drained_nodes import DrainedNodes, QuotaBounds
from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.fragmentation_score import stock_of as stock_of_views
from admission.extender.node_rooms import LargestPart, NearestNodes, NodeRooms
from admission.extender.verbs import Extender
from bench.placement.ours import Ours
from bench.placement.replay import World as Replay
from bench.placement.replay import stock_of
from bench.placement.trace import Node, Pod
from gpu_manager.domain.kube.constraints import PodConstraints
from gpu_manager.domain.score.multi_gpu_slots import KEPT, MOST, drained, left_to_end, with_kept
from gpu_manager.domain.score.request_mix import FreeShape, RequestShape
from tests.fakes.extender import World, node, pod

FOUR = RequestShape(400, 0, 32_000)
cards = st.lists(st.one_of(st.just(100), st.integers(0, 99)), min_size=1, max_size=6)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("AB"), cards), min_size=1, max_size=2), st.integers(2, 4))
def test_what_must_end_is_the_least_over_all_choices_of_cards_of_a_model_that_is_allowed(groups, count):
    shape = RequestShape(100 * count, 0, 1000, ("A",))
    rooms = tuple(
        FreeShape(model, 40, 500, tuple(sorted((cores, 40) for cores in free))) for model, free in groups
    )
    choices = [
        sum(100 - cores for cores in chosen)
        for model, free in groups
        for chosen in combinations(free, count)
        if model == "A"
    ]
    assert left_to_end(shape, rooms, None) == min(choices, default=None)
    assert left_to_end(shape, rooms, 1000) == min(choices, default=None)
    assert left_to_end(shape, rooms, 999) is None, "not even the empty node has the host CPU"


def test_each_of_the_first_requests_gets_a_node_of_its_own_and_who_fits_nowhere_stands_in_nobodys_way():
    assert MOST == 2
    assert drained([(8, "ab"), (8, ""), (4, "ab"), (2, "abc")]) == {"a": 8, "b": 4}
    assert drained([(8, "a"), (4, "a"), (2, "ab")]) == {"a": 8, "b": 2}
    assert drained([]) == {}


@pytest.mark.parametrize(("asked", "more"), [(0, KEPT), (2, KEPT), (4, 0), (8, 0)])
def test_only_smaller_requests_cost_more_on_a_node_that_is_kept(asked, more):
    assert with_kept((1.5, "rest"), asked, kept=4) == (1.5 + more, "rest")


def unschedulable(obj, reason="Unschedulable"):
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": "0/2 nodes"}
    obj["status"]["conditions"] = [{"type": "Ready", "status": "False"}, condition]
    return obj


def two_nodes(quota=None):
    """A fraction of 40 cores fits exactly what is left of a card of n1, which is nearer to four idle cards."""
    world = World(
        [node("n1", cards=4), node("n2", cards=4)],
        [pod("x", 60, 20, on="n1"), pod("y", 200, None, on="n2"), pod("z", 70, 20, on="n2")],
        quota=quota,
    )
    world.policy = LeastFragmentation(world.cluster, aside=lambda job: job(), quota=world.quota)
    world.extender = Extender(world.cluster, world.quota, world.judge, world.policy, world.binder)
    return world


def best(world, obj):
    scores = world.prioritize(obj)
    return max(scores, key=scores.get)


def kept(world):
    bounds = QuotaBounds(world.quota.current, stock(world), world.cluster.unit)
    return world.policy._drained.kept(world.cluster, bounds)


def stock(world):
    return stock_of_views(world.cluster.snapshot().nodes.values())


def test_a_fraction_leaves_the_node_alone_that_drains_for_a_pod_of_four_cards_until_that_is_gone():
    world = two_nodes()
    world.create(small := pod("a", 40, 4))
    before = best(world, small)
    assert before == "n1"
    waits = pod("big", 400, None)
    world.create(waits)
    assert best(world, small) == before, "its scheduler has not looked at it yet"
    world.cluster.apply(PODS, "MODIFIED", unschedulable(waits))
    n1 = world.cluster.snapshot().nodes["n1"]
    assert kept(world) == {(n1.state, n1.cpu): 4}, "it has the least to end"
    assert best(world, small) == "n2"
    world.cluster.apply(PODS, "DELETED", waits)
    assert kept(world) == {}
    assert best(world, small) == before


def test_of_two_nodes_the_one_that_no_waiting_pod_needs_takes_the_fraction():
    world = two_nodes()
    world.cluster.apply("nodes", "DELETED", node("n2", cards=4))
    world.cluster.apply("nodes", "ADDED", node("n3", cards=2))
    world.create(small := pod("a", 40, 4))
    assert best(world, small) == "n1", "the fraction fits what is left of a card exactly"
    world.create(unschedulable(pod("big", 400, None)))
    assert best(world, small) == "n3"
    assert world.filter(small)["NodeNames"] == ["n1", "n3"], "it is a preference: nobody is refused for it"


@pytest.mark.parametrize(
    ("quota", "waits", "keeps"),
    [
        ({"team": {"quota": {"*": 4}}}, 400, True),
        ({"team": {"quota": {"*": 3}}}, 400, False),
        ({"team": {"quota": {"*": 4}}, "default": {"quota": {"*": 8}}, "*": {"quota": {"*": 1}}}, 400, True),
        ({"*": {"quota": {"*": 3}}}, 400, False),
        ({"other": {"quota": {"*": 1}}}, 400, True),
        ({"team": {"quota": {"no such card": 8}}}, 400, False),
        ({"team": {"quota": {"*": 8}, "pool": ["elsewhere"]}}, 400, False),
        ({"team": {"quota": {"*": 8}, "memory": {"*": 1}}}, 400, False),
    ],
)
def test_a_pod_over_its_quota_keeps_no_node(quota, waits, keeps):
    world = two_nodes(quota)
    world.create(small := pod("a", 40, 4))
    world.create(unschedulable(pod("big", waits, None, namespace="team")))
    assert best(world, small) == ("n2" if keeps else "n1")
    assert bool(kept(world)) is keeps


def test_a_node_is_kept_again_once_the_quota_has_room_for_who_waits():
    world = two_nodes({"team": {"quota": {"*": 5}}})
    holds = pod("holds", 200, None, on="n2", namespace="team")
    world.cluster.apply("nodes", "ADDED", node("n3", cards=4))
    world.cluster.apply(PODS, "ADDED", holds)
    world.create(unschedulable(pod("big", 400, None, namespace="team")))
    world.create(small := pod("a", 40, 4))
    best(world, small)
    assert kept(world) == {}
    world.cluster.apply(PODS, "DELETED", holds)
    assert kept(world)


events = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from([0, 0, 4, 4, 8]), st.integers(0, 3)), max_size=12
)


@settings(max_examples=60)
@given(events)
def test_the_nearest_nodes_are_those_that_a_look_at_all_of_them_would_find_whatever_changes(changes):
    world, there = World([node("a", cards=4)]), {"a"}
    asked = LargestPart(RequestShape(400), PodConstraints())
    nearest = NearestNodes(asked, NodeRooms())
    nearest.of(world.cluster)
    for number, (name, size, pods) in enumerate(changes):
        if size:
            there.add(name)
            world.cluster.apply("nodes", "MODIFIED", node(name, cards=size))
            for at in range(pods):
                world.cluster.apply(PODS, "ADDED", pod(f"{number}-{at}", 90, 1, on=name))
        elif name in there:
            there.remove(name)
            world.cluster.apply("nodes", "DELETED", node(name))
        if number % 2 or pods:  # some changes are seen together
            anew = NearestNodes(asked, NodeRooms())
            assert nearest.of(world.cluster) == anew.of(world.cluster)
            assert nearest.first(world.cluster) == anew.first(world.cluster)


def for_nobody(count, alike):
    """Pods for which no node of four cards is large enough, nor would any other be, and where their label is
    asked for none is; alike or each of its own kind.
    """
    for at in range(count):
        obj = pod(f"never-{at}", 400 if at % 2 else 800 + 100 * (not alike and at), None)
        if at % 2:
            obj["spec"]["nodeSelector"] = {"no-node-has": "x" if alike else f"x{at}"}
        yield unschedulable(obj)


@pytest.mark.parametrize("alike", [True, False])
def test_any_number_of_pods_that_no_node_could_take_keep_nobody_from_a_node(alike):
    world = two_nodes()
    never = list(for_nobody(40, alike))
    world.create(*never, small := pod("a", 40, 4), unschedulable(pod("big", 400, None)))
    for _ in range(60):  # one kind a question
        chosen = best(world, small)
    assert chosen == "n2"
    found = kept(world)
    n1 = world.cluster.snapshot().nodes["n1"]
    assert found == {(n1.state, n1.cpu): 4}
    world.cluster.apply("nodes", "ADDED", node("n8", cards=8))
    for _ in range(60):
        found = kept(world)
    n8 = world.cluster.snapshot().nodes["n8"]
    assert found[n8.state, n8.cpu] == 8, "the first of them has come first"
    world.cluster.apply("nodes", "DELETED", node("n8", cards=8))
    for _ in range(60):
        found = kept(world)
    assert found == {(n1.state, n1.cpu): 4}
    for obj in never:
        world.delete(obj)
    world.policy.close(0.0)
    for _ in range(60):
        found = kept(world)
    assert found == {(n1.state, n1.cpu): 4}
    assert not world.policy._drained._nowhere


class CountedRooms(NodeRooms):
    """Counts the nodes that were read."""

    def __init__(self):
        super().__init__()
        self.read = 0

    def of(self, view):
        self.read += 1
        return super().of(view)


def with_counted_rooms(world):
    rooms = CountedRooms()
    world.policy._drained = DrainedNodes(rooms)
    return rooms


def test_what_comes_and_goes_on_the_nodes_is_not_read_for_pods_that_are_set_aside():
    world = two_nodes()
    rooms = with_counted_rooms(world)
    for obj in for_nobody(40, alike=False):
        world.create(obj)
        world.policy._drained.came(read_pod_view(obj), [RequestShape(800)])
    for _ in range(60):
        assert kept(world) == {}
    rooms.read = 0
    for at in range(100):
        world.create(pod(f"small-{at}", 1, 0, on="n1"))
        assert kept(world) == {}
    assert rooms.read == 0
    world.cluster.apply("nodes", "ADDED", node("n8", cards=8))
    for _ in range(60):
        found = kept(world)
    assert set(found.values()) == {8}


def test_the_nodes_for_a_request_are_sought_once_for_the_preference_and_for_the_node_to_close():
    world = two_nodes()
    rooms = with_counted_rooms(world)
    for name in ("one", "two"):
        world.create(unschedulable(pod(name, 400, None)))
        world.policy._drained.came(read_pod_view(world.api.pods["default", name]), [RequestShape(400)])
    assert kept(world)
    assert rooms.read == 2
    bounds, drained_nodes = QuotaBounds(None, stock(world), world.cluster.unit), world.policy._drained
    drained_nodes.close(world.cluster, bounds, 1.0)
    drained_nodes.left(["others"] * 100)
    drained_nodes.close(world.cluster, bounds, 2.0)
    assert [view.name for view in world.cluster.snapshot().nodes.values() if view.kept] == ["n1"]
    assert rooms.read == 2


def test_a_pod_is_set_aside_for_no_longer_than_its_quota_leaves_it_no_pool_with_a_node():
    quota = {"team": {"quota": {"*": 8}, "pool": ["elsewhere"]}}
    world = two_nodes(quota)
    world.create(small := pod("a", 40, 4), unschedulable(pod("big", 400, None, namespace="team")))
    best(world, small)
    assert kept(world) == {}
    world.limit({"team": {"quota": {"*": 8}}})
    assert kept(world)


@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulingGated", ""])
def test_only_a_pod_that_its_scheduler_found_no_node_for_counts(reason):
    obj = unschedulable(pod("big", 400, None), reason)
    assert read_pod_view(obj).unschedulable is (reason == "Unschedulable")
    assert read_pod_view(slim_pod(obj)).unschedulable is (reason == "Unschedulable")


@pytest.mark.parametrize(
    "conditions", [None, "x", [1], [{"type": ["PodScheduled"]}], {"type": "PodScheduled"}]
)
def test_conditions_that_are_none_say_nothing(conditions):
    obj = pod("big", 400, None)
    obj["status"]["conditions"] = conditions
    assert read_pod_view(slim_pod(obj)).unschedulable is False


@pytest.mark.parametrize("draining", [True, False])
def test_the_replay_keeps_nodes_as_the_extender_does(draining):
    nodes = [Node("a", 96_000, 1 << 20, 4, "A"), Node("b", 96_000, 1 << 20, 2, "A")]
    world = Replay(nodes, Ours(stock_of(nodes), draining=draining))
    small = Pod("small", RequestShape(40, 0, 1000), 0)
    world.arrived(small.shape)
    world.put(small, 0, world.room(0).less(small.shape, (100, 0)))
    assert world.choose(small)[0] == 0
    world.wait({3: RequestShape(50), 4: FOUR})
    assert world.choose(small)[0] == (1 if draining else 0)
    world.wait({3: RequestShape(50)})
    assert world.choose(small)[0] == 0
