"""Bind: its guards, its reservation under every fault, and that no interleaving over-commits a card."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.cluster.snapshot import NODES, PODS
from admission.extender.binding import SILENCE_SECONDS, Binder, BindRules
from admission.extender.wire import BindingArgs
from gpu_manager.domain.contract import (
    ALLOCATION,
    ASSIGNED,
    PREDICATE_INDEX,
    PREDICATE_NODE,
    decode_assignment,
)
from gpu_manager.domain.resources import Amount
from tests.fakes.extender import UNIT, World, bound, container, node, pod, uuid
from tests.fakes.waiting import PATIENCE

quick = settings(max_examples=60)


@pytest.fixture
def world():
    return World([node("n1", cards=1), node("n2", cards=1)])


def offered(world, obj, *names):
    world.create(obj)
    assert set(world.filter(obj, names or None)["NodeNames"]) >= set(names)
    return obj


def test_the_binding_carries_every_annotation_of_the_allocation(world):
    obj = offered(world, pod("a", init=[container("fetch", 10, 1)]), "n1")
    assert world.bind(obj, "n1") == ""
    name, where, written = world.api.bindings[0]
    assert (name, where) == ("a", "n1")
    said = decode_assignment(written[ALLOCATION])
    assert said.pod == "uid-default-a"
    assert said.containers == {
        "fetch": ((uuid("n1", 0), Amount(10, UNIT)),),
        "main": ((uuid("n1", 0), Amount(30, 4 * UNIT)),),
    }
    assert written[PREDICATE_NODE] == "n1"
    assert written[ASSIGNED] == "false"
    assert written[f"{PREDICATE_INDEX}0"] == "0"


def test_a_node_that_filter_did_not_offer_is_refused(world):
    world.create(pod("a"))
    assert "was never offered" in world.bind(pod("a"), "n1")
    world.filter(pod("a"), ["n1"])
    assert "was never offered" in world.bind(pod("a"), "n2")
    assert world.api.bindings == []


def test_an_offer_holds_for_as_long_as_the_pod_waits_whatever_is_offered_later(world):
    obj = offered(world, pod("a"), "n1")
    world.filter(obj, ["n2"])
    world.clock.time += 86_400
    assert world.bind(obj, "n1") == ""


def test_a_pod_of_another_scheduler_is_refused(world):
    obj = offered(world, pod("a", scheduler="default-scheduler"), "n1")
    assert "schedulerName" in world.bind(obj, "n1")


def test_who_does_not_lead_binds_nothing(world):
    obj = offered(world, pod("a"), "n1")
    world.leads = False
    assert "does not lead" in world.bind(obj, "n1")
    assert world.booked("n1") == [(0, 0)]


@pytest.mark.parametrize(("left", "posted"), [(5.5, 0), (6.9, 0), (7.1, 1)])
def test_a_binding_is_over_before_the_lease_even_if_it_takes_two_seconds_to_arrive(world, left, posted):
    """The API server counts the request's five seconds from when it takes it in."""
    obj = pod("a")
    world.create(obj)
    rules = BindRules(leads=lambda seconds: seconds < left)
    binder = Binder(world.cluster, world.quota, world.judge, world.api, world.clock, rules)
    binder.offers.remember("uid-default-a", ["n1"])
    said = binder.bind(BindingArgs(namespace="default", name="a", uid="uid-default-a", node="n1"))
    assert len(world.api.bindings) == posted
    assert bool(said) is not bool(posted)
    assert world.cluster.snapshot().reserved == {}


def test_whose_lease_runs_out_between_reservation_and_post_posts_nothing(world):
    obj = offered(world, pod("a"), "n1")
    answers = iter([True, False])
    world.binder.rules = type(world.binder.rules)(lambda _s: next(answers), frozenset({"gpu-scheduler"}))
    assert "does not lead" in world.bind(obj, "n1")
    assert world.booked("n1") == [(0, 0)]
    assert world.api.bindings == []


@pytest.mark.parametrize("change", ["gone", "renewed", "bound", "deleting", "ended"])
def test_a_pod_that_changed_meanwhile_is_refused(world, change):
    obj = offered(world, pod("a"), "n1")
    if change == "gone":
        world.delete(obj)
    elif change == "renewed":
        world.delete(obj)
        world.api.put(pod("a", uid="another"))
    elif change == "bound":
        world.show(bound(obj, "n2", {}))
    elif change == "deleting":
        world.show(pod("a", deleting=True))
    else:
        world.create(pod("a", phase="Failed"))
    assert world.bind(obj, "n1")
    assert world.booked("n1") == [(0, 0)]


def test_a_pod_that_the_watch_has_not_shown_yet_is_asked_for(world):
    world.api.put(pod("a"))
    world.filter(pod("a"))
    assert world.bind(pod("a"), "n1") == ""


def test_what_filter_saw_of_a_pod_is_not_believed_at_bind(world):
    world.create(pod("a", 90, 40))
    world.filter(pod("a", 1, 1), ["n1"])  # somebody asks in its name for less
    assert world.bind(pod("a"), "n1") == ""
    assert world.booked("n1") == [(90, 40)]


