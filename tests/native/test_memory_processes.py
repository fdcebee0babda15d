"""Several processes on one limit: together never past it, whenever any of them dies, forks or is born again."""

from __future__ import annotations

import fcntl
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

import pytest

from gpu_manager.adapters.control_pages import tenant_files
from tests.native.driven import (
    CONTEXT,
    GRANULE,
    MIB,
    OUT,
    OUT_OF_MEMORY,
    SUCCESS,
    Container,
    program,
)
from tests.native.export_player import descriptor_of
from tests.native.structures import block_props
from vcuda.page.usage import MAX_SLOTS

LIMIT = 1024 * MIB
HAMMERING = 2  # threads of a process
EIGHT_STREAMS = 4 * MIB  # of a context, beside its first
LARGEST = 128 * MIB  # more than any one call of prog_hammer asks for


class Crowd:
    """Hammering processes in a container, and one that watches it."""

    def __init__(self, container: Container, limit: int) -> None:
        self._container, self._seed = container, 0
        self.watch = self._start("prog_watch", container.usage_file, limit)
        assert self.watch.stdout
        assert self.watch.stdout.readline() == "watching\n"
        self.hammers: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self.hammers, self.watch):
            process.kill()
            process.communicate()

    def _start(self, name: str, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(program(name, self._container.sanitize)), *map(str, arguments)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=self._container.env(),
        )  # fmt: skip

    def hammer(self, threads: int = HAMMERING, *steps: int) -> subprocess.Popen[str]:
        """One more."""
        self._seed += 1
        self.hammers.append(self._start("prog_hammer", self._seed, threads, *steps))
        return self.hammers[-1]

    def kill(self, which: int) -> None:
        """At whatever instruction it is. It must have been hammering until now: 3 is its own complaint."""
        victim = self.hammers.pop(which)
        victim.kill()
        said, _ = victim.communicate()
        assert victim.returncode == -signal.SIGKILL, f"ended with {victim.returncode}: {said}"

    def now(self) -> tuple[int, int, int]:
        """Bytes of the account, of the live slots, and what the card has given."""
        assert self.watch.stdin
        assert self.watch.stdout
        self.watch.stdin.write("now\n")
        self.watch.stdin.flush()
        account, slots, card = map(int, self.watch.stdout.readline().split())
        return account, slots, card

    def end(self) -> tuple[int, int, int]:
        """Samples taken, and the most by which account and card were past the limit."""
        while self.hammers:
            self.kill(0)
        out, _ = self.watch.communicate(timeout=30)
        samples, account, _, card = map(int, out.split()[-4:])
        return samples, account, card


@pytest.mark.parametrize("count", [1, 4, 16])
def test_processes_killed_at_any_instant_never_hold_more_than_the_limit(
    container: Container, count: int
) -> None:
    with Crowd(container, LIMIT) as crowd:
        for _ in range(count):
            crowd.hammer()
        chance = random.Random(count)
        for _ in range(40):
            time.sleep(chance.random() * 0.01)  # the instant of a kill is what varies here
            crowd.kill(chance.randrange(count))
            crowd.hammer()
        samples, account, card = crowd.end()
        assert samples > 100
        assert card == 0
        assert 0 < container.usage.cards[0].peak <= LIMIT, "a grant took the account past the limit"
        # For an instant a repair may count what threads have announced and are about to be refused (accounts.c).
        assert account <= count * HAMMERING * LARGEST


def test_after_kills_the_account_is_true_again_soon_after_it_is_asked(container: Container) -> None:
    with Crowd(container, LIMIT) as crowd:
        guest = container.program().start()
        for _ in range(6):
            assert crowd.hammer().stdout.readline() == "ready\n"  # type: ignore[union-attr]
        for _ in range(6):
            crowd.kill(0)
        deadline = time.monotonic() + 5
        while crowd.now()[:2] != (CONTEXT, CONTEXT):
            assert time.monotonic() < deadline, f"{crowd.now()} 5 s after the last kill"
            assert guest("cuMemGetInfo_v2", OUT, OUT).result == SUCCESS
        assert crowd.now() == (CONTEXT, CONTEXT, CONTEXT)
        assert guest("cuMemGetInfo_v2", OUT, OUT).out == (LIMIT - CONTEXT, LIMIT)


