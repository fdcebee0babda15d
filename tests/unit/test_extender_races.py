"""Bind while something else happens in the middle of it: what two threads, a slow API server, a late list do."""

import json

import pytest

from admission.cluster.snapshot import NODES, PODS
from gpu_manager.domain.contract import CORE_LIMIT
from gpu_manager.domain.resources import GIB
from tests.fakes.extender import World, bound, container, node, pod


@pytest.fixture
def world():
    return World([node("n1", cards=1), node("n2", cards=1)], watching=False)


def offered(world, obj):
    world.create(obj)
    assert world.filter(obj)["NodeNames"] == ["n1", "n2"]
    return obj


def hook(world, step):
    """Do ``step`` once, when the next answer to a GET is on its way here."""
    ask, steps = world.api.fetch, [step]

    def fetch(namespace, name):
        found = ask(namespace, name)
        if steps:
            steps.pop()()
        return found

    world.api.fetch = fetch


def test_a_pod_that_turns_out_to_be_bound_keeps_its_cards_while_it_is_sent_elsewhere(world):
    first, second = offered(world, pod("a", 80, 4)), offered(world, pod("b", 80, 4))
    world.api.plan = ["late"]
    assert "did not say" in world.bind(first, "n1")
    seen = []
    world.api.before = lambda: seen.append(world.booked("n1"))
    assert "bound to n1 already" in world.bind(first, "n2")
    assert world.bind(second, "n1")
    assert all(booked == [(80, 4)] for booked in seen)
    assert world.booked("n1") == [(80, 4)]
    assert world.booked("n2") == [(0, 0)]


def test_a_pod_that_the_watch_shows_bound_just_before_it_is_reserved_is_not_reserved(world):
    obj = offered(world, pod("a", 80, 4))
    quota = world.quota
    shown = bound(obj, "n1", {})

    class Late:
        """The quota, read between the pod and its reservation."""

        def missing(self):
            return quota.missing()

        @property
        def current(self):
            world.show(shown)
            return quota.current

    world.binder.quota = Late()
    assert "bound to n1 already" in world.bind(obj, "n2")
    assert world.api.bindings == []
    assert (world.booked("n1"), world.booked("n2")) == ([(80, 4)], [(0, 0)])


def test_an_answer_about_an_older_attempt_does_not_end_a_newer_one(world):
    obj = offered(world, pod("a", 80, 4))
    world.api.plan = ["lost", "hold"]
    assert world.bind(obj, "n1")
    world.clock.time += 11
    world.filter(obj)
    hook(world, lambda: world.bind(obj, "n2"))
    world.binder.settle()  # asks; the answer is overtaken by a second attempt
    assert world.booked("n2") == [(80, 4)]
    world.api.held.pop()()
    assert world.binder.settle() == 0
    assert world.booked("n2") == [(80, 4)]


def test_a_request_is_awaited_from_when_it_was_sent_however_long_the_question_before_it_took(world):
    obj = offered(world, pod("a", 80, 4))
    world.api.plan = ["lost", "hold"]
    assert world.bind(obj, "n1")
    world.clock.time += 11
    world.filter(obj)

    def slow():
        world.clock.time += 9

    hook(world, slow)
    assert "did not say" in world.bind(obj, "n2")
    world.clock.time += 4  # sent four seconds ago: it may still act
    assert world.binder.settle() == 1
    assert world.booked("n2") == [(80, 4)]
    world.clock.time += 7
    assert world.binder.settle() == 0
    assert world.booked("n2") == [(0, 0)]


def test_a_pod_found_bound_is_not_lost_to_a_list_that_was_asked_for_before_it_came(world):
    obj = pod("a", 80, 4)
    world.api.put(obj)  # the watch has not shown it: a list of 5,000 nodes' pods is on its way
    world.filter(obj)
    world.api.plan = ["late"]
    assert "did not say" in world.bind(obj, "n1")
    assert world.binder.settle() == 0
    world.cluster.replace(PODS, [])
    assert world.booked("n1") == [(80, 4)]
    world.cluster.apply(PODS, "DELETED", next(iter(world.api.pods.values())))
    assert world.booked("n1") == [(0, 0)]


def test_a_pod_found_bound_and_gone_since_is_forgotten_though_no_watch_ever_shows_it(world):
    obj = pod("a", 80, 4)
    world.api.put(obj)
    world.filter(obj)
    world.api.plan = ["late"]
    assert world.bind(obj, "n1")
    assert world.binder.settle() == 0
    world.api.pods.clear()
    world.cluster.replace(PODS, [])
    world.clock.time += 61
    world.binder.settle()
    assert world.booked("n1") == [(0, 0)]


