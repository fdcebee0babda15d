"""The control pages on disk: what the agent writes, and what a hostile tenant can do to its usage page."""

import contextlib
import fcntl
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.adapters.tenants import Correction, PageTenants
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import NodeUnready, VcudaError
from gpu_manager.ports import Limit
from vcuda import page as abi

NAME = "0123456789abcdef" * 2
OTHER = "f" * 32
CARD = CardUuid("GPU-5fd4f087-86f3-7a43-b711-4771313afc50")
SECOND = CardUuid("GPU-11111111-2222-3333-4444-555555555555")
GIB = 1 << 30
LIMIT = Limit(CARD, 5 * GIB, 30, 30)

FLOCK = struct.Struct("hhqqi4x")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "run" / "pages"


@pytest.fixture
def tenants(root):
    pages = PageTenants(root)
    yield pages
    pages.close()


def usage_file(root: Path, name: str = NAME) -> Path:
    return root / name / "usage"


def limits_of(root: Path, name: str = NAME) -> abi.Limits:
    return abi.read_limits((root / name / "limits").read_bytes())


def put(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as page:
        page.seek(offset)
        page.write(data)


def claim(path: Path, index: int, charged: int = 0, pid: int = 7) -> int:
    """Register a process as the library does: lock byte ``index``, then fill the slot. Returns the lock."""
    handle = os.open(path, os.O_RDWR)
    fcntl.fcntl(handle, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, index, 1, 0))
    slot = struct.pack("<IIQQQQ24x16I16Q", 1, pid, 0, 0, 0, 0, *([0] * 16), charged, *([0] * 15))
    os.pwrite(handle, slot, abi.USAGE_HEAD_SIZE + index * abi.SLOT_SIZE)
    os.pwrite(handle, struct.pack("<I", index + 1), 32)  # slot_high
    return handle


def test_opening_makes_a_private_directory_with_both_pages_whole(tenants, root):
    tenants.open(NAME, [LIMIT])
    assert oct((root / NAME).stat().st_mode & 0o7777) == "0o700"
    assert oct(root.stat().st_mode & 0o7777) == "0o700"
    assert (root / NAME / "limits").stat().st_size == abi.LIMITS_SIZE
    assert usage_file(root).stat().st_size == abi.USAGE_SIZE
    assert usage_file(root).stat().st_mode & 0o777 == 0o666
    assert (root / NAME / "limits").stat().st_mode & 0o022 == 0
    (card,) = limits_of(root).cards
    assert (card.memory_limit, card.core_limit, card.core_ceiling) == (5 * GIB, 30.0, 30.0)
    assert sorted(p.name for p in (root / NAME).iterdir()) == ["limits", "usage"]


def test_the_usage_page_is_writable_for_any_user_whatever_the_umask(tenants, root):
    before = os.umask(0o077)
    try:
        tenants.open(NAME, [LIMIT])
    finally:
        os.umask(before)
    assert usage_file(root).stat().st_mode & 0o777 == 0o666


def test_space_is_taken_when_the_page_is_made(tenants, root):
    tenants.open(NAME, [LIMIT])
    assert usage_file(root).stat().st_blocks * 512 >= abi.USAGE_SIZE


def test_opening_again_with_the_same_limits_writes_nothing(tenants, root):
    tenants.open(NAME, [LIMIT])
    before = (root / NAME / "limits").read_bytes()
    tenants.open(NAME, [LIMIT])
    assert (root / NAME / "limits").read_bytes() == before


def test_a_changed_limit_is_written_over_the_older_copy_in_the_same_file(tenants, root):
    tenants.open(NAME, [LIMIT])
    inode = (root / NAME / "limits").stat().st_ino
    older = (root / NAME / "limits").read_bytes()
    tenants.open(NAME, [Limit(CARD, 2 * GIB, 10, 50)])
    image = (root / NAME / "limits").read_bytes()
    assert (root / NAME / "limits").stat().st_ino == inode
    assert sum(image[i : i + 4096] == older[i : i + 4096] for i in (0, 4096)) == 1
    found = limits_of(root)
    assert (found.generation, found.elastic, found.cards[0].core_ceiling) == (3, True, 50.0)


def test_host_corrections_outlive_a_change_of_limits(tenants, root):
    tenants.open(NAME, [LIMIT, Limit(SECOND, GIB, 5, 5)])
    tenants.publish(NAME, 77, {SECOND: Correction(co_active=2.0, host_adjust=-4096)})
    tenants.open(NAME, [Limit(CARD, GIB, 20, 20), Limit(SECOND, GIB, 5, 5)])
    first, second = limits_of(root).cards
    assert limits_of(root).heartbeat_ns == 77
    assert (first.memory_limit, first.co_active) == (GIB, 1.0)
    assert (second.co_active, second.host_adjust) == (2.0, -4096)


