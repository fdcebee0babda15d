"""Creates, opens, reads and locks files that a tenant can write, without trusting their content or type.

All access goes through directory descriptors with ``O_NOFOLLOW``: names are hex, links are never followed,
only regular files are read, and no call blocks. Callers translate ``OSError``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import secrets
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from gpu_manager.adapters.machine import put_label
from gpu_manager.domain.errors import NodeUnready, Tampered

_NAME: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: were the name a FIFO, opening it would wait for ever.
_PAGE: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid
_UNLOCKED: Final = struct.pack("h", fcntl.F_UNLCK)
ASK_MOST_NS: Final = 5_000_000
_EACH_NS: Final = 25_000


def is_name(name: str) -> bool:
    """True for a legal name of a directory of pages: 32 lower-case hex digits."""
    return _NAME.fullmatch(name) is not None


def checked(name: str) -> str:
    """Return the name. Raises NodeUnready unless :func:`is_name`: it becomes part of a path."""
    if not is_name(name):
        raise NodeUnready(f"{name[:64]!r} is not the name of a directory of control pages (32 hex digits)")
    return name


@contextlib.contextmanager
def directory(root: Path, name: str, *, create: bool = False) -> Iterator[int]:
    """Return a descriptor of ``root/name``; with ``create`` both directories are created (0700) if absent."""
    if create:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    base = os.open(root, _DIRECTORY)
    try:
        if create:
            _make(base, checked(name))
        here = os.open(checked(name), _DIRECTORY, dir_fd=base)
    finally:
        os.close(base)
    try:
        yield here
    finally:
        os.close(here)


def _make(base: int, name: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=base)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=base, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=base)  # a link or file in the directory's place is nobody's
            os.mkdir(name, 0o700, dir_fd=base)


def open_page(here: int, name: str) -> int | None:
    """Return a descriptor of a page for reading and writing; None if there is no regular file of that name.

    A file whose mode forbids that gets its mode back: a tenant with the same user id may change it.
    """
    try:
        page = os.open(name, _PAGE, dir_fd=here)
    except FileNotFoundError:
        return None
    except PermissionError:
        page = _open_again(here, name)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV):
            return None
        raise
    if not stat.S_ISREG(os.fstat(page).st_mode):
        os.close(page)
        return None
    return page


def _open_again(here: int, name: str) -> int:
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    try:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            os.chmod(f"/proc/self/fd/{handle}", 0o600)  # noqa: PTH101  # the handle, not whatever has its name now
        return os.open(name, _PAGE, dir_fd=here)
    finally:
        os.close(handle)


def create_page(
    here: int, name: str, content: bytes, size: int, mode: int, label: bytes | None = None
) -> int:
    """Create a page atomically and return its descriptor. Zeros follow ``content`` up to the size.

    The space is allocated at once, so that a full disk is an error here and not a SIGBUS in the tenant.
    """
    _clear(here, name)
    draft = f".{name}.{secrets.token_hex(8)}"
    page = os.open(draft, _PAGE | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=here)
    try:
        os.posix_fallocate(page, 0, size)
        write(page, 0, content)
        put_label(page, label)
        os.fchmod(page, mode)  # not the creation mode: umask would cut it
        os.rename(draft, name, src_dir_fd=here, dst_dir_fd=here)
    except BaseException:
        os.close(page)
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=here)
        raise
    return page


def _clear(here: int, name: str) -> None:
    """Remove the empty directory that a container runtime creates if the source of a mount is missing."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
            os.rmdir(name, dir_fd=here)


def put_back(page: int, status: os.stat_result, size: int, mode: int) -> str:
    """Restore owner, size and mode of a page with this ``status``, and remove extended attributes and access
    lists. Returns a text about the changes; empty if there were none.
    """
    changed = []
    if status.st_uid != os.geteuid():  # its owner may take leases on it, and change its mode
        with contextlib.suppress(PermissionError):
            os.chown(page, os.geteuid(), -1)
        changed.append(f"its owner was {status.st_uid} instead of {os.geteuid()}")
    if attributes := _clear_attributes(page):
        changed.append(f"it had {attributes}")
    if status.st_size != size:
        os.ftruncate(page, size)
        os.posix_fallocate(page, 0, size)
        changed.append(f"it had {status.st_size} bytes instead of {size}")
    elif (
        status.st_blocks * 512 > size
    ):  # FALLOC_FL_KEEP_SIZE; a file system may need more by itself, which stays
        os.ftruncate(page, size)
        if freed := status.st_blocks - os.fstat(page).st_blocks:
            changed.append(f"{freed * 512} bytes were reserved beyond its end")
    if stat.S_IMODE(status.st_mode) != mode:
        os.fchmod(page, mode)
        changed.append(f"its mode was {stat.S_IMODE(status.st_mode):04o} instead of {mode:04o}")
    return " and ".join(changed)


