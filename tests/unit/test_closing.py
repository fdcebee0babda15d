"""A node closed to smaller requests for one that waits: who, for how long at most, and that nobody closes one for good."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.domain.score.closing import (
    CLOSED_FOR,
    COMES_WITHIN,
    DAY,
    IDLE_SECONDS,
    LONGEST,
    MOST_DOUBLED,
    ROOM_NODE_SECONDS,
    ROOM_TENANT_SECONDS,
    WAITED,
    ClosedNode,
    NodeClock,
    NodeClosing,
    Tenants,
)

RUNNING = 40
CARDS = {"a": 8, "b": 4, "c": 8, "d": 2, "e": 4}


def closes(closing=None, waiting=None, at=("n1", 300), running=RUNNING, now=0.0):
    closing = closing or NodeClosing()
    closing.look(waiting or {"a": 8}, running, lambda _pod: at, now)
    closing.left(int(WAITED * running))
    return closing, closing.look(waiting or {"a": 8}, running, lambda _pod: at, now)


def test_a_node_is_closed_once_the_pod_has_waited_for_a_quarter_more_departures_than_pods_run():
    closing = NodeClosing()
    assert closing.look({"a": 8}, RUNNING, lambda _pod: ("n1", 300)) is None
    closing.left(int(WAITED * RUNNING) - 1)
    assert closing.look({"a": 8}, RUNNING, lambda _pod: ("n1", 300)) is None
    closing.left()
    assert closing.look({"a": 8}, RUNNING, lambda _pod: ("n1", 300)) == ClosedNode(
        "n1", "a", 8, CLOSED_FOR * RUNNING
    )
    closing.left(7)
    assert closing.closed == ClosedNode("n1", "a", 8, CLOSED_FOR * RUNNING - 7)


def test_it_follows_the_node_with_the_least_to_end_and_its_time_goes_on():
    closing, _ = closes()
    closing.left(50)
    found = closing.look({"a": 8}, RUNNING, lambda _pod: ("n2", 100))
    assert found == ClosedNode("n2", "a", 8, CLOSED_FOR * RUNNING - 50)


@pytest.mark.parametrize(
    ("pod", "cards", "node", "opens"),
    [
        ("a", 8, "n1", True),
        ("a", 8, "elsewhere", True),
        ("b", 8, "n1", True),
        ("b", 8, "elsewhere", False),
        ("b", 4, "n1", False),
    ],
)
def test_it_opens_once_the_pod_or_one_as_large_has_come_and_what_failed_is_forgotten(pod, cards, node, opens):
    closing, _ = closes()
    closing.left(100)
    closing.started(pod, cards, node)
    assert (closing.closed is None) is opens
    if opens:
        closing.left(int(WAITED * RUNNING))
        assert closing.look({"c": 8}, RUNNING, lambda _pod: ("n1", 5)) is None, "c has just begun to wait"
        closing.left(int(WAITED * RUNNING))
        assert closing.look({"c": 8}, RUNNING, lambda _pod: ("n1", 5)) is not None


@pytest.mark.parametrize(
    ("waiting", "at"),
    [({}, ("n1", 300)), ({"b": 8}, ("n1", 300)), ({"a": 8}, None)],
    ids=["gone", "another", "no node"],
)
def test_it_opens_where_the_pod_is_gone_or_no_node_could_hold_it_and_pauses_for_as_long(waiting, at):
    closing, _ = closes()
    closing.left(30)
    assert closing.look(waiting, RUNNING, lambda _pod: at) is None
    closing.left(29)
    closing.look({"late": 8}, 1, lambda _pod: ("n1", 300))
    assert closing.closed is None
    closing.left(2)
    assert closing.look({"late": 8}, 1, lambda _pod: ("n1", 300)) is not None


def test_where_the_cards_are_free_and_the_pod_does_not_come_it_opens_soon():
    closing, _ = closes(at=("n1", 100))
    assert closing.look({"a": 8}, RUNNING, lambda _pod: ("n1", 0)) is not None
    closing.left(RUNNING // COMES_WITHIN - 1)
    assert closing.look({"a": 8}, RUNNING, lambda _pod: ("n1", 0)) is not None
    closing.left()
    assert closing.look({"a": 8}, RUNNING, lambda _pod: ("n1", 0)) is None


def test_a_pod_for_which_nodes_were_closed_in_vain_stands_back_behind_one_that_came_later():
    waiting = {"never": 8, "later": 4}
    closing, found = closes(waiting=waiting)
    assert found.pod == "never"
    closing.left(CLOSED_FOR * RUNNING)
    assert closing.look(waiting, RUNNING, lambda _pod: ("n1", 300)) is None
    closing.left(CLOSED_FOR * RUNNING)
    assert closing.look(waiting, RUNNING, lambda _pod: ("n1", 300)).pod == "later"


def test_a_pod_that_no_node_could_hold_stands_in_nobodys_way():
    nearest = {"nowhere": None, "a": ("n1", 300)}.get
    closing = NodeClosing()
    closing.look({"nowhere": 8, "a": 8}, RUNNING, nearest)
    closing.left(int(WAITED * RUNNING))
    assert closing.look({"nowhere": 8, "a": 8}, RUNNING, nearest).pod == "a"


def test_without_departures_the_clock_opens_it_after_a_day_and_keeps_it_open_for_one_then_for_two():
    closing, found = closes(at=("n1", 800), now=1000.0)
    assert found
    look = lambda now: closing.look({"a": 8}, RUNNING, lambda _pod: ("n1", 800), now)  # noqa: E731
    assert look(1000.0 + LONGEST - 1)
    assert look(1000.0 + LONGEST) is None
    closing.left(1)
    assert look(1000.0 + 2 * LONGEST - 1) is None
    assert look(1000.0 + 2 * LONGEST)
    assert look(1000.0 + 3 * LONGEST) is None
    closing.left(2)
    assert look(1000.0 + 5 * LONGEST - 1) is None
    assert look(1000.0 + 5 * LONGEST)


def test_pods_that_never_run_close_nodes_for_a_vanishing_part_of_the_time():
    """A tenant makes a hundred of them, deletes and makes them again whenever a node is open."""
    closing, closed, made = NodeClosing(), 0, 0
    waiting = dict.fromkeys(range(100), 8)
    shares = []
    for step in range(200 * RUNNING):
        was = closing.closed
        if closing.look(waiting, RUNNING, lambda _pod: ("n1", 300)) is None and was is not None:
            made += 1
            waiting = {number + 1000 * made: 8 for number in range(100)}
        closed += closing.closed is not None
        closing.left()
        if step % (50 * RUNNING) == 50 * RUNNING - 1:
            shares.append(closed / (step + 1))
    assert shares == sorted(shares, reverse=True)
    assert 0 < shares[-1] < 0.1


events = st.one_of(
    st.tuples(st.just("left"), st.integers(1, 60)),
    st.tuples(st.just("started"), st.sampled_from("abcde"), st.sampled_from(["n1", "n2"])),
    st.tuples(
        st.just("look"),
        st.lists(st.sampled_from("abcde"), max_size=4, unique=True),
        st.integers(0, 30),
        st.sampled_from([None, ("n1", 0), ("n1", 200), ("n2", 50)]),
        st.integers(0, 40_000),
    ),
)


@settings(max_examples=300)
@given(st.lists(events, max_size=120))
def test_whatever_the_order_of_events_no_node_is_closed_beyond_its_bound_and_the_pause_after_it_holds(
    happens,
):
    closing, departures, now = NodeClosing(), 0, 0.0
    began = None  # departures, seconds, bound of the node that is closed
    opened, pause = 0, 0
    largest = 1
    for what, *rest in happens:
        if what == "left":
            departures += rest[0]
            closing.left(rest[0])
        elif what == "started":
            pod, where = rest
            was = closing.closed
            closing.started(pod, CARDS[pod], where)
            if was is not None and closing.closed is None:
                assert pod == was.pod or (where == was.node and CARDS[pod] >= was.cards)
                began, pause, opened = None, 0, departures
        else:
            pods, running, at, seconds = rest
            waiting = {pod: CARDS[pod] for pod in pods}
            now += seconds
            largest = max(largest, running)
            was = closing.closed
            found = closing.look(waiting, running, lambda _pod, at=at: at, now)
            if was is not None and (
                found is None or found.pod != was.pod or (began[0] < departures and found.left > was.left)
            ):
                pause = max(1, departures - began[0])
                opened, began = departures, None
            if found is not None and began is None:
                assert departures - opened >= pause, "the pause is at least as long as it was closed in vain"
                assert found.left == CLOSED_FOR * max(1, running)
                began = departures, now, found.left
            if found is not None:
                assert waiting[found.pod] == found.cards
                assert departures - began[0] < began[2] <= CLOSED_FOR * largest
                assert now - began[1] < LONGEST
                assert found.node == at[0]


def test_the_pause_doubles_so_many_times_only():
    closing, pauses = NodeClosing(), []
    waiting = {"a": 8}
    opened = None
    for step in range(3 * CLOSED_FOR * 2 ** (MOST_DOUBLED + 2)):
        found = closing.look(waiting, 1, lambda _pod: ("n1", 300))
        if found is None and opened is None:
            opened = step
        elif found is not None and opened is not None:
            pauses.append(step - opened)
            opened = None
        closing.left()
    assert [pause // CLOSED_FOR for pause in pauses[1:]] == [
        min(2**n, 2**MOST_DOUBLED) for n in range(len(pauses) - 1)
    ]
    assert len(pauses) > MOST_DOUBLED + 1


# What is counted by tenant; and, where the waiting request fits already, by the clock.

NODE_SECONDS, TENANT_SECONDS = ROOM_NODE_SECONDS, ROOM_TENANT_SECONDS
OWNERS = Tenants(of=lambda pod: pod[0], running={"a": 10, "b": 0}.get)


def look(closing, now, *pods, at=("n1", 300)):
    return closing.look(dict.fromkeys(pods, 8), RUNNING, lambda _pod: at, now, OWNERS)


def waited(*pods, at=("n1", 300), now=0.0, closing=None):
    """As many others have left as makes every pod wait for long."""
    closing = closing or NodeClosing()
    look(closing, now, *pods, at=at)
    closing.left(int(WAITED * RUNNING), "others")
    return closing, look(closing, now, *pods, at=at)


def test_departures_of_the_pods_own_tenant_do_not_count_beside_others_that_run():
    closing = NodeClosing()
    look(closing, 0.0, "a1", "b1")
    closing.left(1000, "a")
    assert look(closing, 0.0, "a1") is None
    closing.left(int(WAITED * (RUNNING - 10)), "others")
    assert look(closing, 0.0, "a1") is None
    closing.left(1, "others")
    assert look(closing, 0.0, "a1").pod == "a1"


def test_where_all_that_runs_is_its_own_each_departure_counts():
    closing, alone = NodeClosing(), Tenants(of=lambda _pod: "a", running=lambda _tenant: RUNNING)
    for count in (int(WAITED * RUNNING) - 1, 1):
        found = closing.look({"a1": 8}, RUNNING, lambda _pod: ("n1", 300), 0.0, alone)
        assert found is None
        closing.left(count, "a")
    assert closing.look({"a1": 8}, RUNNING, lambda _pod: ("n1", 300), 0.0, alone)


def test_where_it_fits_already_the_clock_opens_the_node_whoever_leaves():
    closing, found = waited("a1", at=("n1", 0))
    assert found == ClosedNode("n1", "a1", 8, CLOSED_FOR * RUNNING, TENANT_SECONDS)
    closing.left(CLOSED_FOR * RUNNING - 1, "others")
    assert look(closing, TENANT_SECONDS - 1, "a1", at=("n1", 0))
    assert look(closing, TENANT_SECONDS, "a1", at=("n1", 0)) is None


def test_the_clock_stands_while_it_does_not_fit_and_goes_on_where_it_stood():
    closing, _ = waited("a1", at=("n1", 0))
    assert look(closing, 100.0, "a1", at=("n1", 5)).seconds is None
    assert look(closing, 5000.0, "a1", at=("n1", 0)).seconds == TENANT_SECONDS - 100
    assert look(closing, 5000.0 + TENANT_SECONDS - 101, "a1", at=("n1", 0))
    assert look(closing, 5000.0 + TENANT_SECONDS - 100, "a1", at=("n1", 0)) is None


def test_the_time_of_a_tenant_is_that_of_all_its_pods_and_nodes_for_a_week_and_no_others():
    closing, _ = waited("a1", at=("n1", 0))
    assert look(closing, TENANT_SECONDS, "a1", at=("n1", 0)) is None
    _, found = waited("a2", at=("n2", 0), now=TENANT_SECONDS, closing=closing)
    assert found is None
    closing.left(10_000, "others")
    assert look(closing, 6 * DAY, "a2", at=("n2", 0)) is None
    assert look(closing, 6 * DAY, "a2", at=("n2", 5)).pod == "a2", (
        "a node that must drain first is another thing"
    )
    _, found = waited("b1", at=("n2", 0), now=6 * DAY, closing=NodeClosing())
    assert found.seconds == TENANT_SECONDS


def test_of_one_node_all_tenants_have_ten_minutes_a_day():
    clock = NodeClock(NODE_SECONDS, TENANT_SECONDS)
    clock.spend("n1", "a", 1, 0.0, 350.0)
    clock.spend("n1", "b", 0.5, 600.0, 1000.0)
    assert (clock.left("n1", "c", 1000.0), clock.left("n2", "c", 1000.0)) == (
        NODE_SECONDS - 550,
        TENANT_SECONDS,
    )
    assert clock.left("n2", "b", 1000.0) == TENANT_SECONDS - 200
    assert clock.left("n1", "c", 350.0 + DAY) == TENANT_SECONDS
    assert clock.left("n1", "b", 1000.0 + DAY) == TENANT_SECONDS - 200
    assert clock.left("n1", "b", 1000.0 + 7 * DAY) == TENANT_SECONDS


def test_stretches_that_follow_one_another_are_one_and_end_with_the_last():
    clock = NodeClock(NODE_SECONDS, TENANT_SECONDS)
    for second in range(1, 101):
        clock.spend("n1", "a", 1, second - 1.0, float(second))
    assert clock.left("n1", "a", 99.0 + 7 * DAY) == TENANT_SECONDS - 100
    assert clock.left("n1", "a", 100.0 + 7 * DAY) == TENANT_SECONDS


def test_what_a_tenants_pods_run_is_given_back_to_it_alone_and_never_more_than_it_had():
    clock = NodeClock(NODE_SECONDS, TENANT_SECONDS)
    clock.spend("n1", "a", 1, 0.0, 100.0)
    clock.spend("n1", "b", 1, 200.0, 300.0)
    clock.spend("n2", "a", 1, 400.0, 450.0)
    clock.give_back("a", 120)
    assert clock.left("n3", "a", 450.0) == TENANT_SECONDS - 30
    assert clock.left("n3", "b", 450.0) == TENANT_SECONDS - 100
    assert clock.left("n1", "c", 450.0) == min(TENANT_SECONDS, NODE_SECONDS - 200), "the node had its part"
    clock.give_back("a", 1e6)
    assert clock.left("n3", "a", 450.0) == TENANT_SECONDS


def test_a_pod_that_comes_late_and_leaves_at_once_wins_its_tenant_no_time():
    closing, _ = waited("a1", at=("n1", 0))
    look(closing, TENANT_SECONDS - 10, "a1", at=("n1", 0))
    closing.started("a1", 8, "n1")
    _, found = waited("a2", at=("n1", 0), now=TENANT_SECONDS - 10, closing=closing)
    assert found.seconds == 10


def test_what_a_tenant_had_closed_in_vain_is_forgotten_when_its_own_pods_come_not_those_of_others():
    closing, found = waited("a1", "b1")
    assert found.pod == "a1"
    closing.left(CLOSED_FOR * RUNNING, "others")
    assert look(closing, 0.0, "a1", "b1") is None
    closing.left(CLOSED_FOR * RUNNING, "others")
    assert look(closing, 0.0, "a1", "b1").pod == "b1", "the tenant that failed stands back"
    closing.started("b1", 8, "n1")
    _, found = waited("a2", "b2", closing=closing)
    assert found.pod == "b2"
    closing.started("b2", 8, "n1")
    assert look(closing, 0.0, "a2").pod == "a2"
    closing.started("a2", 8, "n1")
    _, found = waited("a3", "b3", closing=closing)
    assert found.pod == "a3"


def test_after_a_second_closing_in_vain_a_tenant_pauses_for_twice_as_long_and_others_do_not():
    closing, _ = waited("a1")
    closing.left(CLOSED_FOR * RUNNING, "others")
    assert look(closing, 0.0, "a1") is None
    closing.left(CLOSED_FOR * RUNNING, "others")
    assert look(closing, 0.0, "a1").pod == "a1"
    closing.left(CLOSED_FOR * RUNNING, "others")
    assert look(closing, 0.0, "a1", "b1") is None
    closing.left(CLOSED_FOR * RUNNING, "others")
    assert look(closing, 0.0, "a1", "b1").pod == "b1"
    closing.started("b1", 8, "n1")
    assert look(closing, 0.0, "a1") is None
    closing.left(CLOSED_FOR * RUNNING, "others")
    assert look(closing, 0.0, "a1").pod == "a1"


def test_time_in_which_the_node_is_open_for_the_pods_own_place_is_not_counted():
    closing, _ = waited("a1", at=("n1", 0))
    closing.hold(60.0)
    assert look(closing, 5000.0, "a1", at=("n1", 0)).seconds == TENANT_SECONDS
    assert look(closing, 5000.0 + TENANT_SECONDS - 61, "a1", at=("n1", 0))
    assert look(closing, 5000.0 + TENANT_SECONDS - 60, "a1", at=("n1", 0)) is None


# While a closed node drains, the clock counts the part of the node that is idle.


@pytest.mark.parametrize(("to_end", "hours"), [(1, 4), (200, 16 / 3), (400, 8), (600, 16)])
def test_a_node_that_drains_is_closed_for_four_hours_of_an_idle_one(to_end, hours):
    closing, _ = waited("a1", at=("n1", to_end))
    ends = IDLE_SECONDS / (1 - to_end / 800)
    assert ends == pytest.approx(hours * 3600, rel=0.002)
    assert look(closing, ends - 1, "a1", at=("n1", to_end))
    assert look(closing, ends, "a1", at=("n1", to_end)) is None
    _, found = waited("b1", at=("n1", to_end), now=ends, closing=closing)
    assert found is None, "of one node all tenants have that within a day"
    _, found = waited("b1", at=("n2", to_end), now=ends, closing=closing)
    assert found.node == "n2"


@pytest.mark.parametrize(("stays", "hours"), [(0, 0), (1, 1), (3, 3), (9, 4)])
def test_a_tenant_has_the_hours_back_that_its_pod_ran_for_which_the_node_was_closed(stays, hours):
    closing, _ = waited("a1", at=("n1", 1))
    look(closing, IDLE_SECONDS - 1.0, "a1", at=("n1", 1))
    closing.started("a1", 8, "n1")
    for hour in range(12):
        runs = Tenants(OWNERS.of, OWNERS.running, lambda _pod, hour=hour: hour <= stays)
        closing.look({}, RUNNING, lambda _pod: None, IDLE_SECONDS - 1.0 + 3600 * hour, runs)
    _, found = waited("a2", at=("n2", 1), now=2 * DAY, closing=closing)
    assert found is not None
    lasts = hours * 3600 + 60
    assert look(closing, 2 * DAY + lasts - 60, "a2", at=("n2", 1)) is not None
    assert look(closing, 2 * DAY + lasts, "a2", at=("n2", 1)) is None


def test_without_a_clock_departures_alone_count():
    closing, _ = closes(now=None, at=("n1", 1))
    closing.left(CLOSED_FOR * RUNNING - 1)
    assert closing.look({"a": 8}, RUNNING, lambda _pod: ("n1", 1)) is not None
