"""Memory that a dma-buf was made of: paid for while any descriptor of it is open, wherever that is, and no longer."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.open_files import open_files
from tests.native.driven import (
    CONTEXT,
    MIB,
    OUT,
    OUT_OF_MEMORY,
    SUCCESS,
    Container,
    Program,
    host_looks,
    soon,
)
from tests.native.export_player import descriptor_of
from tests.native.structures import POSIX, block_props

LIMIT = 1024 * MIB
BLOCK = 100 * MIB
OPERATING_SYSTEM = 304
DMA_BUF = 1


def dma_buf(guest: Program, at: int, size: int = BLOCK) -> int:
    """A descriptor of the range."""
    return guest("cuMemGetHandleForAddressRange", OUT, at, size, DMA_BUF, 0).value & 0xFFFFFFFF


def mapped(guest: Program, *sizes: int) -> tuple[int, list[int]]:
    """Blocks mapped one behind another: the address of the first, and their handles."""
    handles = [guest("cuMemCreate", OUT, size, block_props(), 0).value for size in sizes]
    at = where = guest("cuMemAddressReserve", OUT, sum(sizes), 0, 0, 0).value
    for size, handle in zip(sizes, handles, strict=True):
        assert guest("cuMemMap", where, size, 0, handle, 0).result == SUCCESS
        where += size
    return at, handles


def test_who_makes_a_dma_buf_frees_the_memory_and_keeps_the_descriptor_gains_nothing(
    container: Container, guest: Program
) -> None:
    descriptors = []
    for number in range((LIMIT - CONTEXT) // BLOCK):
        at = guest("cuMemAlloc_v2", OUT, BLOCK).value
        descriptors.append(dma_buf(guest, at + 2 * MIB, 2 * MIB))  # a part of it keeps it whole
        assert guest("cuMemFree_v2", at).result == SUCCESS
        assert container.charged() == guest.card_used() == CONTEXT + BLOCK * (number + 1)
    assert guest("cuMemAlloc_v2", OUT, BLOCK).result == OUT_OF_MEMORY
    assert guest("close", descriptors.pop()).result == 0
    assert guest("cuMemAlloc_v2", OUT, BLOCK).result == SUCCESS, "what nothing holds is free"
    assert container.charged() == guest.card_used()


def test_each_descriptor_of_an_allocation_holds_it_alone(container: Container, guest: Program) -> None:
    at = guest("cuMemAlloc_v2", OUT, BLOCK).value
    made = [dma_buf(guest, at + offset, 2 * MIB) for offset in (0, 0, 4 * MIB)]
    made.append(guest("dup", made[0]).result)
    past = guest("cuMemGetHandleForAddressRange", OUT, at + BLOCK - MIB, 2 * MIB, DMA_BUF, 0)
    assert past.result != SUCCESS
    assert guest("cuMemFree_v2", at).result == SUCCESS
    for one in made:
        assert container.charged() == guest.card_used() == CONTEXT + BLOCK
        assert guest("close", one).result == 0
    assert guest("cuMemGetInfo_v2", OUT, OUT).result == SUCCESS
    assert container.charged() == guest.card_used() == CONTEXT


def test_a_program_that_registers_memory_and_closes_its_descriptors_leaves_nothing(
    container: Container, guest: Program
) -> None:
    """As UCX and NCCL do with network cards: many times for one buffer, and for many buffers."""
    kept = guest("cuMemAlloc_v2", OUT, BLOCK).value
    assert guest("close", dma_buf(guest, kept)).result == SUCCESS
    before = len(open_files(guest.process.pid))
    for _ in range(600):
        assert guest("close", dma_buf(guest, kept)).result == SUCCESS
    for _ in range(50):
        at = guest("cuMemAlloc_v2", OUT, LIMIT - CONTEXT - BLOCK).value
        descriptor = dma_buf(guest, at, 2 * MIB)
        assert container.charged() == guest.card_used() == LIMIT
        assert guest("close", descriptor).result == 0
        assert guest("cuMemFree_v2", at).result == SUCCESS
        assert container.charged() == guest.card_used() == CONTEXT + BLOCK
    assert len(open_files(guest.process.pid)) <= before
    assert guest("cuMemFree_v2", kept).result == SUCCESS
    assert container.charged() == guest.card_used() == CONTEXT


def test_what_the_last_holder_elsewhere_closes_is_given_back_by_itself(
    container: Container, guest: Program
) -> None:
    """Its maker makes no call meanwhile."""
    at = guest("cuMemAlloc_v2", OUT, BLOCK).value
    descriptor = dma_buf(guest, at)
    copy = descriptor_of(guest.process.pid, descriptor)
    assert guest("close", descriptor).result == 0
    assert guest("cuMemFree_v2", at).result == SUCCESS
    assert container.charged() == guest.card_used() == CONTEXT + BLOCK
    os.close(copy)
    assert soon(lambda: container.charged() == CONTEXT)


def test_a_child_of_fork_holds_what_its_parent_has_freed(container: Container, guest: Program) -> None:
    other = container.program().start()
    at = guest("cuMemAlloc_v2", OUT, BLOCK).value
    assert dma_buf(guest, at)
    assert guest.tell(".fork") == "child"  # the parent waits for it with its own descriptor open
    assert guest("cuMemFree_v2", at).result != SUCCESS
    assert other("cuMemGetInfo_v2", OUT, OUT).result == SUCCESS
    assert container.charged() == other.card_used() == 2 * CONTEXT + BLOCK


@pytest.mark.parametrize("end", ["cuCtxDestroy_v2", "cuDevicePrimaryCtxReset_v2"])
def test_memory_that_goes_with_its_context_is_paid_for_while_a_descriptor_is_open(
    container: Container, guest: Program, end: str
) -> None:
    context = guest("cuCtxCreate_v2", OUT, 0, 0).value if end.startswith("cuCtx") else 0
    at = guest("cuMemAlloc_v2", OUT, BLOCK).value
    descriptor = dma_buf(guest, at)
    assert guest(end, context).result == SUCCESS
    guest.context()
    assert container.charged() == guest.card_used() == CONTEXT + BLOCK
    assert guest("close", descriptor).result == 0
    assert soon(lambda: container.charged() == CONTEXT)
    again = guest("cuMemAlloc_v2", OUT, LIMIT - CONTEXT)
    assert again.result == SUCCESS
    assert container.charged() == guest.card_used() == LIMIT


def test_a_free_that_fails_leaves_the_charge(container: Container, guest: Program) -> None:
    at = guest("cuMemAlloc_v2", OUT, BLOCK).value
    assert guest("close", dma_buf(guest, at)).result == 0
    assert guest("cuCtxSetCurrent", 0).result == SUCCESS
    assert guest("cuMemFree_v2", at).result != SUCCESS
    guest.context()
    assert not soon(lambda: container.charged() < CONTEXT + BLOCK)
    assert guest("cuMemFree_v2", at).result == SUCCESS
    assert container.charged() == guest.card_used() == CONTEXT


def test_every_block_that_a_range_touches_is_paid_for(container: Container, guest: Program) -> None:
    sizes = 6 * MIB, 20 * MIB, 2 * MIB, 30 * MIB
    at, handles = mapped(guest, *sizes)
    descriptor = dma_buf(guest, at + 8 * MIB, 20 * MIB)
    assert guest("cuMemUnmap", at, sum(sizes)).result == SUCCESS
    for handle in handles:
        assert guest("cuMemRelease", handle).result == SUCCESS
    assert container.charged() == guest.card_used() == CONTEXT + 22 * MIB
    assert guest("close", descriptor).result == 0
    assert guest("cuMemGetInfo_v2", OUT, OUT).result == SUCCESS
    assert container.charged() == guest.card_used() == CONTEXT


def test_a_block_of_another_process_is_its_makers_while_a_dma_buf_of_it_is_open(
    container: Container, guest: Program
) -> None:
    other = container.program().start()
    made = guest("cuMemCreate", OUT, BLOCK, block_props(), 0).value
    exported = guest("cuMemExportToShareableHandle", OUT, made, POSIX, 0).value & 0xFFFFFFFF
    process = other("pidfd_open", guest.process.pid, 0).result
    received = other("pidfd_getfd", process, exported, 0).result
    imported = other("cuMemImportFromShareableHandle", OUT, received, POSIX).value
    at = other("cuMemAddressReserve", OUT, BLOCK, 0, 0, 0).value
    assert other("cuMemMap", at, BLOCK, 0, imported, 0).result == SUCCESS
    descriptor = dma_buf(other, at)
    assert other("cuMemUnmap", at, BLOCK).result == SUCCESS
    assert other("cuMemRelease", imported).result == SUCCESS
    assert other("close", received).result == 0
    assert guest("close", exported).result == 0
    assert guest("cuMemRelease", made).result == SUCCESS
    assert not soon(lambda: container.charged() < 2 * CONTEXT + BLOCK)
    assert guest.card_used() == 2 * CONTEXT + BLOCK
    assert other("close", descriptor).result == 0
    assert soon(lambda: container.charged() == 2 * CONTEXT)


def test_without_a_descriptor_to_watch_by_none_is_made_and_nothing_is_kept(tmp_path: Path) -> None:
    with Container(tmp_path, LIMIT) as container:
        guest = container.program().start()
        at = guest("cuMemAlloc_v2", OUT, BLOCK).value
        soft, hard = resource.prlimit(guest.process.pid, resource.RLIMIT_NOFILE)
        numbers = [int(one.name) for one in Path(f"/proc/{guest.process.pid}/fd").iterdir()]
        open_now = max(number for number in numbers if number < 500)
        resource.prlimit(guest.process.pid, resource.RLIMIT_NOFILE, (open_now + 4, hard))
        made = guest("cuMemGetHandleForAddressRange", OUT, at, BLOCK, DMA_BUF, 0)
        assert made.result == OPERATING_SYSTEM
        resource.prlimit(guest.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert guest("close", dma_buf(guest, at)).result == 0
        assert guest("cuMemFree_v2", at).result == SUCCESS
        assert guest.card_used() == CONTEXT
        host_looks(container, guest)
        assert soon(lambda: container.charged() == CONTEXT)


def test_who_closes_the_librarys_descriptors_pays_until_the_host_has_looked(
    container: Container, guest: Program
) -> None:
    at = guest("cuMemAlloc_v2", OUT, BLOCK).value
    descriptor = dma_buf(guest, at)
    low = guest("dup2", descriptor, 90).result
    for number in range(500, 520):
        guest("close", number)
    assert guest("close", descriptor).result == 0
    assert guest("cuMemFree_v2", at).result == SUCCESS
    assert not soon(lambda: container.charged() < CONTEXT + BLOCK)
    assert guest("close", low).result == 0
    assert guest.card_used() == CONTEXT
    host_looks(container, guest)
    assert soon(lambda: container.charged() == CONTEXT)


@pytest.mark.parametrize("bad", ["pointer", "size", "type"])
def test_what_the_driver_refuses_has_its_answer_and_leaves_no_trace(
    container: Container, guest: Program, bad: str
) -> None:
    at = guest("cuMemAlloc_v2", OUT, BLOCK).value
    arguments = [at if bad != "pointer" else 1 << 46, BLOCK if bad != "size" else 2 * LIMIT]
    arguments.append(DMA_BUF if bad != "type" else 99)
    by_library, by_driver = (
        guest(f"{door}cuMemGetHandleForAddressRange", OUT, *arguments, 0).result for door in ("", "real:")
    )
    assert by_library == by_driver != SUCCESS
    assert container.charged() == CONTEXT + BLOCK
    assert guest("cuMemFree_v2", at).result == SUCCESS
    assert container.charged() == guest.card_used() == CONTEXT


RACE = """
import ctypes, os, random, sys, threading
cuda = ctypes.CDLL("libcuda.so.1")
one = ctypes.c_ulonglong
context = one()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
slots = [0] * 4
kept = []
wrong = set()
lock = threading.Lock()