def test_the_room_is_judged_again_and_the_refusal_has_the_arithmetic(world):
    first, second = pod("a", 60, 4), pod("b", 60, 4)
    offered(world, first, "n1")
    offered(world, second, "n1")
    assert world.bind(first, "n1") == ""
    assert "60 cores asked, 40 free" in world.bind(second, "n1")
    assert world.counts["bind_conflicts", "room"] == 1


def test_a_refused_binding_gives_its_place_back(world):
    obj = offered(world, pod("a"), "n1")
    world.api.plan = ["refuse"]
    assert "refused" in world.bind(obj, "n1")
    assert world.booked("n1") == [(0, 0)]
    world.filter(obj)
    assert world.bind(obj, "n2") == ""


def test_a_reservation_counts_from_before_the_binding_is_sent(world):
    obj = offered(world, pod("a", 80, 4), "n1")
    seen = []
    world.api.before = lambda: seen.append(
        (world.booked("n1"), world.filter(pod("b", 30, 4), ["n1"])["NodeNames"])
    )
    assert world.bind(obj, "n1") == ""
    assert seen == [([(80, 4)], [])]


def test_two_binds_of_one_pod_at_once_are_one():
    world = World([node("n1", cards=1), node("n2", cards=1)], watching=False)
    obj = offered(world, pod("a"), "n1", "n2")
    errors = []
    world.api.before = lambda: errors.append(world.bind(obj, "n2")) if not errors else None
    assert world.bind(obj, "n1") == ""
    assert "is being bound to n1" in errors[0]
    assert [where for _, where, _ in world.api.bindings] == ["n1"]


def test_a_binding_that_was_lost_keeps_its_place_until_the_api_says_unbound(world):
    obj = offered(world, pod("a", 80, 4), "n1", "n2")
    world.api.plan = ["lost"]
    assert "did not say" in world.bind(obj, "n1")
    assert world.binder.settle() == 1  # unbound, but the request might still act
    assert world.booked("n1") == [(80, 4)]
    assert "not known yet" in world.bind(obj, "n2")
    world.clock.time += 11
    assert world.binder.settle() == 0
    assert world.booked("n1") == [(0, 0)]
    assert world.bind(obj, "n2") == ""


def test_a_binding_answered_too_late_finds_its_cards_still_free(world):
    first, second = pod("a", 80, 4), pod("b", 80, 4)
    offered(world, first, "n1")
    world.api.plan = ["hold"]
    assert world.bind(first, "n1")
    world.create(second)
    world.binder.settle()
    assert world.filter(second, ["n1"])["NodeNames"] == []
    world.api.held.pop()()  # the API server carries it out now
    assert world.binder.settle() == 0
    assert world.booked("n1") == [(80, 4)]
    assert world.over_committed() == []


def test_a_binding_done_but_unanswered_is_found_done(world):
    world.api.shown = lambda _obj: None  # and the watch is silent too
    obj = offered(world, pod("a", 80, 4), "n1")
    world.api.plan = ["late"]
    assert "did not say" in world.bind(obj, "n1")
    assert world.binder.settle() == 0
    assert world.booked("n1") == [(80, 4)]
    assert world.cluster.pod("uid-default-a").pod.node == "n1"


def test_while_the_api_server_is_away_every_place_is_kept_and_pods_go_on_when_it_is_back(world):
    obj = offered(world, pod("a", 80, 4), "n1", "n2")
    world.api.down = True
    assert "did not say" in world.bind(obj, "n1")
    world.clock.time += 600
    assert world.binder.settle() == 1
    assert world.booked("n1") == [(80, 4)]
    world.api.down = False
    assert world.binder.settle() == 0
    world.filter(obj)
    assert world.bind(obj, "n1") == ""


def test_a_wire_that_breaks_is_an_unknown_outcome(world):
    obj = offered(world, pod("a"), "n1")
    world.api.plan = ["raise"]
    assert "the wire broke" in world.bind(obj, "n1")
    assert world.booked("n1") == [(30, 4)]


def test_a_bound_pod_that_the_watch_is_silent_about_is_asked_for_after_a_minute():
    world = World([node("n1", cards=1)], watching=False)
    obj = offered(world, pod("a"), "n1")
    assert world.bind(obj, "n1") == ""
    world.binder.settle()
    assert not world.cluster.pod("uid-default-a").pod.node
    world.clock.time += SILENCE_SECONDS + 1
    world.binder.settle()
    assert world.cluster.pod("uid-default-a").pod.node == "n1"
    assert world.booked("n1") == [(30, 4)]


def test_a_pod_deleted_while_it_is_being_bound_leaves_nothing_behind(world):
    obj = offered(world, pod("a"), "n1")
    world.api.plan = ["lost"]
    assert world.bind(obj, "n1")
    world.delete(obj)
    assert world.booked("n1") == [(0, 0)]
    assert world.binder.settle() == 0


