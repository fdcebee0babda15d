"""MIG instances through the driver: listed as cards, with what their parent card says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pynvml
import pytest

from gpu_manager.adapters.nvml.cards import DIVIDED, NvmlCards
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.mig import MigInstance, profile_of
from gpu_manager.domain.resources import DEFAULT_UNIT, MIB, Amount
from gpu_manager.domain.topology import MAX_CARDS, LinkKind
from gpu_manager.ports.cards import CardUse, HealthChange, ProcessUse, XidError
from tests.fakes.nvml import GIB, FakeNvml, Gpu, Part
from tests.fakes.waiting import until

PARENT = "GPU-00000000-0000-4000-8000-000000000000"
NAME = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"


def machine(**changes: object) -> tuple[FakeNvml, Gpu]:
    parts = [
        Part(1, name=NAME, total=4864 * MIB, used=GIB, compute={41: GIB}, gi=7),
        None,
        Part(2, name="NVIDIA A100-SXM4-40GB MIG 3g.20gb", total=19968 * MIB, used=0, gi=2),
    ]
    gpu = Gpu(0, mig=1, milliwatts=61500, compute={41: GIB}, parts=parts, **changes)
    return FakeNvml(gpu, Gpu(1)), gpu


def cards_of(nvml: FakeNvml, *, on: bool = True) -> NvmlCards:
    return NvmlCards(nvml, sysfs=Path("/nonexistent"), instances=lambda: on)


def test_instances_are_listed_as_cards_behind_the_cards():
    nvml, _ = machine()
    states = cards_of(nvml).list()
    assert [s.card.index for s in states] == [0, 1, 100, 102]
    assert [s.open for s in states] == [False, True, True, True]
    first = states[2].card
    assert (first.uuid, first.model) == (nvml.gpus[0].parts[0].uuid, "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb")
    assert (first.memory, first.reserved, first.mig) == (4864 * MIB, 0, False)
    assert (first.minor, first.pci_bus_id, first.instance) == (0, "0000:10:00.0", MigInstance(PARENT, 7, 0))
    links = cards_of(nvml).topology().links
    assert {links[2][other].kind for other in (0, 1, 3)} == {LinkKind.SYS}


def test_without_the_option_a_divided_card_is_left_alone():
    nvml, _ = machine()
    assert [s.card.uuid for s in cards_of(nvml, on=False).list()] == [gpu.uuid for gpu in nvml.gpus]


def test_an_old_driver_names_no_profile_and_the_place_for_the_uuid():
    nvml, gpu = machine()
    gpu.parts = [Part(1, f"MIG-{PARENT}/2/0", name=gpu.name, total=19968 * MIB, slices=(3, 3), gi=2)]
    part = cards_of(nvml).list()[2].card
    assert (part.uuid, part.model) == (f"MIG-{PARENT}/2/0", "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb")
    assert part.names == (part.uuid, part.uuid)
    gpu.parts[0].fail = {"attributes": pynvml.NVML_ERROR_NOT_SUPPORTED}
    assert cards_of(nvml).list()[2].card.model == "NVIDIA-A100-SXM4-40GB-MIG-unknown"


def test_compute_instances_that_share_memory_are_closed_with_the_cure():
    nvml, gpu = machine()
    gpu.parts = [Part(1, name="NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", total=19968 * MIB, gi=2)]
    part = cards_of(nvml).list()[2]
    assert (part.healthy, part.reason) == (False, DIVIDED)


def test_the_driver_tells_memory_and_processes_of_an_instance_and_no_times():
    nvml, _ = machine()
    uses, processes = cards_of(nvml).usage()
    by_card = {use.uuid: use for use in uses}
    part = nvml.gpus[0].parts[0]
    assert by_card[part.uuid] == CardUse(part.uuid, GIB, samples_processes=False)
    assert by_card[CardUuid(PARENT)].sensors.power == 61.5
    assert [p for p in processes if p.uuid == part.uuid] == [ProcessUse(part.uuid, 41, GIB, None)]
    assert not [p for p in processes if p.uuid == PARENT], "processes count once"


def test_an_instance_is_as_healthy_as_its_parent():
    nvml, gpu = machine()
    cards = cards_of(nvml)
    cards.list()
    gpu.remapped = (0, 0, 0, 1)
    states = cards.list()
    assert [s.healthy for s in states] == [False, True, False, False]
    assert states[2].reason == states[0].reason


@pytest.mark.parametrize("failing", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN])
def test_instances_of_a_silent_card_stay_listed_and_are_unhealthy(failing: int):
    nvml, gpu = machine()
    cards = cards_of(nvml)
    before = [s.card for s in cards.list()]
    gpu.fail = {"mig_handle": failing}
    states = cards.list()
    assert [s.card for s in states] == before
    assert [s.healthy for s in states] == [False, True, False, False]
    gpu.failing = failing
    assert [s.card.uuid for s in cards.list()] == [card.uuid for card in before]
    assert len(cards.usage()[0]) == 1


def test_a_card_that_hangs_is_waited_for_once_with_its_instances():
    nvml, gpu = machine()
    cards = NvmlCards(nvml, sysfs=Path("/nonexistent"), instances=lambda: True, patience=0.3)
    cards.list()
    free = nvml.hang(gpu)
    try:
        asked = []
        for part in gpu.parts:
            if part is not None:
                part.fail = {"memory": pynvml.NVML_ERROR_GPU_IS_LOST}
                asked.append(part.uuid)
        assert {use.uuid for use in cards.usage()[0]} == {nvml.gpus[1].uuid}
        states = {s.card.uuid: s for s in cards.list()}
        assert all("did not answer in time" in states[uuid].reason for uuid in (gpu.uuid, *asked))
    finally:
        free.set()


def test_what_the_driver_reserves_of_an_instance_stays_reserved():
    nvml, gpu = machine()
    cards = cards_of(nvml)
    reserved = []
    for now in (64 * MIB, 0):
        gpu.parts[0].reserved = now
        reserved.append(cards.list()[2].card.reserved)
    assert reserved == [64 * MIB, 64 * MIB]


PUBLISHED = {
    "Mock NVIDIA A100-SXM4-40GB": (40960, "1g.5gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb 1g.5gb 1g.10gb"),
    "NVIDIA A100-SXM4-80GB": (81920, "1g.10gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb 1g.10gb 1g.20gb"),
    "NVIDIA H100 80GB HBM3": (81920, "1g.10gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb 1g.10gb 1g.20gb"),
    "NVIDIA H200 141GB HBM3e": (144384, "1g.18gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb 1g.18gb 1g.35gb"),
    "NVIDIA B200 180GB HBM3e": (184320, "1g.23gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb 1g.23gb 1g.45gb"),
}  # MiB, and the profiles as NVIDIA names them: tests/data/mig/README.md
KINDS = ("1_SLICE", "2_SLICE", "3_SLICE", "4_SLICE", "7_SLICE", "1_SLICE_REV1", "1_SLICE_REV2")
GO_NVML = json.loads((Path(__file__).parents[1] / "data/mig/go-nvml.json").read_text())


@pytest.mark.parametrize("model", PUBLISHED)
def test_every_profile_of_go_nvmls_mocks_has_its_name_and_its_memory(model: str):
    total, names = PUBLISHED[model]
    for kind, name in zip(KINDS, names.split(), strict=True):
        profile = GO_NVML[model][kind]
        count, slices = profile["instances"], profile["slices"]
        # Drivers before R470, which name no profile, know A100 alone. The mocks' memory of newer cards is
        # rounded up, from which go-nvlib's formula would make another name.
        shown = model if "A100" in model else f"{model} MIG {name}"
        parts = [
            Part(10 + at, name=shown, total=profile["memory_mib"] * MIB, slices=(slices, slices), gi=at)
            for at in range(count)
        ]
        gpu = Gpu(0, name=model, mig=1, total=total * MIB, parts=parts)
        found = [s.card for s in cards_of(FakeNvml(gpu)).list()[1:]]
        assert [card.index for card in found] == [100 + at for at in range(count)]
        assert {profile_of(card.model) for card in found} == {name}
        units = profile["memory_mib"] // 256
        assert {card.size(DEFAULT_UNIT) for card in found} == {Amount(100, units * DEFAULT_UNIT)}


def test_more_instances_than_an_inventory_may_have_are_left_out():
    def divided(index: int) -> Gpu:
        return Gpu(index, mig=1, parts=[Part(100 * index + at, name=NAME, gi=7 + at) for at in range(7)])

    states = cards_of(FakeNvml(*map(divided, range(16)))).list()
    assert len(states) == MAX_CARDS
    assert [s.card.instance is None for s in states].count(True) == 16


def test_a_layout_that_changes_is_listed_anew():
    nvml, gpu = machine()
    cards = cards_of(nvml)
    cards.list()
    gpu.parts = [Part(3, name=NAME, total=4864 * MIB, gi=9)]
    assert [s.card.index for s in cards.list()] == [0, 1, 100]
    gpu.mig, gpu.parts = 0, []
    assert [(s.card.index, s.open) for s in cards.list()] == [(0, True), (1, True)]


def test_an_error_of_the_parent_closes_its_instances_and_counts_once():
    nvml, gpu = machine()
    cards = cards_of(nvml)
    cards.list()
    told: list[HealthChange | XidError] = []
    cards.watch(told.append)
    try:
        until(lambda: gpu.uuid in nvml.registered)
        assert not {part.uuid for part in gpu.parts if part} & nvml.registered.keys()
        nvml.xid(gpu, 79)
        until(lambda: len([one for one in told if isinstance(one, XidError)]) == 1)
        closed = {one.uuid for one in told if isinstance(one, HealthChange) and not one.healthy}
        assert closed == {gpu.uuid, *(part.uuid for part in gpu.parts if part)}
    finally:
        cards.close()
