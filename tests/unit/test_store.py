"""The ledger on disk: whole or not at all, whatever happens while it is written."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.adapters.machine import SystemClock
from gpu_manager.adapters.store import FORMAT, DiskFiles, FileStore
from gpu_manager.domain.errors import NodeUnready

NAMES = ("ledger.a", "ledger.b")


class PowerCutError(Exception):
    """The world ends here."""


class MortalFiles(DiskFiles):
    """Does ``steps`` steps, then fails; the last one, if it writes, gets ``written`` bytes onto the disk."""

    def __init__(self, steps, written=0, failure=None):
        self.steps = steps
        self.written = written
        self.failure = failure or PowerCutError()

    def _step(self):
        if self.steps == 0:
            raise self.failure
        self.steps -= 1

    def write(self, path, data):
        if self.steps == 0:
            super().write(path, data[: self.written])
        self._step()
        super().write(path, data)

    def overwrite(self, path, data):
        if self.steps == 0:
            super().overwrite(path, data[: self.written])
        self._step()
        super().overwrite(path, data)

    def rename(self, source, target):
        self._step()
        super().rename(source, target)

    def sync(self, directory):
        self._step()
        super().sync(directory)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "state"


def saved(directory, *states):
    store = FileStore(directory)
    for state in states:
        store.save(state)
    return store


def newest(directory):
    """The file with the highest generation, whatever state it is in behind its first words."""
    return max((directory / name for name in NAMES if (directory / name).exists()), key=generation)


def generation(path):
    return int(path.read_bytes().split(b"generation=")[1].split(b" ")[0])


def used(path):
    """How many bytes of the file mean anything."""
    data = path.read_bytes()
    header, _, _ = data.partition(b"\n")
    return len(header) + 1 + int(header.rpartition(b"=")[2])


def test_nothing_saved_is_nothing_loaded_and_the_directory_is_private(directory):
    assert FileStore(directory).load() is None
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("state", [b"", b"one", b"\x00\n" * 5000])
def test_what_was_saved_last_is_loaded_by_another_store(directory, state):
    saved(directory, b"first", b"second", state)
    store = FileStore(directory)
    assert store.load() == state
    assert store.warning is None
    assert {stat.S_IMODE((directory / name).stat().st_mode) for name in NAMES} == {0o600}


def test_a_directory_open_to_others_is_closed(directory):
    directory.mkdir(mode=0o755)
    saved(directory, b"x")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_ledger_torn_at_any_byte_gives_the_generation_before_and_says_so(directory):
    saved(directory, b"older state", b"newest state")
    path = newest(directory)
    whole = path.read_bytes()
    for length in range(used(path)):
        path.write_bytes(whole[:length])
        store = FileStore(directory)
        assert store.load() == b"older state"
        assert "torn" in store.warning


def test_a_flip_of_any_bit_that_means_something_is_noticed(directory):
    saved(directory, b"older state", b"newest state")
    path = newest(directory)
    whole = path.read_bytes()[: used(path)]
    for position in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[position // 8] ^= 1 << position % 8
        path.write_bytes(flipped)
        assert FileStore(directory).load() == b"older state"


def test_a_missing_newest_file_falls_back_with_a_warning(directory):
    saved(directory, b"first", b"older", b"newest")
    newest(directory).unlink()
    store = FileStore(directory)
    assert store.load() == b"older"
    assert "missing" in store.warning


def test_a_crash_in_mid_write_at_any_byte_leaves_the_state_before(directory):
    saved(directory, b"before", b"newest")
    size = used(newest(directory)) + 2
    for written in range(size):
        with pytest.raises(PowerCutError):
            FileStore(directory, MortalFiles(0, written)).save(b"replaced")
        survivor = FileStore(directory)
        assert survivor.load() in ({b"newest"} if written < size - 2 else {b"newest", b"replaced"})
        survivor.save(b"newest")
        assert FileStore(directory).load() == b"newest"


def test_a_crash_while_a_larger_file_is_made_leaves_a_whole_state_and_no_warning(directory):
    large = b"x" * 300_000
    for steps, state in enumerate((b"newest", b"newest", large, large)):
        saved(directory, b"before", b"newest")
        with contextlib.suppress(PowerCutError):
            FileStore(directory, MortalFiles(steps, 100)).save(large)
        survivor = FileStore(directory)
        assert survivor.load() == state
        assert survivor.warning is None
        survivor.save(b"after")
        assert FileStore(directory).load() == b"after"
        for name in NAMES:
            (directory / name).unlink()


def test_a_second_crash_at_the_same_place_is_no_trouble(directory):
    for written in (0, 50, 200):
        saved(directory, b"before")
        for _ in range(3):
            with contextlib.suppress(PowerCutError):
                FileStore(directory, MortalFiles(0, written)).save(b"crashing")
            assert FileStore(directory).load() in {b"before", b"crashing"}
        saved(directory, b"between", b"last")
        newest(directory).write_bytes(b"torn")
        assert FileStore(directory).load() == b"between"


def test_a_save_after_a_torn_ledger_goes_over_the_torn_file(directory):
    saved(directory, b"whole", b"newest")
    whole, torn = min((directory / n for n in NAMES), key=generation), newest(directory)
    torn.write_bytes(b"torn")
    store = FileStore(directory)
    assert store.load() == b"whole"
    kept = whole.read_bytes()
    store.save(b"new")
    assert FileStore(directory).load() == b"new"
    assert whole.read_bytes() == kept


def test_a_state_of_the_size_before_is_written_in_place_and_a_larger_one_with_room_to_grow(directory):
    store = saved(directory, b"a", b"b")
    inodes = [(directory / name).stat().st_ino for name in NAMES]
    for n in range(4):
        store.save(b"%d" % n * 1000)
    assert [(directory / name).stat().st_ino for name in NAMES] == inodes
    store.save(b"x" * 100_000)
    store.save(b"x" * 100_001)
    assert all((directory / name).stat().st_size >= 200_000 for name in NAMES)
    assert FileStore(directory).load() == b"x" * 100_001


def test_both_generations_torn_is_for_the_operator_with_the_cure(directory):
    saved(directory, b"older", b"newest")
    for name in NAMES:
        (directory / name).write_bytes(b"rubbish")
    with pytest.raises(NodeUnready, match="Move both files away and restart the agent"):
        FileStore(directory).load()


def of_format(path, number):
    path.write_bytes(path.read_bytes().replace(b"v%d " % FORMAT, b"v%d " % number))
    return path.read_bytes()


def test_a_file_of_another_format_is_kept_aside_and_never_written_over(directory):
    store = saved(directory, b"older", b"newer")
    path = newest(directory)
    content = of_format(path, FORMAT + 1)
    store = FileStore(directory)
    assert store.load() == b"older"
    assert store.aside() == (f"{path.name}.format-{FORMAT + 1}",)
    for n in range(4):
        store.save(b"%d" % n)
    assert (directory / store.aside()[0]).read_bytes() == content
    assert FileStore(directory).load() == b"3"


def test_where_both_files_are_of_another_format_nothing_is_stored(directory):
    saved(directory, b"older", b"newer")
    for name in NAMES:
        of_format(directory / name, FORMAT + 1)
    store = FileStore(directory)
    assert store.load() is None
    assert len(store.aside()) == 2
    store.save(b"x")
    assert FileStore(directory).load() == b"x"


def test_what_is_set_aside_is_stored_no_more(directory):
    store = saved(directory, b"older", b"newer")
    assert store.set_aside("unread") == tuple(f"{name}.unread" for name in NAMES)
    assert FileStore(directory).load() is None
    store.save(b"x")
    assert FileStore(directory).load() == b"x"
    assert store.set_aside("again") == tuple(
        n for n in (f"{name}.again" for name in NAMES) if (directory / n).exists()
    )


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full: free space there"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission denied"),
        (errno.EIO, "the disk reports an error"),
        (errno.EBUSY, "busy"),
    ],
)
@pytest.mark.parametrize("steps", range(3))
@pytest.mark.parametrize("size", [3, 300_000])
def test_a_disk_that_refuses_is_named_with_its_cure_and_the_state_before_stays(
    directory, number, words, steps, size
):
    saved(directory, b"before", b"kept")
    store = FileStore(directory, MortalFiles(steps, 3, OSError(number, os.strerror(number))))
    state = b"n" * size
    if steps and size == 3:  # in place there is one step alone
        store.save(state)
        assert FileStore(directory).load() == state
        return
    with pytest.raises(NodeUnready, match=f"(?i){words}"):
        store.save(state)
    survivor = FileStore(directory)
    assert survivor.load() == b"kept"
    assert survivor.warning is None, "what was refused was given up, it is not torn"
    assert not (directory / "ledger.new").exists()
    saved(directory, b"later")
    assert FileStore(directory).load() == b"later"


def test_a_state_whose_last_step_failed_is_not_found_later(directory):
    saved(directory, b"before", b"kept")

    class Forgetful(DiskFiles):
        def overwrite(self, path, data):
            super().overwrite(path, data)
            raise OSError(errno.EIO, "the flush failed, the cache has it")

    with pytest.raises(NodeUnready, match="disk reports an error"):
        FileStore(directory, Forgetful()).save(b"refused")
    assert FileStore(directory).load() == b"kept"


def test_links_are_not_followed(directory, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"secret")
    saved(directory, b"x")
    newest(directory).unlink()
    (directory / NAMES[0]).symlink_to(elsewhere)
    with pytest.raises(NodeUnready, match="symbolic link"):
        FileStore(directory).load()
    (directory / NAMES[0]).unlink()
    (directory / "ledger.new").symlink_to(elsewhere)
    with pytest.raises(NodeUnready, match="symbolic link"):
        FileStore(directory).save(b"y")
    assert elsewhere.read_bytes() == b"secret"
    link = tmp_path / "link"
    link.symlink_to(directory)
    with pytest.raises(NodeUnready, match="symbolic link"):
        FileStore(link).load()


def test_a_pipe_in_place_of_the_ledger_does_not_hang(directory):
    saved(directory, b"x")
    newest(directory).unlink()
    os.mkfifo(directory / NAMES[0])
    with pytest.raises(NodeUnready, match="no plain file"):
        FileStore(directory).load()


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=6))
def test_the_last_of_any_row_of_states_is_loaded_and_no_file_is_left_over(tmp_path_factory, states):
    directory = tmp_path_factory.mktemp("store") / "state"
    store = saved(directory, *states)
    assert store.load() == FileStore(directory).load() == states[-1]
    assert {p.name for p in directory.iterdir()} <= set(NAMES)


def test_the_clock_goes_forward():
    clock = SystemClock()
    assert clock.monotonic() <= clock.monotonic()
    assert clock.now() > 1_700_000_000
