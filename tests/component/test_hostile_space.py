"""A container takes all space and all inodes of the file system that its usage page lies on."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_manager.adapters.control_pages.page_directory import PageMounts
from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.domain.errors import Tampered
from tests.fakes.hostile_tenant import HostileTenant
from tests.fakes.pages import LIMIT, NAME, usage_file
from vcuda.page.usage import USAGE_SIZE

OTHER, THIRD = "f" * 32, "e" * 32
_MS_PRIVATE, _MS_SHARED = 1 << 18, 1 << 20


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A node's /run of 4 MiB, whose mounts propagate."""
    path = tmp_path / "run"
    path.mkdir()
    if libc().mount(b"run", bytes(path), b"tmpfs", ctypes.c_ulong(0), b"size=4m,nr_inodes=512") != 0:
        pytest.skip("needs the right to mount")
    libc().mount(None, bytes(path), None, ctypes.c_ulong(_MS_SHARED), None)
    yield path
    for mounted in sorted(path.glob("*/*"), reverse=True):
        libc().umount2(bytes(mounted), 2)
    libc().umount2(bytes(path), 2)


@pytest.fixture
def pages(run: Path) -> Iterator[FileControlPages]:
    made = FileControlPages(run / "pages", mounts=PageMounts(512 << 10))
    made.open(NAME, [LIMIT])
    yield made
    made.close()


@pytest.fixture
def tenant() -> Iterator[HostileTenant]:
    with HostileTenant() as running:
        yield running


def free(run: Path) -> int:
    found = os.statvfs(run)
    return found.f_bavail * found.f_frsize


def test_whoever_reserves_all_space_keeps_nobody_from_starting(pages, run, tenant):
    before = free(run)
    assert tenant.order("fallocate", usage_file(run / "pages"), size=64 << 20) == errno.ENOSPC
    tenant.order("fallocate", usage_file(run / "pages"), size=500 << 10)
    assert free(run) >= before - (64 << 10)
    pages.open(OTHER, [LIMIT])
    assert pages.usage(OTHER)[0].memory == 0
    with pytest.raises(Tampered, match="bytes instead of"):
        pages.usage(NAME)
    assert pages.usage(NAME)[0].memory == 0
    assert usage_file(run / "pages").stat().st_size == USAGE_SIZE


def test_extended_attributes_take_no_inode_of_another_container_and_are_removed_and_named(pages, run, tenant):
    before = os.statvfs(run).f_ffree
    tenant.order("attributes", usage_file(run / "pages"), names=2000, bytes_each=1000)
    assert os.statvfs(run).f_ffree == before
    pages.open(OTHER, [LIMIT])
    with pytest.raises(Tampered, match="extended attributes"):
        pages.usage(NAME)
    assert os.listxattr(usage_file(run / "pages")) == []
    assert pages.usage(NAME)[0].memory == 0


def test_an_idle_container_s_attributes_and_access_lists_are_found_too(pages, run, tenant):
    pages.usage(NAME)
    pages.usage(NAME)
    assert pages.unchanged([NAME])
    assert tenant.order("attributes", usage_file(run / "pages"), names=1, bytes_each=1) == 0
    assert not pages.unchanged([NAME])
    with pytest.raises(Tampered, match="1 extended attributes"):
        pages.usage(NAME)


def test_pages_of_an_earlier_agent_are_served_where_they_are(run):
    earlier = FileControlPages(run / "pages")
    earlier.open(NAME, [LIMIT])
    earlier.close()
    pages = FileControlPages(run / "pages", mounts=PageMounts(512 << 10))
    pages.open(NAME, [LIMIT])
    pages.open(OTHER, [LIMIT])
    assert pages.usage(NAME)[0].memory == 0
    root = run.stat().st_dev
    assert [(run / "pages" / name).stat().st_dev == root for name in (NAME, OTHER)] == [True, False]
    assert pages.shared(root) == 1
    pages.close()
    again = FileControlPages(run / "pages", mounts=PageMounts(512 << 10))
    again.open(OTHER, [LIMIT])
    assert again.usage(OTHER)[0].memory == 0
    for name in (NAME, OTHER, THIRD):
        again.remove(name)
    assert again.names() == []
    again.close()


def test_where_mounts_do_not_reach_the_node_nothing_is_mounted(run):
    libc().mount(None, bytes(run), None, ctypes.c_ulong(_MS_PRIVATE), None)
    pages = FileControlPages(run / "pages", mounts=PageMounts(512 << 10))
    pages.open(NAME, [LIMIT])
    assert (run / "pages" / NAME).stat().st_dev == run.stat().st_dev
    pages.close()