def test_a_list_that_lacks_the_pod_ends_its_reservation_and_one_that_has_it_does_not(world):
    obj = offered(world, pod("a"), "n1")
    world.api.plan = ["lost"]
    assert world.bind(obj, "n1")
    world.cluster.replace(PODS, [obj])
    assert world.booked("n1") == [(30, 4)]
    world.cluster.replace(PODS, [])
    assert world.booked("n1") == [(0, 0)]


def test_a_reserved_pod_that_is_filtered_again_does_not_stand_in_its_own_way(world):
    obj = offered(world, pod("a", 80, 4), "n1")
    world.api.plan = ["lost"]
    world.bind(obj, "n1")
    assert world.filter(obj)["NodeNames"] == ["n1", "n2"]


def test_a_new_process_rebuilds_everything_from_the_pods_alone():
    """Case 60 of spec/kubelet.md: restart between bind and the watch's word."""
    old = World([node("n1", cards=1)], watching=False)
    obj = offered(old, pod("a", 80, 4), "n1")
    assert old.bind(obj, "n1") == ""
    new = World([node("n1", cards=1)], list(old.api.pods.values()))
    assert new.booked("n1") == [(80, 4)]
    assert new.filter(pod("b", 30, 4))["NodeNames"] == []


def test_killed_between_reservation_and_binding_the_pod_goes_on_with_the_next_process():
    old = World([node("n1", cards=1)], watching=False)
    obj = offered(old, pod("a", 80, 4), "n1")

    class Killed(BaseException):
        pass

    def kill():
        raise Killed

    old.api.before = kill
    with pytest.raises(Killed):
        old.bind(obj, "n1")
    new = World([node("n1", cards=1)], list(old.api.pods.values()))
    assert new.schedule(obj) == "n1"
    assert old.booked("n1") == [(80, 4)]  # where the thread alone died, the place is kept until it is clear
    old.clock.time += 11
    assert old.binder.settle() == 0


def test_a_node_that_vanished_takes_no_pod(world):
    obj = offered(world, pod("a"), "n1")
    world.cluster.apply(NODES, "DELETED", node("n1", cards=1))
    assert "not known here" in world.bind(obj, "n1")


def test_two_schedulers_at_once_never_over_commit_a_node():
    """Case 62 of spec/kubelet.md, and the hard line of a quota, from many threads."""
    world = World([node("n1"), node("n2")], quota={"x": {"quota": {"T4": 2}}}, watching=False)
    pods = [pod(f"p{i}", 30, 4, namespace="x" if i % 2 else "y") for i in range(24)]
    for obj in pods:
        world.create(obj)
        world.filter(obj)
    start = threading.Barrier(8)

    def scheduler(share):
        start.wait(PATIENCE)
        for i, obj in enumerate(share):
            world.bind(obj, ("n1", "n2")[i % 2])

    threads = [threading.Thread(target=scheduler, args=(pods[i::8],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert world.over_committed() == []
    used = world.cluster.snapshot().used
    assert used["x"]["Tesla-T4"].cores <= 200
    booked = sum(cores for name in ("n1", "n2") for cores, _ in world.booked(name))
    assert booked == 30 * len(world.api.bindings)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["bind", "watch", "settle", "late", "delete", "wait", "list"]),
            st.integers(0, 5),
            st.sampled_from(["ok", "refuse", "lost", "late", "hold"]),
            st.sampled_from(["n1", "n2"]),
        ),
        max_size=40,
    )
)
@quick
def test_no_interleaving_of_binds_and_faults_over_commits_a_card_or_passes_the_quota(steps):
    world = World(
        [node("n1", cards=1), node("n2", cards=1)], quota={"x": {"quota": {"*": 1}}}, watching=False
    )
    pods = [
        pod(f"p{i}", (30, 60, 100)[i % 3], 4 if i % 3 < 2 else None, namespace="xy"[i % 2]) for i in range(6)
    ]
    for obj in pods:
        world.create(obj)
    for what, number, how, where in steps:
        obj = pods[number]
        key = obj["metadata"]["namespace"], obj["metadata"]["name"]
        if what == "bind":
            world.filter(obj)
            world.api.plan = [how]
            world.bind(obj, where)
        elif what == "watch" and key in world.api.pods:
            world.show(world.api.pods[key])
        elif what == "list":
            world.cluster.replace(PODS, list(world.api.pods.values()))
        elif what == "settle":
            world.binder.settle()
        elif what == "late":
            while world.api.held:
                world.api.held.pop()()
        elif what == "delete" and key in world.api.pods:
            world.delete(obj)
        elif what == "wait":
            world.api.held.clear()  # the API server's deadline passed
            world.clock.time += 11
        truth = World([node("n1", cards=1), node("n2", cards=1)], list(world.api.pods.values()))
        assert world.over_committed() == []
        assert truth.over_committed() == []
        for cluster in (world.cluster, truth.cluster):
            assert sum(a.cores for a in cluster.snapshot().used.get("x", {}).values()) <= 100
    world.api.held.clear()
    world.clock.time += 700
    assert world.binder.settle() == 0  # nothing stays stuck
    world.cluster.replace(PODS, list(world.api.pods.values()))
    assert not world.cluster.snapshot().reserved
