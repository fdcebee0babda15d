"""The bench's hand-overs under load, in short, and whether its judge sees what is wrong."""

from __future__ import annotations

import pytest

from bench.dra_handover import HandoverLoad
from gpu_manager.domain.dra.published import published_devices
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.domain.rules.request import PlacementPolicy


@pytest.mark.parametrize("seed", [21, 22])
def test_no_card_is_ever_two_sides_and_what_is_late_is_freed(seed: int) -> None:
    load = HandoverLoad(seed)
    load.run(8)
    assert load.double == 0
    assert load.counts["late claims"] + load.counts["late pods"] > 0, "nothing was late: nothing is shown"
    assert load.counts["killed"] > 0
    assert max(load.freed) <= 60


def test_the_judge_sees_a_card_that_both_sides_may_give() -> None:
    load = HandoverLoad(23)
    load.run(2)
    every = published_devices(load.states, {}, PlacementPolicy.BINPACK, DEFAULT_UNIT, 1)
    load.slices.told.append(every)
    load._judge()
    assert load.double > 0
