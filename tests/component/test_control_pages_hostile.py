"""What a hostile tenant can do to its usage page, and that it is found, named and put right."""

import contextlib
import os
import struct
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.domain.errors import NodeUnready
from tests.fakes.pages import LIMIT, NAME, put, register, usage_file
from tests.fakes.waiting import PATIENCE
from vcuda.page.usage import MAX_BYTES, MAX_NS, MAX_SLOTS, USAGE_SIZE


@pytest.mark.parametrize(
    "change",
    [
        lambda page: page.chmod(0o600),
        lambda page: os.truncate(page, USAGE_SIZE + 4096),
        lambda page: os.setxattr(page, "user.x", b"y"),
        lambda page: os.chown(page, 1000, 1000),
    ],
    ids=["mode", "size", "attribute", "owner"],
)
def test_a_page_that_was_as_before_is_seen_to_be_changed(tenants, root, change):
    """An idle container's page is compared with the last reading alone."""
    tenants.open(NAME, [LIMIT])
    read = tenants.usage(NAME)
    assert tenants.unchanged([NAME]) == {NAME: read}
    try:
        change(usage_file(root))
    except OSError as error:
        pytest.skip(f"cannot be done here: {error}")
    assert not tenants.unchanged([NAME])
    with pytest.raises(NodeUnready, match="tampered"):
        tenants.usage(NAME)
    tenants.usage(NAME)
    assert tenants.unchanged([NAME])


@pytest.mark.parametrize("size", [0, 1, 4095, USAGE_SIZE - 1, USAGE_SIZE + 1, 1 << 32])
def test_another_size_is_put_back_counted_and_named(tenants, root, size):
    tenants.open(NAME, [LIMIT])
    os.truncate(usage_file(root), size)
    with pytest.raises(NodeUnready, match=f"{NAME}.*{size} bytes instead of {USAGE_SIZE}"):
        tenants.usage(NAME)
    assert usage_file(root).stat().st_size == USAGE_SIZE
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
    FileControlPages(root).open(NAME, [LIMIT])
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * USAGE_SIZE)
    path = usage_file(root)
    path.unlink()
    if kind == "symlink":
        path.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    tenants = FileControlPages(root)
    with pytest.raises(NodeUnready, match=NAME):
        tenants.usage(NAME)
    tenants.reset(NAME)
    assert path.is_file()
    assert not path.is_symlink()
    assert secret.read_bytes() == b"s" * USAGE_SIZE
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


@settings(max_examples=60)
@given(
    head=st.binary(min_size=0, max_size=256),
    offset=st.integers(0, USAGE_SIZE - 256),
    high=st.integers(0, 2**32 - 1),
)
def test_whatever_the_page_says_figures_are_bounded_or_it_is_named(tmp_path_factory, head, offset, high):
    root = tmp_path_factory.mktemp("hostile")
    tenants = FileControlPages(root)
    tenants.open(NAME, [LIMIT])
    handle = register(usage_file(root), 0, charged=2**64 - 1)
    put(usage_file(root), offset, head)
    put(usage_file(root), 32, struct.pack("<I", high))
    try:
        (use,) = tenants.usage(NAME)
    except NodeUnready:
        assert tenants.tampering() == {NAME: 1}
    else:
        assert 0 <= use.memory <= MAX_BYTES
        assert 0 <= use.busy_seconds <= MAX_NS * 1e-9
        assert 0 <= use.processes <= MAX_SLOTS
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
            size = (size * 7 + 4099) % (2 * USAGE_SIZE)
            os.ftruncate(handle, size)
            os.pwrite(handle, os.urandom(64), size % 4096)
        os.close(handle)

    attacker = threading.Thread(target=attack)
    attacker.start()
    deadline = time.monotonic() + PATIENCE
    try:
        while tenants.tampering().get(NAME, 0) < 50:
            assert time.monotonic() < deadline, "the attack was not seen"
            with contextlib.suppress(NodeUnready):  # the one error that this may end in
                tenants.usage(NAME)
                tenants.reset(NAME)
    finally:
        stop.set()
        attacker.join(PATIENCE)
    tenants.reset(NAME)
    assert tenants.usage(NAME)[0].memory == 0