def test_publishing_for_a_container_that_is_gone_says_so(tenants):
    with pytest.raises(NodeUnready, match="gone"):
        tenants.publish(NAME, 1, {})


def test_a_fresh_container_uses_nothing(tenants):
    tenants.open(NAME, [LIMIT, Limit(SECOND, GIB, 5, 5)])
    assert [(u.card, u.memory, u.busy_seconds, u.refusals, u.processes) for u in tenants.usage(NAME)] == [
        (CARD, 0, 0.0, 0, 0),
        (SECOND, 0, 0.0, 0, 0),
    ]


def test_memory_is_what_living_processes_hold(tenants, root):
    tenants.open(NAME, [LIMIT])
    first, second = (claim(usage_file(root), index, charged=GIB) for index in (0, 3))
    assert (tenants.usage(NAME)[0].memory, tenants.usage(NAME)[0].processes) == (2 * GIB, 2)
    os.close(second)  # as the kernel does for a process that was killed
    assert (tenants.usage(NAME)[0].memory, tenants.usage(NAME)[0].processes) == (GIB, 1)
    os.close(first)


def test_a_process_killed_in_another_session_is_seen_dead(tenants, root):
    tenants.open(NAME, [LIMIT])
    code = (
        "import fcntl, os, struct, sys\n"
        "page = os.open(sys.argv[1], os.O_RDWR)\n"
        "fcntl.fcntl(page, fcntl.F_OFD_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 1, 0))\n"
        f"os.pwrite(page, struct.pack('<I', 1), {abi.USAGE_HEAD_SIZE}); os.pwrite(page, struct.pack('<I', 1), 32)\n"
        "print('ready', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(usage_file(root))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert tenants.usage(NAME)[0].processes == 1
        process.kill()
        process.wait(10)
    assert tenants.usage(NAME)[0].processes == 0


def test_activity_counts_the_streams_of_living_processes(tenants, root):
    tenants.open(NAME, [LIMIT])
    alive, dead = (claim(usage_file(root), index) for index in (0, 1))
    for index, streams in ((0, 3), (1, 5)):
        put(usage_file(root), abi.USAGE_HEAD_SIZE + index * abi.SLOT_SIZE + 64, struct.pack("<I", streams))
    put(usage_file(root), 4096 + 3 * 128, struct.pack("<Q", 77))
    os.close(dead)
    assert [(a.card, a.in_flight, a.last_busy_ns) for a in tenants.activity(NAME)] == [(CARD, 3, 77)]
    os.close(alive)


def test_usage_is_read_by_an_agent_that_did_not_make_the_page(tenants, root):
    tenants.open(NAME, [Limit(SECOND, GIB, 5, 5)])
    restarted = PageTenants(root)
    assert [use.card for use in restarted.usage(NAME)] == [SECOND]
    restarted.close()


# --- a new life ------------------------------------------------------------------------------------


def test_reset_begins_at_zero(tenants, root):
    tenants.open(NAME, [LIMIT])
    os.close(claim(usage_file(root), 2, charged=GIB))
    put(usage_file(root), 4096 + 8, b"\xff" * 256)
    tenants.reset(NAME)
    assert usage_file(root).read_bytes() == abi.build_usage()


def test_reset_keeps_living_processes_and_frees_dead_slots(tenants, root):
    tenants.open(NAME, [LIMIT])
    os.close(claim(usage_file(root), 0, charged=GIB))
    alive = claim(usage_file(root), 1, charged=2 * GIB)
    tenants.reset(NAME)
    image = usage_file(root).read_bytes()
    assert [slot.index for slot in abi.read_usage(image, 1).slots] == [1]
    assert tenants.usage(NAME)[0].memory == 2 * GIB
    os.close(alive)


def test_reset_mends_a_page_that_a_living_process_has_filled_with_garbage(tenants, root):
    tenants.open(NAME, [LIMIT])
    alive = claim(usage_file(root), 0)
    put(usage_file(root), 0, b"\xaa" * 4096)
    tenants.reset(NAME)
    assert tenants.usage(NAME)[0].processes == 0
    os.close(alive)


def test_reset_leaves_no_lock_behind(tenants, root):
    tenants.open(NAME, [LIMIT])
    tenants.reset(NAME)
    os.close(claim(usage_file(root), 0))


def test_pages_are_made_again_after_a_reboot(tenants, root):
    tenants.open(NAME, [LIMIT])
    for path in (root / NAME).iterdir():
        path.unlink()
    (root / NAME).rmdir()
    root.rmdir()
    root.parent.rmdir()
    with pytest.raises(NodeUnready, match=f"{NAME}.*gone"):
        tenants.usage(NAME)
    tenants.open(NAME, [LIMIT])
    tenants.reset(NAME)
    assert tenants.usage(NAME)[0].memory == 0


def test_a_directory_that_a_runtime_made_in_a_page_s_place_is_replaced(tenants, root):
    for page in ("limits", "usage"):
        (root / NAME / page).mkdir(parents=True)
    tenants.open(NAME, [LIMIT])
    assert tenants.usage(NAME)[0].memory == 0


# --- tampering -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 4095, abi.USAGE_SIZE - 1, abi.USAGE_SIZE + 1, 1 << 32])
def test_another_size_is_put_back_counted_and_named(tenants, root, size):
    tenants.open(NAME, [LIMIT])
    os.truncate(usage_file(root), size)
    with pytest.raises(NodeUnready, match=f"{NAME}.*{size} bytes instead of {abi.USAGE_SIZE}"):
        tenants.usage(NAME)
    assert usage_file(root).stat().st_size == abi.USAGE_SIZE
    assert tenants.tampering() == {NAME: 1}


def test_a_page_that_was_grown_is_read_again_afterwards(tenants, root):
    tenants.open(NAME, [LIMIT])
    os.truncate(usage_file(root), 1 << 30)
    with pytest.raises(NodeUnready):
        tenants.usage(NAME)
    assert tenants.usage(NAME)[0].memory == 0


def test_a_page_that_was_emptied_stays_named_until_the_container_starts_anew(tenants, root):
    tenants.open(NAME, [LIMIT])
    os.truncate(usage_file(root), 0)
    for _ in range(3):
        with pytest.raises(NodeUnready, match="tampered"):
            tenants.usage(NAME)
    assert tenants.tampering() == {NAME: 3}
    tenants.reset(NAME)
    assert tenants.usage(NAME)[0].memory == 0


def test_a_mode_that_was_taken_away_is_given_back(tenants, root):
    tenants.open(NAME, [LIMIT])
    usage_file(root).chmod(0)
    with pytest.raises(NodeUnready, match="mode was 0000 instead of 0666"):
        tenants.usage(NAME)
    assert tenants.usage(NAME)[0].memory == 0


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory"])
def test_something_else_in_the_page_s_place_is_neither_followed_nor_waited_for(root, tmp_path, kind):
    PageTenants(root).open(NAME, [LIMIT])
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * abi.USAGE_SIZE)
    path = usage_file(root)
    path.unlink()
    if kind == "symlink":
        path.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    tenants = PageTenants(root)
    with pytest.raises(NodeUnready, match=NAME):
        tenants.usage(NAME)
    tenants.reset(NAME)
    assert path.is_file()
    assert not path.is_symlink()
    assert secret.read_bytes() == b"s" * abi.USAGE_SIZE
    tenants.close()


