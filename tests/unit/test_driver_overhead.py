"""What the driver counts beyond an account is believed late, for as long as it is there, and never below nothing."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.enforcement.driver_overhead import (
    NO_EXCESS,
    SAMPLES,
    CountedTwice,
    Excess,
    Unaccounted,
    divide_twice,
)

MIB = 1 << 20
LIMIT = 5 << 30
COUNT = st.integers(0, 1 << 48)


def after(samples: Sequence[tuple[int, int]], limit: int = LIMIT) -> int:
    state = Unaccounted()
    for driver, account in samples:
        state = state.seen(driver, account, limit)
    return state.bytes


def test_a_context_counts_when_it_was_there_in_three_samples() -> None:
    context = 528 * MIB
    for count in range(SAMPLES):
        assert after([(context, 0)] * count) == 0
    assert after([(context, 0)] * SAMPLES) == context


def test_what_is_gone_counts_no_more_at_the_next_sample() -> None:
    assert after([(600 * MIB, 100 * MIB)] * 10 + [(100 * MIB, 100 * MIB)]) == 0
    assert after([(600 * MIB, 100 * MIB)] * 10 + [(400 * MIB, 100 * MIB)]) == 300 * MIB


def test_memory_that_is_taken_and_given_back_between_two_readings_corrects_nothing() -> None:
    late = [(700 * MIB, 0) if turn % SAMPLES == 0 else (0, 700 * MIB) for turn in range(12)]
    assert after(late) == 0


@given(st.lists(st.tuples(COUNT, st.integers(-(1 << 62), 1 << 62)), max_size=12), st.integers(1, 1 << 40))
def test_no_page_and_no_driver_make_a_correction_below_nothing_or_past_the_limit(
    samples: Sequence[tuple[int, int]], limit: int
) -> None:
    assert 0 <= after(samples, limit) <= limit


@given(st.lists(st.tuples(COUNT, COUNT), min_size=SAMPLES, max_size=8), COUNT)
def test_a_page_that_owns_up_to_more_never_makes_room(samples: Sequence[tuple[int, int]], more: int) -> None:
    """Account and correction together are what the limit is compared with."""
    honest = after(samples) + samples[-1][1]
    boasting = [(driver, account + more) for driver, account in samples]
    assert after(boasting) + boasting[-1][1] >= honest


@given(st.lists(st.tuples(COUNT, COUNT), min_size=SAMPLES, max_size=8))
def test_a_page_that_is_wiped_hides_nothing_for_longer_than_the_samples(
    samples: Sequence[tuple[int, int]],
) -> None:
    held = min(driver for driver, _ in samples[-SAMPLES:])
    assert after([(driver, 0) for driver, _ in samples]) == min(held, LIMIT)


def test_the_excess_is_what_the_account_holds_beyond_the_driver_and_what_may_be_elsewhere() -> None:
    seen = Excess.seen(7, driver=300 * MIB, account=1000 * MIB, movable=500 * MIB)
    assert (seen.bytes, seen.looked_ns, seen.counted) == (200 * MIB, 7, 300 * MIB)


@given(COUNT, COUNT, COUNT)
def test_without_an_excess_nothing_is_said(driver: int, account: int, movable: int) -> None:
    seen = Excess.seen(7, driver, account, movable)
    assert seen.bytes == max(0, account - movable - driver)
    assert (seen == NO_EXCESS) == (not seen.bytes)


def test_what_processes_have_beyond_the_card_is_counted_twice_once_three_samples_say_so() -> None:
    state = CountedTwice()
    for processes, used, told in (
        (900, 700, 0),
        (900, 650, 0),
        (900, 600, 200),
        (900, 890, 10),
        (700, 800, 0),
    ):
        state = state.seen(processes, used)
        assert state.bytes == told
        assert state.now == max(0, processes - used)


def test_what_is_counted_twice_belongs_to_who_has_most_beyond_the_account() -> None:
    assert divide_twice(256, {"shares": 256, "honest": 0, "owes": -40}) == {
        "shares": 256,
        "honest": 0,
        "owes": 0,
    }
    assert divide_twice(256, {"shares": 256, "liar": 256}) == {"shares": 128, "liar": 128}
    assert divide_twice(900, {"shares": 256, "other": 10}) == {"shares": 256, "other": 10}


@given(COUNT, st.dictionaries(st.integers(), st.integers(-(1 << 48), 1 << 48), max_size=6))
def test_nobody_gets_more_of_it_than_there_is_nor_than_is_beyond_his_account(
    twice: int, beyond: dict[int, int]
) -> None:
    parts = divide_twice(twice, beyond)
    assert sum(parts.values()) <= twice
    assert all(0 <= part <= max(0, beyond[key]) for key, part in parts.items())
