"""Who is accused of a longer time slice: on a modelled card never who has the slices that all have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.domain.enforcement.time_sharing import (
    NEEDED,
    NO_STALLS,
    SAMPLES,
    LongSlices,
    SliceReading,
    Stalls,
)

STALL = 0.008
"""vcuda/lib/src/cuda/stall.h: from so much on a library counts a launch as stalled."""


@dataclass(frozen=True)
class Tenant:
    """A container as the card sees it. Seconds.

    ``kernel``: the length of its kernels; ``whole``: they run out, whatever the slice. ``duty``: the part of
    all seconds in which it has work. ``slice``: a turn of each of its processes.
    """

    processes: int
    kernel: float
    whole: bool
    duty: float
    slice: float

    def turn(self, chance: Random) -> float:
        """How long one of its processes keeps the card, once it is its turn."""
        return self.slice + (chance.random() * self.kernel if self.whole else 0.0)


def honest(most_processes: int = 6) -> st.SearchStrategy[Tenant]:
    return st.builds(
        Tenant,
        processes=st.integers(1, most_processes),
        kernel=st.sampled_from([1e-5, 1e-3, 0.01, 0.1, 0.5, 2.0]),
        whole=st.booleans(),
        duty=st.floats(0.05, 1.0),
        slice=st.just(0.0025),
    )


def second(victim: Tenant, other: Tenant, chance: Random) -> SliceReading:
    """A second of two containers that take turns, as the victim's library and the driver's figures tell it.

    Its launches of half a millisecond, of which one stands at the end of each of its turns. Clocks that fall
    make each take up to twice as long.
    """
    now, busy, known, stalled, waited = 0.0, 0.0, 0, 0, 0.0
    while now < 1.0:
        gap = sum(victim.turn(chance) for _ in range(victim.processes - 1))
        took = (
            sum(other.turn(chance) for _ in range(other.processes)) if chance.random() < other.duty else 0.0
        )
        gap, busy = gap + took + 1e-4, busy + took
        known += 4
        late = gap + 0.0005 * chance.random()
        if late >= STALL:
            stalled, waited = stalled + 1, waited + late
        now += gap + victim.slice
    longest = max(other.kernel if other.whole else 0.0, victim.kernel if victim.processes > 1 else 0.0)
    return SliceReading(
        Stalls(known, stalled, waited), victim.processes + other.processes, longest, min(1.0, busy)
    )


def judged(victim: Tenant, other: Tenant, chance: Random, seconds: int = SAMPLES) -> Iterator[str]:
    slices = LongSlices()
    for _ in range(seconds):
        slices.add(("victim", "other"), second(victim, other, chance))
        yield slices.evidence(("victim", "other"))


@settings(max_examples=60)
@given(honest(3), honest(), st.integers(0, 2**32))
def test_who_has_the_slices_that_all_have_is_never_accused(victim: Tenant, other: Tenant, seed: int) -> None:
    assert not any(judged(victim, other, Random(seed), 2 * SAMPLES))


@settings(max_examples=30)
@given(st.floats(0.03, 1.0), st.integers(1, 2), st.sampled_from([1e-5, 1e-3]), st.integers(0, 2**32))
def test_who_keeps_the_card_for_longer_is_accused_within_a_minute(
    length: float, processes: int, kernel: float, seed: int
) -> None:
    attacker = Tenant(processes, kernel, whole=False, duty=1.0, slice=length)
    *_, last = judged(Tenant(1, 5e-4, whole=False, duty=1.0, slice=0.0025), attacker, Random(seed))
    assert "a longer time slice" in last


def reading(stalled: int = 1, wait: float = 0.1, known: int = 50, busy: float = 0.5) -> SliceReading:
    return SliceReading(Stalls(known, stalled, stalled * wait), 2, 0.004, busy)


def seen(*readings: SliceReading) -> str:
    slices = LongSlices()
    for one in readings:
        slices.add(("a", "b"), one)
    return slices.evidence(("a", "b"))


def test_half_of_the_last_minute_must_show_it_and_says_how_long() -> None:
    assert not seen(*[reading()] * (NEEDED - 1), *[reading(stalled=0)] * 9)
    assert "interrupted for 100 ms each" in seen(*[reading()] * NEEDED)
    assert not seen(*[reading()] * NEEDED, *[reading(stalled=0)] * NEEDED, reading(stalled=0))


def test_a_second_without_a_launch_of_known_length_says_nothing() -> None:
    assert seen(*[reading()] * NEEDED, *[reading(known=0, stalled=0)] * 2 * SAMPLES)


def test_the_longest_kernel_explains_as_much() -> None:
    assert not seen(*[SliceReading(Stalls(9, 1, 0.1), 2, 0.1, 0.5)] * SAMPLES)


def test_nobody_is_accused_of_more_than_the_driver_saw_him_use() -> None:
    """A neighbour may write into its page what it likes."""
    assert not seen(*[reading(wait=0.9, busy=0.01)] * SAMPLES)
    assert seen(*[reading(wait=0.9, busy=0.9)] * SAMPLES)


def test_a_container_that_is_gone_is_forgotten() -> None:
    slices = LongSlices()
    for _ in range(SAMPLES):
        slices.add(("a", "b"), reading())
        slices.add(("b", "a"), reading())
    slices.forget({"a"})
    assert not slices.evidence(("a", "b"))
    assert not slices.evidence(("b", "a"))


def test_what_a_page_adds_and_nothing_after_a_reset() -> None:
    assert Stalls(9, 3, 0.5).since(Stalls(4, 1, 0.25)) == Stalls(5, 2, 0.25)
    for before in (Stalls(10), Stalls(0, 4), Stalls(0, 0, 0.6)):
        assert Stalls(9, 3, 0.5).since(before) == NO_STALLS
