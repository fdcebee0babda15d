"""Members of a gang are judged together: places for all that are missing, or none, whoever asks in between."""

from admission.explain.explanation import explain
from admission.explain.pending_events import PendingEvents
from admission.gangs.members import COSCHEDULING, MOST_MEMBERS, GangKey
from gpu_manager.domain.contract import EVENT_NOT_PLACED
from gpu_manager.domain.kube.pod import PodUid
from tests.fakes.extender import World, bound, node, pod


def member(name, gang="g", core=100, memory=None, **more):
    labels = {"scheduling.x-k8s.io/pod-group": gang}
    return pod(name, core, memory, labels=labels, **more)


def gang_of(count, gang="g", **more):
    return [member(f"{gang}-{i}", gang, **more) for i in range(count)]


def group(name="g", minimum=2, namespace="default"):
    return {"metadata": {"namespace": namespace, "name": name}, "spec": {"minMember": minimum}}


def world(*nodes, pods=(), groups=(("g", 2),), **more):
    found = World(nodes or [node("n1")], pods, expecting=True, **more)
    for name, minimum in groups:
        found.members.take_group(COSCHEDULING, group(name, minimum), gone=False)
    return found


def fits(cluster, obj, names=None):
    return cluster.filter(obj, names)["NodeNames"]


def why(cluster, obj):
    answer = cluster.filter(obj)
    assert not answer["NodeNames"]
    return answer["FailedAndUnresolvableNodes"] or answer["FailedNodes"]


def places(cluster):
    return dict(cluster.cluster.snapshot().reserved)


# All or none.


def test_the_first_question_keeps_the_places_of_all_members():
    cluster = world(groups=[("g", 2)])
    first, second = gang_of(2)
    other = pod("other", 100, None)
    cluster.create(first, second, other)
    assert fits(cluster, first) == ["n1"]
    assert set(places(cluster)) == {"uid-default-g-0", "uid-default-g-1"}
    assert fits(cluster, other) == []
    assert fits(cluster, second) == ["n1"]
    assert [cluster.bind(one, "n1") for one in (first, second)] == ["", ""]


def test_a_gang_that_does_not_fit_whole_keeps_nothing_and_evicts_nobody():
    cluster = world(pods=[pod("old", 100, None, on="n1")])
    first, second = gang_of(2)
    cluster.create(first, second)
    reason = why(cluster, first)["n1"]
    assert reason == "gang g lacks 2 members and has room for less: g-1 has no place beside the others"
    assert places(cluster) == {}
    assert fits(cluster, pod("small", 30, 4)) == ["n1"]


def test_two_gangs_never_hold_half_of_the_room_each():
    cluster = world(node("n1", 4), groups=[("a", 4), ("b", 4)])
    ours, theirs = gang_of(4, "a"), gang_of(4, "b")
    cluster.create(*ours, *theirs)
    answers = [fits(cluster, one) for pair in zip(ours, theirs, strict=True) for one in pair]
    assert answers == [["n1"], []] * 4
    assert [cluster.bind(one, "n1") for one in ours] == [""] * 4


def test_members_past_the_minimum_are_judged_alone():
    cluster = world(node("n1", 3), groups=[("g", 2)])
    members = gang_of(4)
    cluster.create(*members)
    assert [bool(fits(cluster, one)) for one in members] == [True, True, True, False]
    assert cluster.bind(members[0], "n1") == ""


def test_the_largest_member_chooses_first():
    """A small one that came first would break the only card that is whole."""
    cluster = world(node("n1", 2), pods=[pod("old", 50, 8, on="n1")], groups=[("g", 2)])
    small, large = member("g-0", core=50, memory=8), member("g-1")
    cluster.create(small, large)
    assert fits(cluster, small) == ["n1"]
    assert fits(cluster, large) == ["n1"]


def test_what_is_judged_for_one_member_holds_for_the_others_that_are_asked_about_at_once():
    old = pod("old", 100, None, on="n1")
    cluster = world(pods=[old])
    first, second = gang_of(2)
    cluster.create(first, second)
    assert fits(cluster, first) == []
    cluster.delete(old)
    assert fits(cluster, second) == []
    cluster.clock.pass_(1)
    assert fits(cluster, second) == ["n1"]


