"""What containers need, and what size is advised for it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.advice.demand import DAY, DAYS, HOUR, HOURS, Demand, Need, pooled
from gpu_manager.domain.advice.size import (
    LONG_SECONDS,
    STARTS,
    AdvicePolicy,
    Sized,
    advise,
    grows,
    pod_advice_json,
    pool,
    read_sized,
    sized_json,
)
from gpu_manager.domain.resources import GIB, MIB, Amount

UNIT = 256 * MIB
GIVEN = Amount(50, 8 * GIB)
KNOWN = Need(3 * DAY, STARTS, 4 * HOUR, 30, (2 * GIB,) * HOURS, (2 * GIB,) * 4)


def test_demand_is_what_a_program_would_use_without_its_limit() -> None:
    """10 ms on the card, 10 ms at home, again and again: half of the card. At a limit of 25 it waits 20 more."""
    free, limited = Demand(0.0), Demand(0.0)
    for second in range(100):
        free.worked(10, 5.0, 0.0, second)
        limited.worked(10, 2.5, 5.0, second)
    assert free.need(100, 95).cores == limited.need(100, 95).cores == 50


@given(need=st.floats(0.01, 1), limit=st.integers(1, 100), seconds=st.floats(1, 100))
def test_demand_is_the_same_at_every_limit(need: float, limit: int, seconds: float) -> None:
    demand, busy = Demand(0.0), min(need, limit / 100)
    demand.worked(seconds, busy * seconds, (1 - busy / need) * seconds, 0.0)
    found = demand.need(0.0, 95).cores
    assert found is not None
    assert abs(found - need * 100) <= 1.01


def test_neighbours_that_stretch_its_work_do_not_halve_its_demand() -> None:
    """A flood at a limit of 20 beside two others: in flight for 4 s of 10, held back for the rest."""
    beside, gaps = Demand(0.0), Demand(0.0)
    beside.worked(10, 2.0, 5.9, 0.0, 4.1)
    gaps.worked(10, 2.0, 2.0, 0.0, 6.0)
    assert beside.need(0.0, 95).cores == 100
    assert gaps.need(0.0, 95).cores == 50, "alone it would work for 2 s and pause for 2"


@pytest.mark.parametrize("held_back", [10.0, 11.0, 1e9])
def test_threads_that_wait_at_once_do_not_make_more_than_a_card(held_back: float) -> None:
    demand = Demand(0.0)
    demand.worked(10, 2.0, held_back, 0.0)
    assert demand.need(0.0, 95).cores == 100


def test_waiting_alone_is_no_work() -> None:
    demand = Demand(0.0)
    demand.worked(10, 0.0, 5.0, 0.0)
    assert demand.need(0.0, 95).cores is None


def test_what_was_seen_longer_ago_weighs_less_and_never_overflows() -> None:
    demand = Demand(0.0)
    for hour in range(200):
        demand.worked(3600, 3600 * 0.8, 0, hour * HOUR)
    for hour in range(200, 20000):
        demand.worked(3600, 3600 * 0.2, 0, hour * HOUR)
    need = demand.need(20000 * HOUR, 95)
    assert need.cores == 20
    assert need.worked < 2 * DAY, "after a half-life of a day, all that was seen weighs less than two days"


@pytest.mark.parametrize("jump", [60 * 365 * DAY, -60 * 365 * DAY, 200 * DAY])
def test_a_clock_that_jumps_by_decades_costs_no_more_than_what_was_seen(jump: float) -> None:
    """As on a node that boots without a battery: 1970 at first, then the time."""
    began = 60 * 365 * DAY
    demand = Demand(began)
    demand.worked(10, 8.0, 0.0, began)
    demand.held(GIB, began)
    demand.held(GIB, began + jump)
    assert demand.need(began + jump, 95).worked >= 0
    demand.worked(10, 2.0, 0.0, began + jump)
    assert demand.need(began + jump, 50).cores in (20, 80)
    assert Demand.decode(json.loads(json.dumps(demand.encode()))).need(began + jump, 50).worked > 0


def test_memory_is_the_greatest_of_each_hour_and_day_and_forgets_what_is_older() -> None:
    demand = Demand(0.0)
    demand.held(5 * GIB, 0.0)
    demand.held(GIB, HOUR)
    demand.held(2 * GIB, 3 * HOUR)
    need = demand.need(3 * HOUR, 95)
    assert need.hours == (5 * GIB, GIB, 0, 2 * GIB)
    assert need.days == (5 * GIB,)
    later = demand.need(26 * HOUR, 95)
    assert len(later.hours) == HOURS
    assert max(later.hours) == 2 * GIB, "the first hours are over a day ago"
    assert later.days == (5 * GIB, 0)
    assert max(demand.need(DAYS * DAY, 95).days) == 0


def test_a_refusal_counts_for_a_day() -> None:
    demand = Demand(0.0)
    demand.refused(9 * GIB, 10.0)
    assert demand.need(DAY, 95).refused == 9 * GIB
    assert demand.need(DAY + 11, 95).refused == 0


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("held", "refused", "worked")), st.integers(0, 80 * GIB), st.floats(0, 2 * DAY)
    ),
    max_size=30,
)


@given(events=EVENTS)
def test_a_sketch_survives_the_disk(events: list[tuple[str, int, float]]) -> None:
    demand, now = Demand(1e9), 1e9
    for kind, size, later in events:
        now += later
        match kind:
            case "held":
                demand.held(size, now)
            case "refused":
                demand.refused(size, now)
            case _:
                demand.worked(10, (size % 11), (size % 7), now)
    read = Demand.decode(json.loads(json.dumps(demand.encode())))
    before, after = demand.need(now, 95), read.need(now, 95)
    assert replace(after, worked=0, cores=None) == replace(before, worked=0, cores=None)
    assert after.worked == pytest.approx(before.worked, abs=0.1)


GOOD: list[Any] = [0.0, 1, 0.0, 0, 0.0, [[10, 5.0]], [0, [0] * HOURS], [0, [0] * DAYS]]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, "soon"), (0, -1.0), (0, float("nan")), (1, None), (2, 1e300), (3, "x"), (4, -5), (5, [[101, 1.0]]),
        (5, [[-1, 1.0]]), (5, [[1, -1.0]]), (5, [[1, float("inf")]]), (5, [[1]]), (5, 7), (6, [0, [0]]),
        (6, [0, [-1] * HOURS]), (6, [0, ["x"] * HOURS]), (6, [0]), (7, None), (7, [0, [1 << 40] * DAYS]),
    ],
)  # fmt: skip
def test_a_file_of_anything_else_is_refused_in_words(place: int, value: object) -> None:
    assert Demand.decode(GOOD).need(0.0, 95).cores == 10
    row = list(GOOD)
    row[place] = value
    with pytest.raises(ValueError, match=r"no demand of a container|is no"):
        Demand.decode(row)


def test_replicas_of_one_template_are_pooled_hour_by_hour() -> None:
    one = replace(KNOWN, cores=20, hours=(GIB, 3 * GIB), starts=1, refused=0)
    two = replace(KNOWN, cores=None, hours=(2 * GIB,), starts=2, refused=GIB, seconds=5 * DAY)
    found = pooled([one, two])
    assert found.hours == (GIB, 3 * GIB)
    assert (found.cores, found.starts, found.refused, found.seconds) == (20, 3, GIB, 5 * DAY)
    assert pooled([two]) == two


def test_workloads_of_all_nodes_are_pooled_and_survive_the_wire() -> None:
    web, lone = ("team", "Deployment/web", "c"), ("team", "Pod/one", "c")
    larger = replace(KNOWN, hours=(3 * GIB,) * HOURS, days=(3 * GIB,) * 4, cores=None)
    rolled_out = Amount(40, 9 * GIB)  # one replica has the new template already
    made = [
        Sized(web, ("web-2",), GIVEN, UNIT, KNOWN, advise(KNOWN, GIVEN, UNIT)),
        Sized(lone, ("one",), GIVEN, UNIT, KNOWN, advise(KNOWN, GIVEN, UNIT)),
        Sized(
            web,
            ("web-1",),
            rolled_out,
            UNIT,
            larger,
            advise(larger, rolled_out, UNIT, AdvicePolicy(margin=0.5)),
            margin=0.5,
        ),
    ]
    read = [read_sized(json.loads(json.dumps(sized_json(one)))) for one in made]
    assert read == made
    shown = pod_advice_json([made[0]])
    assert [(one["container"], one["cores"]["value"]) for one in shown["containers"]] == [(web[2], 30)]
    assert pod_advice_json([]) == {"containers": []}
    assert [one.margin for one in read] == [0.0, 0.0, 0.5]
    assert [one.margin for one in pool(read)] == [0.5, 0.0], "the largest of a workload's agents"
    first, second = pool(read, AdvicePolicy())
    assert (first.workload, first.pods, first.given) == (web, ("web-1", "web-2"), rolled_out)
    assert (first.advice.memory.value, first.advice.cores.value) == (3 * GIB, 30)
    assert second == made[1]


def memory_of(need: Need, policy: AdvicePolicy | None = None) -> tuple[int | None, str]:
    figure = advise(need, GIVEN, UNIT, policy).memory
    return figure.value, figure.reason


def test_a_container_that_took_little_for_long_gets_what_it_took() -> None:
    assert memory_of(KNOWN) == (2 * GIB, "it took at most 2 GiB in 3 days")
    odd = replace(KNOWN, hours=(GIB + 1,) * HOURS, days=(GIB + 1,) * 3)
    assert memory_of(odd)[0] == GIB + UNIT, "whole units"
    assert memory_of(KNOWN, AdvicePolicy(margin=0.5)) == (
        3 * GIB,
        "it took at most 2 GiB in 3 days; 50 % more is advised",
    )
    assert memory_of(KNOWN, AdvicePolicy(margin=-0.25)) == (
        1.5 * GIB,
        "it took at most 2 GiB in 3 days; 25 % less is advised",
    )
    assert memory_of(KNOWN, AdvicePolicy(margin=-1))[0] == UNIT


def test_greatest_amounts_that_differ_leave_room_for_as_much_more() -> None:
    hours = (2 * GIB,) * (HOURS - 2) + (3 * GIB, 2 * GIB)
    many = replace(KNOWN, hours=hours, starts=20, days=(3 * GIB, 2 * GIB, 3 * GIB, 0))
    assert memory_of(many)[0] == 4 * GIB, "by hours at first"
    days = (3 * GIB, 3 * GIB, 2 * GIB, 3 * GIB, 3 * GIB)
    assert memory_of(replace(many, days=days))[0] == 3 * GIB, "each day came to the same"
    tail = tuple(2 * GIB + n * 32 * MIB * (n % 2) for n in range(HOURS))
    few = memory_of(replace(KNOWN, hours=tail, days=(2768 * MIB, 2700 * MIB, 2768 * MIB, 0)))
    assert few == (4 * GIB, "it took at most 2.72 GiB in 3 days"), "a few starts say little of the next"
    wide = replace(KNOWN, hours=(GIB,) * (HOURS - 1) + (6 * GIB,), days=(6 * GIB,))
    assert memory_of(wide) == (
        None, "it took 6 GiB, and may take more: its greatest amounts differ too much to tell"
    )  # fmt: skip


def test_a_refusal_asks_for_more_than_it_has() -> None:
    assert memory_of(replace(KNOWN, refused=9 * GIB)) == (
        9 * GIB, "an allocation that needed 9 GiB in all was refused"
    )  # fmt: skip
    small = replace(KNOWN, refused=GIB)  # its limit has room for it, since it grew or the driver had none
    assert memory_of(small) == memory_of(KNOWN)


def test_a_cache_that_fills_its_limit_is_named_and_not_sized() -> None:
    value, reason = memory_of(replace(KNOWN, days=(7 * GIB,) * 3))
    assert value is None
    assert reason.startswith("it took 7 GiB of its 8 GiB and nothing was refused")


def test_a_leak_is_named_and_not_sized() -> None:
    by_hour = replace(KNOWN, hours=tuple(GIB + n * 100 * MIB for n in range(HOURS)), days=(4 * GIB,))
    by_day = replace(KNOWN, hours=(4 * GIB,) * HOURS, days=(GIB, 2 * GIB, 3 * GIB, 4 * GIB))
    for need in (by_hour, by_day):
        value, reason = memory_of(need)
        assert value is None
        assert reason.startswith("it still grows, to 4 GiB" if need is by_day else "it still grows")
    assert grows(replace(by_day, days=(GIB, 2 * GIB, 2 * GIB, 4 * GIB)), UNIT), "two equal days end no growth"
    assert not grows(replace(by_day, days=(GIB, 3 * GIB, 2 * GIB, 4 * GIB)), UNIT), "it fell in between"
    assert not grows(replace(by_day, days=(GIB, 2 * GIB, *(2 * GIB,) * 4)), UNIT), "calm for half of the days"
    assert not grows(replace(by_hour, hours=by_hour.hours[:5]), UNIT), "too few hours to tell"


def test_less_memory_waits_for_three_days_and_three_starts_or_for_a_week() -> None:
    assert memory_of(replace(KNOWN, seconds=3 * HOUR)) == (
        None, "it took at most 2 GiB so far, watched for 3 hours, too short to tell growth: a smaller size is advised after 3 days"
    )  # fmt: skip
    assert memory_of(replace(KNOWN, starts=1)) == (
        None, "it took at most 2 GiB so far, seen for 1 start: a smaller size is advised after 3, or 7 days"
    )  # fmt: skip
    assert memory_of(replace(KNOWN, starts=1, seconds=LONG_SECONDS))[0] == 2 * GIB
    assert memory_of(replace(KNOWN, hours=(0,), days=(0,))) == (None, "it held no memory of the card")


def test_a_container_that_does_not_work_is_named_after_a_week_and_a_short_job_is_sized() -> None:
    idle = replace(KNOWN, cores=None, worked=0.0)
    assert advise(idle, GIVEN, UNIT).cores.value is None
    found = advise(replace(idle, seconds=8 * DAY), GIVEN, UNIT).cores
    assert (found.value, found.reason) == (1, "it did not work in 8 days: 1 core is enough, or end it")
    seldom = replace(KNOWN, worked=400.0, cores=20)
    assert advise(seldom, GIVEN, UNIT).cores.value is None
    assert advise(replace(seldom, seconds=8 * DAY), GIVEN, UNIT).cores.value == 20


def test_cores_are_raised_at_once_and_lowered_with_patience() -> None:
    def cores(need: Need) -> tuple[int | None, str]:
        figure = advise(need, GIVEN, UNIT).cores
        return figure.value, figure.reason

    assert cores(KNOWN) == (30, "while it works it would use up to 30 cores without a limit")
    assert cores(replace(KNOWN, cores=0))[0] == 1
    assert cores(replace(KNOWN, cores=80, seconds=HOUR)) == (
        80, "its limit holds it back: without it, it would use up to 80 cores"
    )  # fmt: skip
    early = "it needs 30 cores so far, watched for 59 minutes: a smaller size is advised after 1 day"
    assert cores(replace(KNOWN, seconds=HOUR - 1)) == (None, early)
    assert cores(replace(KNOWN, worked=30)) == (None, "it worked for 30 seconds: too little to tell")
    assert cores(replace(KNOWN, cores=None, worked=0)) == (
        None,
        "it worked for 0 seconds: too little to tell",
    )


def test_an_allocation_that_no_card_has_is_a_fault_and_no_need() -> None:
    absurd = replace(KNOWN, refused=100 * GIB)
    figure = advise(absurd, GIVEN, UNIT, AdvicePolicy(largest=16 * GIB)).memory
    assert figure.value is None
    assert "the largest card has 16 GiB: a fault of the program" in figure.reason
    assert advise(absurd, GIVEN, UNIT, AdvicePolicy(largest=128 * GIB)).memory.value == 100 * GIB
