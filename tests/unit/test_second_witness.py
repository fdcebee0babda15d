"""The judge of accounts: what it names, how soon, and what it never does, whatever the driver says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.domain.enforcement.second_witness import (
    GAP,
    LAUNCH_SECONDS,
    MOST_GAIN,
    SILENCE_SECONDS,
    AccountWitness,
    Reading,
    Verdict,
)

SHARE = st.floats(0.0, 1.0)
READINGS = st.builds(
    Reading,
    seconds=st.floats(0.5, 3.0),
    account=SHARE,
    driver=st.floats(0.0, 4.0),
    launches=st.floats(0.0, 1e6),
    shared=st.booleans(),
    longest=st.floats(0.0, 1e6),
    card=st.none() | SHARE,
    everyone=st.floats(0.0, 4.0),
)


def second(account: float, driver: float, **more: object) -> Reading:
    return replace(Reading(1.0, account, driver, card=min(1.0, driver), everyone=driver), **more)  # type: ignore[arg-type]


def judged(reading: Reading, seconds: int = 60) -> AccountWitness:
    witness = AccountWitness()
    for _ in range(seconds):
        witness.add(reading)
    return witness


@given(st.lists(READINGS | st.floats(0.1, 10.0), max_size=300))
@settings(max_examples=200)
def test_whatever_is_read_a_factor_is_bounded_and_only_of_an_account_that_is_too_low(
    steps: list[Reading | float],
) -> None:
    witness = AccountWitness()
    for step in steps:
        witness.miss(step) if isinstance(step, float) else witness.add(step)
        assert 1.0 <= witness.gain <= MOST_GAIN
        assert witness.gain == 1.0 or witness.verdict is Verdict.BELOW
        assert witness.means is None or -1.0 <= witness.means.difference <= 1.0


@given(SHARE, st.floats(-0.03, 0.03), st.floats(2.4e-6, 5.6e-6), st.floats(2e-6, 0.05))
def test_an_account_that_is_right_within_three_points_is_never_named(
    truth: float, error: float, counted: float, kernel: float
) -> None:
    """The driver counts every launch for longer than its kernel runs, as an H100's does."""
    launches = truth / kernel
    driver = int(min(1.0, truth + launches * counted) * 100) / 100
    account = min(1.0, max(0.0, truth + error))
    witness = judged(second(account, driver, launches=launches, longest=kernel), 600)
    assert witness.verdict is Verdict.AGREES


@given(SHARE, SHARE)
def test_a_difference_of_the_gap_is_named_after_a_minute_and_nothing_before(
    account: float, driver: float
) -> None:
    early = judged(second(account, driver), 59)
    assert (early.verdict, early.gain, early.means) == (Verdict.AGREES, 1.0, None)
    verdict = judged(second(account, driver)).verdict
    if driver - account >= GAP:
        assert verdict is Verdict.BELOW
    elif account - driver >= GAP + 0.01:
        assert verdict is Verdict.ABOVE
    elif abs(account - driver) < 0.08:
        assert verdict is Verdict.AGREES


@given(st.floats(0.0, 1.0), st.floats(0.05, 1.0))
def test_what_is_held_comes_to_the_drivers_figure(part: float, driver: float) -> None:
    """``part`` of the true time is accounted for; the limit then holds by the account times the factor."""
    witness = judged(second(driver * part, driver))
    if witness.verdict is Verdict.BELOW:
        charged = driver * part * witness.gain
        assert charged == pytest.approx(driver, rel=0.06) or witness.gain == MOST_GAIN or driver * part < 1e-3


def test_a_container_is_held_until_the_two_agree_and_slowing_it_down_is_no_agreement() -> None:
    witness = judged(second(0.30, 0.60))
    assert (witness.verdict, witness.gain) == (Verdict.BELOW, 2.0)
    for _ in range(600):  # held at 30, of which its library counts half
        witness.add(second(0.15, 0.30))
    assert (witness.verdict, witness.gain) == (Verdict.BELOW, 2.0)
    for _ in range(600):  # held at 10: the difference alone is small by now
        witness.add(second(0.05, 0.10))
    assert witness.verdict is Verdict.BELOW
    for _ in range(120):
        witness.add(second(0.30, 0.30))
    assert (witness.verdict, witness.gain) == (Verdict.AGREES, 1.0)


def test_an_account_that_is_too_high_is_reported_and_not_held() -> None:
    witness = judged(second(0.60, 0.30))
    assert (witness.verdict, witness.gain) == (Verdict.ABOVE, 1.0)
    assert witness.means is not None
    assert witness.means.difference == pytest.approx(-0.29)


@pytest.mark.parametrize(
    ("what", "reading"),
    [
        ("short kernels, counted 6 µs longer", second(0.3, 0.55, launches=0.25 / LAUNCH_SECONDS)),
        ("a sum that the card's own figure refutes", second(0.3, 0.6, card=0.3, everyone=0.6)),
        ("samples that do not come while the card is busy", second(0.6, 0.0, card=0.6, everyone=0.0)),
        ("long kernels, accounted for when they end", second(0.3, 0.38, longest=5.0)),
    ],
)
def test_what_the_drivers_errors_explain_is_no_difference(what: str, reading: Reading) -> None:
    assert judged(reading, 600).verdict is Verdict.AGREES, what


def test_beside_others_a_minute_that_chance_explains_is_not_enough() -> None:
    """Of 300 samples, each one process's as a whole, one that has a half gets 37 or 63 % now and then."""
    witness = judged(second(0.5, 0.63, shared=True))
    assert witness.verdict is Verdict.AGREES
    for _ in range(240):
        witness.add(second(0.5, 0.63, shared=True))
    assert witness.verdict is Verdict.BELOW, "five minutes are"


def test_without_figures_nothing_is_claimed_and_the_mean_begins_anew() -> None:
    witness = judged(second(0.3, 0.6))
    witness.miss(SILENCE_SECONDS - 1)
    witness.add(second(0.3, 0.6))
    assert witness.verdict is Verdict.BELOW, "a second or four may be missing"
    witness.miss(SILENCE_SECONDS)
    assert (witness.verdict, witness.gain, witness.means) == (Verdict.AGREES, 1.0, None)
    for _ in range(59):
        witness.add(second(0.3, 0.6))
    assert witness.verdict is Verdict.AGREES
    witness.add(second(0.3, 0.6))
    assert witness.verdict is Verdict.BELOW


def test_a_larger_gap_is_heard() -> None:
    witness = AccountWitness(0.4)
    for _ in range(600):
        witness.add(second(0.3, 0.6))
    assert witness.verdict is Verdict.AGREES


@given(st.floats(0.05, 0.95), st.floats(0.05, 1.0), st.floats(0.05, 1.0))
def test_in_a_closed_loop_the_limit_holds_by_the_drivers_figure_and_nothing_swings(
    limit: float, part: float, need: float
) -> None:
    """The library measures ``part`` of what the container uses, which needs so much and has the limit by it."""
    witness, verdicts, used = AccountWitness(), [], 0.0
    for _ in range(900):
        used = min(need, limit / (part * witness.gain))
        witness.add(second(part * used, used))
        if not verdicts or verdicts[-1] is not witness.verdict:
            verdicts.append(witness.verdict)
    first = min(need, limit / part)
    if first * (1 - part) >= GAP:
        assert verdicts == [Verdict.AGREES, Verdict.BELOW]
        assert used <= max(limit, part * need) * 1.06 or witness.gain == MOST_GAIN
    else:
        assert len(verdicts) <= 2
