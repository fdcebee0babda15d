"""The ledger and the bills on disk (implements :class:`gpu_manager.ports.records.Store`).

Two files, for the ledger ``ledger.a`` and ``ledger.b``, in a directory of their own (0700). Each holds a
whole state behind a header line: format, generation, length, SHA-256. A new state goes over the older one,
and the newer stays as it is until that is durable: so at every instant, also in mid-write, one complete state
is on disk.

It is written in place, because the kubelet waits for it in every Allocate: that costs one flush of a few
pages, where a fresh file renamed into place costs two commits of the file system's journal. Only a file that
is absent or too short is made anew, with room to grow. A file of another format, as a newer agent leaves it,
is never written over: it is kept beside under another name.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from gpu_manager.domain.errors import NodeUnready

FORMAT = 1
SIZE_LIMIT = 64 << 20  # bytes; a node's books are some hundred KiB, so more is not ours

REBUILDS = "it rebuilds its books from the kubelet's checkpoint"

_ROOM = 64 << 10  # bytes; files are made in multiples of it, and twice as large as need be
_VERSION = rb"gpu-manager %s v(\d{1,9}) "
_HEADER = _VERSION + rb"generation=(\d{1,18}) sha256=([0-9a-f]{64}) bytes=(\d{1,9})\n"
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
log = structlog.get_logger(__name__)


_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO under its name must not make us wait


@dataclass(frozen=True, slots=True)
class _Saved:
    """A complete state, as one of the files holds it."""

    name: str
    generation: int
    state: bytes


class Files(Protocol):
    """The steps of a save, so that a test can simulate a crash after any of them."""

    def write(self, path: Path, data: bytes) -> None:
        """Create or replace the file, durably."""

    def overwrite(self, path: Path, data: bytes) -> None:
        """Put ``data`` over the start of a file that is there and large enough, durably."""

    def rename(self, source: Path, target: Path) -> None:
        """Replace ``target``, atomically."""

    def sync(self, directory: Path) -> None:
        """Make the names in the directory durable."""


class DiskFiles:
    """The real steps."""

    def write(self, path: Path, data: bytes) -> None:
        """Write, then wait until the bytes are on the disk."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _OPEN, 0o600)
        try:
            _write(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)

    def overwrite(self, path: Path, data: bytes) -> None:
        """Overwrite the existing content; if no further space is needed, a data flush is enough."""
        handle = os.open(path, os.O_WRONLY | _OPEN)
        try:
            _write(handle, data)
            os.fdatasync(handle)
        finally:
            os.close(handle)

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
    """Keeps one state in ``directory``. ``warning`` describes faults that :meth:`load` found and recovered
    from.
    """

    def __init__(
        self, directory: Path, files: Files | None = None, *, what: str = "ledger", without: str = REBUILDS
    ) -> None:
        """``what`` is kept, in one small word; ``without`` says what the agent does if it is lost."""
        self._what, self._without = what, without
        # At the start of a file: what was to be saved here was refused.
        self._given_up = f"gpu-manager {what} given up\n".encode()
        self._names, self._fresh = (f"{what}.a", f"{what}.b"), f"{what}.new"
        self._directory = directory
        self._files = files or DiskFiles()
        self._lock = threading.Lock()
        self._known = False  # whether _newest is; not before the first load or save
        self._newest: tuple[str, int] | None = None  # name and generation
        self.warning: str | None = None
        self._aside: tuple[str, ...] = ()

    def load(self) -> bytes | None:
        """The newest complete state; None if none was ever saved.

        Raises:
            NodeUnready: no state can be read although there is one, or the directory is not fit.
        """
        with self._lock:
            try:
                self._prepare()
                self._aside = self._keep_other_formats()
                found, wrong = self._look()
            except OSError as error:
                raise self._unready("read", error) from error
            self.warning = None
            if found is None and wrong:
                raise NodeUnready(
                    f"no readable {self._what} in {self._directory}: {', '.join(wrong)}. Move both files "
                    f"away and restart the agent: {self._without}"
                )
            if found is None:
                return None
            if wrong:
                self.warning = (
                    f"{self._directory}: {wrong[0]}; went on with generation {found.generation}, in "
                    f"{found.name}. After a power cut in mid-write that is the last; else look at the disk"
                )
                log.warning("ledger_torn", directory=str(self._directory), reason=wrong[0], used=found.name)
            return found.state

    def aside(self) -> tuple[str, ...]:
        """The names of files of another format that the last :meth:`load` kept."""
        return self._aside

    def set_aside(self, why: str) -> tuple[str, ...]:
        """Keep both files under names that end in ``why``, and return these; nothing is stored then.

        Raises:
            NodeUnready: they cannot be renamed.
        """
        with self._lock:
            try:
                return tuple(filter(None, (self._keep(name, why) for name in self._names)))
            except OSError as error:
                raise self._unready("keep", error) from error

    def _keep_other_formats(self) -> tuple[str, ...]:
        formats = {name: self._format(name) for name in self._names}
        return tuple(
            filter(
                None,
                (self._keep(name, f"format-{n}") for name, n in formats.items() if n not in (None, FORMAT)),
            )
        )

    def _format(self, name: str) -> int | None:
        """The format that the file says it has; None if it says none."""
        try:
            handle = os.open(self._directory / name, os.O_RDONLY | _OPEN)
        except FileNotFoundError:
            return None
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return None
            match = re.match(_VERSION % self._what.encode(), file.read(_HEADER_LIMIT))
        return int(match[1]) if match else None

    def _keep(self, name: str, why: str) -> str:
        """The new name; empty if there is no such file."""
        kept = f"{name}.{why}"
        try:
            self._files.rename(self._directory / name, self._directory / kept)
        except FileNotFoundError:
            return ""
        self._files.sync(self._directory)
        self._known = False
        log.warning("file_kept_aside", directory=str(self._directory), name=name, kept=kept)
        return kept

    def save(self, state: bytes) -> None:
        """Replace the state; when this returns it survives a power cut.

        Raises:
            NodeUnready: it could not be written; the state before is still there.
        """
        if len(state) > SIZE_LIMIT:
            raise NodeUnready(
                f"the {self._what} has {len(state)} bytes, more than {SIZE_LIMIT}: this is not sane"
            )
        with self._lock:
            target = None
            try:
                self._prepare()
                if not self._known:
                    self._look()
                name, generation = self._newest or (self._names[1], 0)
                target = self._names[1 - self._names.index(name)]
                self._put(self._directory / target, _framed(self._what, state, generation + 1))
                self._newest = (target, generation + 1)
            except OSError as error:
                self._give_up(target)
                raise self._unready("write", error) from error

    def _put(self, path: Path, data: bytes) -> None:
        if _room_of(path) >= len(data):
            self._files.overwrite(path, data)
            return
        room = -(-2 * len(data) // _ROOM) * _ROOM
        fresh = self._directory / self._fresh
        self._files.write(fresh, data.ljust(room, b"\0"))
        self._files.rename(fresh, path)
        self._files.sync(self._directory)

    def _give_up(self, target: str | None) -> None:
        """What was refused must not be found by the next start, in whatever part it got to the disk."""
        self._known = False
        with contextlib.suppress(OSError):
            (self._directory / self._fresh).unlink(missing_ok=True)  # on a full disk it is in the way
        if target is not None:
            with contextlib.suppress(OSError):
                handle = os.open(self._directory / target, os.O_WRONLY | _OPEN)
                try:
                    _write(handle, self._given_up)
                finally:
                    os.close(handle)

    def _look(self) -> tuple[_Saved | None, list[str]]:
        """The newest complete state, and what is wrong with the other file (with both if there is none)."""
        found = {name: self._read(name) for name in self._names}
        whole = [one for one in found.values() if isinstance(one, _Saved)]
        newest = max(whole, key=lambda one: one.generation, default=None)
        self._newest = (newest.name, newest.generation) if newest else None
        self._known = True
        wrong = [f"{name} {why}" for name, why in found.items() if isinstance(why, str)]
        if newest is not None and newest.generation > 1:
            wrong += [
                f"{name} is missing"
                for name, one in found.items()
                if one is None and not (self._directory / name).exists()
            ]
        return newest, wrong

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

    def _read(self, name: str) -> _Saved | str | None:
        """The state in the file, or why it is none (a phrase), or None if nothing was saved there."""
        path = self._directory / name
        try:
            handle = os.open(path, os.O_RDONLY | _OPEN)
        except FileNotFoundError:
            return None
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return "is no plain file"
            data = file.read(SIZE_LIMIT + _HEADER_LIMIT)
        return None if data.startswith(self._given_up) else _verify(self._what, name, data)

    def _unready(self, verb: str, error: OSError) -> NodeUnready:
        cure = _CURES.get(error.errno or 0, error.strerror or str(error))
        return NodeUnready(f"cannot {verb} the {self._what} in {self._directory}: {cure}")


def _framed(what: str, state: bytes, generation: int) -> bytes:
    digest = _digest(state, generation)
    header = f"gpu-manager {what} v{FORMAT} generation={generation} sha256={digest} bytes={len(state)}\n"
    return header.encode() + state


def _digest(state: bytes, generation: int) -> str:
    """Over both: a generation that the disk has altered must not win."""
    return hashlib.sha256(b"%d:" % generation + state).hexdigest()


def _verify(what: str, name: str, data: bytes) -> _Saved | str:
    match = re.match(_HEADER % what.encode(), data[:_HEADER_LIMIT])
    if match is None:
        return f"is torn (no header in its {len(data)} bytes)"
    generation, length = int(match[2]), int(match[4])
    state = data[match.end() : match.end() + length]
    if len(state) != length:
        return f"is torn ({len(state)} of {length} bytes)"
    if _digest(state, generation).encode() != match[3]:
        return "is torn (the checksum differs)"
    return _Saved(name, generation, state)


def _room_of(path: Path) -> int:
    """How many bytes can be written without asking the file system for room; 0 for what is no plain file."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _write(handle: int, data: bytes) -> None:
    """All of ``data``, from the file's start."""
    rest, offset = memoryview(data), 0
    while rest:
        done = os.pwrite(handle, rest, offset)
        rest, offset = rest[done:], offset + done
