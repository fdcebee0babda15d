"""Who is believed to share a card, and what the loop publishes when."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.time_sharing import (
    TRUST_CAP_SECONDS,
    CardActivity,
    SharedCard,
)
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.priority import Priority
from gpu_manager.ports.control_pages import Activity, Correction
from gpu_manager.services.enforcement.time_sharing import (
    GLANCES,
    GLANCES_MOST,
    TURN_SECONDS,
    CardTenant,
    TimeSharing,
)
from tests.fakes.metrics import service_metrics
from tests.fakes.ports import FakeClock

CARD = CardUuid("GPU-1")
OTHER = CardUuid("GPU-2")
STEP = 0.025


class Tenant:
    """A container that works in random milliseconds, and is charged by the factor it was told, as the library does.

    ``claims``: in what part of the time it says that it works, if that is not the truth.
    """

    def __init__(self, *, works: float = 1.0, claims: float | None = None, processes: int = 1) -> None:
        self.works, self.claims, self.processes = works, claims, processes
        self.line: dict[int, float] = {}
        self.busy = 0.0
        self.factor = 1.0
        self._pick = random.Random(f"{works} {processes}")  # each its own milliseconds

    def run(self, begin: int, end: int) -> None:
        for ms in range(begin, end):
            dice = self._pick.random()
            self.busy += 1e-3 * self.processes * (dice < self.works) / self.factor
            if dice < (self.works if self.claims is None else self.claims):
                self.line[ms] = self.processes

    def seen(self) -> CardActivity:
        return CardActivity(self.processes if self.line else 0, int(self.busy * 1e9))


class Machine:
    """A card and its containers on a modelled clock: sampled each step, told their factors each fourth."""

    def __init__(self, tenants: Mapping[str, Tenant], *, timelines: bool = True) -> None:
        self.tenants, self.card, self.now = tenants, SharedCard(), 1000.0
        self._timelines = timelines
        self._steps = 0

    def step(
        self, others: Mapping[str, CardActivity] | None = None, truth: Mapping[str, float] | None = None
    ) -> Mapping[str, float] | None:
        """What was published, if a period ended with this step. ``others`` are containers beside the modelled."""
        begin = int(self.now * 1e3)
        self.now += STEP
        for tenant in self.tenants.values():
            tenant.run(begin, int(self.now * 1e3))
        seen = {name: tenant.seen() for name, tenant in self.tenants.items()} | dict(others or {})
        self.card.sample(self.now, seen, truth)
        self._steps += 1
        if self._steps % 4:
            return None
        since = self.card.judged_ms
        lines = {
            name: {ms: v for ms, v in tenant.line.items() if ms >= since}
            for name, tenant in self.tenants.items()
            if self._timelines
        }
        told = self.card.factors(lines)
        for name, tenant in self.tenants.items():
            tenant.factor = told[name]
        return told

    def published(
        self,
        seconds: float,
        others: Mapping[str, CardActivity] | None = None,
        truth: Mapping[str, float] | None = None,
    ) -> list[Mapping[str, float]]:
        """All that was published in so many seconds."""
        steps = [self.step(others, truth) for _ in range(int(seconds / STEP))]
        return [told for told in steps if told is not None]


def settled(tenants: Mapping[str, Tenant], seconds: float = 30.0) -> Mapping[str, float]:
    """The mean factors over the later part of a run."""
    later = Machine(tenants).published(seconds)[int(seconds * 10 / 3) :]
    return {name: len(later) / sum(1 / told[name] for told in later) for name in tenants}


def test_two_that_always_work_each_have_half() -> None:
    assert settled({"a": Tenant(), "b": Tenant()}) == pytest.approx({"a": 2.0, "b": 2.0}, abs=0.02)


def test_one_that_works_sixty_percent_of_the_time_leaves_the_other_the_rest() -> None:
    factors = settled({"a": Tenant(works=0.6), "b": Tenant()})
    assert factors["a"] == pytest.approx(2.0, abs=0.05)
    assert factors["b"] == pytest.approx(1 / 0.7, abs=0.05)


def test_processes_share_and_not_containers() -> None:
    factors = settled({"a": Tenant(processes=2), "b": Tenant()})
    assert factors == pytest.approx({"a": 3.0, "b": 3.0}, abs=0.05)


def test_a_container_alone_is_divided_by_nobody() -> None:
    assert settled({"a": Tenant(works=0.5)}) == {"a": 1.0}


def test_work_at_the_same_time_is_divided_and_work_in_turns_is_not() -> None:
    """Both work half of the time; what counts is whether it is the same half, not how much."""
    for shift, expected in ((0, 2.0), (10, 1.0)):
        card, lines = SharedCard(), {}
        for name, first in (("a", 0), ("b", shift)):
            lines[name] = {1_000_000 + ms: 1.0 for ms in range(400) if (ms + first) % 20 < 10}
        for step in range(17):
            busy = CardActivity(1, step * 12_500_000)
            card.sample(1000.0 + step * STEP, {"a": busy, "b": busy})
        assert card.factors(lines) == pytest.approx({"a": expected, "b": expected}, abs=0.01)


def test_of_parts_of_a_millisecond_only_the_length_is_known() -> None:
    card = SharedCard()
    for step in range(9):
        busy = CardActivity(1, step * 12_500_000)
        card.sample(1000.0 + step * STEP, {"a": busy, "b": busy})
    half = dict.fromkeys(range(1000000, 1000200), 0.5)
    assert card.factors({"a": half, "b": half})["a"] == pytest.approx(1 / 0.75)


def test_factors_are_right_from_the_second_period_after_a_container_came() -> None:
    tenants = {"a": Tenant(works=0.5), "b": Tenant(works=0.0)}
    machine = Machine(tenants)
    machine.published(5.0, {"b": CardActivity(0, 0, present=False)})
    tenants["b"].works = 0.8
    told = machine.published(3.0)[1:]
    for name, own in (("a", 0.6), ("b", 0.75)):
        assert [one[name] for one in told] == pytest.approx([1 / own] * len(told), rel=0.2)
        assert sum(1 / one[name] for one in told) / len(told) == pytest.approx(own, abs=0.02)


def test_work_that_has_not_ended_is_judged_by_who_was_seen_at_work() -> None:
    """So is all work of a library that keeps no timeline."""
    long = Tenant()
    machine = Machine({"a": long, "b": Tenant()}, timelines=False)
    assert machine.published(3.0)[-1] == pytest.approx({"a": 2.0, "b": 2.0})
    long.works = 0.0
    idle = CardActivity(0, int(long.busy * 1e9))
    assert machine.published(1.0, {"a": idle})[-1]["b"] == pytest.approx(1.0)


def test_a_claim_without_use_is_believed_for_a_moment_only() -> None:
    machine = Machine({"honest": Tenant()})
    published = [told["honest"] for told in machine.published(10.0, {"liar": CardActivity(9, 0)})]
    assert max(published[-80:]) < 1.01
    assert sum(factor > 1.1 for factor in published) <= 10


def test_what_was_used_before_supports_a_claim_for_two_seconds_at_most() -> None:
    """Who hid its work for a minute cannot draw on that minute to seem to be at work for another."""
    liar = Tenant(claims=0.0)
    machine = Machine({"liar": liar, "honest": Tenant()})
    machine.published(60.0)
    liar.works, liar.claims = 0.0, 1.0
    believed = sum(told["honest"] > 1.5 for told in machine.published(10.0))
    assert believed * 0.1 == pytest.approx(TRUST_CAP_SECONDS, abs=0.3)


def test_who_is_new_on_the_card_counts_before_the_driver_reports_it() -> None:
    tenants = {"first": Tenant(), "new": Tenant(works=0.0)}
    machine = Machine(tenants)
    machine.published(10.0, {"new": CardActivity(0, 0, present=False)}, {"first": 1.0})
    tenants["new"].works = 1.0
    told = machine.published(2.0, truth={"first": 1.0, "new": 0.0})
    told += machine.published(4.0, truth={"first": 0.5, "new": 0.5})
    assert min(one["first"] for one in told) > 1.95


def test_what_the_driver_saw_refutes_a_forged_page() -> None:
    machine = Machine({"forger": Tenant(), "honest": Tenant()})
    assert machine.published(20.0, truth={"forger": 0.0, "honest": 1.0})[-1]["honest"] < 1.06


def test_who_leaves_is_forgotten_at_once() -> None:
    tenants = {"a": Tenant(), "b": Tenant()}
    machine = Machine(tenants)
    assert machine.published(1.0)[-1]["a"] > 1.9
    machine.card.sample(machine.now, {"a": tenants["a"].seen(), "b": CardActivity(0, 0, present=False)})
    assert machine.card.factors({})["a"] == 1.0


@given(
    st.lists(
        st.tuples(st.integers(0, 2**40), st.integers(0, 2**63 - 1), st.booleans()), min_size=2, max_size=60
    ),
    st.dictionaries(st.sampled_from("ab"), st.floats(0, 1e6)),
    st.dictionaries(st.integers(1_000_000, 1_001_500), st.floats(0, 65.535)),
)
def test_no_page_makes_a_factor_below_one(
    rows: Sequence[tuple[int, int, bool]], truth: Mapping[str, float], line: Mapping[int, float]
) -> None:
    card = SharedCard()
    for step, (at_work, busy, present) in enumerate(rows):
        seen = {"a": CardActivity(at_work, busy, present), "b": CardActivity(1, busy // 2)}
        card.sample(1000.0 + step * STEP, seen, truth)
        factors = card.factors({"a": line} if step % 2 else {"b": line})
        assert all(1.0 <= factor < float("inf") for factor in factors.values())


def test_the_drivers_few_samples_a_second_disturb_no_division() -> None:
    """As an H100 tells them of two that always work: all of a sample is one container's."""
    # One history, not any: of 40 others, 23 have a second whose factors are off by 0.3 to 0.6.
    dice = random.Random(1)
    machine = Machine({"a": Tenant(), "b": Tenant()})
    for _ in range(60):
        first = dice.choice((0.2, 0.4, 0.6, 0.8))
        factors = machine.published(1.0, truth={"a": first, "b": 1 - first})[-1]
        assert factors == pytest.approx({"a": 2.0, "b": 2.0}, abs=0.1)