def work(seed):
    cuda.cuCtxSetCurrent(context)
    chance, at, fd = random.Random(seed), one(), ctypes.c_int()
    for _ in range(400):
        slot = chance.randrange(len(slots))
        what = chance.random()
        if what < 0.4:
            made = cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(chance.choice([2, 4, 8]) << 20)) == 0
            with lock:
                here, slots[slot] = slots[slot], at.value if made else 0
            if here:
                cuda.cuMemFree_v2(one(here))
        elif what < 0.8 and slots[slot]:
            result = cuda.cuMemGetHandleForAddressRange(ctypes.byref(fd), one(slots[slot]), ctypes.c_size_t(4096), 1, one())
            if result == 0 and chance.random() < 0.3:
                kept.append(fd.value)
            elif result == 0:
                os.close(fd.value)
            elif result not in (1, 2, 304):
                wrong.add(result)
        else:
            cuda.cuMemGetInfo_v2(ctypes.byref(at), ctypes.byref(one()))

threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
cuda.cuCtxSetCurrent(context)
for step in ("kept", "freed", "closed"):
    if step == "freed":
        for here in slots:
            cuda.cuMemFree_v2(one(here))
    if step == "closed":
        for fd in kept:
            os.close(fd)
    cuda.cuMemGetInfo_v2(ctypes.byref(one()), ctypes.byref(one()))
    print(step, sorted(wrong), len(kept), flush=True)
    sys.stdin.readline()
"""


def test_threads_that_race_frees_and_dma_bufs_pay_for_what_the_card_keeps(
    container: Container, guest: Program
) -> None:
    """No program may free what it makes a dma-buf of at that moment; one that does must not gain by it."""
    racer = subprocess.Popen(
        [sys.executable, "-c", RACE],
        env=container.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert racer.stdin
    assert racer.stdout
    with racer:
        for step in ("kept", "freed", "closed"):
            said = racer.stdout.readline().split()
            assert said[:2] == [step, "[]"]
            assert container.charged() >= guest.card_used() >= 2 * CONTEXT
            if step != "closed":
                racer.stdin.write("\n")
                racer.stdin.flush()
        assert soon(lambda: container.charged() == 2 * CONTEXT), (container.charged(), guest.card_used())
        assert guest.card_used() == 2 * CONTEXT
