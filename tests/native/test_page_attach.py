"""A process and its container's pages: whole, broken in every way, changed while it runs, outlived."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import random
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.conftest import Guest, limits, usage_of
from vcuda.page.layout import PageError, crc32c
from vcuda.page.limits import (
    COPY_SIZE,
    LIMITS_SIZE,
    CardLimits,
    Limits,
    build_limits,
    read_limits,
    rewrite_limits,
)
from vcuda.page.usage import MAX_SLOTS, SLOT_SIZE, USAGE_HEAD_SIZE, USAGE_SIZE, build_usage

ATTACHED, UNLIMITED, REFUSED = "1", "2", "3"
INFLIGHT_OFFSET, CHARGED_OFFSET = 64, 128  # in a slot
Start = Callable[..., Guest]


def write(path: Path, offset: int, data: bytes) -> None:
    """Bytes put into a file that processes have mapped."""
    with path.open("r+b", buffering=0) as file:
        file.seek(offset)
        file.write(data)


def lock_is_free(root: Path, index: int) -> bool:
    with (root / "etc/vcuda/usage").open("r+b") as file:
        request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, index, 1, 0)
        return struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_OFD_GETLK, request))[0] == fcntl.F_UNLCK


def until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)
    return True


def test_a_process_takes_a_slot_under_its_own_name_and_a_lock(guests: Start, root: Path) -> None:
    guest = guests()
    assert guest("attach") == ATTACHED
    assert guest("limits") == f"2 4096 {30 * 256} 0 0 1"
    (slot,) = usage_of(root).slots
    assert slot.index == 0
    assert slot.pid == guest.process.pid
    assert slot.pid_namespace == Path("/proc/self/ns/pid").stat().st_ino
    stat = Path(f"/proc/{slot.pid}/stat").read_text().rsplit(")", 1)[1].split()
    assert slot.start_time == int(stat[19])
    assert slot.nonce
    assert usage_of(root).build_id != bytes(16)
    assert usage_of(root).generation_seen == 2
    assert not lock_is_free(root, 0)
    assert lock_is_free(root, 1)


def test_before_attaching_nothing_is_limited_and_nothing_allowed(guests: Start) -> None:
    guest = guests()
    assert guest("limits") == "none"
    assert guest("charge 0 1 4096") == "0"
    assert guest("slot") == "-1"


BROKEN = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "too long": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * (path.stat().st_size // 256)),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


def other_major(path: Path) -> None:
    for offset in (8, COPY_SIZE + 8):
        write(path, offset, b"\x02\x00")


@pytest.mark.parametrize("how", [*BROKEN.values(), other_major], ids=[*BROKEN, "another version"])
def test_a_broken_limits_page_refuses_cuda_and_says_which_file(
    guests: Start, root: Path, how: Callable[[Path], None]
) -> None:
    path = root / "etc/vcuda/limits"
    how(path)
    guest = guests()
    assert guest("attach") == REFUSED
    assert guest("attach") == REFUSED
    said = guest.end()
    assert said.count("\n") == 1
    assert said.startswith(f"vcuda: CUDA is refused in this container: {path} ")
    assert "restart the pod" in said


@pytest.mark.parametrize("fail_open", [False, True])
@pytest.mark.parametrize("how", [*BROKEN.values(), other_major], ids=[*BROKEN, "another version"])
def test_a_broken_usage_page_follows_the_policy(
    guests: Start, root: Path, how: Callable[[Path], None], fail_open: bool
) -> None:
    (root / "etc/vcuda/limits").write_bytes(build_limits(limits(fail_open=fail_open)))
    path = root / "etc/vcuda/usage"
    how(path)
    guest = guests()
    assert guest("attach") == (UNLIMITED if fail_open else REFUSED)
    said = guest.end()
    what = "limits are not enforced" if fail_open else "CUDA is refused"
    assert said.startswith(f"vcuda: {what} in this container: {path} ")
    assert said.count("\n") == 1


def test_a_usage_page_that_may_not_be_written_refuses_cuda(guests: Start, root: Path) -> None:
    (root / "etc/vcuda/usage").chmod(0o444)
    guest = guests(user=65534) if os.geteuid() == 0 else guests()
    assert guest("attach") == REFUSED
    assert "usage cannot be opened: Permission denied" in guest.end()


def test_a_limits_page_that_may_not_be_read_refuses_cuda(guests: Start, root: Path) -> None:
    (root / "etc/vcuda/limits").chmod(0o000)
    guest = guests() if os.geteuid() != 0 else guests(user=65534)
    assert guest("attach") == REFUSED
    said = guest.end()
    assert said.count("\n") == 1
    assert "limits cannot be opened: Permission denied" in said


def test_pages_on_a_file_system_that_is_read_only_refuse_cuda(guests: Start, root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a file system read-only")
    inside = [
        "unshare",
        "-m",
        "sh",
        "-c",
        'mount -o bind,ro "$VCUDA_ROOT/etc" "$VCUDA_ROOT/etc" && exec "$0"',
    ]
    if subprocess.run([*inside, "true"], env={**os.environ, "VCUDA_ROOT": str(root)}, check=False).returncode:
        pytest.skip("may not make mounts here")
    guest = guests(before=inside)
    assert guest("attach") == REFUSED
    assert "usage cannot be opened: Read-only file system" in guest.end()


def test_any_user_can_attach(guests: Start) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    assert guests(user=65534)("attach") == ATTACHED


def test_one_torn_copy_is_no_reason_to_refuse(guests: Start, root: Path) -> None:
    write(root / "etc/vcuda/limits", COPY_SIZE + 100, b"\xff")
    guest = guests()
    assert guest("attach") == ATTACHED
    assert guest("limits").startswith("1 4096 ")


def test_a_change_of_limits_reaches_a_running_process(guests: Start, root: Path) -> None:
    guest = guests()
    guest("attach")
    path = root / "etc/vcuda/limits"
    for generation, memory in enumerate((8192, 0, 1 << 40, 4096), start=3):
        change = rewrite_limits(path.read_bytes(), limits(memory))
        write(path, change.offset, change.data)
        assert until(lambda g=generation, m=memory: guest("limits").startswith(f"{g} {m} "))
        assert usage_of(root).generation_seen == generation


def test_a_writer_killed_at_any_byte_shows_a_running_process_old_or_new(guests: Start, root: Path) -> None:
    guest = guests()
    guest("attach")
    path = root / "etc/vcuda/limits"
    old, new = "2 4096 7680 0 0 1", "3 12345678 7680 3 0 1"
    image = path.read_bytes()
    change = rewrite_limits(image, dataclasses.replace(limits(12345678), fail_open=True, elastic=True))
    assert guest("limits") == old
    seen = set()
    for length in range(len(change.data)):
        write(
            path,
            change.offset,
            change.data[:length] + image[change.offset + length :][: len(change.data) - length],
        )
        seen.add(guest("limits"))
    assert old in seen
    assert seen <= {old, new}
    write(path, change.offset, change.data)
    assert until(lambda: guest("limits") == new)
    assert usage_of(root).limits_invalid == 0


def test_a_process_started_beside_a_torn_copy_sees_the_old_limits(guests: Start, root: Path) -> None:
    path = root / "etc/vcuda/limits"
    image = path.read_bytes()
    change = rewrite_limits(image, limits(12345678))
    for length in (1, 12, 17, 40, 129, 145):
        path.write_bytes(image)
        write(path, change.offset, change.data[:length])
        guest = guests()
        assert guest("attach") == ATTACHED
        assert guest("limits").startswith("2 4096 ")
        guest.kill()


def test_when_both_copies_are_destroyed_the_last_limits_stay_in_force(guests: Start, root: Path) -> None:
    guest = guests()
    guest("attach")
    path = root / "etc/vcuda/limits"
    write(path, 0, b"\xee" * LIMITS_SIZE)
    assert until(lambda: guest("limits") == "2 4096 7680 0 0 1" and usage_of(root).limits_invalid > 0)
    rewrite = rewrite_limits(path.read_bytes(), limits(777), after=2)
    write(path, rewrite.offset, rewrite.data)
    assert until(lambda: guest("limits").startswith("3 777 "))
    write(path, 0, build_limits(limits(888), after=1000))
    assert until(lambda: guest("limits").startswith("1002 888 "))


def test_a_killed_process_leaves_a_slot_that_the_next_one_takes(guests: Start, root: Path) -> None:
    first = guests()
    first("attach")
    first("charge 0 4000 4096")
    nonce = usage_of(root).slots[0].nonce
    first.kill()
    assert lock_is_free(root, 0)
    assert usage_of(root).cards[0].charged == 4000
    second = guests()
    assert second("attach") == ATTACHED
    assert second("charge 0 4000 4096") == "1"
    usage = usage_of(root)
    assert usage.cards[0].charged == 4000
    assert sum(slot.charged[0] for slot in usage.slots) == 4000
    assert nonce not in {slot.nonce for slot in usage.slots if slot.charged[0]}
    assert usage.slots_reaped == 1


def test_reaping_spares_the_living(guests: Start, root: Path) -> None:
    living, dead, other = guests(), guests(), guests()
    for guest in (living, dead, other):
        guest("attach")
        guest("charge 0 100 4096")
    dead.kill()
    assert other("reap") == "1"
    assert [slot.index for slot in usage_of(root).slots] == [0, 2]
    assert usage_of(root).cards[0].charged == 200
    assert other("reap") == "0"


def test_a_process_that_closed_our_descriptor_is_still_alive(guests: Start, root: Path) -> None:
    careless, other = guests(), guests()
    careless("attach")
    careless("charge 0 100 4096")
    other("attach")
    assert careless("close") == "closed"
    assert lock_is_free(root, 0)
    assert other("reap") == "0"
    assert usage_of(root).cards[0].charged == 100


def test_a_process_whose_first_thread_has_ended_is_still_alive(guests: Start, root: Path) -> None:
    """/proc shows it as a zombie, as any process of several threads while it is being killed: its descriptors,
    and the driver's memory, are there until its last thread has ended.
    """
    careless, other = guests(), guests()
    careless("attach")
    careless("charge 0 100 4096")
    other("attach")
    assert careless("close") == "closed"
    assert careless("leave") == "left"
    pid = careless.process.pid
    assert until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert careless("charged") == "100", "its other thread goes on"
    assert other("reap") == "0"
    assert usage_of(root).cards[0].charged == 100
    careless.kill()
    assert other("reap") == "1"
    assert usage_of(root).cards[0].charged == 0


def test_a_reused_pid_is_another_process(guests: Start, root: Path) -> None:
    guest = guests()
    guest("attach")
    slot = bytearray(SLOT_SIZE)
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    struct.pack_into("<IIQQ", slot, 0, 1, os.getpid(), namespace, 12345)  # our pid, another start
    write(root / "etc/vcuda/usage", USAGE_HEAD_SIZE + SLOT_SIZE, bytes(slot))
    write(root / "etc/vcuda/usage", 32, struct.pack("<I", 2))
    assert guest("reap") == "1"


def test_a_dead_process_whose_child_lives_stays_charged_and_has_no_work_in_flight(
    guests: Start, root: Path
) -> None:
    slot = bytearray(SLOT_SIZE)
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    struct.pack_into("<IIQQ", slot, 0, 1, os.getpid(), namespace, 12345)  # our pid, another start: it is gone
    struct.pack_into("<I", slot, INFLIGHT_OFFSET, 2)
    struct.pack_into("<Q", slot, CHARGED_OFFSET, 4096)
    write(root / "etc/vcuda/usage", USAGE_HEAD_SIZE, bytes(slot))
    write(root / "etc/vcuda/usage", 32, struct.pack("<I", 1))
    with (root / "etc/vcuda/usage").open("r+b") as inherited:
        fcntl.fcntl(inherited, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        guest = guests()
        guest("attach")
        assert guest("reap") == "0"
        before = usage_of(root).slots[0]
        assert (before.charged[0], before.inflight[0]) == (4096, 0)
    assert guest("reap") == "1"


def test_a_forked_child_has_a_slot_of_its_own_and_leaves_the_parents_alone(guests: Start, root: Path) -> None:
    guest = guests()
    guest("attach")
    guest("charge 0 100 4096")
    assert guest("fork slot") == "-1"
    assert guest("fork charge 0 1 4096") == "0"
    assert guest("fork attach") == ATTACHED
    assert usage_of(root).slot_high == 2
    assert guest("slot") == "0"  # answered once the child is gone
    assert not lock_is_free(root, 0)
    assert lock_is_free(root, 1)
    assert guest("reap") == "1"
    assert usage_of(root).cards[0].charged == 100


def test_a_page_without_a_free_slot_refuses_the_next_process_even_when_failing_open(
    guests: Start, root: Path
) -> None:
    (root / "etc/vcuda/limits").write_bytes(build_limits(limits(fail_open=True)))
    with (root / "etc/vcuda/usage").open("r+b") as file:
        request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, MAX_SLOTS, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, request)
        guest = guests()
        assert guest("attach") == REFUSED
        assert "has no free slot" in guest.end()
    assert usage_of(root).slots_exhausted == 1
    assert guests()("attach") == ATTACHED


def test_a_page_full_of_dead_processes_has_room(guests: Start, root: Path) -> None:
    image = bytearray(build_usage())
    struct.pack_into("<I", image, 32, MAX_SLOTS)
    for index in range(MAX_SLOTS):
        struct.pack_into("<IIQQ", image, USAGE_HEAD_SIZE + index * SLOT_SIZE, 1, 99999, 1, 1)
    (root / "etc/vcuda/usage").write_bytes(image)
    guest = guests()
    assert guest("attach") == ATTACHED
    assert usage_of(root).slots_reaped == MAX_SLOTS  # attaching clears up
    assert len(usage_of(root).slots) == 1


def test_absurd_numbers_in_the_page_harm_nobody(guests: Start, root: Path) -> None:
    guest = guests()
    guest("attach")
    write(root / "etc/vcuda/usage", 32, b"\xff" * 4)
    write(root / "etc/vcuda/usage", 4096, b"\xff" * (USAGE_SIZE - 4096))
    assert guest("charge 0 1 4096") in {"0", "1"}
    assert guest("repair 0") == "0"
    assert guest("reap") == str(0)
    assert guest("discharge 0 18446744073709551615") == "0"
    assert guest("charged 0").isdigit()
    assert guest.process.poll() is None


def test_unknown_symbols_are_counted_and_one_is_named(guests: Start, root: Path) -> None:
    guest = guests()
    guest("unknown cuBefore")
    guest("attach")
    guest("unknown cuTimeTravel_v9")
    guest("unknown " + "x" * 500)
    usage = usage_of(root)
    assert usage.unknown_symbols == 3
    assert usage.unknown_name == "x" * 63


@pytest.mark.parametrize("data", [b"", b"\0", b"123456789", bytes(range(256)), b"\xff" * 1000])
def test_c_and_python_compute_the_same_checksum(guests: Start, data: bytes) -> None:
    assert guests()(f"crc {data.hex()}") == str(crc32c(data))


def test_threads_attach_once_and_see_whole_limits_while_the_host_writes(guests: Start, root: Path) -> None:
    def equal(value: int) -> Limits:
        card = CardLimits(bytes(range(16)), value, 30.0, context_reserve=value)
        return Limits(cards=(card,))

    path = root / "etc/vcuda/limits"
    path.write_bytes(build_limits(equal(1)))
    guest = guests()
    assert guest.process.stdin
    guest.process.stdin.write("threads 8\n")
    guest.process.stdin.flush()
    for value in range(2, 100):
        change = rewrite_limits(path.read_bytes(), equal(value))
        write(path, change.offset, change.data)
    assert guest.process.stdout
    assert guest.process.stdout.readline() == "0 0\n"
    assert len(usage_of(root).slots) == 1
    assert until(lambda: guest("limits").startswith("100 99 "))


def test_c_and_python_judge_the_same_hostile_headers_alike(guests: Start, root: Path) -> None:
    """Sizes out of bounds under a checksum that matches: no crash, and one opinion."""
    pick = random.Random(7)
    path = root / "etc/vcuda/limits"
    whole = build_limits(limits())[:256]
    for _ in range(150):
        copy = bytearray(whole.ljust(COPY_SIZE, b"\x5a"))
        size, header, card, count = (
            pick.choice((0, 127, 128, 256, 4096, 4097, 2**32 - 1)),
            pick.choice((0, 64, 128, 160, 65535)),
            pick.choice((0, 64, 128, 200, 65535)),
            pick.choice((0, 1, 2, 16, 17, 2**32 - 1)),
        )
        if pick.random() < 0.5:
            size = min(header + card * count, 2**32 - 1)
        struct.pack_into("<IHHI", copy, 24, size, header, card, count)
        covered = bytes(copy[: min(size, COPY_SIZE)])
        struct.pack_into("<I", copy, 12, crc32c(covered[:12] + bytes(4) + covered[16:]))
        image = bytes(copy) + bytes(COPY_SIZE)
        path.write_bytes(image)
        guest = guests()
        try:
            expected = len(read_limits(image).cards)
        except PageError:
            assert guest("attach") == REFUSED
        else:
            assert guest("attach") == ATTACHED
            assert guest("limits").split()[-1] == str(expected)
        guest.kill()
