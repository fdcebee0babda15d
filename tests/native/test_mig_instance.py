"""A MIG instance as the device: the pages name it, CUDA and NVML show it, its containers keep their limits."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native import standin
from tests.native.driven import (
    CONTEXT,
    MIB,
    OUT,
    OUT_OF_MEMORY,
    SUCCESS,
    Container,
    Program,
    uuid,
)
from vcuda.page.layout import instance_word, uuid_text

LIMIT = 1024 * MIB
NOT_SUPPORTED, NOT_FOUND = 3, 6
NO_INSTANCE = 0xFFFFFFFF
NAME = uuid_text(uuid(0), 1)
PARENT = uuid_text(bytes(byte ^ 0x5A for byte in uuid(0)))
PLACED = f"MIG-{uuid_text(uuid(0))}/7/0"
"""Its name by place, where ``uuid(0)`` is its card's."""


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Container]:
    """A container with a part of an instance."""
    with of_instance(tmp_path) as made:
        yield made


def of_instance(base: Path, limit: int = LIMIT, state: Path | None = None, name: str = NAME) -> Container:
    """``name``: how driver and page name it."""
    made = Container(base, limit, state=state, instances=1, card_0_uuid=name)
    made.change(instance=instance_word(name))
    return made


def monitor(container: Container) -> tuple[Program, int, int]:
    """Something like nvidia-smi, its handles of the divided card and of the instance."""
    program = container.program()
    assert program("nvmlInit_v2").result == SUCCESS
    card = program("nvmlDeviceGetHandleByIndex_v2", 0, OUT).value
    return program, card, program("nvmlDeviceGetMigDeviceHandleByIndex", card, 0, OUT).value


def test_the_limit_of_an_instance_holds_to_the_byte(instance: Container) -> None:
    guest = instance.program().start()
    assert guest("cuDeviceTotalMem_v2", OUT, 0).value == LIMIT
    assert guest("cuMemAlloc_v2", OUT, LIMIT - CONTEXT + 1).result == OUT_OF_MEMORY
    at = guest("cuMemAlloc_v2", OUT, LIMIT - CONTEXT).value
    assert guest("cuMemAlloc_v2", OUT, 1).result == OUT_OF_MEMORY
    assert instance.charged() == LIMIT
    assert guest("cuMemFree_v2", at).result == SUCCESS
    assert instance.charged() == CONTEXT


def test_two_containers_share_an_instance_each_to_its_own_limit(instance: Container, tmp_path: Path) -> None:
    with of_instance(tmp_path / "other", 2 * LIMIT, state=instance.state) as wide:
        first, second = instance.program().start(), wide.program().start()
        assert first("cuMemAlloc_v2", OUT, LIMIT - CONTEXT).result == SUCCESS
        assert second("cuMemAlloc_v2", OUT, 2 * LIMIT - CONTEXT).result == SUCCESS
        assert first("cuMemAlloc_v2", OUT, 1).result == OUT_OF_MEMORY
        assert second("cuMemAlloc_v2", OUT, 1).result == OUT_OF_MEMORY
        assert first.card_used() == 3 * LIMIT


def test_nvml_shows_the_share_of_the_instance_and_only_its_own_processes(
    instance: Container, tmp_path: Path
) -> None:
    with of_instance(tmp_path / "other", state=instance.state) as other:
        neighbour, guest = other.program().start(), instance.program().start()
        assert neighbour("cuMemAlloc_v2", OUT, 100 * MIB).result == SUCCESS
        assert guest("cuMemAlloc_v2", OUT, 200 * MIB).result == SUCCESS
        program, card, part = monitor(instance)
        assert program("nvmlDeviceIsMigDeviceHandle", part, OUT).value & 1
        figures = struct.unpack("<3Q", program("nvmlDeviceGetMemoryInfo", part, bytes(24)).bytes)
        assert figures == (LIMIT, LIMIT - CONTEXT - 200 * MIB, CONTEXT + 200 * MIB)
        for handle, count in ((part, 1), (card, 0)):
            room = struct.pack("<I", 8)
            seen = program("nvmlDeviceGetComputeRunningProcesses_v3", handle, room, bytes(8 * 24))
            assert struct.unpack("<I", seen.bytes) == (count,)


@pytest.mark.parametrize("name", [NAME, PLACED])
def test_processes_are_listed_with_the_place_of_their_instance(tmp_path: Path, name: str) -> None:
    with of_instance(tmp_path, name=name) as container:
        container.program().start()
        lines = processes(container)
    assert lines == [(CONTEXT, 7, 0), (CONTEXT, 7, 0)]


def test_processes_of_a_whole_card_are_listed_without_a_place(tmp_path: Path) -> None:
    with Container(tmp_path, instances=0) as container:
        container.change(instance=0)
        container.program().start()
        lines = processes(container)
    assert lines == [(CONTEXT, NO_INSTANCE, NO_INSTANCE)] * 2