def test_a_link_in_the_directory_s_place_is_not_followed(tenants, root, tmp_path):
    target = tmp_path / "elsewhere"
    target.mkdir()
    root.mkdir(parents=True)
    (root / NAME).symlink_to(target)
    with pytest.raises(NodeUnready):
        tenants.usage(NAME)
    tenants.open(NAME, [LIMIT])
    assert list(target.iterdir()) == []
    assert not (root / NAME).is_symlink()


@settings(max_examples=60, deadline=None)
@given(
    head=st.binary(min_size=0, max_size=256),
    offset=st.integers(0, abi.USAGE_SIZE - 256),
    high=st.integers(0, 2**32 - 1),
)
def test_whatever_the_page_says_figures_are_bounded_or_it_is_named(tmp_path_factory, head, offset, high):
    root = tmp_path_factory.mktemp("hostile")
    tenants = PageTenants(root)
    tenants.open(NAME, [LIMIT])
    handle = claim(usage_file(root), 0, charged=2**64 - 1)
    put(usage_file(root), offset, head)
    put(usage_file(root), 32, struct.pack("<I", high))
    try:
        (use,) = tenants.usage(NAME)
    except NodeUnready:
        assert tenants.tampering() == {NAME: 1}
    else:
        assert 0 <= use.memory <= abi.MAX_BYTES
        assert 0 <= use.busy_seconds <= abi.MAX_NS * 1e-9
        assert 0 <= use.processes <= abi.MAX_SLOTS
    tenants.reset(NAME)
    os.close(handle)
    tenants.close()


