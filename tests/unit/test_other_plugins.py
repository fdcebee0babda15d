"""Cards that another device plugin offers too are closed here, and open again once they are ours alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import EVENT_OTHER_PLUGIN
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.other_plugins import (
    SlicedCard,
    given_by,
    may_name_cards,
    offered_elsewhere,
    shared_cards,
)
from gpu_manager.domain.resources import GIB
from gpu_manager.domain.topology import SELF, Link, LinkKind, Topology
from gpu_manager.services.cards.closed_cards import PERIOD_SECONDS, REOPEN_SECONDS, OtherPlugins
from gpu_manager.services.cards.health import Health

FIRST = CardUuid("GPU-5fd4f087-86f3-7a43-b711-4771313afc50")
SECOND = CardUuid("GPU-1cd4f087-0000-7a43-b711-4771313afc51")
CARDS = (
    Card(0, FIRST, "A100", 40 * GIB, pci_bus_id="00000000:3B:00.0", minor=3),
    Card(1, SECOND, "A100", 40 * GIB, pci_bus_id="00000000:5E:00.0", minor=4),
)


@pytest.mark.parametrize(
    ("resource", "device"),
    [
        ("nvidia.com/gpu", FIRST),
        ("nvidia.com/gpu", f"{FIRST}::3"),  # time-sliced
        ("nvidia.com/gpu.shared", f"{FIRST}::0"),
        ("nvidia.com/gpu", "0"),  # deviceIDStrategy: index
        ("nvidia.com/gpu", "0::1"),
        ("volcano.sh/vgpu-number", f"{FIRST}-2"),
        ("aliyun.com/gpu-mem", f"{FIRST}-_-17"),
        ("nvidia.com/gpu", "nvidia3"),  # GKE, by the device node
        ("nvidia.com/gpu", "nvidia3/vgpu1"),  # time-shared
        ("nvidia.com/gpu", "nvidia3/gi1"),  # a MIG instance
        ("nvidia.com/gpu", "nvidia3/gi1/vgpu0"),
        ("nvidia.com/GA100_A100", "0000:3b:00.0"),  # KubeVirt, whole cards for virtual machines
    ],
)
def test_a_card_is_known_by_the_ids_of_other_plugins(resource: str, device: str) -> None:
    assert offered_elsewhere({resource: {device}}, CARDS) == {FIRST: resource}


@pytest.mark.parametrize(
    ("resource", "device"),
    [
        ("example.test/nic", "0"),
        ("rdma/hca", "0000:3c:00.0"),
        ("rdma/hca", "0001:3b:00.0"),
        ("rdma/hca", "no-domain:3b:00.0"),
        ("nvidia.com/gpu", "7"),
        ("nvidia.com/gpu", "nvidia0"),  # the index is no number of a device node
        ("nvidia.com/gpu", "nvidia33"),
        ("nvidia.com/gpu", "nvidia-uvm"),
        ("example.test/gpu", "nvidia3"),
        ("nvidia.com/gpu", FIRST + "0"),
        ("nvidia.com/mig-1g.5gb", "MIG-5fd4f087-86f3-7a43-b711-4771313afc50"),
        ("amd.com/gpu", "card0"),
        ("nvidia.com/gpu", ""),
    ],
)
def test_other_devices_are_none_of_our_cards(resource: str, device: str) -> None:
    assert offered_elsewhere({resource: {device}}, CARDS) == {}


@pytest.mark.parametrize(
    ("resource", "device", "may"),
    [
        ("volcano.sh/vgpu-number", f"{FIRST}-2", True),
        ("example.test/gpu", FIRST.lower(), True),
        ("nvidia.com/gpu", "nvidia7/vgpu1", True),
        ("nvidia.com/gpu.shared", "3::1", True),
        ("nvidia.com/GA100", "0000:3b:00.0", True),
        ("rdma/hca", "0000:3b:00.0", False),
        ("example.test/nic", "0", False),
        ("nvidia.com/mig-1g.5gb", "MIG-5fd4f087-86f3", False),
    ],
)
def test_ids_that_may_name_cards_are_known_without_the_cards(resource: str, device: str, may: bool) -> None:
    assert may_name_cards(resource, {device}) is may
    assert not may_name_cards(resource, ())


class Node:
    """Health with two cards, and a kubelet that says what it is told to."""

    def __init__(self) -> None:
        self.offers: Mapping[str, Collection[str]] | None = {}
        self.events: list[tuple[str, str]] = []
        self.rests: list[tuple[float, bool]] = []
        self.seconds = 100.0
        self.health = Health(self, self, self)  # type: ignore[arg-type]  # the parts of its ports it uses here
        self.health.discover()
        self.health.settle()
        self.plugins = OtherPlugins(
            self.ask, self.health, lambda *said: self.events.append(said), self, self.rest
        )

    def ask(self) -> Mapping[str, Collection[str]]:
        if self.offers is None:
            raise NodeUnready("the kubelet does not answer")
        return self.offers

    def rest(self, seconds: float, calm: bool) -> None:  # as it is called
        self.rests.append((seconds, calm))

    def open(self, seconds: float = 0.0) -> list[int]:
        """The cards that are open once so many seconds have passed and the kubelet was asked again."""
        self.seconds += seconds
        self.plugins.look()
        self.health.settle()
        return [state.card.index for state in self.health.states() if state.open]

    def list(self) -> list[CardState]:
        return [CardState(card) for card in CARDS]

    def topology(self) -> Topology:
        return Topology(((SELF, Link(LinkKind.SYS)), (Link(LinkKind.SYS), SELF)))

    def watch(self, changed: object) -> None:
        pass

    def cordoned(self) -> frozenset[CardUuid]:
        return frozenset()

    def now(self) -> float:
        return self.seconds

    monotonic = now


def test_a_card_of_another_plugin_is_closed_with_its_reason_and_said_once() -> None:
    node = Node()
    assert node.open() == [0, 1]
    node.offers = {"nvidia.com/gpu": {f"{FIRST}::0", f"{FIRST}::1"}, "example.test/nic": {"nic-0"}}
    assert node.open(1) == [1]
    assert node.open(1) == [1]
    assert "offers the card as nvidia.com/gpu" in node.health.states()[0].reason
    assert [reason for reason, _ in node.events] == [EVENT_OTHER_PLUGIN]
    assert node.plugins.offers == {FIRST: "nvidia.com/gpu"}
    assert "remove that plugin" in node.plugins.trouble


def test_it_opens_again_some_time_after_the_other_plugin_has_gone() -> None:
    node = Node()
    node.offers = {"nvidia.com/gpu": {FIRST, SECOND}}
    assert node.open() == []
    node.offers = {}
    assert node.open(REOPEN_SECONDS - 1) == [], "it may be restarting"
    assert node.open(2) == [0, 1]
    assert node.plugins.trouble == ""


def test_a_kubelet_that_does_not_answer_changes_nothing() -> None:
    node = Node()
    node.offers = {"nvidia.com/gpu": {FIRST}}
    assert node.open() == [1]
    node.offers = None
    assert node.open(10 * REOPEN_SECONDS) == [1]
    node.offers = {}
    assert node.open(1) == [0, 1]


def test_the_kubelet_is_asked_again_soon_only_while_there_is_something_to_see() -> None:
    node = Node()
    for offers in ({}, {"nvidia.com/gpu": {FIRST}}, {}, None):
        node.offers = offers
        node.plugins.round()
    node.offers, node.seconds = {}, node.seconds + REOPEN_SECONDS + 1
    node.plugins.round()
    assert [calm for _, calm in node.rests] == [True, False, False, False, True]
    assert {seconds for seconds, _ in node.rests} == {PERIOD_SECONDS}


@pytest.mark.parametrize(
    ("labels", "annotations", "who"),
    [
        ({"runai-gpu-group": "407623a2"}, {}, "KAI or Run:ai"),
        ({"runai-gpu-group/407623a2": "0"}, {}, "KAI or Run:ai"),  # of several cards
        ({}, {"nvidia.com/container.trainer.gpus.devices": "GPU-1"}, "gpu-fractioning"),
        ({"runai-gpu-group": "a"}, {"nvidia.com/container.c.gpu-memory.limit": "8Gi"}, "gpu-fractioning"),
        ({}, {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1000,30:;"}, "HAMi"),
        ({}, {"volcano.sh/vgpu-ids-new": "GPU-1"}, "Volcano"),
        ({}, {"ALIYUN_COM_GPU_MEM_IDX": "0"}, "gpushare"),
        ({"app": "x"}, {"nvidia.com/use-gputype": "A100", "gpu-fraction": "0.5"}, ""),  # asked, not given
    ],
)
def test_who_has_given_a_pod_a_part_of_a_card_is_known_by_what_it_wrote(
    labels: Mapping[str, object], annotations: Mapping[str, object], who: str
) -> None:
    assert given_by(labels, annotations) == who


def test_what_nvidias_plugin_shares_is_read_wherever_its_configuration_stands() -> None:
    turns = {"resources": [{"name": "gpu", "replicas": 4}, {"name": "nvidia.com/gpu", "replicas": "2"}]}
    others = [{"name": "", "replicas": 3}, {"name": "gpu", "replicas": 1}, {"name": "gpu", "replicas": "all"}]
    documents: dict[str, list[object]] = {"sharing: one": [{"sharing": {"mps": {"resources": others}}}]}
    tree = {
        "data": {"a": "sharing: one", "b": "no word of it"},
        "config": [{"sharing": {"timeSlicing": {**turns, "renameByDefault": True}, "mps": "none"}}],
        "sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 5, "rename": "x.io/part"}]}},
    }
    assert set(shared_cards(tree, lambda text: documents[text])) == {
        SlicedCard("nvidia.com/gpu.shared", 4),
        SlicedCard("nvidia.com/gpu.shared", 2),
        SlicedCard("x.io/part", 5, mps=True),
    }