def test_many_threads_that_take_and_give_back_everything_leave_a_true_account(container: Container) -> None:
    container.change(memory_limit=400 * MIB)
    with Crowd(container, 400 * MIB) as crowd:
        for _ in range(3):
            hammer = crowd.hammer(8, 3000)
            assert hammer.stdout
            assert hammer.stdout.readline() == "ready\n"
            granted, refused = map(int, hammer.stdout.readline().split())
            assert granted > 1000
            assert refused > 1000
            account, *others = crowd.now()
            assert others == [account, account]
            assert CONTEXT <= account <= CONTEXT + EIGHT_STREAMS, "as many as were there at once"
            crowd.kill(0)
        _, account, card = crowd.end()
        assert card == 0
        assert account <= 8 * LARGEST  # for an instant, as above: the repair after a kill


def test_what_a_dead_process_held_is_there_for_the_next(container: Container) -> None:
    first = container.program().start()
    first("cuMemAlloc_v2", OUT, LIMIT - CONTEXT)
    first.kill()
    second = container.program().start()
    assert second("cuMemAlloc_v2", OUT, LIMIT - CONTEXT).result == SUCCESS


def test_what_a_neighbour_process_holds_is_missing(container: Container) -> None:
    first, second = container.program().start(), container.program().start()
    at = first("cuMemAlloc_v2", OUT, LIMIT - 2 * CONTEXT - GRANULE).value
    assert second("cuMemGetInfo_v2", OUT, OUT).out == (GRANULE, LIMIT)
    assert second("cuMemAlloc_v2", OUT, GRANULE + 1).result == OUT_OF_MEMORY
    assert second("cuMemAlloc_v2", OUT, GRANULE).result == SUCCESS
    first("cuMemFree_v2", at)
    assert second("cuMemAlloc_v2", OUT, LIMIT - 2 * CONTEXT - GRANULE).result == SUCCESS


def test_a_block_imported_from_another_process_is_charged_to_the_one_that_made_it(
    container: Container,
) -> None:
    first, second = container.program().start(), container.program().start()
    made = first("cuMemCreate", OUT, 100 * MIB, block_props(), 0).value
    descriptor = first("cuMemExportToShareableHandle", OUT, made, 1, 0).value & 0xFFFFFFFF
    copy = descriptor_of(first.process.pid, descriptor)
    try:
        assert first("close", descriptor).result == 0
        process = second("pidfd_open", os.getpid(), 0).result
        own = second("pidfd_getfd", process, copy, 0).result
        imported = second("cuMemImportFromShareableHandle", OUT, own, 1).value
        assert second("close", own).result == 0
        assert container.charged() == first.card_used() == 2 * CONTEXT + 100 * MIB
        assert first("cuMemRelease", made).result == SUCCESS
        assert container.charged() == first.card_used() == 2 * CONTEXT + 100 * MIB
    finally:
        os.close(copy)
    assert container.charged() == first.card_used() == 2 * CONTEXT + 100 * MIB, "the import holds it"
    assert second("cuMemRelease", imported).result == SUCCESS
    assert first("cuMemGetInfo_v2", OUT, OUT).result == SUCCESS
    assert container.charged() == first.card_used() == 2 * CONTEXT