def test_a_gang_waits_until_it_has_its_members():
    cluster = world(node("n1", 4), groups=[("g", 4)])
    members = gang_of(4)
    cluster.create(*members[:2])
    assert why(cluster, members[0])["n1"] == "gang g has 2 of the 4 members that it wants at least"
    cluster.create(*members[2:])
    assert [fits(cluster, one) for one in members] == [["n1"]] * 4


def test_members_without_cards_count_toward_the_minimum():
    cluster = world(node("n1", 1), groups=[("g", 2)])
    leader = member("leader", containers=[{"name": "main", "resources": {}}])
    worker = member("worker")
    cluster.create(leader, worker)
    assert fits(cluster, worker) == ["n1"]
    assert cluster.bind(worker, "n1") == ""


def test_where_the_size_is_not_known_a_pod_is_judged_alone_and_that_is_told():
    cluster = world(groups=[], pods=[pod("old", 100, None, on="n1")])
    first, second = gang_of(2)
    cluster.create(first, second)
    assert fits(cluster, first) == ["n1"]
    state = cluster.gangs.state("uid-default-g-0")
    assert (
        state.line
        == f"gang g ({COSCHEDULING}): its size is not known here, so each of its pods is judged alone"
    )


def test_kueue_states_the_size_in_each_pod():
    cluster = world(groups=[], pods=[pod("old", 100, None, on="n1")])
    marks = {
        "labels": {"kueue.x-k8s.io/pod-group-name": "k"},
        "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
    }
    cluster.create(*(pod(f"k-{i}", 100, None, **marks) for i in range(2)))
    assert "gang k lacks 2 members" in why(cluster, pod("k-0", 100, None, **marks))["n1"]


def test_without_gang_seconds_each_pod_is_judged_alone():
    cluster = world(pods=[pod("old", 100, None, on="n1")], gang_seconds=0)
    first, second = gang_of(2)
    cluster.create(first, second)
    assert fits(cluster, first) == ["n1"]
    assert cluster.gangs.state("uid-default-g-0") is None


def test_gangs_of_two_namespaces_are_two_gangs():
    cluster = world(groups=[("g", 2)])
    here, there = member("a"), member("b", namespace="elsewhere")
    cluster.create(here, there)
    assert why(cluster, here)["n1"].startswith("gang g has 1 of the 2")
    assert fits(cluster, there) == ["n1"]  # that namespace has no PodGroup


def test_the_constraints_of_each_member_hold():
    cluster = world(node("n1", 1), node("n2", 1, labels={"zone": "b"}))
    first, second = member("g-0"), member("g-1")
    second["spec"]["nodeSelector"] = {"zone": "b"}
    cluster.create(first, second)
    assert fits(cluster, first, ["n2", "n1"]) == ["n1"]
    assert fits(cluster, second, ["n2"]) == ["n2"]


def test_places_count_in_the_quota_of_the_namespace():
    cluster = world(node("n1", 4), quota={"default": {"quota": {"Tesla-T4": 3}}}, groups=[("g", 2)])
    first, second = gang_of(2)
    cluster.create(first, second)
    assert fits(cluster, first) == ["n1"]
    two = pod("two", 200, None)
    cluster.create(two)
    assert "ExceedsGPUQuota" in why(cluster, two)["n1"]


def test_a_quota_that_changed_since_the_members_had_places_counts_when_they_are_bound():
    cluster = world(node("n1", 4), quota={"default": {"quota": {"Tesla-T4": 2}}}, groups=[("g", 2)])
    first, second = gang_of(2)
    cluster.create(first, second)
    assert fits(cluster, first) == ["n1"] == fits(cluster, second)
    assert cluster.gangs.hold("uid-default-g-0", "n1") is None
    cluster.limit({"default": {"quota": {"Tesla-T4": 1}}})
    assert cluster.gangs.hold("uid-default-g-0", "n1") is not None
    cluster.limit({"default": {"quota": {"Tesla-T4": 2}}})
    assert [cluster.bind(one, "n1") for one in (first, second)] == ["", ""]


# Until when.


