"""Which cards have a gate to watch, what share each class may have, and what a protected launch may wait for."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.protection import IN_FLIGHT_SECONDS, CardMember, gated_cards
from gpu_manager.domain.priority import Priority

CARD, OTHER = CardUuid("GPU-1"), CardUuid("GPU-2")
PROTECTED, NORMAL, BEST_EFFORT = Priority.PROTECTED, Priority.NORMAL, Priority.BEST_EFFORT


def member(priority, cores=30, ceiling=None, *, name="", used=1.0, longest=0.0, card=CARD):
    return CardMember(
        name or priority.value, card, 0, cores, ceiling or cores, priority, used=used, longest=longest
    )


def granted(*members):
    (card,) = gated_cards(members)
    return card.granted()


def shares(*members):
    return {name: told.share for name, told in granted(*members).items()}


@pytest.mark.parametrize("alone", [(PROTECTED,), (BEST_EFFORT,), (NORMAL, PROTECTED), (NORMAL, BEST_EFFORT)])
def test_a_card_without_both_classes_has_no_gate_to_watch(alone):
    assert gated_cards(member(priority) for priority in alone) == ()
    elsewhere = [member(PROTECTED), member(BEST_EFFORT, card=OTHER)]
    assert gated_cards(elsewhere) == ()


def test_cards_with_both_classes_come_in_the_order_of_their_uuids():
    pairs = [(OTHER, PROTECTED), (CARD, BEST_EFFORT), (CARD, PROTECTED), (OTHER, BEST_EFFORT)]
    found = gated_cards(member(priority, card=card) for card, priority in pairs)
    assert [card.card for card in found] == [CARD, OTHER]
    assert [len(card.protected) + len(card.best_effort) for card in found] == [2, 2]


def test_a_protected_container_has_its_ceiling_unless_another_protected_one_works():
    first, idle = member(PROTECTED, 20, 70, name="a"), member(PROTECTED, 20, 60, name="b", used=0.0)
    assert shares(first, idle, member(BEST_EFFORT))["a"] == 70
    busy = member(PROTECTED, 20, 60, name="b")
    found = shares(first, busy, member(BEST_EFFORT))
    assert (found["a"], found["b"]) == (20, 20)


def test_a_best_effort_container_may_have_all_that_is_left_as_far_as_its_ceiling_allows():
    assert shares(member(PROTECTED), member(BEST_EFFORT, 20, 100))["best-effort"] == 100
    assert shares(member(PROTECTED), member(BEST_EFFORT, 20, 50))["best-effort"] == 50
    assert shares(member(PROTECTED), member(BEST_EFFORT, 20))["best-effort"] == 20, "its limit is hard"


def test_best_effort_containers_divide_what_is_left_in_proportion_to_their_cores():
    one, two = member(BEST_EFFORT, 10, 100, name="a"), member(BEST_EFFORT, 30, 100, name="b")
    found = shares(member(PROTECTED), one, two)
    assert (found["a"], found["b"]) == (25, 75)
    resting = member(BEST_EFFORT, 30, 100, name="b", used=0.0)
    assert shares(member(PROTECTED), one, resting)["a"] == 100


def test_beside_a_normal_container_everybody_has_the_guaranteed_cores_alone():
    found = shares(member(PROTECTED, 20, 70), member(BEST_EFFORT, 10, 100), member(NORMAL, 50))
    assert found == {"protected": 20, "best-effort": 10}


def test_protected_containers_are_told_what_best_effort_ones_are_sure_of_and_use():
    jobs = member(BEST_EFFORT, 20, 100, name="a", used=70.0), member(BEST_EFFORT, 30, name="b", used=12.5)
    found = granted(member(PROTECTED), *jobs)
    assert (found["protected"].beside, found["a"].beside, found["b"].beside) == (32.5, 0, 0)
    assert granted(member(PROTECTED), member(BEST_EFFORT, used=0.0))["protected"].beside == 0


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 100), st.booleans()), min_size=1, max_size=6))
def test_no_share_lies_below_the_guarantee_or_above_the_ceiling(rows):
    several = [
        member(BEST_EFFORT, cores, max(cores, ceiling), name=str(at), used=float(works))
        for at, (cores, ceiling, works) in enumerate(rows)
    ]
    found = shares(member(PROTECTED), *several)
    for one in several:
        assert one.cores <= found[one.name] <= one.ceiling


@pytest.mark.parametrize(
    ("longest", "launched_ahead"), [((0.25,), 1), ((0.01, 0.25), 2), ((0.25, 0.01, 0.0), 2)]
)
def test_a_protected_launch_may_wait_for_one_kernel_of_the_best_effort_containers(longest, launched_ahead):
    several = [member(BEST_EFFORT, longest=each, name=str(each)) for each in longest]
    (card,) = gated_cards([member(PROTECTED, longest=5.0), *several])
    assert card.wait_seconds == pytest.approx(0.25 + launched_ahead * IN_FLIGHT_SECONDS)


def test_the_order_of_containers_means_nothing():
    several = (member(PROTECTED, 20), member(BEST_EFFORT, 10, 90, name="x"), member(NORMAL, 5))
    assert len({tuple(sorted(shares(*order).items())) for order in itertools.permutations(several)}) == 1