def test_who_exports_releases_and_keeps_the_descriptor_gains_nothing(container: Container) -> None:
    """Its descriptor holds the memory without a handle."""
    guest, other = container.program().start(), container.program().start()
    descriptors = []
    for at in range((LIMIT - 2 * CONTEXT) // (100 * MIB)):
        made = guest("cuMemCreate", OUT, 100 * MIB, block_props(), 0).value
        descriptors.append(guest("cuMemExportToShareableHandle", OUT, made, 1, 0).value & 0xFFFFFFFF)
        assert guest("cuMemRelease", made).result == SUCCESS
        assert container.charged() == guest.card_used() == 2 * CONTEXT + 100 * MIB * (at + 1)
    assert guest("cuMemCreate", OUT, 100 * MIB, block_props(), 0).result == OUT_OF_MEMORY
    assert guest("cuMemImportFromShareableHandle", OUT, descriptors[0], 1).result == SUCCESS
    assert container.charged() == guest.card_used()
    assert guest("close", descriptors[1]).result == 0
    assert guest("cuMemCreate", OUT, 100 * MIB, block_props(), 0).result == SUCCESS, (
        "what nothing holds is free"
    )
    assert container.charged() == guest.card_used()
    guest.kill()
    assert other("cuMemAlloc_v2", OUT, LIMIT - CONTEXT - CONTEXT).result == SUCCESS


def test_what_the_last_holder_lets_go_of_is_given_back_by_itself(container: Container) -> None:
    """Its maker makes no call meanwhile."""
    guest = container.program().start()
    made = guest("cuMemCreate", OUT, 100 * MIB, block_props(), 0).value
    descriptor = guest("cuMemExportToShareableHandle", OUT, made, 1, 0).value & 0xFFFFFFFF
    copy = descriptor_of(guest.process.pid, descriptor)
    assert guest("cuMemRelease", made).result == SUCCESS
    assert guest("close", descriptor).result == 0
    assert container.charged() == CONTEXT + 100 * MIB
    os.close(copy)
    began = time.monotonic()
    while container.charged() > CONTEXT:
        assert time.monotonic() - began < 2


def test_an_exported_block_that_is_unmapped_last_is_paid_for_while_its_descriptor_is_open(
    container: Container,
) -> None:
    guest = container.program().start()
    made = guest("cuMemCreate", OUT, 100 * MIB, block_props(), 0).value
    at = guest("cuMemAddressReserve", OUT, 100 * MIB, 0, 0, 0).value
    assert guest("cuMemMap", at, 100 * MIB, 0, made, 0).result == SUCCESS
    descriptor = guest("cuMemExportToShareableHandle", OUT, made, 1, 0).value & 0xFFFFFFFF
    assert guest("cuMemRelease", made).result == SUCCESS
    assert guest("cuMemUnmap", at, 100 * MIB).result == SUCCESS
    assert container.charged() == guest.card_used() == CONTEXT + 100 * MIB
    assert guest("close", descriptor).result == 0
    assert guest("cuMemGetInfo_v2", OUT, OUT).result == SUCCESS
    assert container.charged() == guest.card_used() == CONTEXT


def test_a_block_that_could_not_be_exported_is_given_back_as_any(container: Container) -> None:
    guest = container.program().start()
    made = guest("cuMemCreate", OUT, 100 * MIB, block_props(), 0).value
    assert guest("cuMemExportToShareableHandle", OUT, made, 8, 0).result != SUCCESS
    assert guest("cuMemRelease", made).result == SUCCESS
    assert container.charged() == guest.card_used() == CONTEXT


def test_a_child_of_fork_neither_counts_nor_harms_what_its_parent_holds(container: Container) -> None:
    guest = container.program().start()
    at = guest("cuMemAlloc_v2", OUT, 100 * MIB).value
    assert guest.tell(".fork") == "child"
    assert guest("cuMemAlloc_v2", OUT, MIB).result == guest("real:cuMemAlloc_v2", OUT, MIB).result != SUCCESS
    assert guest("cuMemFree_v2", at).result != SUCCESS
    assert guest("cuInit", 0).result != SUCCESS
    assert guest.tell(".exit") == "bye"
    assert guest.process.stdout
    assert guest.process.stdout.readline() == "0\n"
    assert container.charged() == guest.card_used() == CONTEXT + 100 * MIB
    assert guest("cuMemFree_v2", at).result == SUCCESS
    assert container.charged() == CONTEXT


@pytest.mark.parametrize("ends_by", [".exit", ".exec", ".closefds"])
def test_what_a_killed_process_held_stays_charged_until_its_last_child_lets_go_of_the_driver(
    container: Container, ends_by: str
) -> None:
    """As the card keeps it: the child has the driver's descriptors, until it ends, executes or closes them."""
    guest = container.program().start()
    assert guest("cuMemAlloc_v2", OUT, 600 * MIB).result == SUCCESS
    assert guest.tell(".fork") == "child"
    assert guest("cuInit", 0).result != SUCCESS
    guest.process.kill()
    guest.process.wait()
    other = container.program().start()
    assert other("cuMemAlloc_v2", OUT, 600 * MIB).result == OUT_OF_MEMORY
    assert container.charged() == other.card_used() == 2 * CONTEXT + 600 * MIB
    child = os.pidfd_open(int(guest.tell(".pid")))
    assert guest.tell(ends_by)
    if ends_by == ".exit":
        select.select([child], [], [])
    else:
        assert guest.tell(".pid")  # answered once it is done
    os.close(child)
    assert other("cuMemAlloc_v2", OUT, 600 * MIB).result == SUCCESS
    assert container.charged() == other.card_used() == CONTEXT + 600 * MIB
    if ends_by != ".exit":
        guest.tell(".exit")


def test_a_child_forked_before_cuda_has_an_account_of_its_own(container: Container) -> None:
    guest = container.program()
    assert guest.tell(".fork") == "child"
    guest.start()
    guest("cuMemAlloc_v2", OUT, 100 * MIB)
    assert container.charged() == CONTEXT + 100 * MIB
    assert guest.tell(".exit") == "bye"
    assert guest.process.stdout
    assert guest.process.stdout.readline() == "0\n"
    guest.start()
    assert guest("cuMemAlloc_v2", OUT, LIMIT - CONTEXT).result == SUCCESS


def test_exec_ends_the_old_programs_account(container: Container) -> None:
    guest = container.program().start()
    guest("cuMemAlloc_v2", OUT, LIMIT - CONTEXT)
    assert guest.tell(".exec") == "exec"
    guest.start()
    assert guest("cuMemAlloc_v2", OUT, LIMIT - CONTEXT).result == SUCCESS


def test_closing_descriptors_one_does_not_know_loses_no_account(container: Container) -> None:
    guest = container.program().start()
    guest("cuMemAlloc_v2", OUT, 600 * MIB)
    assert guest.tell(".closefds") == "closed"
    other = container.program().start()
    assert other("cuMemAlloc_v2", OUT, 600 * MIB).result == OUT_OF_MEMORY
    assert container.charged() == 2 * CONTEXT + 600 * MIB


def held(page: int) -> set[int]:
    """The first slots of a usage page whose processes hold them."""
    return set(tenant_files.held(page, range(8)))


def test_a_descriptor_that_the_program_closed_is_opened_again_at_the_next_change_of_limits(
    container: Container,
) -> None:
    """By its lock the host tells whose memory is accounted for: what it misses it would add a second time."""
    guest = container.program().start()
    with container.usage_file.open("rb") as page:
        assert held(page.fileno()) == {0}
        assert guest.tell(".closefds") == "closed"
        assert held(page.fileno()) == set()
        container.change(host_adjust=GRANULE)
        assert guest("cuMemAlloc_v2", OUT, GRANULE).result == SUCCESS
        assert held(page.fileno()) == {0}
        other = container.program().start()
        assert held(page.fileno()) == {0, 1}
        guest.kill()
        assert other("cuMemAlloc_v2", OUT, LIMIT - CONTEXT - GRANULE).result == SUCCESS


def test_a_process_in_a_pid_namespace_of_its_own_is_counted_and_reaped(container: Container) -> None:
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody make PID namespaces")
    binary = program("prog_call")
    process = subprocess.Popen(
        [*inside, str(binary)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=container.env()
    )
    guest = container.program().start()
    assert process.stdin
    assert process.stdout
    for line in ("cuInit 0", "cuDevicePrimaryCtxRetain & 0"):
        process.stdin.write(line + "\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith("0")
    assert container.charged() == 2 * CONTEXT
    assert guest("cuMemAlloc_v2", OUT, LIMIT - CONTEXT).result == OUT_OF_MEMORY
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 5
    while guest("cuMemAlloc_v2", OUT, LIMIT - CONTEXT).result != SUCCESS:
        assert time.monotonic() < deadline


REUSE = """
import subprocess, sys
def start():
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.argv[1]], stdin=pipe, stdout=pipe, text=True)
def tell(process, line):
    process.stdin.write(line + "\\n")
    process.stdin.flush()
    return process.stdout.readline().split()
def filled(process):
    context = tell(process, "cuInit 0") and tell(process, "cuDevicePrimaryCtxRetain & 0")[1]
    tell(process, "cuCtxSetCurrent " + context)
    return tell(process, "cuMemAlloc_v2 & " + sys.argv[2])[0]
first = start()
print(filled(first))
first.kill()
first.wait()
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write(str(first.pid - 1))
second = start()
print(second.pid == first.pid, filled(second), flush=True)
sys.stdin.read()
"""


def test_a_process_that_was_given_a_dead_ones_number_inherits_nothing_of_it(container: Container) -> None:
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    may = "echo 5 > /proc/sys/kernel/ns_last_pid"
    if subprocess.run([*inside, "sh", "-c", may], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody choose the next PID")
    room = str(LIMIT - CONTEXT)
    process = subprocess.Popen(
        [*inside, sys.executable, "-c", REUSE, str(program("prog_call")), room], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, env=container.env(),
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.readline() == "0\n"
    assert process.stdout.readline() == "True 0\n", "the whole limit, for the second of that number too"
    usage = container.usage
    assert usage.cards[0].charged == LIMIT
    assert [slot.charged[0] for slot in usage.slots] == [LIMIT]
    process.communicate(timeout=30)


def test_a_process_beyond_the_last_slot_is_refused_and_named(container: Container) -> None:
    """Every slot's byte is locked by somebody else: this test, through a description of its own."""
    fd = os.open(container.usage_file, os.O_RDWR)
    try:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, MAX_SLOTS, 0)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
        guest = container.program()
        not_ready = 802
        assert guest("cuInit", 0).result == not_ready
        assert guest("cuMemAlloc_v2", OUT, MIB).result == not_ready
        assert guest("cuDevicePrimaryCtxRetain", OUT, 0).result == not_ready
        assert guest.process.stdin
        guest.process.stdin.close()
        assert guest.process.stderr
        assert "no free slot" in guest.process.stderr.read()
        assert container.usage.slots_exhausted >= 1
    finally:
        os.close(fd)