def attributes(page: int) -> list[str] | None:
    """The names of the file's extended attributes and access lists; None if there are more than the kernel
    lists.
    """
    try:
        return os.listxattr(page)
    except OSError as error:
        return None if error.errno == errno.E2BIG else []


def lasting_attributes(page: int) -> list[str]:
    """Those of :func:`attributes` that kernel and runtime set, which stay."""
    return [name for name in attributes(page) or () if not _is_a_tenants(name)]


def _clear_attributes(page: int) -> str:
    found = attributes(page)
    if found is None:
        return "more extended attributes than the kernel lists"
    names = [name for name in found if _is_a_tenants(name)]
    for name in names:
        with contextlib.suppress(OSError):
            os.removexattr(page, name)
    return f"{len(names)} extended attributes" if names else ""


def _is_a_tenants(name: str) -> bool:
    """Those of security modules need CAP_SYS_ADMIN, but for a file's capabilities."""
    return not name.startswith("security.") or name == "security.capability"


def read(page: int, size: int) -> bytes:
    """Return the first ``size`` bytes; fewer if the file is shorter."""
    parts = []
    offset = 0
    while offset < size and (part := os.pread(page, size - offset, offset)):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def write(page: int, offset: int, data: bytes) -> None:
    """Write all of ``data`` at ``offset``."""
    view = memoryview(data)
    while view:
        done = os.pwrite(page, view, offset)
        view, offset = view[done:], offset + done


def remove(root: Path, name: str, unmount: Callable[[Path], None]) -> None:
    """Delete ``root/name`` and the files in it, if present; ``unmount`` is called between the two. Links are
    deleted, not followed.
    """
    try:
        with directory(root, name) as here:
            for entry in os.listdir(here):  # noqa: PTH208  # of a descriptor, which no path can name safely
                if stat.S_ISDIR(os.stat(entry, dir_fd=here, follow_symlinks=False).st_mode):
                    os.rmdir(entry, dir_fd=here)
                else:
                    os.unlink(entry, dir_fd=here)
        unmount(root / name)
        (root / name).rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        (root / name).unlink(missing_ok=True)


class TooManyLocks(Tampered):
    """A file has so many locks that querying its bytes takes longer than :data:`ASK_MOST_NS`, plus
    :data:`_EACH_NS` for each locked byte: a page has at most a thousand processes.
    """


def held(page: int, places: Sequence[int]) -> list[int]:
    """Those of these bytes, in ascending order, on which another open file description holds a lock.

    The kernel walks all locks of a file for each query, and a tenant may set thousands on its own file: all
    bytes are queried together first, then each for a bounded time. Raises TooManyLocks.
    """
    if not places:
        return []
    if len(places) > 1:
        all_of_them = _lock_of(places[0], places[-1] - places[0] + 1)
        if fcntl.fcntl(page, fcntl.F_OFD_GETLK, all_of_them).startswith(_UNLOCKED):
            return []
    found = _held_within(page, places, time.monotonic_ns)
    if found is None:  # others may have had the processor; the time of this thread costs a call each
        found = _held_within(page, places, time.thread_time_ns)
    if found is None:
        raise TooManyLocks
    return found


def _held_within(page: int, places: Sequence[int], clock: Callable[[], int]) -> list[int] | None:
    """Those that are held; None if the queries take too long by this clock (nanoseconds)."""
    found, began = [], clock()
    for place in places:
        if not fcntl.fcntl(page, fcntl.F_OFD_GETLK, _lock_of(place, 1)).startswith(_UNLOCKED):
            found.append(place)
        if clock() - began > ASK_MOST_NS + len(found) * _EACH_NS:
            return None
    return found


@functools.lru_cache(4096)
def _lock_of(start: int, length: int) -> bytes:
    return _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)


@contextlib.contextmanager
def locked(page: int, start: int, length: int) -> Iterator[bool]:
    """Hold a write lock on these bytes, unless one is locked already; yields whether. Does not wait."""
    try:
        fcntl.fcntl(page, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        yield False
        return
    try:
        yield True
    finally:
        fcntl.fcntl(page, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, start, length, 0))
