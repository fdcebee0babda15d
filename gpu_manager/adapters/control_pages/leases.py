"""Leases that containers take on files of the agent (fcntl's ``F_SETLEASE``), and the way past them.

The kernel asks for no capability where the caller's uid owns the file: the root of a container without a user
namespace may take a lease through a read-only mount too. An open that conflicts with it waits until the lease
is given up, or for ``fs.lease-break-time`` (45 s), and then the next lease may be there already. The kernel
grants none on a file that is open for writing. So the agent keeps its files open. Where a container was
faster, a thread waits in ``open``, which counts as a writer from then on.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from pathlib import Path

from gpu_manager.runtime import threads

_LARGEST = 8 << 20  # bytes of the kernel's list of locks; a line has some sixty


class LeaseBreaker:
    """Opens files for writing in threads of its own, one for each file on which somebody holds a lease."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: dict[tuple[int, int], int | None] = {}  # device and inode → descriptor; None: waits

    def open(self, here: int, name: str) -> int | None:
        """Return a descriptor of the regular file, for writing; None while the lease is not given up yet.

        Ask again then: what was opened meanwhile is kept. Raises OSError.
        """
        file = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        status = os.fstat(file)
        key = status.st_dev, status.st_ino
        with self._lock:
            self._drop_removed()
            if key in self._opened or not stat.S_ISREG(status.st_mode):
                os.close(file)
                page = self._opened.get(key)
                if page is not None:
                    del self._opened[key]
                return page
            self._opened[key] = None
        threads.once("lease", lambda: self._wait(key, file)).start()
        return None

    def close(self) -> None:
        """Close what nobody asked for again."""
        with self._lock:
            for page in self._opened.values():
                if page is not None:
                    os.close(page)
            self._opened = {key: None for key, page in self._opened.items() if page is None}

    def _wait(self, key: tuple[int, int], file: int) -> None:
        page = None
        try:
            # Of the very file, whatever has its name by now; without O_NONBLOCK, so that it waits.
            with contextlib.suppress(OSError):  # the next look tries again, and reports what it finds
                page = os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        finally:
            os.close(file)
        with self._lock:
            if page is None:
                del self._opened[key]
            else:
                self._opened[key] = page

    def _drop_removed(self) -> None:
        for key, page in list(self._opened.items()):
            if page is not None and not os.fstat(page).st_nlink:
                os.close(page)
                del self._opened[key]


def holders(locks: Path, status: os.stat_result) -> tuple[int, ...]:
    """Return the pids that hold a lease on the file with this status, by ``/proc/locks``.

    The pid is that of the process that took the lease, which may have ended while a child keeps it.
    """
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        with locks.open("rb") as listed:
            lines = listed.read(_LARGEST).decode("ascii", "replace").splitlines()
    except OSError:
        return ()
    found = {
        int(words[4])
        for words in map(str.split, lines)
        if len(words) >= 6 and words[1] == "LEASE" and words[5] == place and words[4].isdigit()
    }
    return tuple(sorted(found - {0}))