def test_places_of_members_that_nobody_asks_about_end_after_gang_seconds():
    cluster = world()
    first, second = gang_of(2)
    cluster.create(first, second)
    fits(cluster, first)
    cluster.clock.pass_(299)
    cluster.gangs.settle()
    assert len(places(cluster)) == 2
    cluster.clock.pass_(1)
    cluster.cluster.expire(cluster.clock.time)
    cluster.gangs.settle()
    assert places(cluster) == {}


def test_a_gang_whose_members_were_all_placed_keeps_its_places_longer():
    cluster = world()
    first, second = gang_of(2)
    cluster.create(first, second)
    fits(cluster, first)
    cluster.clock.pass_(299)
    fits(cluster, second)
    cluster.clock.pass_(200)
    cluster.cluster.expire(cluster.clock.time)
    cluster.gangs.settle()
    assert [cluster.bind(one, "n1") for one in (first, second)] == ["", ""]


def test_what_a_scheduler_said_of_a_member_before_it_asks_ends_no_place():
    """It refused the second a moment ago; the watch shows that late, when the first was placed already."""
    cluster = world()
    first, second = gang_of(2)
    cluster.create(first, second)
    fits(cluster, first)
    assert cluster.bind(first, "n1") == ""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    late = {**second, "status": {**second["status"], "conditions": [condition]}}
    cluster.show(late)
    cluster.gangs.settle()
    assert set(places(cluster)) == {"uid-default-g-1"}
    assert fits(cluster, late) == ["n1"]
    again = {**late["status"], "conditions": [{**condition, "message": "volume"}]}
    cluster.show({**late, "status": again})
    assert places(cluster) == {}, "once it was asked about, its scheduler's word counts"


def test_once_a_member_is_deleted_the_places_of_the_others_go_within_a_second():
    cluster = world()
    first, second = gang_of(2)
    cluster.create(first, second)
    fits(cluster, first)
    fits(cluster, second)
    cluster.delete(second)
    cluster.gangs.settle()
    assert places(cluster) == {}
    assert "1 of the 2 members that gang g lacks" in cluster.bind(first, "n1") or cluster.bind(first, "n1")


def test_a_bound_member_that_is_preempted_frees_the_places_of_the_others_and_bound_ones_stay():
    cluster = world(node("n1", 3), groups=[("g", 3)])
    members = gang_of(3)
    cluster.create(*members)
    for one in members:
        fits(cluster, one)
    assert cluster.bind(members[0], "n1") == cluster.bind(members[1], "n1") == ""
    cluster.delete(bound(members[0], "n1", {}))
    cluster.gangs.settle()
    assert places(cluster) == {}
    line = cluster.gangs.state("uid-default-g-2").line
    assert line == f"gang g ({COSCHEDULING}): 2 members of at least 3, 1 bound (g-1), 0 with a place"
    assert fits(cluster, members[2]) == ["n1"], "one that begun fills what it lacks"


def test_a_member_that_no_scheduler_asks_about_is_held_by_its_gang_until_all_are_there():
    """kube-scheduler asks about none of an in-tree gang before."""
    cluster = world()
    first, second = gang_of(2)
    cluster.create(first)
    few = cluster.gangs.state("uid-default-g-0")
    assert few.lacks == "gang g has 1 of the 2 members that it wants at least"
    cluster.create(second)
    assert cluster.gangs.state("uid-default-g-0").lacks == ""


def succeeded(obj, at):
    state = {"terminated": {"exitCode": 0, "finishedAt": at}}
    status = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": state}]}
    return {**bound(obj, "n1", {}), "status": status}


def test_a_member_that_has_succeeded_before_the_last_was_bound_still_counts():
    """Short ones, while the API server was slow: the last of them waited for ever."""
    cluster = world()
    first, second = gang_of(2)
    cluster.create(first, second)
    assert fits(cluster, first) == fits(cluster, second) == ["n1"]
    assert cluster.bind(first, "n1") == ""
    cluster.show(succeeded(first, "2026-01-01T00:00:04Z"))
    cluster.gangs.settle()
    assert fits(cluster, second) == ["n1"]
    assert cluster.bind(second, "n1") == ""


