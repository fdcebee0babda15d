"""Waits for files that come or go in a directory, by inotify(7); by the clock where there is none to be
had.
"""

from __future__ import annotations

import ctypes
import os
import select
import weakref
from pathlib import Path
from typing import Final

LOOK_SECONDS: Final = 5.0
"""A directory that has another in its place is seen within this time."""
_MASK: Final = 0x40 | 0x80 | 0x100 | 0x200  # IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE
_EVENTS_BYTES: Final = 65536
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

Stamp = tuple[int, int, int]


def stamp_of(path: str) -> Stamp | None:
    """Return the identity of a file; None if absent. Inode numbers alone are reused soon."""
    try:
        stat = os.stat(path)  # noqa: PTH116  # again and again for ever: half the cost of Path.stat
    except OSError:
        return None
    return (stat.st_ino, stat.st_ctime_ns, stat.st_mtime_ns)


class DirectoryWatch:
    """One directory, which may not be there yet or be made anew. One thread waits; any may wake it."""

    def __init__(self, directory: Path) -> None:
        self._directory = os.fsencode(directory)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._wake)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._inotify = -1
        self._give_back: weakref.finalize[[int], DirectoryWatch] | None = None

    def arm(self) -> bool:
        """Watch the directory that has the name now. What changes from here on ends :meth:`wait`; False if
        that cannot be had: a user has few inotify instances, and others may hold them all.
        """
        if self._inotify < 0:
            self._inotify = _LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            if self._inotify < 0:
                return False
            self._give_back = weakref.finalize(self, os.close, self._inotify)
            self._poll.register(self._inotify, select.POLLIN)
        return int(_LIBC.inotify_add_watch(self._inotify, self._directory, _MASK)) >= 0

    def wait(self, seconds: float) -> None:
        """Return after a change since the last call, when woken, or after so long."""
        for handle, _ in self._poll.poll(seconds * 1e3):
            os.read(handle, _EVENTS_BYTES)

    def wake(self) -> None:
        """End the wait."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Give the inotify instance back, by the thread that waits; the next :meth:`arm` takes another."""
        if self._give_back is not None:
            self._poll.unregister(self._inotify)
            self._give_back()
            self._inotify, self._give_back = -1, None