class Pages:
    """Pages in memory."""

    def __init__(self) -> None:
        self.working: dict[str, int] = {}
        self.read = self.glances = 0
        self.written: list[tuple[str, Mapping[CardUuid, Correction]]] = []
        self.gone: set[str] = set()
        self.clock = FakeClock()

    def activity(self, name: str) -> Sequence[Activity]:
        self.read += 1
        if name in self.gone:
            raise NodeUnready(f"{name} is gone")
        at_work = self.working.get(name, 0)
        now = int(self.clock.time * 1e9)
        return [Activity(CARD, at_work, now if at_work else 0, now if at_work else 0, at_work, 1)]

    def last_busy_ns(self, places: Sequence[tuple[str, CardUuid]]) -> Sequence[int]:
        self.glances += len(places)
        return [int(self.clock.time * 1e9) if self.working.get(name) else 0 for name, _ in places]

    def timeline(self, name: str, card: CardUuid, begin_ms: int, end_ms: int) -> Mapping[int, float]:
        assert card == CARD
        return dict.fromkeys(range(begin_ms, end_ms), 1.0) if self.working.get(name) else {}

    def publish(self, name: str, heartbeat_ns: int, corrections: Mapping[CardUuid, Correction]) -> None:
        if name in self.gone:
            raise NodeUnready(f"{name} is gone")
        assert heartbeat_ns == int(self.clock.time * 1e9)
        self.written.append((name, corrections))

    def factors(self, name: str) -> list[float]:
        return [c[CARD].co_active or 0 for n, c in self.written if n == name and c]


