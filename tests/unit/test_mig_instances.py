"""The setting of MIG instances, and health of instances whose layout changes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpu_manager.domain.card import Card, CardState
from gpu_manager.domain.contract import EVENT_MIG_CHANGED
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.mig import MigInstance
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from gpu_manager.services.allocation.books import NodeCards
from gpu_manager.services.cards.inventory import decode_cards, encode_cards
from gpu_manager.services.cards.mig_instances import MigInstances
from tests.unit.test_mig import CARD, DIVIDED, NODE, PARENT, SLICE, links


class _State:
    """What the setting reads of the node's state: cards and ledger."""

    def __init__(self, cards: tuple[CardState, ...], *held: str) -> None:
        self.node = NodeCards.of("n1", DEFAULT_UNIT, cards, links(len(cards)))
        self.ledger = Ledger((state.card for state in cards), DEFAULT_UNIT)
        for number, uuid in enumerate(held):
            share = Share(uuid, Amount(10, GIB))  # type: ignore[arg-type]
            self.ledger.record(
                [Allocation(PodUid(f"u{number}"), "c", ContainerKind.APP, 0, (share,), "ns", f"p{number}")]
            )

    @property
    def view(self) -> _State:
        return self


class Setting:
    def __init__(self, *held: str, on: bool, cards: tuple[Card, ...] = NODE, label: str = "") -> None:
        self.state = _State(tuple(map(CardState, cards)), *held)
        self.label = label
        self.events: list[tuple[str, str]] = []
        self.relisted = 0
        state: Any = self.state
        self.mig = MigInstances(
            state, on, lambda: self.label, lambda *event: self.events.append(event), self._relist
        )

    def _relist(self) -> None:
        self.relisted += 1


def turned_off() -> str:
    return Setting(SLICE, on=False).mig.trouble


@pytest.mark.parametrize(
    ("on", "label", "given"),
    [
        *((True, "", True), (False, "", False), (True, "false", False), (False, "true", True)),
        *((True, "yes", True), (False, "yes", False)),
    ],
)
def test_the_label_counts_before_the_setting(on: bool, label: str, given: bool) -> None:
    assert Setting(on=on, label=label).mig.given() is given


def test_while_pods_hold_instances_they_stay_listed_and_the_holders_are_named() -> None:
    world = Setting(*[SLICE] * 7, CARD.uuid, on=False)
    assert world.mig.given()
    assert "ns/p0, ns/p1, ns/p2, ns/p3, ns/p4 and 2 more still hold some" in world.mig.trouble
    world.mig.look()
    world.mig.look()
    assert world.events == [(EVENT_MIG_CHANGED, world.mig.trouble)], "said once"
    world.label = "true"
    assert world.mig.trouble == ""


def test_a_changed_setting_is_followed_soon() -> None:
    world = Setting(on=False)
    assert not world.mig.given()
    world.mig.look()
    assert world.relisted == 0
    world.label = "true"
    world.mig.look()
    assert world.relisted == 1
    assert world.mig.given()


def test_until_the_books_are_known_instances_that_were_known_stay() -> None:
    world = Setting(on=False)
    world.mig.assumed = True
    assert world.mig.given()


def test_pods_on_a_vanished_instance_or_a_card_that_is_divided_now_are_named() -> None:
    world = Setting(SLICE, PARENT, on=True)
    states = [CardState(DIVIDED), CardState(NODE[2], healthy=False, missing=True)]
    world.state.node = NodeCards.of("n1", DEFAULT_UNIT, states, links(2))
    world.mig.look()
    ((_, text),) = world.events
    assert "card 0 is in MIG mode now, of which ns/p1 hold a part: end these pods" in text
    assert f"card 100 (NVIDIA-H200-MIG-1g.18gb, {SLICE}) has vanished, of which ns/p0 hold a part" in text


def test_a_list_of_cards_with_instances_is_readable_by_an_older_agent() -> None:
    known = [replace(card, pci_bus_id="0000:10:00.0") for card in NODE]
    text = encode_cards(known)
    assert all(len(row) == 8 for row in json.loads(text)), "the form of the first release"
    assert [card.instance for card in decode_cards(text)] == [card.instance for card in known]
    assert {card.pci_bus_id for card in decode_cards(text)} == {"0000:10:00.0"}
    torn = json.loads(text)
    torn[2][7] = f"0000:10:00.0 MIG-{PARENT}/x/0"
    assert decode_cards(json.dumps(torn).encode())[2].instance is None
    assert MigInstance(PARENT, 7, 0).name == f"MIG-{PARENT}/7/0"