def test_members_of_a_run_that_was_over_before_do_not_count():
    cluster = world(node("n1", 1))
    cluster.create(*(old := gang_of(2, core=40, memory=4)))
    for one in old:
        cluster.show(succeeded(one, "2026-01-01T00:00:04Z"))
    again = [member(f"again-{i}", created="2026-01-01T01:00:00Z") for i in range(2)]
    cluster.create(*again)
    assert "gang g lacks 2 members and has room for less" in why(cluster, again[0])["n1"]


def test_none_is_bound_before_all_have_a_place():
    cluster = world()
    first, second = gang_of(2)
    cluster.create(first, second)
    fits(cluster, first)
    cluster.cluster.give_up("uid-default-g-1")
    assert "none is bound until all have" in cluster.bind(first, "n1")


def test_a_new_leader_judges_anew_and_completes_what_was_begun():
    cluster = world(node("n1", 4), groups=[("a", 2), ("b", 2)])
    begun, waiting = gang_of(2, "a"), gang_of(2, "b")
    cluster.create(*begun, *waiting)
    for one in (*begun, *waiting):
        fits(cluster, one)
    assert cluster.bind(begun[0], "n1") == ""
    cluster.binder.end()
    cluster.binder.begin()
    cluster.gangs.begin()
    assert set(places(cluster)) == {"uid-default-a-1"}
    assert "none is bound until all have" in cluster.bind(waiting[0], "n1")
    assert cluster.bind(begun[1], "n1") == ""


def test_what_the_scheduler_has_chosen_is_not_moved():
    """The first waits in Permit for n1: if that is lost, the gang cannot be completed elsewhere."""
    cluster = world(node("n1", 1), node("n2", 1), node("n3", 1))
    first, second = gang_of(2)
    cluster.create(first, second)
    fits(cluster, first, ["n1"])
    cluster.cluster.give_up("uid-default-g-0")
    cluster.gangs.settle()
    fits(cluster, first, ["n1"])
    fits(cluster, second, ["n1", "n2", "n3"])
    assert places(cluster)["uid-default-g-0"] == "n1"


# Priorities.


def test_places_yield_to_a_pod_of_higher_priority():
    cluster = world()
    first, second = gang_of(2)
    urgent = pod("urgent", 100, None, priority=10)
    cluster.create(first, second, urgent)
    fits(cluster, first)
    assert fits(cluster, urgent) == ["n1"]
    assert set(places(cluster)) == {"uid-default-urgent"}
    assert "none is bound" in cluster.bind(first, "n1")


def test_places_of_a_gang_that_was_begun_do_not_yield():
    cluster = world()
    first, second = gang_of(2)
    urgent = pod("urgent", 100, None, priority=10)
    cluster.create(first, second, urgent)
    fits(cluster, first)
    assert cluster.bind(first, "n1") == ""
    assert fits(cluster, urgent) == []
    assert fits(cluster, second) == ["n1"]
    assert cluster.bind(second, "n1") == ""


def test_a_gang_of_higher_priority_takes_the_places_of_another_only_if_that_is_enough():
    cluster = world(node("n1", 2), groups=[("low", 2), ("high", 2), ("huge", 3)])
    low, high = gang_of(2, "low"), gang_of(2, "high", priority=5)
    huge = gang_of(3, "huge", priority=9)
    cluster.create(*low, *high, *huge)
    fits(cluster, low[0])
    assert fits(cluster, huge[0]) == []
    assert len(places(cluster)) == 2, "the lower gang keeps what would not be enough"
    cluster.clock.pass_(1)
    assert fits(cluster, high[0]) == ["n1"]
    assert set(places(cluster)) == {"uid-default-high-0", "uid-default-high-1"}


def test_a_gang_that_fits_once_pods_of_lower_priority_left_is_judged_member_by_member():
    cluster = world(pods=[pod("old", 100, None, on="n1")])
    first, second = gang_of(2, priority=5)
    cluster.create(first, second)
    assert fits(cluster, first) == ["n1"]
    answer = cluster.filter(second)
    assert (answer["NodeNames"], list(answer["FailedNodes"])) == ([], ["n1"]), "so that it can evict"
    cluster.gangs.settle()
    assert set(places(cluster)) == {"uid-default-g-0"}
    cluster.delete(bound(pod("old", 100, None), "n1", {}))
    assert fits(cluster, second) == ["n1"]
    assert [cluster.bind(one, "n1") for one in (first, second)] == ["", ""]


