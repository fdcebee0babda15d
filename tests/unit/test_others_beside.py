"""What a container is told of those beside it: how many at most, and for what part of its time they were charged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.enforcement import time_sharing
from gpu_manager.domain.enforcement.time_sharing import CardActivity, SharedCard


def judged(
    card: SharedCard, at: float, lines: Mapping[str, Mapping[int, float]], processes: int = 1
) -> dict[str, int]:
    """What the card says of the most others after a period that ends now."""
    busy_ns = int(at * 1e9)
    card.sample(at, {n: CardActivity(bool(line), busy_ns, processes=processes) for n, line in lines.items()})
    card.factors(lines)
    return card.others_most()


def claims(begin: int, amount: float = 1.0) -> dict[int, float]:
    """As much work in flight in each millisecond of 0.4 s."""
    return dict.fromkeys(range(begin, begin + 400), amount)


def test_the_most_others_are_those_met_in_one_millisecond_and_are_forgotten() -> None:
    card = SharedCard()
    judged(card, 10.0, {"a": {}, "b": {}, "c": {}, "d": {}})
    met = claims(10_000, 0.0) | {10_200: 0.4}
    lines = {"a": met, "b": met, "c": met, "d": claims(10_000, 0.0) | {10_201: 1.0}}
    assert judged(card, 10.4, lines) == {"a": 2, "b": 2, "c": 2, "d": 0}
    for step in range(1, 12):
        told = judged(card, 10.4 + step * 0.4, {"a": claims(10_000 + step * 400), "b": {}, "c": {}, "d": {}})
        assert told["a"] == (2 if step < 6 else told["a"]), "lately"
    assert told["a"] == 0


def test_what_waited_for_others_counts_beside_what_was_charged() -> None:
    """Both had work in flight all the time; the timeline of one has the tenth that it was charged."""
    card = SharedCard()
    for at in (10.0, 10.4):
        flown = {"a": int(at * 1e9), "b": int(at * 1e9)}
        card.sample(at, {name: CardActivity(1, int(at * 1e9), in_flight_ns=ns) for name, ns in flown.items()})
        factors = card.factors({"a": claims(10_000), "b": claims(10_000, 0.1)})
    assert factors["a"] == pytest.approx(2.0, abs=0.01)


@given(st.lists(st.floats(0, 2), min_size=1, max_size=40), st.floats(0, 60))
def test_claims_are_raised_to_the_time_in_flight_and_none_above_one_by_it(
    given: list[float], flown: float
) -> None:
    raised = time_sharing._raised(given, flown)
    assert all(before <= after <= max(1.0, before) for before, after in zip(given, raised, strict=True))
    expected = max(sum(min(1.0, one) for one in given), min(flown, len(given)))
    assert sum(min(1.0, one) for one in raised) == pytest.approx(expected, abs=1e-6)


def test_a_stretched_claim_counts_no_more_than_the_container_has_processes() -> None:
    card = SharedCard()
    judged(card, 10.0, {"a": {}, "b": {}})
    assert judged(card, 10.4, {"a": claims(10_000), "b": claims(10_000, 1.3)})["a"] == 1
    assert judged(card, 10.8, {"a": claims(10_400), "b": claims(10_400, 1.3)}, processes=2)["a"] == 2


def others_parts(
    lines: Mapping[str, Mapping[int, float]], seen: Mapping[str, CardActivity]
) -> dict[str, float]:
    """What the card says of others' charges after 0.4 s that were as the lines are."""
    card = SharedCard()
    card.sample(10.0, {name: CardActivity(False, 0) for name in seen})
    card.factors({name: {} for name in seen})
    card.sample(10.4, seen)
    card.factors(lines)
    return card.others_part()


def test_others_part_is_what_they_are_charged_while_a_process_has_work_in_flight() -> None:
    """One always has work in flight, the other in every second millisecond: the first has the card alone in the
    others, and half of it in these.
    """
    half = {ms: float(ms % 2) for ms in range(10_000, 10_400)}
    seen = {
        "a": CardActivity(1, 250_000_000, in_flight_ns=400_000_000),
        "b": CardActivity(1, 100_000_000, in_flight_ns=200_000_000),
    }
    told = others_parts({"a": claims(10_000), "b": half}, seen)
    assert told == pytest.approx({"a": 100 / 400, "b": 250 / 3 / 200}, abs=0.01)
    nobody = {name: replace(one, busy_ns=0) for name, one in seen.items()}
    assert others_parts({"a": claims(10_000), "b": half}, nobody) == {"a": 1 / 256, "b": 1 / 256}


def test_one_of_two_processes_of_a_container_meets_its_sibling_too() -> None:
    seen = {
        "a": CardActivity(2, 200_000_000, processes=2, in_flight_ns=400_000_000),
        "b": CardActivity(1, 100_000_000, in_flight_ns=400_000_000),
    }
    told = others_parts({"a": claims(10_000, 2.0), "b": claims(10_000)}, seen)
    assert told == pytest.approx({"a": (100 + 200 / 2) / 400, "b": 200 / 400}, abs=0.01)


def test_what_was_in_flight_beyond_a_timeline_lies_shortly_before_it() -> None:
    """A launch waits for three milliseconds, and runs for one; then nothing is in flight for sixteen."""
    bursts = {ms: float(ms % 20 == 3) for ms in range(10_000, 10_400)}
    seen = {
        "a": CardActivity(1, 320_000_000, in_flight_ns=400_000_000),
        "b": CardActivity(1, 20_000_000, in_flight_ns=80_000_000),
    }
    told = others_parts({"a": claims(10_000), "b": bursts}, seen)
    assert told["b"] == pytest.approx(320 / (320 + 80 / 2) / 2, abs=0.02)


def test_a_launch_longer_than_a_period_does_not_lessen_what_others_have() -> None:
    """It is in flight for 0.8 s, which its page says at its end; the other container has half of all that time."""
    card = SharedCard()
    for at in (0, 400, 800):
        ended = at if at == 800 else 0
        seen = {
            "a": CardActivity(1, at * 500_000, in_flight_ns=at * 1_000_000),
            "b": CardActivity(1, ended * 500_000, in_flight_ns=ended * 1_000_000),
        }
        card.sample(10 + at / 1000, seen)
        begin = 10_000 + at - 400
        card.factors({"a": claims(begin), "b": claims(begin) if ended else {}})
    assert card.others_part()["b"] == pytest.approx(0.5, abs=0.02)


def test_in_no_millisecond_others_are_charged_more_than_a_card_has() -> None:
    """The first is charged half of the time, all of it in a quarter in which the second works too."""
    quarter = {ms: 1.0 for ms in range(10_000, 10_400) if ms % 4 == 0}
    seen = {
        "a": CardActivity(1, 200_000_000, in_flight_ns=100_000_000),
        "b": CardActivity(1, 0, in_flight_ns=400_000_000),
    }
    told = others_parts({"a": quarter, "b": claims(10_000)}, seen)
    assert told["b"] == pytest.approx(0.25, abs=0.01)


def test_no_more_than_a_whole_card_is_believed_of_what_others_are_charged() -> None:
    seen = {
        "a": CardActivity(1, 1, in_flight_ns=400_000_000),
        "b": CardActivity(1, 10**15, in_flight_ns=0),
        "c": CardActivity(0, 0),
    }
    told = others_parts({"a": claims(10_000), "b": {}, "c": {}}, seen)
    assert told["a"] == pytest.approx(1.0, abs=0.01)
    assert told["b"] == told["c"] == 0.0, "nothing is known of who had nothing in flight"