def loop(pages: Pages, seats: Sequence[CardTenant]) -> TimeSharing:
    return TimeSharing(pages, lambda: seats, pages.clock, service_metrics())


def spend(service: TimeSharing, pages: Pages, seconds: float) -> int:
    """Let the loop run for a while; how many steps it took."""
    end, steps = pages.clock.time + seconds, 0
    while pages.clock.time < end:
        pages.clock.time += max(1e-4, service.step())
        steps += 1
    return steps


def test_idle_containers_cost_a_few_glances_and_no_write() -> None:
    pages = Pages()
    service = loop(pages, [CardTenant(f"t{i}", CARD, at_work=False) for i in range(GLANCES_MOST)])
    assert spend(service, pages, 60) <= 60 / TURN_SECONDS + 1
    assert pages.read == 0
    assert pages.glances <= 60 / TURN_SECONDS * GLANCES
    assert len(pages.written) == GLANCES_MOST, "each is told once that nothing is corrected"


def test_many_idle_containers_cost_no_glance() -> None:
    """The usage sampler reads each of them more often than its turn would come."""
    pages = Pages()
    service = loop(pages, [CardTenant(f"t{i}", CARD, at_work=False) for i in range(100)])
    assert spend(service, pages, 60) <= 61
    assert pages.glances == 0


