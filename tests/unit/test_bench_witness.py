"""The model behind the rows of the second witness: it errs as it should, and the agent's check is what it runs."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import pytest

from bench.limits_witness import SOON, Driver, Program, drawn, run

STEADY = Program(
    kernel=0.001, busy=0.5, period=1.0, rest=0.0, processes=1, others=0.0, counted=4e-6, wrong=0.0
)


def seen(program: Program, seconds: int) -> list[int]:
    """The percent of each of the driver's samples that are this program's."""
    driver, found = Driver(random.Random(1)), []
    program.looked = program.next_look = driver.now
    for second in range(1, seconds + 1):
        driver.pass_(program, driver.now + second)
        found += [percent if whose >= 0 else 0 for _, whose, percent in program.looks[-4:]]
    return found


def test_the_drivers_samples_count_launches_and_go_to_one_process_as_a_whole() -> None:
    assert set(seen(replace(STEADY), 20)[1:]) == {50}
    short = replace(STEADY, kernel=10e-6)
    assert set(seen(short, 20)[1:]) == {70}, "50,000 launches of 4 µs"
    beside = seen(replace(STEADY, others=0.5), 200)[1:]
    assert set(beside) == {0, 100}
    assert fmean(beside) == pytest.approx(50, abs=8)


def test_wrong_accounts_are_named_and_honest_ones_are_not() -> None:
    chance = random.Random(7)
    wrong = [drawn(chance, wrong=True, shared=False, few=True) for _ in range(15)]
    honest = [drawn(chance, wrong=False, shared=n % 2 == 1) for n in range(30)]
    programs = [*wrong, *honest]
    run(programs, SOON, chance)
    assert [one for one in wrong if one.named is None] == []
    assert [one for one in honest if one.named is not None] == []
    assert min(one.named or 0 for one in wrong) >= 60
