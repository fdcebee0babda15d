"""What ADR 21 promises of gangs, tried from outside: by filter, prioritize, bind and what the watches show."""

import pytest

from tests.fakes.extender import World, container, node, pod

KUEUE, COUNT = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
API = "scheduling.x-k8s.io"
LABEL = f"{API}/pod-group"


def member(name, gang="g", size=4, core=100, memory=None, **more):
    """A pod of one of Kueue's groups, which says itself how many it has."""
    labels = {KUEUE: gang, **more.pop("labels", {})}
    notes = {COUNT: str(size), **more.pop("annotations", {})}
    return pod(name, core, memory, labels=labels, annotations=notes, **more)


def members(size, gang="g", **more):
    return [member(f"{gang}-{i}", gang, size, **more) for i in range(size)]


def grouped(name, gang="g", core=100, memory=None, **more):
    """A pod of coscheduling, whose PodGroup says how many there are."""
    return pod(name, core, memory, labels={LABEL: gang}, **more)


def group(world, minimum, name="g", namespace="default", *, gone=False):
    meta = {"namespace": namespace, "name": name}
    world.members.take_group(API, {"metadata": meta, "spec": {"minMember": minimum}}, gone=gone)


def gpus(*nodes, **more):
    return World([node(f"n{i}", cards) for i, cards in enumerate(nodes)], expecting=True, **more)


def kept(world):
    return dict(world.cluster.snapshot().reserved)


def asked(world, obj):
    return world.filter(obj)["NodeNames"] or []


def why(world, obj):
    said = world.filter(obj)
    return said["Error"] or next(iter({**said["FailedNodes"], **said["FailedAndUnresolvableNodes"]}.values()))


def tick(world, seconds=1):
    """Time goes by, with the chores of each second."""
    for _ in range(seconds):
        world.clock.pass_(1)
        world.cluster.expire(world.clock.monotonic())
        world.gangs.settle()


def new_leader(world):
    """Another replica leads: it knows what the watches showed, and no places."""
    pods = list(world.api.pods.values())
    return World([NODES[name] for name in world.nodes], pods, expecting=True, clock=world.clock)


NODES = {f"n{i}": node(f"n{i}", 4) for i in range(4)}


def bind_all(world, gang):
    return [world.schedule(obj) for obj in gang]


# All or none.


def test_the_first_question_keeps_the_places_of_all():
    world = gpus(2, 2)
    gang = members(4)
    world.create(*gang)
    assert asked(world, gang[2])
    assert len(kept(world)) == 4


def test_where_one_has_no_place_none_is_kept_and_it_is_named():
    world = gpus(2, 1)
    gang = members(4)
    world.create(*gang)
    assert not asked(world, gang[0])
    assert not kept(world)
    assert "g-" in why(world, gang[0])


def test_of_two_gangs_with_room_for_one_the_first_gets_all_of_it():
    world = gpus(2, 2)
    first, second = members(4, "a"), members(4, "b")
    world.create(*first, *second)
    assert asked(world, first[0])
    assert not asked(world, second[0])
    assert all(bind_all(world, first))
    assert not asked(world, second[1])


def test_gangs_of_fractions_count_cards_and_not_sums():
    world = gpus(1, 1)
    three = members(3, core=60, memory=8)
    world.create(*three)
    assert not asked(world, three[0])
    two = members(2, "h", core=60, memory=8)
    world.create(*two)
    assert all(bind_all(world, two))


def test_a_gang_that_can_never_fit_keeps_nobody_else_off():
    world = gpus(2)
    gang = members(3)
    world.create(*gang)
    single = pod("single", 100, None)
    world.create(single)
    for obj in gang:
        assert not asked(world, obj)
    assert world.schedule(single)
    assert not kept(world)


def test_a_question_asked_again_keeps_nothing_twice():
    world = gpus(2, 2)
    gang = members(4)
    world.create(*gang)
    for _ in range(3):
        assert asked(world, gang[0])
    assert len(kept(world)) == 4
    assert world.over_committed() == []


def test_members_that_are_not_there_yet_are_waited_for():
    world = gpus(4)
    gang = members(4)
    world.create(*gang[:3])
    assert not asked(world, gang[0])
    assert not kept(world)
    world.create(gang[3])
    assert all(bind_all(world, gang))


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_gangs_of_any_size_run(size):
    world = gpus(4, 4)
    gang = members(size)
    world.create(*gang)
    assert asked(world, gang[0])
    for obj in gang[1:]:
        assert asked(world, obj)
    assert all(bind_all(world, gang))
    assert world.over_committed() == []


# Members that go and come.