def test_containers_that_begin_together_are_told_within_half_a_second() -> None:
    """The usage sampler's reading does not say yet that they work."""
    pages = Pages()
    service = loop(pages, [CardTenant(name, CARD, at_work=False) for name in "abcdefgh"])
    spend(service, pages, 10)
    pages.working = {"a": 1, "h": 1}
    spend(service, pages, 0.5)
    assert [pages.factors(name)[-1] for name in "ah"] == [2.0, 2.0]
    spend(service, pages, 2.0)
    assert [pages.factors(name)[-1] for name in "ah"] == [2.0, 2.0]


@pytest.mark.parametrize(
    "beside", [(), (CardTenant("busy", OTHER, at_work=True),)], ids=["calm", "beside work"]
)
def test_among_many_idle_containers_each_is_seen_to_begin(beside: Sequence[CardTenant]) -> None:
    """They are looked at in turns, however often the loop surveys meanwhile."""
    pages = Pages()
    names = [f"t{i}" for i in range(GLANCES_MOST)]
    service = loop(pages, [*beside, *(CardTenant(name, CARD, at_work=False) for name in names)])
    spend(service, pages, 10)
    pages.working = dict.fromkeys(names[20:22], 1)
    spend(service, pages, (len(names) / GLANCES + 4) * TURN_SECONDS)
    assert all(2.0 in pages.factors(name) for name in names[20:22])


def test_among_a_hundred_those_that_the_sampler_saw_begin_are_watched_for_some_seconds() -> None:
    """The figures of a kernel that runs for long may show nothing of it for a while."""
    pages = Pages()
    seats = [CardTenant(f"t{i}", CARD, at_work=False) for i in range(100)]
    service = TimeSharing(pages, lambda: seats, pages.clock, service_metrics())
    spend(service, pages, 10)
    pages.working = {"t80": 1, "t81": 1}
    seats = [replace(one, began=one.name in pages.working) for one in seats]
    service.due.set()
    spend(service, pages, 1.0)
    seats = [replace(one, began=False) for one in seats]
    spend(service, pages, 1.5)
    assert [pages.factors(name)[-1] for name in pages.working] == [2.0, 2.0]


def test_what_an_idle_container_could_not_be_told_is_told_a_second_later() -> None:
    pages = Pages()
    pages.gone = {"a"}
    service = loop(pages, [CardTenant(name, CARD, at_work=False) for name in "ab"])
    spend(service, pages, 3)
    assert {name for name, _ in pages.written} == {"b"}
    pages.gone = set()
    spend(service, pages, 1.1)
    assert [name for name, _ in pages.written] == ["b", "a"]


