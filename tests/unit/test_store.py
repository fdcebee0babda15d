"""The ledger on disk: whole or not at all, whatever happens while it is written."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.adapters.clock import SystemClock
from gpu_manager.adapters.store import FORMAT, NEWEST, OLDER, DiskFiles, FileStore
from gpu_manager.domain.errors import NodeUnready


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

    def link(self, source, target):
        self._step()
        super().link(source, target)

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


def test_nothing_saved_is_nothing_loaded_and_the_directory_is_private(directory):
    assert FileStore(directory).load() is None
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("state", [b"", b"one", b"\x00\n" * 5000])
def test_what_was_saved_last_is_loaded_by_another_store(directory, state):
    saved(directory, b"first", b"second", state)
    store = FileStore(directory)
    assert store.load() == state
    assert store.warning is None
    assert stat.S_IMODE((directory / NEWEST).stat().st_mode) == 0o600


def test_a_directory_open_to_others_is_closed(directory):
    directory.mkdir(mode=0o755)
    saved(directory, b"x")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_ledger_torn_at_any_byte_gives_the_generation_before_and_says_so(directory):
    saved(directory, b"older state", b"newest state")
    whole = (directory / NEWEST).read_bytes()
    for length in range(len(whole)):
        (directory / NEWEST).write_bytes(whole[:length])
        store = FileStore(directory)
        assert store.load() == b"older state"
        assert "torn" in store.warning
    (directory / NEWEST).write_bytes(whole + b"x")
    assert FileStore(directory).load() == b"older state"


def test_a_flip_of_any_bit_is_noticed(directory):
    saved(directory, b"older state", b"newest state")
    whole = (directory / NEWEST).read_bytes()
    for position in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[position // 8] ^= 1 << position % 8
        (directory / NEWEST).write_bytes(flipped)
        assert FileStore(directory).load() == b"older state"


def test_a_missing_newest_file_falls_back_with_a_warning(directory):
    saved(directory, b"older", b"newest")
    (directory / NEWEST).unlink()
    store = FileStore(directory)
    assert store.load() == b"older"
    assert "missing" in store.warning


def test_a_crash_after_any_step_and_at_any_byte_leaves_a_whole_state(directory):
    size = len((saved(directory, b"before", b"newest"), (directory / NEWEST).read_bytes())[1]) + 2
    outcomes = set()
    for steps in range(6):
        for written in range(size if steps == 0 else 1):
            saved(directory, b"before", b"newest")
            mortal = FileStore(directory, MortalFiles(steps, written))
            try:
                mortal.save(b"replaced")
                outcomes.add("done")
            except PowerCutError:
                outcomes.add(steps)
            survivor = FileStore(directory)
            state = survivor.load()
            assert state == (b"newest" if "done" not in outcomes and steps < 4 else b"replaced")
            assert survivor.warning is None
            survivor.save(b"after")
            assert FileStore(directory).load() == b"after"
    assert outcomes == {0, 1, 2, 3, 4, "done"}


def test_a_second_crash_at_the_same_place_is_no_trouble(directory):
    for steps in range(6):
        saved(directory, b"before")
        for _ in range(3):
            with contextlib.suppress(PowerCutError):
                FileStore(directory, MortalFiles(steps)).save(b"crashing")
            assert FileStore(directory).load() in {b"before", b"crashing"}
        saved(directory, b"between", b"last")
        (directory / NEWEST).write_bytes(b"torn")
        assert FileStore(directory).load() == b"between"


def test_a_save_over_a_torn_ledger_keeps_the_last_whole_generation_until_it_is_done(directory):
    for steps in range(3):
        saved(directory, b"whole", b"newest")
        (directory / NEWEST).write_bytes(b"torn")
        store = FileStore(directory, MortalFiles(steps))
        assert store.load() == b"whole"
        try:
            store.save(b"new")
        except PowerCutError:
            assert FileStore(directory).load() in {b"whole", b"new"}
        else:
            assert FileStore(directory).load() == b"new"
        assert (directory / OLDER).read_bytes().endswith(b"whole")


def test_both_generations_torn_is_for_the_operator_with_the_cure(directory):
    saved(directory, b"older", b"newest")
    for name in (NEWEST, OLDER):
        (directory / name).write_bytes(b"rubbish")
    with pytest.raises(NodeUnready, match="Move both files away and restart the agent"):
        FileStore(directory).load()


def test_a_newer_format_is_named_and_never_taken_for_torn(directory):
    saved(directory, b"x")
    text = (directory / NEWEST).read_bytes().replace(b"v%d " % FORMAT, b"v%d " % (FORMAT + 1))
    (directory / NEWEST).write_bytes(text)
    with pytest.raises(NodeUnready, match=f"format {FORMAT + 1} and this agent reads format {FORMAT}"):
        FileStore(directory).load()


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
@pytest.mark.parametrize("steps", range(5))
def test_a_disk_that_refuses_is_named_with_its_cure_and_the_state_before_stays(
    directory, number, words, steps
):
    saved(directory, b"before", b"kept")
    store = FileStore(directory, MortalFiles(steps, 3, OSError(number, os.strerror(number))))
    with pytest.raises(NodeUnready, match=f"(?i){words}"):
        store.save(b"new")
    assert FileStore(directory).load() == (b"new" if steps == 4 else b"kept")
    assert not (directory / "ledger.new").exists()
    saved(directory, b"later")
    assert FileStore(directory).load() == b"later"


def test_links_are_not_followed(directory, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"secret")
    saved(directory, b"x")
    (directory / NEWEST).unlink()
    (directory / NEWEST).symlink_to(elsewhere)
    with pytest.raises(NodeUnready, match="symbolic link"):
        FileStore(directory).load()
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
    (directory / NEWEST).unlink()
    os.mkfifo(directory / NEWEST)
    with pytest.raises(NodeUnready, match="no plain file"):
        FileStore(directory).load()


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=6))
def test_the_last_of_any_row_of_states_is_loaded_and_no_file_is_left_over(tmp_path_factory, states):
    directory = tmp_path_factory.mktemp("store") / "state"
    store = saved(directory, *states)
    assert store.load() == FileStore(directory).load() == states[-1]
    assert {p.name for p in directory.iterdir()} <= {NEWEST, OLDER}


def test_the_clock_goes_forward():
    clock = SystemClock()
    assert clock.monotonic() <= clock.monotonic()
    assert clock.now() > 1_700_000_000
