"""The gates of cards on disk: what the watcher writes, and best-effort containers read; leases on such files.

``<pages>/gates/<the card's UUID as 32 hex digits>``, and behind them the place by which an instance is named,
is mounted read-only in a best-effort container. Tenants cannot write it. A new gate is open.

Containers may take leases on files of the agent (fcntl's ``F_SETLEASE``). The kernel asks for no capability
where the caller's uid owns the file: the root of a container without a user namespace may take a lease
through a read-only mount too. An open that conflicts with it waits until the lease is given up, or for
``fs.lease-break-time`` (45 s), and then the next lease may be there already. The kernel grants none on a file
that is open for writing. So the agent keeps its files open. Where a container was faster, a thread waits in
``open``, which counts as a writer from then on.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import structlog

from gpu_manager.adapters.control_pages import tenant_files as files
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.mig import file_name
from gpu_manager.ports.control_pages import GateReading
from gpu_manager.runtime import threads
from vcuda.page.layout import GATE_SIZE, PageError, build_gate, read_gate, uuid_bytes

log = structlog.get_logger(__name__)

DIRECTORY: Final = "gates"
GATE_MODE: Final = 0o644  # a container may run as any user; its mount is read-only
_NS: Final = 1e-9
_TOLD_SECONDS: Final = 5.0  # for which a lease is told of: the detector looks once a second
_LOCKS: Final = Path("/proc/locks")


class FileGates:
    """:class:`gpu_manager.ports.control_pages.Gates` below the directory of the control pages.

    A gate stays open for writing from the first :meth:`ensure` on, so that no container takes a lease on it.
    """

    def __init__(
        self, pages: Path, breaker: LeaseBreaker, *, label: bytes | None = None, locks: Path = _LOCKS
    ) -> None:
        """``label`` is SELinux's, for files that containers share: :mod:`gpu_manager.adapters.machine`.
        ``locks`` is the kernel's list of locks.
        """
        self._root = pages / DIRECTORY
        self._breaker = breaker
        self._label = label
        self._locks = locks
        self._lock = threading.Lock()
        self._kept: dict[CardUuid, int] = {}
        self._leased: dict[CardUuid, tuple[float, tuple[int, ...]]] = {}

    def path(self, card: CardUuid) -> Path:
        """The path of the card's gate. Raises NodeUnready: the name is not a UUID."""
        with _errors(self._root / card):
            uuid_bytes(card)
            return self._root / file_name(card)

    def ensure(self, card: CardUuid) -> None:
        """Create the card's gate, open, if it is absent or not a gate. Idempotent.

        Raises:
            NodeUnready: it cannot be written.
        """
        path = self.path(card)
        with self._lock, _errors(path):
            kept = self._kept.get(card)
            if kept is not None:
                if os.fstat(kept).st_nlink:
                    return
                os.close(self._kept.pop(card))
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            here = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                self._open(here, path.name, card)
            finally:
                os.close(here)

    def leases(self) -> Mapping[CardUuid, tuple[int, ...]]:
        """Return the gates that could not be opened because of a lease within the last seconds, each with the
        pids that held one.
        """
        late = time.monotonic() - _TOLD_SECONDS
        with self._lock:
            return {card: pids for card, (at, pids) in self._leased.items() if at > late}

    def close(self) -> None:
        """Close the gates' files."""
        with self._lock:
            for page in self._kept.values():
                os.close(page)
            self._kept.clear()

    def _open(self, here: int, name: str, card: CardUuid) -> None:
        """Keep the gate open. One with a lease is mounted in a container: it is a gate, and serves as one."""
        pids = self._holders(here, name)  # first: whoever holds a lease gives it up when the file is opened
        try:
            page = files.open_page(here, name)
        except BlockingIOError:
            pids = pids or self._holders(here, name)
            before = self._leased.get(card, (0.0, ()))[1]
            self._leased[card] = time.monotonic(), pids or before
            if pids != before:
                log.warning("gate_leased", card=card, pids=pids, seconds="at most fs.lease-break-time")
            page = self._breaker.open(here, name)
            if page is None:
                return
        if page is not None and not _is_gate(page):
            os.close(page)
            page = None
        if page is None:
            page = files.create_page(here, name, build_gate(), GATE_SIZE, GATE_MODE, self._label)
        self._kept[card] = page

    def _holders(self, here: int, name: str) -> tuple[int, ...]:
        try:
            return holders(self._locks, os.stat(name, dir_fd=here, follow_symlinks=False))
        except FileNotFoundError:
            return ()

    def read(self, card: CardUuid) -> GateReading:
        """Return how often and for how long the gate was closed since it was made.

        Raises:
            NodeUnready: there is no such gate.
        """
        path = self.path(card)
        with _errors(path):
            gate = read_gate(path.read_bytes())
        return GateReading(gate.closings, gate.closed_ns * _NS)


def _is_gate(page: int) -> bool:
    try:
        read_gate(files.read(page, GATE_SIZE))
    except PageError:
        return False
    return os.fstat(page).st_size == GATE_SIZE


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except PageError as error:
        raise NodeUnready(f"the gate {path} cannot be used: {error}") from error
    except OSError as error:
        raise NodeUnready(
            f"the gate {path} cannot be used: {error.strerror or error}; check that the directory of the "
            "control pages is there, writable and not full"
        ) from error


# Bytes of the kernel's list of locks, whose lines have some sixty. To read so much takes it up to 30 ms, and
# all of 150,000 locks, which any container makes in a second, 7 s: it goes through the list anew for each
# 4 KiB.
_LARGEST = 512 << 10


class LeaseBreaker:
    """Opens files for writing in threads of its own, one for each file on which a process holds a lease."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: dict[tuple[int, int], int | None] = {}  # device and inode → descriptor; None: waits

    def open(self, here: int, name: str) -> int | None:
        """A descriptor of the regular file, for writing; None while the lease is not given up yet.

        Call again then: a file opened meanwhile is kept. Raises OSError.
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
        """Close files that no caller asked for again."""
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
    """PIDs that hold a lease on the file with this status, from ``/proc/locks``.

    The PID is that of the process that took the lease, which may have ended while a child keeps it. Behind
    some 8,000 other locks none is found.
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