def test_a_container_alone_on_its_card_is_not_glanced_at() -> None:
    pages = Pages()
    service = loop(pages, [CardTenant("a", CARD, at_work=False)])
    assert spend(service, pages, 60) <= 61
    assert pages.glances == 0


def test_a_container_at_work_alone_gets_a_heartbeat_a_second_and_no_factor() -> None:
    pages = Pages()
    service = loop(pages, [CardTenant("a", CARD, at_work=True)])
    spend(service, pages, 10)
    assert 9 <= len(pages.written) <= 11
    assert pages.factors("a") == [1.0], "once, whatever an agent before this one had written"
    assert pages.read == 0


def test_two_at_work_are_sampled_forty_times_a_second_and_told_within_a_quarter() -> None:
    pages = Pages()
    pages.working = {"a": 1, "b": 1}
    service = loop(pages, [CardTenant("a", CARD, at_work=True), CardTenant("b", CARD, at_work=True)])
    spend(service, pages, 0.25)
    assert pages.factors("a")[-1] > 1.5
    before = pages.read
    spend(service, pages, 1.0)
    assert 2 * 25 <= pages.read - before <= 2 * 50


def test_factors_end_with_the_neighbour() -> None:
    pages = Pages()
    pages.working = {"a": 1, "b": 1}
    service = loop(pages, [CardTenant("a", CARD, at_work=True), CardTenant("b", CARD, at_work=True)])
    spend(service, pages, 2)
    pages.working["b"] = 0
    spend(service, pages, 0.5)
    assert pages.factors("a")[-1] == 1.0


def test_one_page_that_is_gone_stops_nobody() -> None:
    pages = Pages()
    pages.working = {"a": 1, "b": 1, "c": 1}
    pages.gone = {"c"}
    service = loop(pages, [CardTenant(name, CARD, at_work=True) for name in "abc"])
    spend(service, pages, 2)
    assert pages.factors("a")[-1] > 1.5
    assert pages.factors("c") == []


def test_a_container_that_is_not_seen_any_more_has_no_factor() -> None:
    card = SharedCard()
    card.sample(1000.0, {"a": CardActivity(1, 0), "b": CardActivity(1, 0)})
    card.sample(1000.0 + STEP, {"a": CardActivity(1, 0)})
    assert set(card.factors({})) == {"a"}


def test_a_newcomer_is_told_how_often_the_other_was_at_work_lately() -> None:
    card, now = SharedCard(), 1000.0
    card.sample(now, {"a": CardActivity(0, 0)})
    for at_work in (1, 0, 1, 0):
        now += STEP
        card.sample(now, {"a": CardActivity(at_work, 0)})
    card.sample(now + STEP, {"a": CardActivity(0, 0), "b": CardActivity(1, 0)})
    assert card.factors({})["b"] == pytest.approx(1.4, abs=0.01)


def factors_of(**classes: Priority) -> Mapping[str, float]:
    """What containers of these classes are told after two seconds of work together."""
    pages = Pages()
    pages.working = dict.fromkeys(classes, 1)
    tenants = [CardTenant(name, CARD, at_work=True, priority=priority) for name, priority in classes.items()]
    spend(loop(pages, tenants), pages, 2.0)
    return {name: pages.factors(name)[-1] for name in classes}


def test_best_effort_containers_do_not_divide_the_time_of_protected_ones() -> None:
    told = factors_of(p=Priority.PROTECTED, b=Priority.BEST_EFFORT)
    assert told == {"p": 1.0, "b": 1.0}
    told = factors_of(p=Priority.PROTECTED, b=Priority.BEST_EFFORT, c=Priority.BEST_EFFORT)
    assert told == {"p": 1.0, "b": 2.0, "c": 2.0}


def test_where_a_normal_container_is_too_all_divide_the_card() -> None:
    told = factors_of(p=Priority.PROTECTED, b=Priority.BEST_EFFORT, n=Priority.NORMAL)
    assert told == {"p": 3.0, "b": 3.0, "n": 3.0}
