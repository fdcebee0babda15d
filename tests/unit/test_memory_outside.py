"""Memory that processes of no pod hold is withdrawn by number, and offered again once they have gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import MEMORY, Inventory, decode_inventory, encode_inventory
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, MIB
from gpu_manager.domain.topology import Link, LinkKind, Topology
from gpu_manager.ports.cards import CardUse, ProcessUse
from gpu_manager.services.cards.closed_cards import MemoryOutside
from gpu_manager.services.cards.health import Health
from gpu_manager.services.enforcement.usage_sample import Sample
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeCards, FakeClock, FakeNodeObject, cards
from tests.fakes.resizing import ResizingRig

FIRST, SECOND = (state.card.uuid for state in cards(2))
HELD = 13_000 * MIB
ROUNDED = 13_056 * MIB  # whole units


class Host:
    """Processes of the node; ``pods`` are in a pod's control group, ``sees`` is hostPID."""

    def __init__(self) -> None:
        self.pods: set[int] = set()
        self.sees = True

    def in_no_pod(self, pid: int) -> bool | None:
        return pid not in self.pods if self.sees else None


class Node:
    def __init__(self) -> None:
        self.host, self.clock = Host(), FakeClock()
        self.health = Health(FakeCards(cards(2)), FakeNodeObject(), self.clock)
        self.health.discover()
        self.health.settle()
        self.watch = MemoryOutside(self.host, self.health, self.clock)
        self.cards = {uuid: CardUse(uuid) for uuid in (FIRST, SECOND)}

    def sees(self, *listed: ProcessUse, seconds: int = 1) -> tuple[int, int]:
        """What is withdrawn of the two cards after so many samples, one a second."""
        for _ in range(seconds):
            self.watch.look(Sample(self.clock.monotonic(), cards=self.cards, listed=listed))
            self.clock.pass_(1)
        self.health.settle()
        first, second = (state.card.outside for state in self.health.states())
        return first, second


def uses(memory: int | None = HELD, pid: int = 42, card: CardUuid = FIRST) -> ProcessUse:
    return ProcessUse(card, pid, memory)


def test_a_process_of_no_pod_takes_its_memory_off_the_offer_after_ten_seconds_and_gives_it_back_after_thirty() -> (
    None
):
    node = Node()
    assert node.sees(uses(), seconds=10) == (0, 0)
    assert node.sees(uses()) == (ROUNDED, 0)
    assert node.watch.held == {FIRST: HELD, SECOND: 0}
    assert node.sees(seconds=30) == (ROUNDED, 0)
    assert node.sees() == (0, 0)


@pytest.mark.parametrize(
    "listed",
    [
        (uses(256 * MIB),),
        (uses(None),),
        (),
    ],
)
def test_what_is_small_or_not_told_withdraws_nothing(listed: tuple[ProcessUse, ...]) -> None:
    assert Node().sees(*listed, seconds=60) == (0, 0)


def test_small_processes_count_together() -> None:
    node = Node()
    assert node.sees(uses(200 * MIB), uses(200 * MIB, pid=43), seconds=11) == (512 * MIB, 0)


def test_memory_of_pods_is_their_accounts_business() -> None:
    node = Node()
    node.host.pods = {42}
    assert node.sees(uses(), uses(300 * MIB, pid=43, card=SECOND), seconds=11) == (0, 512 * MIB)


def test_a_dead_process_of_a_container_is_its_container_s_still() -> None:
    node = Node()
    place = ((PodUid("u"), "c"), FIRST)
    for _ in range(20):
        node.watch.look(Sample(0.0, cards=node.cards, processes={place: [uses()]}, listed=[uses()]))
        node.clock.pass_(1)
    assert node.sees() == (0, 0)


def test_what_comes_and_goes_changes_nothing() -> None:
    node = Node()
    for _ in range(5):
        assert node.sees(uses(), seconds=9) == (0, 0)
        assert node.sees() == (0, 0)
    node.sees(uses(), seconds=11)
    for _ in range(5):
        assert node.sees(seconds=29) == (ROUNDED, 0)
        assert node.sees(uses()) == (ROUNDED, 0)


def test_without_hostpid_or_a_list_of_processes_nothing_is_claimed() -> None:
    node = Node()
    node.cards[FIRST] = CardUse(FIRST, lists_processes=False)
    assert node.sees(uses(), seconds=20) == (0, 0)
    assert node.watch.held == {SECOND: 0}
    node.host.sees = False
    assert node.sees(uses(card=SECOND), seconds=20) == (0, 0)
    assert node.watch.held == {}


def test_a_card_that_falls_silent_stays_as_it_was() -> None:
    node = Node()
    node.sees(uses(), seconds=11)
    node.cards.clear()
    assert node.sees(seconds=60) == (ROUNDED, 0)


def test_ids_are_withdrawn_by_number_and_never_one_that_a_container_holds(tmp_path: Path) -> None:
    with ResizingRig(tmp_path, states=cards()[:2]) as rig:
        held = rig.run("held", 30, 40, on={"c": [(rig.states[0], 30, 40)]})
        taken = [replace(s, card=replace(s.card, outside=13 * GIB)) for s in rig.states[:1]]
        links = Topology.uniform(2, Link(LinkKind.SYS))
        rig.state.refit((*taken, rig.states[1]), links)
        ids = rig.state.view.grants[PodUid(held["metadata"]["uid"]), "c"].ids[MEMORY]
        gone = rig.state.offer.withdrawn[MEMORY]
        assert (len(gone), gone & ids) == (24, frozenset())  # 52 of 64 are taken, 40 are held
        fits = pod("fits", container("c", 10, 64))
        assert rig.admit(fits).admitted
        rig.state.refit(rig.states[:2], links)
        assert rig.state.offer.withdrawn.get(MEMORY, frozenset()) == frozenset()


def test_the_inventory_carries_what_can_be_booked_and_what_is_taken() -> None:
    card = Card(0, FIRST, "Tesla-T4", 15 * GIB, reserved=GIB, outside=2 * GIB + 1, whole_only="why")
    text = encode_inventory(
        Inventory(DEFAULT_UNIT, (CardState(card),), Topology.uniform(1, Link(LinkKind.SYS)))
    )
    assert '"memory":12616466432' in text
    read = decode_inventory(text)
    assert read is not None
    (state,) = read.cards
    assert state.card.capacity(DEFAULT_UNIT) == card.capacity(DEFAULT_UNIT)
    assert state.card.size(DEFAULT_UNIT) == card.size(DEFAULT_UNIT)
    assert (state.card.outside, state.card.whole_only) == (9 * 256 * MIB, "why")
