"""The roll-out in C answers as the one in Python, whatever the mix and the rooms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_manager.adapters.score_routine import roll_out_routine
from gpu_manager.domain.score.fragmentation import BAGS, Fragmentation, RollOutRoutine
from gpu_manager.domain.score.request_mix import FreeShape, RequestShape
from gpu_manager.domain.score.scorer import Scorer
from gpu_manager.domain.topology import MAX_CARDS
from tests.unit.test_score import STOCK, UNITS, mix_of, mixes, rooms


@pytest.fixture(scope="module")
def routine() -> RollOutRoutine:
    found = roll_out_routine()
    assert found is not None, "the project is built with it: make setup"
    return found


@settings(max_examples=150)
@given(counts=mixes, asked=st.lists(rooms(), min_size=1, max_size=20))
@example(counts={RequestShape(100, 0, 0, ("A",)): 3}, asked=[FreeShape("B", UNITS, -5, ((100, UNITS),))])
def test_a_room_is_worth_what_it_is_in_python(routine, counts, asked):
    mix = mix_of(counts)
    assert Fragmentation(mix, STOCK, routine=routine).of(asked) == Fragmentation(mix, STOCK).of(asked)


@pytest.mark.parametrize("cards", [1, 8, 64])
def test_nodes_of_any_number_of_cards_cost_what_they_do_in_python(routine, cards):
    mix = mix_of({RequestShape(30, 8, 1000): 40, RequestShape(100): 9, RequestShape(7, 1): 3})
    before = (FreeShape("A", UNITS, 64_000, ((100, UNITS),) * cards),)
    after = (before[0].less(RequestShape(30, 8, 1000), (100, UNITS)),)
    moves = [(before, after)]
    assert Scorer(mix, STOCK, routine=routine).costs(moves) == Scorer(mix, STOCK).costs(moves)


@pytest.mark.parametrize(("bags", "cards"), [(BAGS - 1, 1), (BAGS, MAX_CARDS + 1)])
def test_other_sizes_than_it_was_built_for_are_refused(routine, bags, cards):
    free, cpu, model = np.zeros((1, cards), np.uint32), np.zeros(1, np.int32), np.zeros(1, np.int64)
    with pytest.raises(ValueError, match=f"{bags} bags and {cards} cards"):
        routine(free, cpu, model, np.zeros((1, 1, bags), np.uint32), np.zeros((1, bags), np.int32), 1)
