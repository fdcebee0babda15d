"""A place is kept from a scheduler's choice on, however late the bind comes; what frees it, and for how long at most."""

import pytest

from admission.config import KEEP_SECONDS, SHORTEST_KEEP_SECONDS
from tests.fakes.extender import World, args, bound, node, pod

WHOLE = pod("whole", 100, None)
OTHER = pod("other", 50, 4)


def half_taken(**more):
    """Two cards; half of the cores and all of the memory of one are taken."""
    world = World([node("n1")], [pod("old", 50, 64, on="n1")], expecting=True, **more)
    world.create(WHOLE, OTHER)
    return world


def with_conditions(obj, *messages, reason="Unschedulable"):
    conditions = [
        {"type": "PodScheduled", "status": "False", "reason": reason, "message": text} for text in messages
    ]
    return {**obj, "status": {**obj["status"], "conditions": conditions}}


@pytest.mark.parametrize("seconds", [1, 4, 6, 30, 59, 61, 300, 600])
def test_a_pod_that_is_bound_late_finds_the_place_that_filter_gave_it(seconds):
    """kube-scheduler lets the other pod ask: by its sums a whole card asks for no memory by name."""
    world = half_taken()
    assert world.filter(WHOLE)["NodeNames"] == ["n1"]
    world.clock.pass_(seconds)
    assert world.filter(OTHER)["NodeNames"] == []
    assert world.bind(WHOLE, "n1") == ""


@pytest.mark.parametrize("seconds", [61, 300, 3600])
def test_where_nobody_came_between_the_age_of_the_answer_is_no_reason_to_refuse(seconds):
    world = half_taken()
    world.filter(WHOLE)
    world.clock.pass_(seconds)
    assert world.bind(WHOLE, "n1") == ""


def test_half_a_gang_never_holds_a_card():
    """Two members on two nodes; the gang is complete only eight seconds after its first member was placed."""
    full = [pod(f"old-{name}", 10, 64, on=name) for name in ("n1", "n2")]
    world = World([node("n1"), node("n2")], full, expecting=True)
    members = [pod("member-0", 100, None), pod("member-1", 100, None)]
    world.create(*members)
    assert world.filter(members[0], ["n1"])["NodeNames"] == ["n1"]
    world.clock.pass_(8)
    third = pod("third", 30, 4)
    world.create(third)
    assert world.filter(third, ["n1"])["NodeNames"] == []
    assert world.filter(members[1], ["n2"])["NodeNames"] == ["n2"]
    world.clock.pass_(300)
    assert [world.bind(each, where) for each, where in zip(members, ("n1", "n2"), strict=True)] == ["", ""]


def test_it_ends_after_fifteen_minutes_the_second_time_after_half_of_that_and_a_day_later_begins_anew():
    world, kept = half_taken(), []
    for _ in range(3):
        world.filter(WHOLE)
        begun = world.clock.time
        while world.cluster.snapshot().reserved:
            world.clock.pass_(1)
            world.cluster.expire(world.clock.time)
        kept.append(world.clock.time - begun)
    assert kept == [KEEP_SECONDS, KEEP_SECONDS / 2, KEEP_SECONDS / 4]
    assert KEEP_SECONDS == 900
    assert world.cluster.lapsed == 3, "who was refused for it is looked at again"
    world.clock.pass_(86_400)
    world.filter(WHOLE)
    world.clock.pass_(KEEP_SECONDS - 1)
    assert world.filter(OTHER)["NodeNames"] == []


def test_however_often_a_pod_comes_to_nothing_its_place_is_kept_for_a_moment_each_time():
    world = half_taken()
    for _ in range(40):
        world.filter(WHOLE)
        world.clock.pass_(KEEP_SECONDS)
        world.cluster.expire(world.clock.time)
    world.filter(WHOLE)
    world.clock.pass_(SHORTEST_KEEP_SECONDS - 1)
    assert world.filter(OTHER)["NodeNames"] == []
    world.clock.pass_(1)
    assert world.filter(OTHER)["NodeNames"] == ["n1"]


def test_a_pod_that_is_asked_about_again_at_once_loses_nothing():
    """Another plugin refuses it, or a scheduler looks twice: only the time that places were kept counts."""
    world = half_taken()
    for _ in range(10):
        world.filter(WHOLE)
        world.clock.pass_(1)
    world.clock.pass_(KEEP_SECONDS - 10)
    assert world.filter(OTHER)["NodeNames"] == []
    assert world.bind(WHOLE, "n1") == ""


def test_it_ends_when_its_scheduler_says_that_the_pod_found_no_node():
    world = half_taken()
    world.filter(WHOLE)
    world.clock.pass_(20)
    world.show(with_conditions(WHOLE, "running PreBind plugin VolumeBinding: timed out"))
    assert world.filter(OTHER)["NodeNames"] == ["n1"]
    assert world.cluster.lapsed == 1


@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulerError"])
def test_what_its_scheduler_had_said_before_it_asked_ends_nothing(reason):
    """The condition of the last try stands in the pod until it is bound."""
    world = half_taken()
    before = with_conditions(WHOLE, "0/1 nodes are available", reason=reason)
    world.filter(before)
    world.show(before)
    assert world.filter(OTHER)["NodeNames"] == []
    world.show(with_conditions(WHOLE, "0/1 nodes are available: a volume", reason=reason))
    assert world.filter(OTHER)["NodeNames"] == ["n1"]


