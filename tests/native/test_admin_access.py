"""A container with admin access: pages with a memory limit of zero for each card. It sees whole cards and computes on none."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.native.driven import CARD_BYTES, CONTEXT, MIB, OUT, OUT_OF_MEMORY, SUCCESS, Container, Program

NO_PERMISSION, NOT_FOUND = 4, 6
_KINDS = ("Compute", "Graphics", "MPSCompute")


@pytest.fixture
def neighbour(tmp_path: Path) -> Iterator[Container]:
    """The container that has the card, with a program that holds 100 MiB of it."""
    with Container(tmp_path / "b", None) as container:
        container.program().start()("cuMemAlloc_v2", OUT, 100 * MIB)
        yield container


@pytest.fixture
def watching(tmp_path: Path, neighbour: Container) -> Iterator[Container]:
    with Container(tmp_path / "a", 0, state=neighbour.state) as container:
        container.change(core_limit=0.0, core_ceiling=0.0)  # as the agent writes it
        yield container


def monitor(container: Container, cards: int = 1) -> tuple[Program, int]:
    program = container.program(cards=cards)
    assert program("nvmlInit_v2").result == SUCCESS
    return program, program("nvmlDeviceGetHandleByIndex_v2", 0, OUT).out[0]


def same(program: Program, name: str, *arguments: object) -> bytes:
    """The answer of NVML, which is the driver's own."""
    shown, real = program(name, *arguments), program(f"real:{name}", *arguments)
    assert (shown.result, shown.out) == (real.result, real.out)
    assert shown.bytes == real.bytes
    return shown.bytes


def test_nvml_shows_all_memory_of_the_card_and_all_use(watching: Container) -> None:
    program, card = monitor(watching)
    total, free, used = struct.unpack("<3Q", same(program, "nvmlDeviceGetMemoryInfo", card, bytes(24)))
    assert (total, used) == (CARD_BYTES, total - free)
    assert used >= CONTEXT + 100 * MIB
    version = struct.pack("<IIQQQQ", 40 | 2 << 24, 0, 0, 0, 0, 0)
    assert (
        struct.unpack("<IIQQQQ", same(program, "nvmlDeviceGetMemoryInfo_v2", card, version))[2] == CARD_BYTES
    )


@pytest.mark.parametrize("suffix", ["", "_v2", "_v3"])
def test_nvml_lists_processes_as_the_driver_does(watching: Container, suffix: str) -> None:
    program, card = monitor(watching)
    for kind in _KINDS:
        same(program, f"nvmlDeviceGet{kind}RunningProcesses{suffix}", card, "&=8", bytes(8 * 24))
    answer = program(f"nvmlDeviceGetComputeRunningProcesses{suffix}", card, "&=8", bytes(8 * 24))
    assert answer.out == (1,), "the neighbour's"


def test_nvml_keeps_no_record_of_processes_back(watching: Container, neighbour: Container) -> None:
    program, card = monitor(watching)
    other = neighbour.program().start().process.pid
    assert struct.pack("<I", other) in same(program, "nvmlDeviceGetAccountingPids", card, "&=8", bytes(32))
    assert program("nvmlDeviceGetAccountingStats", card, other, bytes(64)).result == SUCCESS


def test_nvml_shows_the_whole_utilisation(watching: Container, neighbour: Container) -> None:
    program, card = monitor(watching)
    noisy = neighbour.program().start()
    module = noisy("cuModuleLoadData", OUT, '"an-image').value
    spin = noisy("cuModuleGetFunction", OUT, module, '"spin_400ms').value
    assert noisy("cuLaunchKernel", spin, 999, 1, 1, 1, 1, 1, 0, 0, 0).result == SUCCESS
    noisy("cuCtxSynchronize")
    assert struct.unpack("<II", program("nvmlDeviceGetUtilizationRates", card, bytes(8)).bytes)[0] > 0
    assert program("nvmlDeviceGetProcessUtilization", card, 0, "&=0", 0).result != NOT_FOUND


def test_what_the_driver_lacks_is_its_own_answer(watching: Container) -> None:
    """GPM, which counts the card as a whole, is the driver's to refuse."""
    program, card = monitor(watching)
    for name, *arguments in (
        ("nvmlGpmSampleGet", card, 0),
        ("nvmlGpmMigSampleGet", card, 0, 0),
        ("nvmlGpmMetricsGet", 0),
    ):
        assert program(name, *arguments).result == program(f"real:{name}", *arguments).result


def test_cards_of_others_stay_hidden(watching: Container) -> None:
    program, _ = monitor(watching, cards=3)
    assert program("nvmlDeviceGetCount_v2", OUT).out == (1,)


def test_settings_of_the_card_stay_refused(watching: Container) -> None:
    program, card = monitor(watching)
    assert program("nvmlDeviceSetPowerManagementLimit", card, 100_000).result == NO_PERMISSION
    assert program("nvmlDeviceSetPersistenceMode", card, 0).result == NO_PERMISSION


def test_no_context_comes_into_being(watching: Container) -> None:
    guest = watching.program()
    assert guest("cuInit", 0).result == SUCCESS
    for byte in (
        CONTEXT,
        1,
    ):  # as small as what the agent charges for a context where none is charged otherwise
        watching.change(context_reserve=byte)
        assert guest("cuDevicePrimaryCtxRetain", OUT, 0).result == OUT_OF_MEMORY
        assert guest("cuCtxCreate_v2", OUT, 0, 0).result == OUT_OF_MEMORY
    assert guest("cuDeviceTotalMem_v2", OUT, 0).out == (0,), "none of the card's memory is its own"


def test_one_card_with_a_share_makes_it_a_tenant(tmp_path: Path) -> None:
    """Pages of a request say the same of each of its cards: what differs is no admin access."""
    with Container(tmp_path, 0, cards=2) as container:
        first = replace(container.limits.cards[0], memory_limit=1024 * MIB)
        container.write(replace(container.limits, cards=(first, container.limits.cards[1])))
        program, card = monitor(container, cards=2)
        assert (
            struct.unpack("<3Q", program("nvmlDeviceGetMemoryInfo", card, bytes(24)).bytes)[0] == 1024 * MIB
        )
        second = program("nvmlDeviceGetHandleByIndex_v2", 1, OUT).value
        assert struct.unpack("<3Q", program("nvmlDeviceGetMemoryInfo", second, bytes(24)).bytes) == (0, 0, 0)