@pytest.mark.parametrize(
    "annotations", [{CORE_LIMIT: "x"}, {CORE_LIMIT: "1"}, {"tencent.com/placement": "x"}]
)
def test_a_running_pod_whose_annotation_is_spoilt_holds_what_its_spec_says(world, annotations):
    obj = offered(world, pod("a", 80, 4))
    assert world.bind(obj, "n1") == ""
    (there,) = world.api.pods.values()
    world.show(there)
    spoilt = json.loads(json.dumps(there))
    spoilt["metadata"]["annotations"].update(annotations)
    world.show(spoilt)
    assert world.booked("n1") == [(80, 4)]
    assert world.cluster.snapshot().used["default"]["Tesla-T4"].cores == 80


def test_a_bind_that_stood_still_until_its_place_went_sends_nothing_and_leaves_nothing(world):
    obj = offered(world, pod("a", 80, 4))
    quota, steps = world.quota, []

    class Slow:
        """The quota, read by a thread that then stands still for a minute."""

        def missing(self):
            return quota.missing()

        @property
        def current(self):
            if not steps:
                steps.append(1)
                world.clock.time += 61
                world.binder.settle()
            return quota.current

    world.binder.quota = Slow()
    assert "too long" in world.bind(obj, "n1")
    assert world.api.bindings == []
    assert world.booked("n1") == [(0, 0)]


def test_pods_on_a_node_that_vanished_count_for_the_quota_until_they_are_gone():
    """Its object may be deleted and made anew while they run (a cloud that takes it for dead)."""
    world = World([node("n1", cards=1), node("n2", cards=1)], quota={"default": {"quota": {"T4": 1}}})
    first, second = pod("a", 80, 4), pod("b", 80, 4)
    world.create(first, second)
    world.filter(first)
    assert world.bind(first, "n1") == ""
    world.cluster.apply(NODES, "DELETED", node("n1", cards=1))
    assert world.filter(second, ["n1", "n2"])["NodeNames"] == []
    world.cluster.apply(NODES, "ADDED", node("n1", cards=1))
    assert world.booked("n1") == [(80, 4)]
    world.cluster.apply(NODES, "DELETED", node("n1", cards=1))
    world.delete(world.api.pods["default", "a"])
    assert "n1" not in world.cluster.snapshot().nodes
    assert world.filter(second, ["n1", "n2"])["NodeNames"] == ["n2"]


def test_they_count_under_every_model_whether_the_service_knew_the_node_or_began_later():
    """Else two replicas would answer differently."""
    quota = {"default": {"quota": {"T4": 1, "V100": 1}}}
    nodes = [node("n1", cards=1), node("n2", cards=1, model="V100")]
    knew = World(nodes, quota=quota)
    left, other = pod("a", 80, 4), pod("b", 80, 4)
    knew.create(left, other)
    assert knew.filter(left, ["n1"])["NodeNames"] == ["n1"]
    assert knew.bind(left, "n1") == ""
    assert knew.filter(other, ["n2"])["NodeNames"] == ["n2"]
    knew.cluster.apply(NODES, "DELETED", nodes[0])
    later = World(nodes[1:], list(knew.api.pods.values()), quota=quota)
    said = knew.filter(other, ["n2"])
    assert said["NodeNames"] == []
    assert "1 card of V100, 0.8 used or being bound, 0.8 asked: 0.2 would still fit" in str(said)
    assert said == later.filter(other, ["n2"])


def test_of_a_deleted_node_a_pod_is_charged_no_less_than_before():
    """Whole cards with their memory, and each card on which a phase of the pod has lain."""
    once = {"initContainers": [container("once", 100, None)], "containers": [container("main", 30, 4)]}
    whole, phases = pod("whole", 200, None), pod("phases")
    phases["spec"] |= once
    world = World([node("n1", cards=4)])
    world.create(whole, phases)
    assert (world.schedule(whole), world.schedule(phases)) == ("n1", "n1")
    before = dict(world.cluster.snapshot().used["default"])
    world.cluster.apply(NODES, "DELETED", node("n1", cards=4))
    assert world.cluster.snapshot().used["default"] == {"": before["Tesla-T4"]}
    assert before["Tesla-T4"].memory >= 32 * GIB


def test_pods_on_a_node_that_vanished_before_we_came_count_for_the_quota_of_every_model():
    """Nothing says any more which cards they hold: to leave them out would let the namespace pass its line."""
    world = World([node("n2", cards=1)], quota={"default": {"quota": {"T4": 1, "V100": 2}}})
    left, second = pod("a", 80, 4, on="n1"), pod("b", 80, 4)
    world.create(left, second)
    answer = world.filter(second, ["n2"])
    assert answer["NodeNames"] == []
    assert "1 card of T4, 0.8 used or being bound, 0.8 asked: 0.2 would still fit" in str(answer)
    world.cluster.apply(NODES, "ADDED", node("n1", cards=1))
    assert world.cluster.snapshot().used["default"].keys() == {"Tesla-T4"}
    world.cluster.apply(NODES, "DELETED", node("n1", cards=1))
    world.delete(world.api.pods["default", "a"])
    assert world.filter(second, ["n2"])["NodeNames"] == ["n2"]
