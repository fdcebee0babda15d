"""What the node publishes of itself, once per change; which vanished cards are missed, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import INVENTORY, decode_inventory
from gpu_manager.domain.resources import GIB
from gpu_manager.domain.topology import Topology
from gpu_manager.services.cards.health import Health
from gpu_manager.services.cards.inventory import ELSEWHERE_SECONDS, InventoryService
from tests.fakes.direct import DirectRig
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeCards, FakeClock, FakeNodeObject


class Board:
    """A node whose cards can be taken out."""

    def __init__(self, rig: DirectRig) -> None:
        self.rig, self.node = rig, FakeNodeObject()
        assert isinstance(rig.clock, FakeClock)
        self.clock = rig.clock
        self.cards = FakeCards(rig.states)
        self.health = Health(self.cards, self.node, rig.clock)
        self.inventory = self.inventory_of(lambda: True)
        self.health.subscribe(self.inventory.cards_changed)
        self.look()

    def inventory_of(self, offering: Callable[[], bool]) -> InventoryService:
        rig, labels = self.rig, {"zone": "a"}
        announce = rig.plugin.announce
        return InventoryService(
            rig.state,
            rig.allocator,
            rig.departed,
            self.health,
            self.node,
            announce,
            labels,
            rig.clock,
            offering,
        )

    def look(self) -> None:
        self.health.discover()
        self.health.settle()

    def round(self) -> None:
        self.inventory.forget_vanished()
        self.health.settle()

    def there(self) -> list[int]:
        return [s.card.index for s in self.rig.state.node.cards]


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    with DirectRig(tmp_path, clock=FakeClock()) as rig:
        yield Board(rig)


def test_the_same_inventory_is_published_once(board: Board) -> None:
    assert board.inventory.publish()
    assert not board.inventory.publish()
    ((annotations, labels),) = board.node.published
    inventory = decode_inventory(annotations[INVENTORY])
    assert inventory is not None
    assert len(inventory.cards) == 8
    assert labels == {
        "zone": "a",
        "tencent.com/vcuda-front": None,
        "tencent.com/gpu-model": "Tesla-T4",
        "gaia.tencent.com/gpu-model": "Tesla-T4",
    }


def test_a_vanished_card_is_missed_until_the_operator_says_that_it_is_gone_for_good(board: Board) -> None:
    one = pod("one", container("c", 30, 20), on={"c": [(board.rig.states[7], 30, 5 * GIB)]})
    assert board.rig.admit(one).admitted
    board.cards.states = board.rig.states[:6]  # card 6 is free, card 7 is held
    board.look()
    board.round()
    assert [s.missing for s in board.rig.state.node.cards] == [False] * 6 + [True, True]
    gone = {s.card.uuid for s in board.rig.states[6:]}
    board.node.gone = frozenset(gone | {CardUuid("GPU-unknown"), board.rig.states[0].card.uuid})
    board.round()
    assert board.there() == [0, 1, 2, 3, 4, 5, 7], "what is held stays until its pod has gone"
    assert board.node.gone == {board.rig.states[7].card.uuid}, "an order is dealt with once"
    board.rig.state.forget_pod(one["metadata"]["uid"])
    board.round()
    assert board.there() == [0, 1, 2, 3, 4, 5]
    assert board.node.gone == set()
    assert board.health.counts()["card_forgotten"] == 2


def test_an_order_that_comes_before_the_first_listing_waits_for_it(board: Board) -> None:
    board.rig.state.refit((), Topology(()))
    board.node.gone = frozenset({board.rig.states[7].card.uuid})
    board.inventory.forget_vanished()
    assert board.node.gone


def test_a_vanished_card_that_another_node_has_now_is_forgotten(board: Board) -> None:
    board.cards.states = board.rig.states[:6]
    board.node.others = frozenset({board.rig.states[7].card.uuid})
    board.look()
    board.round()
    assert board.there() == [0, 1, 2, 3, 4, 5, 6]
    board.node.others = frozenset({board.rig.states[6].card.uuid})
    board.round()
    assert 6 in board.there(), "the other nodes are asked every few minutes"
    board.clock.pass_(ELSEWHERE_SECONDS)
    board.round()
    assert board.there() == [0, 1, 2, 3, 4, 5]


def test_a_card_in_whose_place_another_is_now_has_been_replaced(board: Board) -> None:
    def at(state: CardState, bus: str, uuid: str = "") -> CardState:
        return replace(
            state, card=replace(state.card, pci_bus_id=bus, uuid=CardUuid(uuid or state.card.uuid))
        )

    states = [at(s, f"0000:{s.card.index:02x}:00.0") for s in board.rig.states]
    board.cards.states = tuple(states)
    board.look()
    board.cards.states = (*states[:6], at(states[6], states[6].card.pci_bus_id, "GPU-new"))
    board.look()
    board.round()
    assert [s.card.uuid for s in board.rig.state.node.cards if s.missing] == [states[7].card.uuid]
    assert len(board.there()) == 8


def test_a_node_of_several_models_has_no_model_label(board: Board) -> None:
    board.inventory.publish()
    other = replace(board.rig.states[3], card=replace(board.rig.states[3].card, model="NVIDIA-A100"))
    board.cards.states = (*board.rig.states[:3], other, *board.rig.states[4:])
    board.look()
    board.inventory.publish()
    _, labels = board.node.published[-1]
    assert labels == {
        "zone": "a",
        "tencent.com/vcuda-front": None,
        "tencent.com/gpu-model": None,
        "gaia.tencent.com/gpu-model": None,
    }


def test_a_sick_card_that_is_there_is_not_forgotten(board: Board) -> None:
    board.cards.states = tuple(
        replace(s, healthy=s.card.index != 2, reason="XID 79") for s in board.rig.states
    )
    board.look()
    board.inventory.forget_vanished()
    board.health.settle()
    assert board.there() == list(range(8))
