"""The device ids that resized fractions cost their node, and the cards that ids stand for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.kube.pod import PodUid
from tests.fakes.node import container, pod
from tests.fakes.ports import cards
from tests.fakes.resizing import ResizingRig

UNITS = 64  # of one card of 16 GiB


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ResizingRig]:
    with ResizingRig(tmp_path, states=cards()[:2]) as node:
        yield node


@pytest.mark.parametrize("order", [(CORE, MEMORY), (MEMORY, CORE)])
def test_a_pod_keeps_its_card_though_none_of_its_ids_is_of_that_card(
    rig: ResizingRig, order: tuple[str, str]
) -> None:
    """What a shrink gave back has no ids of its own card. Those of another card stand for it: a pod that was
    moved to that card would take what the scheduler has promised to others there.
    """
    shrunk = rig.run("shrunk", 30, UNITS, on={"c": [(rig.states[0], 30, UNITS)]})
    grown = rig.run("grown", 30, 4, on={"c": [(rig.states[1], 30, 4)]})
    rig.answer(shrunk, 30, 2)
    for _ in range(2):
        rig.second()
    rig.answer(grown, 30, 30)
    assert (rig.booked(shrunk), rig.booked(grown)) == ((30, 2), (30, 30))
    rig.kubelet.hooks.order = lambda _: order
    late = pod("late", container("c", 20, 8), on={"c": [(rig.states[0], 20, 8)]})
    assert rig.admit(late).admitted
    held = rig.state.view.grants[PodUid(late["metadata"]["uid"]), "c"]
    first, second = (state.card.uuid for state in rig.states)
    assert held.allocation.cards == (first,)
    assert rig.state.node.ids.cards_of(MEMORY, held.ids[MEMORY]) == {second}
    assert rig.state.node.ids.cards_of(CORE, held.ids[CORE]) == {first}
