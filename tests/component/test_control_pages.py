"""The control pages on disk: what the agent writes into them, reads from them, and takes away."""

import contextlib
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.adapters.control_pages import tenant_files
from gpu_manager.adapters.control_pages.limits_file import PagePolicy
from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import NodeUnready, VcudaError
from gpu_manager.domain.resources import GIB
from gpu_manager.ports.control_pages import Correction, Limit
from tests.fakes.open_files import open_files
from tests.fakes.pages import CARD, LIMIT, NAME, limits_of, put, register, usage_file
from tests.fakes.waiting import PATIENCE
from vcuda.page.limits import LIMITS_SIZE
from vcuda.page.usage import (
    MAX_NS,
    SLOT_SIZE,
    TIMELINE_CELLS,
    TIMELINE_SIZE,
    TIMELINES_OFFSET,
    USAGE_HEAD_SIZE,
    USAGE_SIZE,
    build_usage,
    last_busy_offset,
    read_usage,
)

OTHER = "f" * 32
SECOND = CardUuid("GPU-11111111-2222-3333-4444-555555555555")


def test_opening_makes_a_private_directory_with_both_pages_whole(tenants, root):
    tenants.open(NAME, [LIMIT])
    assert oct((root / NAME).stat().st_mode & 0o7777) == "0o700"
    assert oct(root.stat().st_mode & 0o7777) == "0o700"
    assert (root / NAME / "limits").stat().st_size == LIMITS_SIZE
    assert usage_file(root).stat().st_size == USAGE_SIZE
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
    assert usage_file(root).stat().st_blocks * 512 >= USAGE_SIZE


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
    tenants.publish(NAME, 77, {SECOND: Correction(co_active=2.0, host_adjust=4096)})
    tenants.open(NAME, [Limit(CARD, GIB, 20, 20), Limit(SECOND, GIB, 5, 5)])
    first, second = limits_of(root).cards
    assert limits_of(root).heartbeat_ns == 77
    assert (first.memory_limit, first.co_active) == (GIB, 1.0)
    assert (second.co_active, second.host_adjust) == (2.0, 4096)


def test_a_nodes_policy_is_told_with_the_limits_and_changes_with_them(root):
    asked = PagePolicy(context_reserve=528 << 20, oversubscribe=True, fail_open=True)
    for policy in (asked, PagePolicy()):
        tenants = FileControlPages(root, policy)
        tenants.open(NAME, [LIMIT])
        tenants.close()
        found = limits_of(root)
        assert found.cards[0].context_reserve == policy.context_reserve
        assert (found.oversubscribe, found.fail_open) == (policy.oversubscribe, policy.fail_open)


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
    first, second = (register(usage_file(root), index, charged=GIB) for index in (0, 3))
    assert (tenants.usage(NAME)[0].memory, tenants.usage(NAME)[0].processes) == (2 * GIB, 2)
    os.close(second)  # as the kernel does for a process that was killed
    assert (tenants.usage(NAME)[0].memory, tenants.usage(NAME)[0].processes) == (GIB, 1)
    os.close(first)


@given(order=st.permutations(range(6)), gone=st.sets(st.integers(0, 5)))
def test_locks_are_found_in_whatever_order_they_were_taken(order, gone, tmp_path_factory):
    """A place that a dead process left is taken again by a later one."""
    path = tmp_path_factory.mktemp("page") / "usage"
    path.write_bytes(bytes(64))
    with contextlib.ExitStack() as held:
        for index in order:
            if index not in gone:
                page = held.enter_context(path.open("r+b", buffering=0))
                held.enter_context(tenant_files.locked(page.fileno(), index, 1))
        page = held.enter_context(path.open("r+b", buffering=0))
        assert set(tenant_files.held(page.fileno(), range(6))) == set(range(6)) - gone