def test_the_places_of_the_others_go_within_a_second_of_a_members_end():
    world = gpus(4)
    gang = members(4)
    world.create(*gang)
    assert asked(world, gang[0])
    world.delete(gang[3])
    tick(world)
    assert not kept(world)


def test_a_member_made_anew_with_another_uid_completes_its_gang():
    world = gpus(4)
    gang = members(4)
    world.create(*gang)
    assert asked(world, gang[0])
    world.delete(gang[3])
    again = member("g-3", uid="another")
    world.create(again)
    tick(world)
    assert all(bind_all(world, [*gang[:3], again]))


def test_a_bound_member_that_is_deleted_frees_the_places_of_those_not_bound():
    world = gpus(4)
    gang = members(4)
    world.create(*gang)
    for obj in gang:
        assert asked(world, obj)
    assert world.schedule(gang[0])
    world.delete(world.api.pods["default", "g-0"])
    world.delete(gang[1])
    tick(world)
    assert not kept(world)
    single = pod("single", 400, None)
    world.create(single)
    assert world.schedule(single)


def test_the_same_name_in_two_namespaces_is_two_gangs():
    world = gpus(2)
    one = members(2, namespace="a")
    other = members(2, namespace="b")
    world.create(*one, *other)
    assert asked(world, one[0])
    assert not asked(world, other[0])
    for obj in one:
        world.delete(obj)
    tick(world)
    assert all(bind_all(world, other))


# Sizes.


def test_a_minimum_that_is_lowered_lets_the_gang_begin():
    world = gpus(2)
    group(world, 3)
    gang = [grouped(f"g-{i}") for i in range(3)]
    world.create(*gang)
    assert not asked(world, gang[0])
    group(world, 2)
    tick(world)
    assert world.schedule(gang[0])
    assert world.schedule(gang[1])
    assert not asked(world, gang[2])


def test_a_minimum_that_is_raised_while_they_wait_frees_their_places():
    world = gpus(4)
    group(world, 2)
    gang = [grouped(f"g-{i}") for i in range(2)]
    world.create(*gang)
    assert asked(world, gang[0])
    group(world, 3)
    tick(world)
    assert not asked(world, gang[0])
    assert not kept(world)


def test_beyond_its_minimum_each_member_is_judged_alone():
    world = gpus(3)
    group(world, 2)
    gang = [grouped(f"g-{i}") for i in range(4)]
    world.create(*gang)
    assert [bool(world.schedule(obj)) for obj in gang] == [True, True, True, False]


def test_a_group_that_is_deleted_leaves_pods_of_no_known_size():
    world = gpus(2)
    group(world, 3)
    gang = [grouped(f"g-{i}") for i in range(3)]
    world.create(*gang)
    assert not asked(world, gang[0])
    group(world, 3, gone=True)
    assert world.schedule(gang[0])


def test_a_member_that_asks_no_card_counts_toward_the_minimum():
    world = gpus(2)
    gang = [member("g-0", size=3), member("g-1", size=3)]
    launcher = pod("g-2", labels={KUEUE: "g"}, annotations={COUNT: "3"}, containers=[container("main")])
    world.create(*gang, launcher)
    assert asked(world, launcher) == ["n0"]
    assert all(bind_all(world, gang))


@pytest.mark.parametrize("size", ["0", "-1", "x", "", "1e9", "9" * 30])
def test_a_size_that_cannot_be_read_is_no_gang(size):
    world = gpus(1)
    one = member("g-0", size=size)
    world.create(one)
    asked(world, one)
    assert world.over_committed() == []


def test_more_than_256_are_judged_alone():
    world = gpus(1)
    gang = members(300, core=1, memory=1)
    world.create(*gang[:2])
    assert asked(world, gang[0])


# What else decides.


def test_a_quota_that_is_reached_within_the_gang_refuses_all_of_it():
    world = gpus(4, quota={"default": {"quota": {"Tesla-T4": 3}}})
    gang = members(4)
    world.create(*gang)
    assert not asked(world, gang[0])
    assert not kept(world)
    assert "ExceedsGPUQuota" in why(world, gang[0])


def test_the_places_of_a_gang_count_in_the_quota():
    world = gpus(8, quota={"default": {"quota": {"Tesla-T4": 4}}})
    gang = members(4)
    world.create(*gang)
    assert asked(world, gang[0])
    single = pod("single", 100, None)
    world.create(single)
    assert not asked(world, single)


def test_a_node_that_closes_takes_the_gangs_places_along():
    world = gpus(2, 2)
    gang = members(4)
    world.create(*gang)
    assert asked(world, gang[0])
    world.cluster.apply("nodes", "MODIFIED", node("n1", 2, unhealthy=(0, 1)))
    tick(world)
    assert not kept(world)
    assert not asked(world, gang[0])
    world.cluster.apply("nodes", "MODIFIED", node("n1", 2))
    tick(world)
    assert all(bind_all(world, gang))