def test_a_tenant_that_truncates_and_grows_while_it_is_read_breaks_nothing(tenants, root):
    tenants.open(NAME, [LIMIT])
    stop = threading.Event()

    def attack() -> None:
        handle = os.open(usage_file(root), os.O_RDWR)
        size = 0
        while not stop.is_set():
            size = (size * 7 + 4099) % (2 * abi.USAGE_SIZE)
            os.ftruncate(handle, size)
            os.pwrite(handle, os.urandom(64), size % 4096)
        os.close(handle)

    attacker = threading.Thread(target=attack)
    attacker.start()
    deadline = time.monotonic() + 30
    try:
        while tenants.tampering().get(NAME, 0) < 50:
            assert time.monotonic() < deadline, "the attack was not seen"
            with contextlib.suppress(NodeUnready):  # the one error that this may end in
                tenants.usage(NAME)
                tenants.reset(NAME)
    finally:
        stop.set()
        attacker.join(10)
    tenants.reset(NAME)
    assert tenants.usage(NAME)[0].memory == 0


READER = """
import os, select, sys
from vcuda import page as abi
page = os.open(sys.argv[1], os.O_RDONLY)
torn, seen = [], set()
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    try:
        limits = abi.read_limits(os.pread(page, abi.LIMITS_SIZE, 0))
    except abi.PageError as error:
        torn.append(str(error))
        continue
    (card,) = limits.cards
    if card.memory_limit != card.core_limit * (1 << 30):
        torn.append(str(card))
    seen.add(limits.generation)
print(len(seen), torn[:1])
"""


def test_a_reader_never_sees_a_torn_limit_while_two_threads_change_it(tenants, root):
    tenants.open(NAME, [Limit(CARD, 30 * GIB, 30, 30)])

    def heartbeat() -> None:
        for beat in range(150):
            tenants.publish(NAME, beat, {CARD: Correction(co_active=2.0)})

    with subprocess.Popen(
        [sys.executable, "-c", READER, str(root / NAME / "limits")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        beats = threading.Thread(target=heartbeat)
        beats.start()
        for cores in range(1, 91):
            tenants.open(NAME, [Limit(CARD, cores * GIB, cores, cores)])
        beats.join(30)
        said, _ = reader.communicate("enough", timeout=30)
    assert said.endswith(" []\n"), said
    assert int(said.split()[0]) > 1
    assert limits_of(root).heartbeat_ns == 149


def test_a_limits_page_of_another_size_is_put_back(tenants, root):
    tenants.open(NAME, [LIMIT])
    os.truncate(root / NAME / "limits", 0)
    tenants.open(NAME, [LIMIT])
    assert limits_of(root).cards[0].memory_limit == 5 * GIB
    assert (root / NAME / "limits").stat().st_size == abi.LIMITS_SIZE


# --- names and removal -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../" + NAME, "a" * 31, "A" * 32, "g" * 32, NAME + "/", NAME + "\n", "a/b"]
)
def test_a_name_is_32_hex_digits_or_nothing_happens(tenants, root, name):
    for act in (
        lambda: tenants.open(name, [LIMIT]),
        lambda: tenants.reset(name),
        lambda: tenants.usage(name),
        lambda: tenants.remove(name),
    ):
        with pytest.raises(VcudaError):
            act()
    assert not root.exists() or list(root.iterdir()) == []


def test_names_lists_our_directories_alone(tenants, root):
    assert tenants.names() == []
    tenants.open(OTHER, [LIMIT])
    tenants.open(NAME, [LIMIT])
    (root / "lost+found").mkdir()
    assert tenants.names() == [NAME, OTHER]


def test_removing_deletes_one_directory_and_is_repeatable(tenants, root):
    tenants.open(NAME, [LIMIT])
    tenants.open(OTHER, [LIMIT])
    tenants.usage(NAME)
    tenants.remove(NAME)
    tenants.remove(NAME)
    assert tenants.names() == [OTHER]
    with pytest.raises(NodeUnready, match="gone"):
        tenants.usage(NAME)


def test_removing_deletes_links_and_never_what_they_point_to(tenants, root, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    tenants.open(NAME, [LIMIT])
    (root / NAME / "link").symlink_to(kept)
    (root / OTHER).symlink_to(kept)
    tenants.remove(NAME)
    tenants.remove(OTHER)
    assert (kept / "file").read_text() == "x"
    assert list(root.iterdir()) == []


def test_a_card_uuid_that_is_none_is_refused_by_name(tenants):
    with pytest.raises(NodeUnready, match="'GPU-zero' is no card UUID"):
        tenants.open(NAME, [Limit(CardUuid("GPU-zero"), GIB, 1, 1)])


def test_a_root_that_cannot_be_used_is_an_operator_s_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NodeUnready, match="control pages of"):
        PageTenants(tmp_path / "file").open(NAME, [LIMIT])


def test_no_descriptor_is_left_open(tenants, root):
    def count() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    tenants.open(NAME, [LIMIT])
    before = count()
    for _ in range(5):
        tenants.open(NAME, [LIMIT])
        tenants.reset(NAME)
        tenants.usage(NAME)
        tenants.publish(NAME, 1, {})
    assert count() == before
    tenants.close()
    assert count() == before - 1