def test_it_ends_when_the_pod_is_asked_about_again_and_fits_no_more_or_elsewhere():
    world = World([node("n1"), node("n2")], expecting=True)
    world.create(WHOLE)
    world.filter(WHOLE, ["n1"])
    assert world.booked("n1") != [(0, 0), (0, 0)]
    world.filter(WHOLE, ["nobody-knows-it"])
    assert world.booked("n1") == [(0, 0), (0, 0)]
    world.filter(WHOLE, ["n1"])
    world.filter(WHOLE, ["n2"])
    assert (world.booked("n1"), sum(cores for cores, _ in world.booked("n2"))) == ([(0, 0), (0, 0)], 100)


def test_a_scheduler_that_names_another_node_for_the_pod_gives_the_first_up():
    """kube-scheduler writes where a pod is going before it waits for volumes or for a gang."""
    world = World([node("n1"), node("n2")], expecting=True)
    world.create(WHOLE)
    world.filter(WHOLE, ["n1"])
    world.show({**WHOLE, "status": {**WHOLE["status"], "nominatedNodeName": "n1"}})
    assert sum(cores for cores, _ in world.booked("n1")) == 100
    world.show({**WHOLE, "status": {**WHOLE["status"], "nominatedNodeName": "n2"}})
    assert world.booked("n1") == [(0, 0), (0, 0)]


def test_a_question_in_the_name_of_another_scheduler_or_of_another_pod_frees_nothing():
    world = half_taken()
    world.filter(WHOLE)
    world.filter(pod("whole", 10, 1), ["nobody-knows-it"])
    assert world.filter(OTHER)["NodeNames"] == []


@pytest.mark.parametrize("names", [["n1"], ["nobody-knows-it"], ["n1", "n2"]])
def test_who_may_not_bind_frees_and_moves_no_place_and_has_one_kept_for_a_moment(names):
    world = World([node("n1", cards=1), node("n2", cards=1)], expecting=True)
    world.create(WHOLE)
    world.filter(WHOLE, ["n1"])
    world.extender.filter(args(WHOLE, names), binds=False)
    world.extender.prioritize(args(WHOLE, ["n2"]), binds=False)
    world.clock.pass_(SHORTEST_KEEP_SECONDS)
    assert world.filter(OTHER)["NodeNames"] == ["n2"]
    world.create(OTHER)
    world.extender.filter(args(OTHER, ["n2"]), binds=False)
    assert world.booked("n2") == [(50, 4)]
    world.clock.pass_(SHORTEST_KEEP_SECONDS)
    world.cluster.expire(world.clock.time)
    assert world.booked("n2") == [(0, 0)]


def test_a_kept_place_counts_in_its_namespaces_quota_until_it_is_given_up():
    world = World([node("n1")], expecting=True, quota={"default": {"quota": {"*": 1}}})
    world.create(WHOLE, OTHER)
    world.filter(WHOLE)
    world.clock.pass_(600)
    assert "ExceedsGPUQuota" in next(iter(world.filter(OTHER)["FailedAndUnresolvableNodes"].values()))
    world.delete(WHOLE)
    assert world.filter(OTHER)["NodeNames"] == ["n1"]


def test_who_leads_no_more_keeps_no_place():
    """The schedulers are others then: their sums begin with the pods that are bound."""
    world = half_taken()
    world.filter(OTHER)
    world.binder.end()
    assert world.cluster.snapshot().reserved == {}


def test_who_has_just_begun_to_lead_judges_what_the_last_leader_may_have_offered():
    world = half_taken()
    world.binder.begin()
    assert world.bind(WHOLE, "n1") == ""
    assert "50 cores" in world.bind(OTHER, "n1"), "judged, and there is no room"


def test_who_leads_anew_refuses_what_it_did_not_offer_of_pods_that_came_since_or_were_asked_about_since():
    world = half_taken()
    world.binder.begin()
    later = pod("later", 10, 1)
    world.create(later)
    assert "was never offered for" in world.bind(later, "n1")
    world.filter(WHOLE, ["nobody-knows-it"])
    assert "was never offered for" in world.bind(WHOLE, "n1")


def test_the_room_is_judged_anew_when_the_place_has_lapsed():
    world = half_taken()
    world.filter(WHOLE)
    world.clock.pass_(KEEP_SECONDS)
    assert world.schedule(OTHER) == "n1"
    assert "1 whole card asked" in world.bind(WHOLE, "n1")


def test_an_hour_after_it_was_bound_elsewhere_nothing_is_kept():
    world = World([node("n1"), node("n2")], expecting=True)
    world.create(WHOLE)
    world.filter(WHOLE, ["n1"])
    world.show(bound(WHOLE, "n2", {}))
    assert world.booked("n1") == [(0, 0), (0, 0)]


def test_a_pod_is_bound_to_its_place_though_pods_leave_there_for_another_of_higher_priority():
    """Room is made for that one beside the place; laid out before it, it would take the place itself meanwhile."""
    world = half_taken()
    assert world.filter(WHOLE)["NodeNames"] == ["n1"]
    world.create(pod("urgent", 100, None, priority=9, nominated="n1"))
    assert world.filter(pod("other", 100, None))["NodeNames"] == []
    assert world.bind(WHOLE, "n1") == ""
