"""The setting of MIG instances, and health of instances whose layout changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.adapters.driver_files.cdi import gate_mounts
from gpu_manager.adapters.driver_memory_limit import CgroupMemoryLimit
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import DRA_DRIVER, EVENT_MIG_CHANGED
from gpu_manager.domain.dra.sides import Front, Side, sides_of
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.mig import MigInstance
from gpu_manager.domain.other_plugins import offered_elsewhere
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from gpu_manager.services.allocation.books import Books, NodeCards
from gpu_manager.services.cards.inventory import MigInstances, decode_cards, encode_cards
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


def test_on_a_split_node_instances_are_given_by_extended_resources_alone() -> None:
    sides: dict[CardUuid, Side] = {CARD.uuid: Side.DRA}
    books = Books(NodeCards.of("n1", DEFAULT_UNIT, tuple(map(CardState, NODE)), links(4)), (), sides)
    assert [state.held for state in books.node.cards] == ["", DRA_DRIVER, "", ""]
    assert books.away() == {CARD.uuid}
    share = Share(NODE[2].uuid, Amount(30, GIB))
    books.plan([Allocation(PodUid("p"), "c", ContainerKind.APP, 0, (share,))])
    assert books.ledger.booked(NODE[2].uuid) == Amount(30, GIB)
    assert sides_of(Front.DRA, books.node.cards) == {CARD.uuid: Side.DRA}


def test_an_instance_that_another_plugin_offers_is_closed() -> None:
    assert offered_elsewhere({"nvidia.com/mig-1g.18gb": {SLICE}}, NODE) == {SLICE: "nvidia.com/mig-1g.18gb"}


def test_each_instance_has_a_gate_of_its_own() -> None:
    by_place = [f"MIG-{PARENT}/{gi}/0" for gi in (7, 8)]
    cards = [CardUuid(name) for name in (PARENT, SLICE, *by_place)]
    mounts = gate_mounts(Path("/pages"), cards)
    assert len({mount.host_path for mount in mounts}) == 4
    assert all("/" not in mount.host_path.removeprefix("/pages/gates/") for mount in mounts)
    parent = PARENT.removeprefix("GPU-").replace("-", "")
    assert [Path(mount.container_path).name for mount in mounts] == [
        parent,
        SLICE.removeprefix("MIG-").replace("-", ""),
        *[parent] * 2,
    ], "as the page has them"


def test_no_driver_limits_an_instance(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory")
    limit = CgroupMemoryLimit(tmp_path, lambda: tuple(map(CardState, NODE)), None)
    assert limit.hold("0" * 64, CardUuid(SLICE), GIB) is None
    with pytest.raises(NodeUnready, match="the cgroup of container"):
        limit.hold("0" * 64, CARD.uuid, GIB)