# What is told.


def explained(cluster, obj):
    uid = obj["metadata"]["uid"]
    view, snapshot = cluster.cluster.pod(uid), cluster.cluster.snapshot()
    return explain(view, snapshot, cluster.quota.current, cluster.judge, gang=cluster.gangs.state(uid))


def test_explain_says_which_gang_waits_for_what():
    cluster = world(pods=[pod("old", 100, None, on="n1")])
    first, second = gang_of(2)
    cluster.create(first, second)
    fits(cluster, first)
    found = explained(cluster, first)
    assert found.held == "gang"
    assert found.line == (
        "held by its gang: there is room for it alone, but gang g lacks 2 members and has room for less: g-1 has no"
        " place beside the others. What helps: wait until there is room for all of them at once, or let its gang"
        " want less at the least"
    )


def test_explain_says_that_a_pod_of_unknown_size_is_judged_alone():
    cluster = world(groups=[])
    first = member("g-0")
    cluster.create(first)
    assert explained(cluster, first).line.endswith(
        "It is of gang g (scheduling.x-k8s.io): its size is not known here, so each of its pods is judged alone"
    )


def test_an_event_tells_of_a_gang_that_waits():
    told = []

    class Voice:
        def event(self, obj, reason, message, *, warning=True):
            told.append((obj.name, reason, message.partition(":")[0], warning))

    cluster = world(pods=[pod("old", 100, None, on="n1")])
    first, second = gang_of(2)
    cluster.create(first, second)
    fits(cluster, first)
    events = PendingEvents(
        cluster.cluster.pod,
        lambda view: explained(cluster, {"metadata": {"uid": view.uid}}),
        Voice(),
        cluster.clock,
    )
    events.refused(PodUid("uid-default-g-0"))
    cluster.clock.pass_(2)
    assert events.tell()
    assert told == [("g-0", EVENT_NOT_PLACED, "held by its gang", True)]


def test_a_member_that_the_watch_has_not_shown_is_asked_about_again():
    """Else it would be placed as if it were of no gang."""
    cluster = world()
    first, second = gang_of(2)
    cluster.create(second)
    assert "not known here yet, please retry later" in cluster.filter(first)["Error"]


def test_while_pod_groups_are_not_listed_members_wait():
    unread = {COSCHEDULING}
    cluster = world(groups=[], unread=unread.__contains__)
    first = member("g-0")
    cluster.create(first)
    assert "PodGroups of scheduling.x-k8s.io have not been listed yet" in cluster.filter(first)["Error"]
    unread.clear()
    assert fits(cluster, first) == ["n1"]


def test_a_list_of_pod_groups_drops_those_that_are_gone():
    cluster = world(groups=[("a", 2), ("b", 2)])
    objects = [group("a", 3)]
    cluster.members.replace_groups(
        COSCHEDULING, objects, lambda obj: cluster.members.take_group(COSCHEDULING, obj, gone=False)
    )
    minimums = [cluster.members.minimum(GangKey(COSCHEDULING, "default", name)) for name in ("a", "b")]
    assert minimums == [3, None]


def test_pods_that_a_list_lacks_and_labels_that_change_leave_the_gang():
    cluster = world(groups=[("g", 2), ("h", 1)])
    first, second = gang_of(2)
    cluster.create(first, second)
    moved = {**first, "metadata": {**first["metadata"], "labels": {"scheduling.x-k8s.io/pod-group": "h"}}}
    cluster.show(moved)
    assert cluster.members.gang_of("uid-default-g-0") == GangKey(COSCHEDULING, "default", "h")
    cluster.members.retain({"uid-default-g-0"})
    assert cluster.members.all() == [GangKey(COSCHEDULING, "default", "h")]


def test_a_gang_that_lacks_more_than_the_most_is_judged_pod_by_pod():
    cluster = world(node("n1", 1), groups=[("g", MOST_MEMBERS + 1)])
    members = gang_of(MOST_MEMBERS + 1)
    cluster.create(*members)
    assert fits(cluster, members[0]) == ["n1"]
    assert cluster.bind(members[0], "n1") == ""
