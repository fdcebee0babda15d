"""The books on disk (implements :class:`gpu_manager.ports.Store`).

One file, ``ledger``, in a directory of its own (0700): a header line with format version, length and
SHA-256, then the state. A new state is written beside it, made durable, and renamed over it; the one
before stays as ``ledger.old``. So at every instant, also in mid-write, one complete state is on disk.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import threading
from pathlib import Path
from typing import Protocol

import structlog

from gpu_manager.domain.errors import NodeUnready

FORMAT = 1
NEWEST, OLDER, FRESH, KEEPING = "ledger", "ledger.old", "ledger.new", "ledger.keep"
SIZE_LIMIT = 64 << 20  # bytes; a node's books are some hundred KiB, so more is not ours

_HEADER = re.compile(rb"gpu-manager ledger v(\d{1,9}) sha256=([0-9a-f]{64}) bytes=(\d{1,9})\n")
_HEADER_LIMIT = 256
_CURES = {
    errno.ENOSPC: "the disk is full: free space there",
    errno.EDQUOT: "the disk quota is used up: raise it or free space there",
    errno.EROFS: "the file system is read-only: look for disk errors in the kernel log, mount it writable",
    errno.EACCES: "permission denied: the agent must own this directory",
    errno.EPERM: "permission denied: the agent must own this directory",
    errno.ELOOP: "it is a symbolic link: put a plain directory and plain files there",
    errno.ENOTDIR: "a part of the path is no directory",
    errno.EIO: "the disk reports an error: look in the kernel log and replace it",
}
_log = structlog.get_logger(__name__)


class Files(Protocol):
    """The steps a save is made of, so that a test can end the world after any of them."""

    def write(self, path: Path, data: bytes) -> None:
        """Create or replace the file, durably."""

    def link(self, source: Path, target: Path) -> None:
        """Give the file a second name."""

    def rename(self, source: Path, target: Path) -> None:
        """Replace ``target``, atomically."""

    def sync(self, directory: Path) -> None:
        """Make the names in the directory durable."""


class DiskFiles:
    """The real steps."""

    def write(self, path: Path, data: bytes) -> None:
        """Write, then wait until the bytes are on the disk."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
        finally:
            os.close(handle)

    def link(self, source: Path, target: Path) -> None:
        """A hard link."""
        os.link(source, target, follow_symlinks=False)

    def rename(self, source: Path, target: Path) -> None:
        """Atomic on every file system of a node."""
        source.replace(target)

    def sync(self, directory: Path) -> None:
        """fsync(2) of the directory."""
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class FileStore:
    """Keeps one state in ``directory``. ``warning`` says what :meth:`load` found wrong and got over."""

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        self._directory = directory
        self._files = files or DiskFiles()
        self._lock = threading.Lock()
        self._newest_is_whole: bool | None = None  # not known before the first load or save
        self.warning: str | None = None

    def load(self) -> bytes | None:
        """The newest complete state; None if none was ever saved.

        Raises:
            NodeUnready: no state can be read although there is one, or the directory is not fit.
        """
        with self._lock:
            try:
                self._prepare()
                newest, older = self._read(NEWEST), self._read(OLDER)
            except OSError as error:
                raise self._unready("read", error) from error
            self.warning = None
            self._newest_is_whole = isinstance(newest, bytes)
            if isinstance(newest, bytes):
                return newest
            if isinstance(older, bytes):
                what = newest or "it is missing"
                self.warning = f"{self._directory / NEWEST}: {what}; went on with the generation before"
                _log.warning("ledger_torn", path=str(self._directory / NEWEST), reason=what, used=OLDER)
                return older
            if newest is None and older is None:
                return None
            raise NodeUnready(
                f"no readable ledger in {self._directory}: {NEWEST} {newest or 'is missing'}, "
                f"{OLDER} {older or 'is missing'}. Move both files away and restart the agent: it rebuilds "
                f"its books from the kubelet's checkpoint"
            )

    def save(self, state: bytes) -> None:
        """Replace the state; when this returns it survives a power cut.

        Raises:
            NodeUnready: it could not be written; the state before is still there.
        """
        if len(state) > SIZE_LIMIT:
            raise NodeUnready(f"the ledger has {len(state)} bytes, more than {SIZE_LIMIT}: this is not sane")
        header = (
            f"gpu-manager ledger v{FORMAT} sha256={hashlib.sha256(state).hexdigest()} bytes={len(state)}\n"
        )
        with self._lock:
            try:
                self._prepare()
                self._replace(header.encode() + state)
            except OSError as error:
                self._newest_is_whole = None
                with contextlib.suppress(OSError):
                    (self._directory / FRESH).unlink(missing_ok=True)  # on a full disk it is in the way
                raise self._unready("write", error) from error

    def _replace(self, data: bytes) -> None:
        newest, older, fresh, keeping = (self._directory / name for name in (NEWEST, OLDER, FRESH, KEEPING))
        self._files.write(fresh, data)
        if self._newest_is_whole is None:
            self._newest_is_whole = isinstance(self._read(NEWEST), bytes)
        if self._newest_is_whole:  # a torn one must not push out the last that is whole
            keeping.unlink(missing_ok=True)  # of an interrupted save: rename leaves a second link to one file
            self._files.link(newest, keeping)
            self._files.rename(keeping, older)
        self._files.rename(fresh, newest)
        self._newest_is_whole = True
        self._files.sync(self._directory)

    def _prepare(self) -> None:
        try:
            info = os.lstat(self._directory)
        except FileNotFoundError:
            self._directory.mkdir(mode=0o700, parents=True)
            return
        if not stat.S_ISDIR(info.st_mode):
            raise OSError(errno.ELOOP if stat.S_ISLNK(info.st_mode) else errno.ENOTDIR, "not a directory")
        if stat.S_IMODE(info.st_mode) & 0o077:
            self._directory.chmod(0o700)

    def _read(self, name: str) -> bytes | str | None:
        """The state in the file, or why it is none (a phrase), or None if there is no file."""
        path = self._directory / name
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return "is no plain file"
            data = file.read(SIZE_LIMIT + _HEADER_LIMIT + 1)
        return _verify(data)

    def _unready(self, verb: str, error: OSError) -> NodeUnready:
        cure = _CURES.get(error.errno or 0, error.strerror or str(error))
        return NodeUnready(f"cannot {verb} the ledger in {self._directory}: {cure}")


def _verify(data: bytes) -> bytes | str:
    match = _HEADER.match(data[:_HEADER_LIMIT])
    if match is None:
        return f"is torn (no header in its {len(data)} bytes)"
    if int(match[1]) != FORMAT:
        return f"has format {int(match[1])} and this agent reads format {FORMAT}: upgrade the agent"
    state = data[match.end() :]
    if len(state) != int(match[3]):
        return f"is torn ({len(state)} of {int(match[3])} bytes)"
    if hashlib.sha256(state).hexdigest().encode() != match[2]:
        return "is torn (the checksum differs)"
    return state
