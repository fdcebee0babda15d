"""What programs are told: the share as if it were the card, to CUDA and to NVML, and its changes while they run."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.native import standin
from tests.native.driven import (
    CARD_BYTES,
    CONTEXT,
    GRANULE,
    MIB,
    OUT,
    OUT_OF_MEMORY,
    SUCCESS,
    Container,
    Program,
)
from tests.native.structures import block_props, pool_props
from vcuda.page.layout import uuid_bytes
from vcuda.page.usage import USAGE_SIZE

LIMIT = 1024 * MIB
INVALID_ARGUMENT, NO_PERMISSION, NOT_FOUND, INSUFFICIENT_SIZE = 2, 4, 6, 7
NONE = 0xFFFFFFFF


def monitor(container: Container, cards: int = 1) -> tuple[Program, int]:
    """Something like nvidia-smi, and its handle of the first card."""
    program = container.program(cards=cards)
    assert program("nvmlInit_v2").result == SUCCESS
    card = program("nvmlDeviceGetHandleByIndex_v2", 0, OUT).out[0]
    if standin.INSTANCES:
        card = program("nvmlDeviceGetMigDeviceHandleByIndex", card, 0, OUT).out[0]
    return program, card


of_cards = pytest.mark.skipif(
    bool(standin.INSTANCES), reason="NVML has divided cards, and no times: test_mig_instance.py"
)


def test_cuda_shows_the_share_and_what_is_left_of_it(guest: Program) -> None:
    assert guest("cuDeviceTotalMem_v2", OUT, 0).value == LIMIT
    assert guest("cuMemGetInfo_v2", OUT, OUT).out == (LIMIT - CONTEXT, LIMIT)
    at = guest("cuMemAlloc_v2", OUT, 100 * MIB).value
    assert guest("cuMemGetInfo_v2", OUT, OUT).out == (LIMIT - CONTEXT - 100 * MIB, LIMIT)
    guest("cuMemFree_v2", at)
    assert guest("cuMemGetInfo_v2", OUT, OUT).out == (LIMIT - CONTEXT, LIMIT)


def test_the_names_of_32_bits_show_it_too(guest: Program) -> None:
    """Outputs are four bytes: the upper half of each word stays as it was."""
    assert guest("cuMemGetInfo", OUT, OUT).out == (LIMIT - CONTEXT, LIMIT)
    assert guest("cuDeviceTotalMem", OUT, 0).out == (LIMIT,)


def test_either_output_may_be_absent(guest: Program) -> None:
    assert guest("cuMemGetInfo_v2", OUT, 0).out == (LIMIT - CONTEXT,)
    assert guest("cuMemGetInfo_v2", 0, OUT).out == (LIMIT,)
    assert guest("cuMemGetInfo_v2", 0, 0).result == SUCCESS


def test_a_limit_beyond_the_card_shows_the_card(container: Container, guest: Program) -> None:
    container.change(memory_limit=CARD_BYTES * 2)
    assert guest("cuDeviceTotalMem_v2", OUT, 0).value == CARD_BYTES
    assert guest("cuMemGetInfo_v2", OUT, OUT).out == (CARD_BYTES - CONTEXT, CARD_BYTES)
    program, card = monitor(container)
    assert struct.unpack("<3Q", program("nvmlDeviceGetMemoryInfo", card, bytes(24)).bytes)[0] == CARD_BYTES


def test_free_is_never_more_than_the_card_has_left(tmp_path: Path) -> None:
    """A neighbour has most of the card: the share is there on paper only."""
    with (
        Container(tmp_path / "a", None) as wide,
        Container(tmp_path / "b", LIMIT, state=tmp_path / "a/state") as small,
    ):
        assert wide.program().start()("cuMemAlloc_v2", OUT, CARD_BYTES - 512 * MIB).result == SUCCESS
        free, total = small.program().start()("cuMemGetInfo_v2", OUT, OUT).out
        assert (free, total) == (512 * MIB - 2 * CONTEXT, LIMIT)


def test_without_a_memory_limit_the_card_is_shown_as_it_is_and_use_is_counted(tmp_path: Path) -> None:
    with Container(tmp_path, None) as container:
        guest = container.program().start()
        assert guest("cuMemAlloc_v2", OUT, 2 << 30).result == SUCCESS
        assert guest("cuMemGetInfo_v2", OUT, OUT).out == guest("real:cuMemGetInfo_v2", OUT, OUT).out
        assert container.charged() == CONTEXT + (2 << 30)


def test_a_limit_of_zero_is_zero(container: Container) -> None:
    container.change(memory_limit=0)
    guest = container.program()
    assert guest("cuInit", 0).result == SUCCESS
    assert guest("cuDevicePrimaryCtxRetain", OUT, 0).result == OUT_OF_MEMORY
    assert guest("cuDeviceTotalMem_v2", OUT, 0).out == (0,)


def test_a_limit_below_use_refuses_what_is_new_and_shows_nothing_free(
    container: Container, guest: Program
) -> None:
    at = guest("cuMemAlloc_v2", OUT, 500 * MIB).value
    container.change(memory_limit=200 * MIB)
    assert guest("cuMemGetInfo_v2", OUT, OUT).out == (0, 200 * MIB)
    assert guest("cuMemAlloc_v2", OUT, 1).result == OUT_OF_MEMORY
    assert guest("cuMemAlloc_v2", OUT, 0).result == guest("real:cuMemAlloc_v2", OUT, 0).result
    program, card = monitor(container)
    assert struct.unpack("<3Q", program("nvmlDeviceGetMemoryInfo", card, bytes(24)).bytes) == (
        200 * MIB,
        0,
        200 * MIB,
    )
    assert guest("cuMemFree_v2", at).result == SUCCESS
    assert guest("cuMemGetInfo_v2", OUT, OUT).out == (200 * MIB - CONTEXT, 200 * MIB)
    container.change(memory_limit=LIMIT)
    assert guest("cuMemAlloc_v2", OUT, LIMIT - CONTEXT).result == SUCCESS


def test_what_the_host_sees_beyond_the_account_counts(container: Container, guest: Program) -> None:
    container.change(host_adjust=300 * MIB)
    assert guest("cuMemGetInfo_v2", OUT, OUT).out == (LIMIT - CONTEXT - 300 * MIB, LIMIT)
    assert guest("cuMemAlloc_v2", OUT, LIMIT - CONTEXT - 300 * MIB + 1).result == OUT_OF_MEMORY
    at = guest("cuMemAlloc_v2", OUT, LIMIT - CONTEXT - 300 * MIB).value
    for beyond in (LIMIT, 1 << 62, (1 << 64) - 1):
        container.change(host_adjust=beyond)
        assert guest("cuMemGetInfo_v2", OUT, OUT).out == (0, LIMIT)
        assert guest("cuMemAlloc_v2", OUT, 1).result == OUT_OF_MEMORY
    assert guest("cuMemFree_v2", at).result == SUCCESS, "what is held stays held and can be given back"
    container.change(host_adjust=0)
    assert guest("cuMemAlloc_v2", OUT, LIMIT - CONTEXT).result == SUCCESS


# ---- oversubscription


def test_a_full_card_refuses_unless_the_page_allows_memory_that_can_move(tmp_path: Path) -> None:
    with (
        Container(tmp_path / "a", None) as wide,
        Container(tmp_path / "b", LIMIT, state=tmp_path / "a/state") as small,
    ):
        assert wide.program().start()("cuMemAlloc_v2", OUT, CARD_BYTES - 200 * MIB).result == SUCCESS
        guest = small.program().start()
        assert guest("cuMemAlloc_v2", OUT, 500 * MIB).result == OUT_OF_MEMORY
        assert small.charged() == CONTEXT
        small.write(replace(small.limits, oversubscribe=True))
        at = guest("cuMemAlloc_v2", OUT, 500 * MIB).value
        assert guest("cuMemGetInfo_v2", OUT, OUT).out == (LIMIT - CONTEXT - 500 * MIB, LIMIT)
        managed_attribute = 8
        assert guest("cuPointerGetAttribute", OUT, managed_attribute, at).out == (1,)
        assert guest("cuMemAlloc_v2", OUT, LIMIT).result == OUT_OF_MEMORY, "the limit holds all the same"
        assert guest("cuMemAllocAsync", OUT, 400 * MIB, 0).result == OUT_OF_MEMORY, "linear memory only"
        assert guest("cuMemFree_v2", at).result == SUCCESS
        assert small.charged() == CONTEXT
        small.write(replace(small.limits, oversubscribe=False))
        assert guest("cuMemAlloc_v2", OUT, 500 * MIB).result == OUT_OF_MEMORY, "a running program follows"


# ---- NVML


def test_nvml_shows_the_share_and_its_numbers_add_up(container: Container, guest: Program) -> None:
    guest("cuMemAlloc_v2", OUT, 100 * MIB)
    program, card = monitor(container)
    used = CONTEXT + 100 * MIB
    total, free, seen = struct.unpack("<3Q", program("nvmlDeviceGetMemoryInfo", card, bytes(24)).bytes)
    assert (total, free, seen) == (LIMIT, LIMIT - used, used)
    version = struct.pack("<IIQQQQ", 40 | 2 << 24, 0, 0, 0, 0, 0)
    answer = struct.unpack("<IIQQQQ", program("nvmlDeviceGetMemoryInfo_v2", card, version).bytes)
    assert answer[2:] == (LIMIT, 0, LIMIT - used, used)


@pytest.mark.parametrize(("suffix", "layout"), [("", "<IxxxxQ"), ("_v2", "<IxxxxQII"), ("_v3", "<IxxxxQII")])
def test_process_lists_name_the_containers_processes_by_its_own_ids(
    container: Container, guest: Program, suffix: str, layout: str
) -> None:
    other = container.program().start()
    other("cuMemAlloc_v2", OUT, 100 * MIB)
    program, card = monitor(container)
    name = f"nvmlDeviceGetComputeRunningProcesses{suffix}"
    answer = program(name, card, "&=0", 0)
    assert (answer.result, answer.out) == (INSUFFICIENT_SIZE, (2,))
    assert program(name, card, "&=1", bytes(24)).result == INSUFFICIENT_SIZE
    size = struct.calcsize(layout)
    answer = program(name, card, "&=8", bytes(8 * size))
    assert (answer.result, answer.out) == (SUCCESS, (2,))
    entries = list(struct.iter_unpack(layout, answer.bytes[: 2 * size]))
    assert {entry[:2] for entry in entries} == {
        (guest.process.pid, CONTEXT), (other.process.pid, CONTEXT + 100 * MIB),
    }  # fmt: skip
    place = (7, 0) if standin.INSTANCES else (NONE, NONE)
    assert all(entry[2:] in ((), place) for entry in entries)
    for kind in ("Graphics", "MPSCompute"):
        answer = program(f"nvmlDeviceGet{kind}RunningProcesses{suffix}", card, "&=8", bytes(8 * size))
        assert (answer.result, answer.out) == (SUCCESS, (0,))


def test_what_the_driver_keeps_of_other_tenants_processes_is_not_told(
    container: Container, guest: Program, tmp_path: Path
) -> None:
    program, card = monitor(container)
    with Container(tmp_path / "b", None, state=container.state) as neighbour:
        other = neighbour.program().start().process.pid
        told = program("real:nvmlDeviceGetAccountingPids", card, "&=8", bytes(32))
        assert struct.pack("<I", other) in told.bytes
        assert program("real:nvmlDeviceGetAccountingStats", card, other, bytes(64)).result == SUCCESS
        assert program("nvmlDeviceGetAccountingPids", card, "&=8", bytes(32)).out == (0,)
        assert program("nvmlDeviceGetAccountingStats", card, other, bytes(64)).result == NOT_FOUND


def test_a_process_that_is_gone_is_not_listed_nor_counted(container: Container, guest: Program) -> None:
    other = container.program().start()
    other.kill()
    program, card = monitor(container)
    answer = program("nvmlDeviceGetComputeRunningProcesses_v3", card, "&=8", bytes(8 * 24))
    assert answer.out == (1,)
    assert struct.unpack_from("<I", answer.bytes) == (guest.process.pid,)
    assert struct.unpack("<3Q", program("nvmlDeviceGetMemoryInfo", card, bytes(24)).bytes)[2] == CONTEXT


def test_a_monitor_takes_no_slot_and_writes_nothing(container: Container) -> None:
    before = container.usage_file.read_bytes()
    program, card = monitor(container)
    program("nvmlDeviceGetMemoryInfo", card, bytes(24))
    program("nvmlDeviceGetComputeRunningProcesses_v3", card, "&=8", bytes(8 * 24))
    program("nvmlDeviceGetUtilizationRates", card, bytes(8))
    assert container.usage_file.read_bytes() == before


def test_a_monitor_outlives_a_usage_page_that_a_tenant_cut_off(container: Container) -> None:
    program, card = monitor(container)
    container.usage_file.write_bytes(b"short")
    assert program("nvmlDeviceGetMemoryInfo", card, bytes(24)).result == SUCCESS
    container.usage_file.write_bytes(bytes([255]) * USAGE_SIZE)
    assert program("nvmlDeviceGetComputeRunningProcesses_v3", card, "&=8", bytes(8 * 24)).out == (0,)


@of_cards
def test_utilisation_is_the_containers_own(container: Container, tmp_path: Path) -> None:
    """The neighbour's load does not show, and there is none of ours."""
    program, card = monitor(container)
    with Container(tmp_path / "b", None, state=container.state) as loud:
        noisy = loud.program().start()
        module = noisy("cuModuleLoadData", OUT, '"an-image').value
        spin = noisy("cuModuleGetFunction", OUT, module, '"spin_400ms').value
        assert noisy("cuLaunchKernel", spin, 999, 1, 1, 1, 1, 1, 0, 0, 0).result == SUCCESS
        noisy("cuCtxSynchronize")
        busy = struct.unpack("<II", program("real:nvmlDeviceGetUtilizationRates", card, bytes(8)).bytes)
        assert busy[0] > 0
        assert struct.unpack("<II", program("nvmlDeviceGetUtilizationRates", card, bytes(8)).bytes) == (0, 0)
        assert program("nvmlDeviceGetProcessUtilization", card, 0, "&=0", 0).result == NOT_FOUND


