"""What the node tells of itself: published once per change, and a vanished card forgotten when it is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import INVENTORY, decode_inventory
from gpu_manager.domain.resources import GIB
from gpu_manager.services.cards.health import Health
from gpu_manager.services.cards.inventory import InventoryService
from tests.fakes.direct import DirectRig
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeCards, FakeClock


@dataclass
class FakeNodeObject:
    """Keeps what was published."""

    published: list[tuple[dict[str, str], dict[str, str]]] = field(default_factory=list)

    def publish(self, annotations: Mapping[str, str], labels: Mapping[str, str]) -> None:
        self.published.append((dict(annotations), dict(labels)))

    def cordoned(self) -> frozenset[CardUuid]:
        return frozenset()


class Board:
    """A node whose cards can be taken out."""

    def __init__(self, rig: DirectRig) -> None:
        self.rig, self.node = rig, FakeNodeObject()
        self.cards = FakeCards(rig.states)
        self.health = Health(self.cards, self.node, rig.clock)
        self.inventory = self.inventory_of(lambda: True)
        self.health.subscribe(self.inventory.cards_changed)
        self.look()

    def inventory_of(self, offering: Callable[[], bool]) -> InventoryService:
        rig, labels = self.rig, {"zone": "a"}
        announce = rig.plugin.announce
        return InventoryService(
            rig.state, rig.allocator, rig.departed, self.health, self.node, announce, labels, offering
        )

    def look(self) -> None:
        self.health.discover()
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
        "tencent.com/gpu-model": "Tesla-T4",
        "gaia.tencent.com/gpu-model": "Tesla-T4",
    }


def test_a_vanished_card_goes_only_when_nothing_of_it_is_held(board: Board) -> None:
    one = pod("one", container("c", 30, 20), on={"c": [(board.rig.states[7], 30, 5 * GIB)]})
    assert board.rig.admit(one).admitted
    board.cards.states = board.rig.states[:6]  # card 6 is free, card 7 is held
    board.look()
    assert board.there() == list(range(8)), "both are there, unhealthy"
    board.inventory.forget_vanished()
    board.health.settle()
    assert board.there() == [0, 1, 2, 3, 4, 5, 7]
    board.rig.state.forget_pod(one["metadata"]["uid"])
    board.inventory.forget_vanished()
    board.health.settle()
    assert board.there() == [0, 1, 2, 3, 4, 5]
    assert board.health.counts()["card_forgotten"] == 2


def test_a_sick_card_that_is_there_is_not_forgotten(board: Board) -> None:
    board.cards.states = tuple(
        replace(s, healthy=s.card.index != 2, reason="XID 79") for s in board.rig.states
    )
    board.look()
    board.inventory.forget_vanished()
    board.health.settle()
    assert board.there() == list(range(8))