def test_a_process_killed_in_another_session_is_seen_dead(tenants, root):
    tenants.open(NAME, [LIMIT])
    code = (
        "import fcntl, os, struct, sys\n"
        "page = os.open(sys.argv[1], os.O_RDWR)\n"
        "fcntl.fcntl(page, fcntl.F_OFD_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 1, 0))\n"
        f"os.pwrite(page, struct.pack('<I', 1), {USAGE_HEAD_SIZE}); os.pwrite(page, struct.pack('<I', 1), 32)\n"
        "print('ready', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(usage_file(root))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert tenants.usage(NAME)[0].processes == 1
        process.kill()
        process.wait(PATIENCE)
    assert tenants.usage(NAME)[0].processes == 0


def test_activity_counts_the_streams_of_living_processes(tenants, root):
    tenants.open(NAME, [LIMIT])
    alive, dead = (register(usage_file(root), index) for index in (0, 1))
    for index, streams in ((0, 3), (1, 5)):
        put(usage_file(root), USAGE_HEAD_SIZE + index * SLOT_SIZE + 64, struct.pack("<I", streams))
    put(usage_file(root), 4096 + 3 * 128, struct.pack("<Q", 77))
    os.close(dead)
    assert [(a.card, a.in_flight, a.last_busy_ns) for a in tenants.activity(NAME)] == [(CARD, 3, 77)]
    os.close(alive)


def test_when_a_container_worked_last_is_one_word_of_the_card(tenants, root):
    tenants.open(NAME, [LIMIT, Limit(SECOND, GIB, 5, 5)])
    put(usage_file(root), last_busy_offset(1), struct.pack("<Q", 77))
    places = [(NAME, CARD), (NAME, SECOND), (NAME, CardUuid("GPU-0")), (OTHER, CARD)]
    assert tenants.last_busy_ns(places) == [0, 77, 0, 0]
    put(usage_file(root), last_busy_offset(1), b"\xff" * 8)
    assert tenants.last_busy_ns([(NAME, SECOND)]) == [MAX_NS]


def test_a_timeline_is_that_of_the_card(tenants, root):
    tenants.open(NAME, [LIMIT, Limit(SECOND, GIB, 5, 5)])
    with pytest.raises(NodeUnready, match="gone"):
        tenants.timeline(OTHER, CARD, 0, 512)
    put(usage_file(root), TIMELINES_OFFSET + TIMELINE_SIZE + 4 * 7, struct.pack("<I", 3 << 16 | 500))
    at = 3 * TIMELINE_CELLS + 7
    assert tenants.timeline(NAME, SECOND, at - 50, at + 1) == {at: 0.5}
    assert tenants.timeline(NAME, CARD, at - 50, at + 1) == {}
    assert tenants.timeline(NAME, CardUuid("GPU-0"), at - 50, at + 1) == {}


def test_usage_is_read_by_an_agent_that_did_not_make_the_page(tenants, root):
    tenants.open(NAME, [Limit(SECOND, GIB, 5, 5)])
    restarted = FileControlPages(root)
    assert [use.card for use in restarted.usage(NAME)] == [SECOND]
    restarted.close()


def test_time_held_back_with_nothing_on_the_card_is_every_wait_where_the_library_does_not_tell(tenants, root):
    tenants.open(NAME, [LIMIT])
    put(usage_file(root), 4096 + 264, struct.pack("<QQQQQ", 9_000_000_000, 0, 0, 0, 4_000_000_000))
    [use] = tenants.usage(NAME)
    assert (use.throttled_seconds, use.held_idle_seconds) == (9.0, 4.0)
    put(usage_file(root), 10, struct.pack("<H", 3))
    [use] = FileControlPages(root).usage(NAME)
    assert (use.throttled_seconds, use.held_idle_seconds) == (9.0, 9.0)


def test_reset_begins_at_zero(tenants, root):
    tenants.open(NAME, [LIMIT])
    os.close(register(usage_file(root), 2, charged=GIB))
    put(usage_file(root), 4096 + 8, b"\xff" * 256)
    tenants.reset(NAME)
    assert usage_file(root).read_bytes() == build_usage()


def test_a_process_that_takes_a_slot_while_the_page_is_read_has_not_tampered(tenants, root):
    tenants.open(NAME, [LIMIT])
    ended, high = threading.Event(), usage_file(root)

    def take_and_leave() -> None:
        with high.open("r+b", buffering=0) as page:
            while not ended.is_set():
                for slots in (0, 40):
                    os.pwrite(page.fileno(), struct.pack("<I", slots), 32)

    others = threading.Thread(target=take_and_leave)
    others.start()
    try:
        for _ in range(3000):
            tenants.activity(NAME)
    finally:
        ended.set()
        others.join()


def test_reset_keeps_living_processes_and_frees_dead_slots(tenants, root):
    tenants.open(NAME, [LIMIT])
    os.close(register(usage_file(root), 0, charged=GIB))
    alive = register(usage_file(root), 1, charged=2 * GIB)
    tenants.reset(NAME)
    image = usage_file(root).read_bytes()
    assert [slot.index for slot in read_usage(image, 1).slots] == [1]
    assert tenants.usage(NAME)[0].memory == 2 * GIB
    os.close(alive)


def test_reset_mends_a_page_that_a_living_process_has_filled_with_garbage(tenants, root):
    tenants.open(NAME, [LIMIT])
    alive = register(usage_file(root), 0)
    put(usage_file(root), 0, b"\xaa" * 4096)
    tenants.reset(NAME)
    assert tenants.usage(NAME)[0].processes == 0
    os.close(alive)


def test_reset_leaves_no_lock_behind(tenants, root):
    tenants.open(NAME, [LIMIT])
    tenants.reset(NAME)
    os.close(register(usage_file(root), 0))


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


READER = """
import os, select, sys
from vcuda.page.layout import PageError
from vcuda.page.limits import LIMITS_SIZE, read_limits
page = os.open(sys.argv[1], os.O_RDONLY)
torn, seen = [], set()
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    try:
        limits = read_limits(os.pread(page, LIMITS_SIZE, 0))
    except PageError as error:
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
        beats.join(PATIENCE)
        said, _ = reader.communicate("enough", timeout=PATIENCE)
    assert said.endswith(" []\n"), said
    assert int(said.split()[0]) > 1
    assert limits_of(root).heartbeat_ns == 149


def test_a_limits_page_of_another_size_is_put_back(tenants, root):
    tenants.open(NAME, [LIMIT])
    os.truncate(root / NAME / "limits", 0)
    tenants.open(NAME, [LIMIT])
    assert limits_of(root).cards[0].memory_limit == 5 * GIB
    assert (root / NAME / "limits").stat().st_size == LIMITS_SIZE


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
        FileControlPages(tmp_path / "file").open(NAME, [LIMIT])


def test_no_descriptor_is_left_open(tenants, root):
    def count() -> int:
        """Of the pages alone: what else runs in this process opens and closes files of its own."""
        return sum(target.startswith(str(root.resolve())) for target in open_files())

    tenants.open(NAME, [LIMIT])
    before = count()
    for _ in range(5):
        tenants.open(NAME, [LIMIT])
        tenants.reset(NAME)
        tenants.usage(NAME)
        tenants.publish(NAME, 1, {})
    assert count() == before
    tenants.close()
    assert count() == 0
