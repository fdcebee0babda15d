"""The links between cards as NVML tells of them, and the PCI addresses by which they are found."""

from __future__ import annotations

import pynvml
import pytest

from gpu_manager.adapters.nvml.cards import NvmlCards
from gpu_manager.adapters.nvml.links import bus_key
from gpu_manager.domain.topology import LinkKind
from tests.fakes.nvml import FakeNvml, Gpu
from tests.unit.test_nvml import LOST, cards_of


def cells(cards: NvmlCards) -> list[str]:
    return [" ".join(str(link) for link in row) for row in cards.topology().links]


def test_cards_on_a_switch_are_joined_by_as_many_links_as_each_has():
    switch = (pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH, "00000000:C5:00.0")
    gpus = [Gpu(i, links=[switch] * 12) for i in range(3)]
    gpus[2].links = [switch] * 10 + [(pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH, "")] * 2  # two links are down
    assert cells(cards_of(FakeNvml(*gpus))) == ["X NV12 NV10", "NV12 X NV10", "NV10 NV10 X"]


def test_a_switch_is_recognised_by_drivers_that_cannot_name_it():
    gpus = [Gpu(i, links=[(None, "00000000:C5:00.0")] * 12) for i in range(2)]
    assert cells(cards_of(FakeNvml(*gpus))) == ["X NV12", "NV12 X"]


def test_direct_links_are_counted_a_pair_and_links_to_hidden_cards_are_not():
    gpu = pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
    a, b, c = Gpu(0), Gpu(1), Gpu(2)
    a.links = [(gpu, b.bus), (gpu, b.bus), (gpu, c.bus), (gpu, "00000000:77:00.0")]
    b.links = [(gpu, a.bus.lower()), (gpu, a.bus)]
    c.links = [(gpu, a.bus), (pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU, "00000000:78:00.0")]
    nvml = FakeNvml(a, b, c, levels={(1, 2): 30})
    assert cells(cards_of(nvml)) == ["X NV2 NV1", "NV2 X PHB", "NV1 PHB X"]


def test_pcie_ancestry_becomes_the_words_of_nvidia_smi():
    levels = {(0, 1): 0, (0, 2): 10, (0, 3): 20, (1, 2): 30, (1, 3): 40, (2, 3): 50}
    nvml = FakeNvml(*(Gpu(i) for i in range(4)), levels=levels)
    assert cells(cards_of(nvml)) == ["X PIX PIX PXB", "PIX X PHB NODE", "PIX PHB X SYS", "PXB NODE SYS X"]


def test_the_pcie_path_beside_nvlinks_is_read_too():
    switch = (pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH, "00000000:C5:00.0")
    gpus = [Gpu(i, links=[switch] * 18) for i in range(3)]
    machine = cards_of(FakeNvml(*gpus, levels={(0, 1): 20, (0, 2): 40, (1, 2): 50})).topology()
    assert [machine.link(*pair).path for pair in ((0, 1), (0, 2), (1, 2))] == [
        LinkKind.PXB,
        LinkKind.NODE,
        LinkKind.SYS,
    ]


def test_a_lost_card_has_no_links_and_the_others_keep_theirs():
    nvml = FakeNvml(*(Gpu(i) for i in range(3)), levels={(0, 2): 10, (0, 1): 10})
    cards = cards_of(nvml)
    cards.list()
    nvml.gpus[1].failing = LOST
    assert cells(cards) == ["X SYS PIX", "SYS X SYS", "PIX SYS X"]


@pytest.mark.parametrize("spelling", ["00000000:3B:00.0", b"0000:3b:00.0", "0000:3B:00.0 "])
def test_bus_ids_have_one_spelling(spelling):
    assert bus_key(spelling) == "0000:3b:00.0"


def test_a_bus_id_that_is_none_is_kept_as_it_is():
    assert bus_key("weird") == "weird"
    assert bus_key("10000:3B:00.0") == "10000:3b:00.0"
