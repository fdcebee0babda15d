"""By how much a container's account of a card's time may be wrong."""

from __future__ import annotations

import random
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.enforcement.driver_overhead import BESIDE, SOME, STARTS, TURNS, account_error

share = st.floats(0, 1)
SEEN = SOME + 0.5 * STARTS  # of an account of half a card


def test_an_account_of_nothing_is_not_wrong() -> None:
    assert account_error(0.0, 0.0, 0.0) == 0.0
    assert account_error(0.0, 0.0, 0.0, processes=2, shared=True) == 0.0


def test_each_thing_that_is_left_open_has_its_part() -> None:
    assert account_error(0.5, 0.0, 0.0) == pytest.approx(SEEN)
    assert account_error(0.5, 0.01**2, 0.0) == pytest.approx(SEEN + 0.02)
    assert account_error(0.5, 0.0, 50_000.0) == pytest.approx(SEEN + 0.01)
    assert account_error(0.5, 0.0, 0.0, shared=True) == pytest.approx(SEEN + BESIDE)
    assert account_error(0.5, 0.0, 0.0, processes=2) == pytest.approx(SEEN)
    assert account_error(0.99, 0.0, 0.0, processes=2) == pytest.approx(SOME + 0.99 * (STARTS + TURNS))


@given(share, st.floats(-1, 1e9), st.floats(0, 1e12), st.integers(0, 1024), st.booleans())
def test_whatever_a_page_holds_it_is_a_share(
    account: float, variance: float, launches: float, processes: int, shared: bool
) -> None:
    assert 0 <= account_error(account, variance, launches, processes=processes, shared=shared) <= 1


@pytest.mark.parametrize("seed", range(3))
def test_squares_of_what_windows_stand_for_add_up_to_the_variance(seed: int) -> None:
    """As vcuda/lib/src/cuda/account_error.c adds them: 19 in 20 sums lie within two deviations."""
    dice, held = random.Random(seed), 0
    for _ in range(200):
        truth, charged, variance, mean, tallied = 0.0, 0.0, 0.0, 14.0, 0.0
        for _ in range(60):
            tallied += (count := dice.randrange(50, 150)) * mean
            charged += count * mean
            truth += sum(dice.choice((4.0, 8.0, 30.0)) for _ in range(count))
            window = [dice.choice((4.0, 8.0, 30.0)) for _ in range(4)]
            truth, charged = truth + sum(window), charged + sum(window)
            variance += (tallied * (sum(window) / 4 / mean - 1)) ** 2
            tallied = 0.0
            for took in window:
                mean += (took - mean) / 64
        held += abs(charged - truth) <= 2 * sqrt(variance)
    assert held >= 185