def processes(container: Container) -> list[tuple[int, ...]]:
    """Memory, GPU instance and compute instance of the only process, by two of NVML's lists."""
    code = """
    import pynvml as nv
    nv.nvmlInit()
    card = nv.nvmlDeviceGetHandleByIndex(0)
    whole = not nv.nvmlDeviceGetMigMode(card)[0]
    part = card if whole else nv.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
    (one,) = nv.nvmlDeviceGetComputeRunningProcesses_v3(part)
    print(one.usedGpuMemory, one.gpuInstanceId, one.computeInstanceId)
    entries = (nv.c_nvmlProcessDetail_v1_t * 4)()
    found = nv.c_nvmlProcessDetailList_v1_t(nv.nvmlProcessDetailList_v1, nv.NVML_PROCESS_MODE_COMPUTE, 4, entries)
    assert nv.nvmlLib.nvmlDeviceGetRunningProcessDetailList(part, ctypes.byref(found)) == 0
    assert found.numProcArrayEntries == 1
    print(entries[0].usedGpuMemory, entries[0].gpuInstanceId, entries[0].computeInstanceId)
    """
    said = standin.said(standin.python(code, container.env()))
    return [tuple(int(word) for word in line.split()) for line in said]


@pytest.mark.parametrize(
    ("in_page", "shown"),
    [
        (PLACED, True),
        (PLACED.replace("/7/0", "/8/0"), False),  # its neighbour
        (PLACED.replace("/7/0", "/7/1"), False),
        (NAME, False),  # another, whose own UUID happens to be this card's
        (uuid_text(uuid(0)), False),  # the card, before it was divided
    ],
)
def test_an_instance_that_is_named_by_its_place_is_told_from_its_card_and_neighbours(
    tmp_path: Path, in_page: str, shown: bool
) -> None:
    with of_instance(tmp_path, name=PLACED) as container:
        container.change(instance=instance_word(in_page))
        program, card, part = monitor(container)
        totals = [
            struct.unpack("<3Q", program("nvmlDeviceGetMemoryInfo", handle, bytes(24)).bytes)[0]
            for handle in (card, part)
        ]
    card_shown = in_page == uuid_text(uuid(0))
    assert [total == LIMIT for total in totals] == [card_shown, shown]


def test_nvml_has_no_times_of_an_instance_and_the_library_makes_none_up(instance: Container) -> None:
    instance.program().start()
    program, card, part = monitor(instance)
    for handle in (card, part):
        assert program("nvmlDeviceGetUtilizationRates", handle, bytes(8)).result == NOT_SUPPORTED
    assert program("nvmlDeviceGetMigDeviceHandleByIndex", card, 1, OUT).result == NOT_FOUND
    assert program("nvmlDeviceGetMigDeviceHandleByIndex", part, 0, OUT).result == NOT_FOUND


def test_the_name_of_an_instance_is_not_its_cards(tmp_path: Path) -> None:
    """The two UUIDs of cuDeviceGetUuid and its second form, and what CUDA_VISIBLE_DEVICES takes."""
    env = {**standin.environment(tmp_path / "state", instances=1), "CUDA_VISIBLE_DEVICES": NAME}
    code = """
    driver = Driver(context=False); driver.cuInit(0)
    found, name = (ctypes.create_string_buffer(16), ctypes.create_string_buffer(16)), ctypes.create_string_buffer(96)
    driver.library.cuDeviceGetUuid(found[0], 0); driver.library.cuDeviceGetUuid_v2(found[1], 0)
    driver.cuDeviceGetName(name, 96, 0)
    print(*(one.raw.hex() for one in found)); print(name.value.decode())
    import pynvml as nv
    nv.nvmlInit()
    card = nv.nvmlDeviceGetHandleByIndex(0)
    part = nv.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
    print(nv.nvmlDeviceGetUUID(card), nv.nvmlDeviceGetUUID(part), nv.nvmlDeviceGetName(card), nv.nvmlDeviceGetMigMode(card))
    print(nv.nvmlDeviceGetGpuInstanceId(part), nv.nvmlDeviceGetComputeInstanceId(part), nv.nvmlDeviceGetCount())
    print([nv.nvmlDeviceGetUUID(nv.nvmlDeviceGetHandleByUUID(nv.nvmlDeviceGetUUID(one))) for one in (card, part)])
    print(nv.nvmlDeviceGetMemoryInfo(card).total // nv.nvmlDeviceGetMemoryInfo(part).total)
    print(nv.nvmlDeviceGetUUID(nv.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)))
    """  # fmt: skip
    plain = [name.partition("-")[2].replace("-", "") for name in (PARENT, NAME)]
    assert standin.said(standin.python(code, env)) == [
        " ".join(plain),
        "Stand-in 16GB MIG 1g.16gb",
        f"{PARENT} {NAME} Stand-in 16GB [1, 1]",
        "7 0 1",
        f"['{PARENT}', '{NAME}']",
        "8",
        PARENT,
    ]
