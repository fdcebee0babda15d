"""A ring of files with what a program decided, on disk: bounded, and written so that a kill loses no line.

Segments are numbered (``decisions-00000012.jsonl``), each readable by itself; once all of them together pass
the limit the oldest goes. Lines reach the kernel with each :meth:`RecordRing.append`, so only a crash of the
machine loses those that are not on the disk yet. The directory is 0700, a file 0600.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gpu_manager.domain.errors import NodeUnready

_NAME: Final = re.compile(r"decisions-(\d{8})\.jsonl")
_PARTS: Final = 4  # segments that a full ring has
_OPEN: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class RecordRing:
    """One program's ring in a directory of its own. Not thread-safe. ``limit`` in bytes; a full ring has so
    many ``parts``.

    Raises NodeUnready, here and in every method that writes: the directory or a file cannot be written.
    """

    def __init__(self, directory: Path, limit: int, parts: int = _PARTS) -> None:
        self._directory = directory
        self._limit = limit
        self._part = limit // parts
        self._handle: int | None = None
        self._size = self._first = 0  # bytes of the segment; of what it began with
        self._before: list[tuple[Path, int]] = []  # earlier segments, the oldest first, and their bytes
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
        except OSError as error:
            raise self._unready(error) from error
        self._number = max(map(_number, segments(directory)), default=0)

    @property
    def full(self) -> bool:
        """True once another segment is to :meth:`begin`; always before the first."""
        return self._handle is None or self._size >= max(self._part, 2 * self._first)

    def begin(self, lines: Iterable[bytes]) -> None:
        """Begin a segment with these lines, by which what follows can be understood."""
        self.close()
        self._number += 1
        try:
            self._before = [(path, path.stat().st_size) for path in segments(self._directory)]
            self._handle = os.open(self._directory / f"decisions-{self._number:08d}.jsonl", _OPEN, 0o600)
        except OSError as error:
            raise self._unready(error) from error
        self._size = 0
        for line in lines:
            self.append((line,))
        self._first = self._size

    def append(self, lines: Iterable[bytes]) -> None:
        """Add lines, each without its end, in one write."""
        data = b"".join([line + b"\n" for line in lines])
        if self._handle is None or not data:
            return
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._handle, left) :]
            self._size += len(data)
            self._make_room()
        except OSError as error:
            raise self._unready(error) from error

    def close(self) -> None:
        """Write no more to the segment."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def names(self) -> list[str]:
        """The names of the files, the oldest first. May be called from any thread."""
        try:
            return [path.name for path in segments(self._directory)]
        except OSError as error:
            raise self._unready(error) from error

    def read(self, name: str) -> bytes | None:
        """A file's content so far; None if there is no such file. May be called from any thread."""
        if not _NAME.fullmatch(name):
            return None
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unready(error) from error

    def _make_room(self) -> None:
        if self._size > self._limit:
            self.close()
            raise NodeUnready(
                f"{self._directory}: the state of this cluster alone is {self._size >> 20} MiB as a record,"
                f" more than the {self._limit >> 20} MiB for all records: raise --record-mib"
            )
        room = self._limit - max(self._size, self._part)
        while sum(size for _, size in self._before) > room:
            self._before.pop(0)[0].unlink(missing_ok=True)

    def _unready(self, error: OSError) -> NodeUnready:
        return NodeUnready(
            f"{self._directory}: decisions cannot be recorded: {error.strerror}: make it a directory that"
            " this program may write, with room for --record-mib"
        )


def segments(directory: Path) -> list[Path]:
    """The ring's files, the oldest first."""
    return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))


def _number(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    return int(found[1]) if found else 0
