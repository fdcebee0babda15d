"""Who is believed to share a card, and what the loop publishes when."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.time_sharing import (
    GAIN_LEAST,
    GAIN_MOST,
    TRUST_CAP_SECONDS,
    CardActivity,
    SharedCard,
)
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports import Activity, Correction
from gpu_manager.services.enforcement.time_sharing import CardTenant, TimeSharing
from tests.fakes.metrics import service_metrics
from tests.fakes.ports import FakeClock

CARD = CardUuid("GPU-1")
STEP = 0.025


class Tenant:
    """A container that works a part of the time, and is charged by the factor it was told, as the library does."""

    def __init__(self, *, works: float = 1.0, claims: float | None = None, processes: int = 1) -> None:
        self.works, self.claims, self.processes = works, works if claims is None else claims, processes
        self.busy = 0.0
        self.factor = 1.0

    def seen(self, phase: float) -> CardActivity:
        self.busy += STEP * self.works * self.processes / self.factor
        return CardActivity(self.processes if phase < self.claims else 0, int(self.busy * 1e9))


def settled(tenants: Mapping[str, Tenant], seconds: float = 30.0) -> Mapping[str, float]:
    """The mean factors over the later part of a run."""
    card, pick, sums, count = SharedCard(), random.Random(3), dict.fromkeys(tenants, 0.0), 0
    steps = int(seconds / STEP)
    for step in range(steps):
        card.sample(STEP, {name: tenant.seen(pick.random()) for name, tenant in tenants.items()})
        if step % 4 == 3:
            for name, factor in card.factors().items():
                tenants[name].factor = factor
                if step > steps // 3:
                    sums[name] += 1 / factor
            count += step > steps // 3
    return {name: count / total for name, total in sums.items()}


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


def test_a_claim_without_use_is_believed_for_a_moment_only() -> None:
    card = SharedCard()
    honest = Tenant()
    published = []
    for step in range(400):
        card.sample(STEP, {"liar": CardActivity(9, 0), "honest": honest.seen(0.0)})
        if step % 4 == 3:
            honest.factor = card.factors()["honest"]
            published.append(honest.factor)
    assert max(published[-80:]) < 1.01
    assert sum(factor > 1.1 for factor in published) <= 10


def test_what_was_used_before_supports_a_claim_for_two_seconds_at_most() -> None:
    """Who hid its work for a minute cannot draw on that minute to seem to be at work for another."""
    card, liar, honest = SharedCard(), Tenant(claims=0.0), Tenant()
    for _ in range(int(60 / STEP)):
        card.sample(STEP, {"liar": liar.seen(0.0), "honest": honest.seen(0.0)})
    card.factors()
    idle = CardActivity(1, int(liar.busy * 1e9))
    believed = 0
    for _ in range(int(10 / STEP)):
        card.sample(STEP, {"liar": idle, "honest": honest.seen(0.0)})
        believed += card.factors()["honest"] > 1.5
    assert believed * STEP == pytest.approx(TRUST_CAP_SECONDS, abs=0.2)


def test_who_is_new_on_the_card_counts_before_the_driver_reports_it() -> None:
    card, first, new = SharedCard(), Tenant(), Tenant()
    for _ in range(int(10 / STEP)):
        card.sample(
            STEP, {"first": first.seen(0.0), "new": CardActivity(0, 0, present=False)}, {"first": 1.0}
        )
    published = []
    for step in range(int(6 / STEP)):
        truth = {"first": 1.0, "new": 0.0} if step * STEP < 2 else {"first": 0.5, "new": 0.5}
        card.sample(STEP, {"first": first.seen(0.0), "new": new.seen(0.0)}, truth)
        if step % 4 == 3:
            factors = card.factors()
            first.factor, new.factor = factors["first"], factors["new"]
            published.append(first.factor)
    assert min(published) > 1.95


def test_what_the_driver_saw_refutes_a_forged_page() -> None:
    card, forger, honest = SharedCard(), Tenant(), Tenant()
    for step in range(800):
        seen = {"forger": forger.seen(0.0), "honest": honest.seen(0.0)}
        card.sample(STEP, seen, {"forger": 0.0, "honest": 1.0})
        if step % 4 == 3:
            factors = card.factors()
            forger.factor, honest.factor = factors["forger"], factors["honest"]
    assert honest.factor < 1.06


def test_who_leaves_is_forgotten_at_once() -> None:
    card = SharedCard()
    for _ in range(40):
        card.sample(STEP, {"a": CardActivity(1, 0), "b": CardActivity(1, 0)})
    assert card.factors()["a"] > 1.2
    card.sample(STEP, {"a": CardActivity(1, 0), "b": CardActivity(0, 0, present=False)})
    assert card.factors()["a"] == 1.0


@given(
    st.lists(
        st.tuples(st.integers(0, 2**40), st.integers(0, 2**63 - 1), st.booleans()), min_size=2, max_size=60
    ),
    st.dictionaries(st.sampled_from("ab"), st.floats(0, 1e6)),
)
def test_no_page_makes_a_factor_below_one_or_a_gain_out_of_bounds(
    rows: Sequence[tuple[int, int, bool]], truth: Mapping[str, float]
) -> None:
    card = SharedCard()
    for at_work, busy, present in rows:
        card.sample(STEP, {"a": CardActivity(at_work, busy, present), "b": CardActivity(1, busy // 2)}, truth)
        assert all(1.0 <= factor < float("inf") for factor in card.factors().values())
        assert all(GAIN_LEAST <= gain <= GAIN_MOST for gain in card.gains(1.0, truth).values())


def test_what_was_charged_to_a_container_alone_changes_no_gain() -> None:
    card, first, new = SharedCard(), Tenant(), Tenant()
    for _ in range(int(10 / STEP)):
        card.sample(STEP, {"first": first.seen(0.0), "new": CardActivity(0, 0, present=False)})
    card.compare_from_now()
    first.factor = new.factor = 2.0
    for _ in range(int(1 / STEP)):
        card.sample(STEP, {"first": first.seen(0.0), "new": new.seen(0.0)})
    gains = card.gains(1.0, {"first": 0.5, "new": 0.5})
    assert gains == pytest.approx({"first": 1.0, "new": 1.0}, abs=0.02)


def test_gains_bring_charges_to_the_division_that_the_driver_saw() -> None:
    card = SharedCard()
    busy = {"a": 0.0, "b": 0.0}
    gain = {"a": 1.0, "b": 1.0}
    for _ in range(60):
        for _ in range(40):
            for name, charged in (("a", 0.30), ("b", 0.70)):
                busy[name] += STEP * charged * gain[name]
            card.sample(STEP, {name: CardActivity(1, int(value * 1e9)) for name, value in busy.items()})
        gain = card.gains(1.0, {"a": 0.35, "b": 0.65})
    assert gain["a"] == pytest.approx(0.35 / 0.30, rel=0.03)
    assert gain["b"] == pytest.approx(0.65 / 0.70, rel=0.03)


class Pages:
    """Pages in memory."""

    def __init__(self) -> None:
        self.working: dict[str, int] = {}
        self.read = 0
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


def test_idle_containers_cost_neither_a_read_nor_a_write() -> None:
    pages = Pages()
    service = loop(pages, [CardTenant(f"t{i}", CARD, at_work=False) for i in range(100)])
    assert spend(service, pages, 60) <= 61
    assert pages.read == 0
    assert len(pages.written) == 100, "each is told once that nothing is corrected"


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
    card.sample(STEP, {"a": CardActivity(1, 0), "b": CardActivity(1, 0)})
    card.sample(STEP, {"a": CardActivity(1, 0)})
    assert set(card.factors()) == {"a"}