def test_what_would_change_the_card_for_everybody_is_refused(container: Container) -> None:
    program, card = monitor(container)
    for name, *arguments in (
        ("nvmlDeviceSetComputeMode", card, 3),
        ("nvmlDeviceSetPersistenceMode", card, 0),
        ("nvmlDeviceSetMigMode", card, 1, OUT),
        ("nvmlDeviceSetPowerManagementLimit", card, 100_000),
        ("nvmlDeviceSetGpuLockedClocks", card, 210, 210),
        ("nvmlDeviceResetGpuLockedClocks", card),
        ("nvmlDeviceSetAccountingMode", card, 1),
    ):
        assert program(name, *arguments).result == NO_PERMISSION
    with Container(container.root.parent / "newest", LIMIT, version="13.5") as newest:
        program, card = monitor(newest)
        assert program("nvmlDeviceSetMemoryLimits_v1", card, bytes(64)).result == NO_PERMISSION


PYNVML = """
import json, pynvml as nv
nv.nvmlInit()
card = nv.nvmlDeviceGetHandleByIndex(0)
memory, newer = nv.nvmlDeviceGetMemoryInfo(card), nv.nvmlDeviceGetMemoryInfo(card, version=nv.nvmlMemory_v2)
processes = [(p.pid, p.usedGpuMemory) for p in nv.nvmlDeviceGetComputeRunningProcesses(card)]
load = nv.nvmlDeviceGetUtilizationRates(card)
try:
    nv.nvmlDeviceSetPersistenceMode(card, 1)
except nv.NVMLError_NoPermission:
    refused = True
print(json.dumps([nv.nvmlDeviceGetCount(), memory.total, memory.used, memory.free, newer.total, newer.used,
                  processes, load.gpu, refused]))
"""


