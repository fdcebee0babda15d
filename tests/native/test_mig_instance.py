"""A MIG instance as the device: the pages name it, CUDA and NVML show it, its containers keep their limits."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
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
NAME = uuid_text(uuid(0), 1)
PARENT = uuid_text(bytes(byte ^ 0x5A for byte in uuid(0)))


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Container]:
    """A container with a part of an instance."""
    with of_instance(tmp_path) as made:
        yield made


def of_instance(base: Path, limit: int = LIMIT, state: Path | None = None) -> Container:
    made = Container(base, limit, state=state, instances=1)
    made.write(replace(made.limits, cards=(replace(made.limits.cards[0], instance=instance_word(NAME)),)))
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
