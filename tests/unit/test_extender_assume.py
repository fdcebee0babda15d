"""Between a scheduler's choice and its bind: the place counts as taken, for a waiting pod until its bind, for some minutes at most."""

from hypothesis import given, settings
from hypothesis import strategies as st

from admission.config import KEEP_SECONDS
from tests.fakes.extender import World, bound, node, pod

quick = settings(max_examples=60)


def small():
    world = World([node("n1", cards=1), node("n2", cards=1)], expecting=True)
    world.create(pod("a", 80, 4), pod("b", 80, 4), pod("c", 80, 4))
    return world


def test_the_node_that_got_the_ten_is_taken_for_the_next_pod_but_not_for_itself():
    world = small()
    assert world.prioritize(pod("a", 80, 4), world.filter(pod("a", 80, 4))["NodeNames"])["n1"] == 10
    assert world.filter(pod("a", 80, 4))["NodeNames"] == ["n1", "n2"]
    assert world.filter(pod("b", 80, 4))["NodeNames"] == ["n2"]


def test_the_only_node_that_fits_is_taken_without_a_question_for_priorities():
    world = small()
    assert world.filter(pod("a", 80, 4), ["n1"])["NodeNames"] == ["n1"]
    assert world.filter(pod("b", 80, 4), ["n1"])["NodeNames"] == []


def test_it_ends_by_itself_after_some_minutes():
    world = small()
    world.filter(pod("a", 80, 4), ["n1"])
    world.clock.time += KEEP_SECONDS - 0.1
    assert world.filter(pod("b", 80, 4), ["n1"])["NodeNames"] == []
    world.clock.time += 0.1
    assert world.filter(pod("b", 80, 4), ["n1"])["NodeNames"] == ["n1"]


def test_it_ends_when_the_pod_goes_or_is_bound_elsewhere_or_its_bind_is_refused():
    for end in ("gone", "deleting", "bound", "refused"):
        world = small()
        world.filter(pod("a", 80, 4), ["n1"])
        if end == "gone":
            world.delete(pod("a", 80, 4))
        elif end == "deleting":
            world.show(pod("a", 80, 4, deleting=True))
        elif end == "bound":
            world.show(bound(pod("a", 80, 4), "n2", {}))
        else:
            world.api.plan = ["refuse"]
            assert world.bind(pod("a", 80, 4), "n1")
        assert world.filter(pod("b", 80, 4), ["n1"])["NodeNames"] == ["n1"]


def test_where_others_made_room_for_a_pod_none_is_kept_once_it_is_expected_elsewhere():
    world = small()
    other, awaited = pod("not-created", 80, 4), pod("a", 80, 4, nominated="n1")
    world.show(awaited)
    assert world.filter(other)["NodeNames"] == ["n2"]
    world.filter(awaited, ["n2"])
    assert world.filter(other)["NodeNames"] == ["n1"]
    world.clock.time += KEEP_SECONDS
    assert world.filter(other)["NodeNames"] == ["n2"], "it did not go there after all"


def test_a_pod_whose_place_is_kept_does_not_use_up_its_own_quota():
    world = World(
        [node("n1", cards=1), node("n2", cards=1)], expecting=True, quota={"*": {"quota": {"T4": 1}}}
    )
    one = pod("one", 100, None)
    world.create(one)
    assert world.prioritize(one, world.filter(one)["NodeNames"])["n1"] == 10
    assert world.filter(one)["NodeNames"] == ["n1", "n2"]
    assert world.bind(one, "n1") == ""


def test_a_pod_that_is_bound_where_it_was_expected_changes_no_book():
    world = small()
    world.api.shown = lambda obj: None  # the watch is silent
    world.prioritize(pod("a", 80, 4), world.filter(pod("a", 80, 4))["NodeNames"])
    before = world.cluster.snapshot()
    assert world.bind(pod("a", 80, 4), "n1") == ""
    assert world.cluster.snapshot().turn == before.turn
    assert world.booked("n1") == [(80, 4)]
    world.clock.time += KEEP_SECONDS + 1  # it is no expectation any more, and does not end like one
    assert world.filter(pod("b", 80, 4))["NodeNames"] == ["n2"]
    assert world.cluster.reserved_on("uid-default-a") == "n1"


def test_a_scheduler_that_chose_another_node_binds_there_and_frees_the_first():
    world = small()
    world.prioritize(pod("a", 80, 4), world.filter(pod("a", 80, 4))["NodeNames"])
    assert world.bind(pod("a", 80, 4), "n2") == ""
    assert world.booked("n1") == [(0, 0)]
    assert world.booked("n2") == [(80, 4)]


def test_a_question_about_a_pod_that_nobody_knows_or_that_is_another_takes_nothing():
    world = small()
    world.filter(pod("nobody", 80, 4), ["n1"])
    world.filter(pod("a", 100, None), ["n1"])  # the watch shows "a" with 80 cores
    world.filter(pod("b", 80, 4, scheduler="other"), ["n2"])
    world.show(pod("c", 80, 4, scheduler="other"))
    world.filter(pod("c", 80, 4), ["n2"])
    assert world.booked("n1") == [(0, 0)]


def test_who_does_not_lead_expects_nothing():
    world = small()
    world.leads = False
    world.filter(pod("a", 80, 4), ["n1"])
    assert world.booked("n1") == [(0, 0)]


@given(
    st.lists(st.sampled_from([(20, 4), (30, 8), (60, 20), (100, None)]), min_size=1, max_size=12),
    st.lists(st.integers(0, 3), min_size=12, max_size=12),
)
@quick
def test_however_late_binds_come_none_is_refused(asked, delays):
    """A serial scheduler whose binds lag behind by several pods: the burst of one controller."""
    world = World([node("n1"), node("n2"), node("n3", cards=1)], expecting=True)
    pending = []
    for i, shape in enumerate(asked):
        obj = pod(f"p{i}", *shape)
        world.create(obj)
        fitting = world.filter(obj)["NodeNames"]
        if fitting:
            given_scores = world.prioritize(obj, fitting) if len(fitting) > 1 else {fitting[0]: 10}
            pending.append((i + delays[i], obj, max(fitting, key=lambda name: given_scores[name])))
        for due in [p for p in pending if p[0] <= i]:
            pending.remove(due)
            assert world.bind(due[1], due[2]) == ""
    for _, obj, where in pending:
        assert world.bind(obj, where) == ""
    assert world.over_committed() == []
    assert not world.cluster.snapshot().reserved