@of_cards
def test_pynvml_sees_the_share_as_the_card(container: Container, guest: Program) -> None:
    guest("cuMemAlloc_v2", OUT, 100 * MIB)
    done = subprocess.run(
        [sys.executable, "-c", PYNVML],
        env=container.env(cards=2),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    used = CONTEXT + 100 * MIB
    assert json.loads(done.stdout) == [
        1, LIMIT, used, LIMIT - used, LIMIT, used, [[guest.process.pid, used]], 0, True,
    ]  # fmt: skip


@of_cards
def test_a_program_like_nvidia_smi_sees_the_share_as_the_card(container: Container, guest: Program) -> None:
    guest("cuMemAlloc_v2", OUT, 100 * MIB)
    done = subprocess.run(
        [standin.built() / "vcuda-client", "info"], env=container.env(cards=2), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    head, card, process, cuda = done.stdout.splitlines()
    assert head.endswith(", 1 card")
    assert re.search(r" 164MiB / +1024MiB +0% ", card), card
    assert process.split()[1:] == ["process", str(guest.process.pid), "uses", "164MiB"]
    assert cuda.endswith("of 1024MiB")


# ---- several cards


def test_cards_are_known_by_uuid_whatever_order_the_process_sees_them_in(tmp_path: Path) -> None:
    with Container(tmp_path, LIMIT, cards=3) as container:
        for card in range(3):
            container.change(card, memory_limit=LIMIT + card * GRANULE)
        guest = container.program(visible="2,0", cards=3)
        assert guest("cuInit", 0).result == SUCCESS
        assert guest("cuDeviceTotalMem_v2", OUT, 0).value == LIMIT + 2 * GRANULE
        assert guest("cuDeviceTotalMem_v2", OUT, 1).value == LIMIT
        guest.context(0)
        guest("cuMemAlloc_v2", OUT, 10 * MIB)
        guest.context(1)
        guest("cuMemAlloc_v2", OUT, 20 * MIB)
        assert [container.charged(card) for card in range(3)] == [CONTEXT + 20 * MIB, 0, CONTEXT + 10 * MIB]


def test_of_a_card_that_was_not_given_there_is_nothing(tmp_path: Path) -> None:
    unavailable = 46
    with Container(tmp_path, LIMIT, cards=1) as container:
        guest = container.program(cards=2)
        assert guest("cuInit", 0).result == SUCCESS
        assert guest("cuDevicePrimaryCtxRetain", OUT, 1).result == unavailable
        assert guest("cuCtxCreate_v2", OUT, 0, 1).result == unavailable
        assert guest("cuMemCreate", OUT, GRANULE, block_props(1), 0).result == OUT_OF_MEMORY
        assert guest("cuMemPoolCreate", OUT, pool_props(1)).result == SUCCESS
        guest.context(0)
        pool = guest("cuMemPoolCreate", OUT, pool_props(1)).value
        stream = guest("cuStreamCreate", OUT, 0).value
        assert guest("cuMemAllocFromPoolAsync", OUT, MIB, pool, stream).result == OUT_OF_MEMORY


@of_cards
def test_nvml_lists_the_containers_cards_and_no_others(tmp_path: Path) -> None:
    with Container(tmp_path, LIMIT, cards=2) as container:
        both = replace(container.limits, cards=(container.limits.cards[1],))
        container.write(both)
        program, card = monitor(container, cards=3)
        assert program("nvmlDeviceGetCount_v2", OUT).out == (1,)
        assert program("nvmlDeviceGetHandleByIndex_v2", 1, OUT).result == INVALID_ARGUMENT
        text = program("nvmlDeviceGetUUID", card, bytes(64), 64).bytes.split(b"\0")[0].decode()
        assert uuid_bytes(text) == both.cards[0].uuid
        assert program("nvmlDeviceGetIndex", card, OUT).out == (0,)
        assert program("nvmlDeviceGetHandleByUUID", f'"{text}', OUT).value == card
        foreign = program("real:nvmlDeviceGetHandleByIndex_v2", 0, OUT).value
        name = program("nvmlDeviceGetUUID", foreign, bytes(64), 64).bytes.split(b"\0")[0].decode()
        assert program("nvmlDeviceGetHandleByUUID", f'"{name}', OUT).result == NOT_FOUND


def test_nvml_hides_nothing_where_the_pages_name_no_visible_card(tmp_path: Path) -> None:
    """A MIG instance has a UUID of its own, and is reached through its card."""
    with Container(tmp_path, LIMIT) as container:
        card = replace(container.limits.cards[0], uuid=bytes(16))
        container.write(replace(container.limits, cards=(card,)))
        program, _ = monitor(container, cards=2)
        assert program("nvmlDeviceGetCount_v2", OUT).out == (2,)