def test_a_node_that_goes_takes_the_gangs_places_along():
    world = gpus(2, 2)
    gang = members(4)
    world.create(*gang)
    assert asked(world, gang[0])
    world.cluster.apply("nodes", "DELETED", node("n1", 2))
    tick(world)
    assert not kept(world)
    assert not asked(world, gang[0])


def test_a_member_goes_to_no_node_that_its_selector_forbids():
    world = World([node("n0", 2, labels={"pool": "a"}), node("n1", 2)], expecting=True)
    gang = members(3)
    for obj in gang:
        obj["spec"]["nodeSelector"] = {"pool": "a"}
    world.create(*gang)
    assert not world.filter(gang[0], ["n0"])["NodeNames"]
    assert not kept(world)


def test_cards_that_claims_hold_are_nobodys_place():
    world = World([node("n0", 4, claimed=(0, 1))], expecting=True)
    gang = members(3)
    world.create(*gang)
    assert not asked(world, gang[0])
    assert not kept(world)


# Priorities.


def test_places_yield_to_a_pod_of_higher_priority_until_one_is_bound():
    world = gpus(4)
    gang = members(4)
    urgent = pod("urgent", 100, None, priority=9)
    world.create(*gang, urgent)
    assert asked(world, gang[0])
    assert world.schedule(urgent)
    tick(world)
    assert not kept(world)
    assert not asked(world, gang[0])


def test_a_pod_of_equal_priority_waits_for_the_gang():
    world = gpus(4)
    gang = members(4)
    single = pod("single", 100, None)
    world.create(*gang, single)
    assert asked(world, gang[0])
    assert not asked(world, single)


def test_once_one_is_bound_the_places_of_the_others_stay():
    world = gpus(4)
    gang = members(4)
    urgent = pod("urgent", 100, None, priority=9)
    world.create(*gang, urgent)
    for obj in gang:
        assert asked(world, obj)
    assert world.schedule(gang[0])
    assert not asked(world, urgent)
    assert all(bind_all(world, gang[1:]))


def test_a_member_is_not_bound_while_another_has_no_place():
    world = gpus(4)
    gang = members(4)
    world.create(*gang)
    (place,) = asked(world, gang[0])
    world.delete(gang[3])
    tick(world)
    assert world.bind(gang[0], place)
    assert not world.api.bindings


# Time, and leaders.


def test_places_that_nobody_asks_about_go_after_the_gangs_seconds():
    world = gpus(4, gang_seconds=300.0)
    gang = members(4)
    single = pod("single", 400, None)
    world.create(*gang, single)
    assert asked(world, gang[0])
    tick(world, 299)
    assert not asked(world, single)
    tick(world, 3)
    assert world.schedule(single)


def test_a_new_leader_completes_a_gang_of_which_some_are_bound():
    world = World([NODES["n0"]], expecting=True)
    gang = members(4)
    world.create(*gang)
    for obj in gang:
        assert asked(world, obj)
    assert world.schedule(gang[0])
    for _ in range(2):
        world = new_leader(world)
        world.gangs.begin()
        single = pod("single", 100, None, created="2025-01-01T00:00:00Z")
        world.create(single)
        assert not asked(world, single)
    assert all(bind_all(world, gang[1:]))


def test_a_new_leader_knows_no_place_of_a_gang_that_has_not_begun():
    world = World([NODES["n0"]], expecting=True)
    gang = members(4)
    world.create(*gang)
    assert asked(world, gang[0])
    world = new_leader(world)
    world.gangs.begin()
    assert not kept(world)
    assert all(bind_all(world, gang))


# Other plugins' scores.


def test_a_member_whose_place_is_kept_is_offered_that_node_alone():
    """Whatever other plugins of the scheduler prefer: a bind elsewhere would be refused, or break the gang."""
    world = gpus(2, 2, 2)
    gang = members(4)
    world.create(*gang)
    where = {}
    for obj in gang:
        (where[obj["metadata"]["name"]],) = asked(world, obj)
    assert len(kept(world)) == 4
    for obj in gang:
        assert world.bind(obj, where[obj["metadata"]["name"]]) == ""


def test_a_member_whose_kept_node_its_scheduler_rules_out_is_offered_the_others():
    world = gpus(1, 1, 1)
    gang = members(2)
    world.create(*gang)
    (place,) = asked(world, gang[0])
    others = [name for name in world.nodes if name != place]
    found = world.filter(gang[0], others)["NodeNames"]
    assert found
    assert set(found) <= set(others)
