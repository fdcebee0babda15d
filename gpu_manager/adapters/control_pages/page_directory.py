"""One container's directory of control pages: its open files, their last readings, and the findings.

Both pages stay open for writing as long as the directory is served: a sample of an idle container is then a
handful of system calls, and the kernel grants no lease on them (:mod:`.leases`). Callers of the methods hold
:attr:`PageDirectory.lock`, which belongs to this container only.

Readings of a usage page are cached, so that an unchanged page is not decoded again.

Each directory may be a small file system of its own. A tenant may reserve all space of the file system that
has its usage page (``fallocate``), and take all inodes with extended attributes. On ``/run`` that stops the
node. The node's runtime must see the mount, or containers would start with an empty directory's files:
nothing is mounted if mounts do not propagate from here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from gpu_manager.adapters.control_pages import tenant_files as files
from gpu_manager.adapters.control_pages.gates import LeaseBreaker
from gpu_manager.adapters.control_pages.limits_file import (
    LIMITS,
    Change,
    create_limits,
    limited_cards,
    write_limits,
)
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.library_messages import LibraryMessage
from gpu_manager.domain.errors import NodeUnready, Tampered
from gpu_manager.ports.control_pages import TenantUse
from vcuda.page import usage as usage_page
from vcuda.page.layout import PageError

log = structlog.get_logger(__name__)

USAGE_MODE: Final = 0o666  # a container may run as any user
USAGE_FILE: Final = stat.S_IFREG | USAGE_MODE
_MOST_BLOCKS: Final = usage_page.USAGE_SIZE // 512


@dataclass(frozen=True, slots=True)
class PageImage:
    """The last valid image of a usage page (the used part of its head, its slots), and its content."""

    head: bytes
    slots: bytes
    usage: usage_page.Usage

    def is_of(self, page: int) -> bool:
        """True if the page still has this image: of the 12 KiB before its slots, a third is read."""
        return (
            os.pread(page, len(self.head), 0) == self.head
            and os.pread(page, len(self.slots), usage_page.USAGE_HEAD_SIZE) == self.slots
        )


@dataclass(frozen=True, slots=True)
class ToldUsage:
    """The usage last returned for a page, and its source: descriptor, image, the slots in use and those whose
    process lived. ``attributes`` are the extended attributes that a sound page has, ``owner`` its owner.
    """

    page: int
    reading: PageImage
    slots: tuple[int, ...]
    alive: list[int]
    uses: tuple[TenantUse, ...]
    attributes: list[str]
    owner: int

    def holds(self) -> bool:
        """True if the page is as it was. Idle containers are the rule: five system calls for each."""
        page, reading = self.page, self.reading
        try:
            status = os.fstat(page)
            return (
                status.st_size == usage_page.USAGE_SIZE
                and status.st_mode == USAGE_FILE
                and status.st_nlink > 0
                and status.st_blocks <= _MOST_BLOCKS
                and status.st_uid == self.owner
                and os.listxattr(page) == self.attributes
                and os.pread(page, len(reading.head), 0) == reading.head
                and os.pread(page, len(reading.slots), usage_page.USAGE_HEAD_SIZE) == reading.slots
                and files.held(page, self.slots) == self.alive
            )
        except (OSError, files.TooManyLocks):
            return False  # whoever looks closer says why


USAGE: Final = "usage"
_KEPT_BYTES: Final = 64 << 10  # of a page that is remembered: room for 200 processes, not for a tenant's 1024
_COSTLY_NS: Final = 1_000_000  # of processor time; a page with few processes takes a tenth of it
_REST_TIMES: Final = 20
_TOO_MANY_LOCKS: Final = f"it has so many locks that a look at them takes {files.ASK_MOST_NS // 10**6} ms"

Observed = tuple[tuple[CardUuid, ...], usage_page.Usage, list[usage_page.Slot]]
"""The cards of a container, its usage page, and the slots whose process lives (its byte is locked)."""


class PageDirectory:
    """``attacks`` counts the illegal changes found. It and ``messages`` may be read without the lock."""

    def __init__(
        self,
        root: Path,
        name: str,
        label: bytes | None,
        breaker: LeaseBreaker,
        monotonic_ns: Callable[[], int],
        mounts: PageMounts,
    ) -> None:
        self.lock = threading.Lock()
        self.closed = False
        self.told: ToldUsage | None = None
        self.image: PageImage | None = None
        self.cards: tuple[CardUuid, ...] | None = None
        self.messages: tuple[LibraryMessage, ...] = ()
        self.attacks = 0
        self.last_attack = ""
        self._root, self._name, self._where = root, name, f"{root}/{name}"
        self._label = label
        self._breaker = breaker
        self._usage: int | None = None
        self._limits: int | None = None
        self._monotonic_ns = monotonic_ns
        self._mounts = mounts
        self.device = 0
        """The file system that the pages lie on; 0 before they are open."""
        self._rests_until = 0
        self._last: Observed | Tampered | None = None

    @property
    def usage(self) -> int | None:
        """The descriptor of the usage page, if it was opened."""
        return self._usage

    @property
    def is_empty(self) -> bool:
        """True if no file of it is open, and there is no finding."""
        return self._usage is None and self._limits is None and not self.attacks

    def close(self) -> None:
        """Close both pages, for good."""
        self.closed = True
        for page in (self._usage, self._limits):
            if page is not None:
                os.close(page)
        self._usage = self._limits = self.told = self.image = None

    def write_limits(self, change: Change, *, create: bool = False) -> None:
        """Change the limits page; ``create`` makes the directory and the page if they are missing."""
        if self._limits is None or not os.fstat(self._limits).st_nlink:
            self._limits = self._closed(self._limits)
            if create:
                self._make()
            with files.directory(self._root, self._name, create=create) as here:
                self.device = os.fstat(here).st_dev
                page = self._opened(here, LIMITS)
                if page is None:
                    self._limits = create_limits(here, change, self._label)
                    return
                self._limits = page
        write_limits(self._limits, self._where, change)

    def open_usage(self, *, create: bool = False) -> int:
        """Reopen the usage page. ``create`` makes missing parts, and restores changed ones."""
        with files.directory(self._root, self._name, create=create) as here:
            page = self._opened(here, USAGE)
            if page is None:
                if not create:
                    raise NodeUnready(
                        f"the usage page of {self._where} is gone: its container must start again"
                    )
                image = usage_page.build_usage()[: usage_page.USAGE_HEAD_SIZE]
                page = files.create_page(here, USAGE, image, usage_page.USAGE_SIZE, USAGE_MODE, self._label)
        self._closed(self._usage)
        self._usage, self.told = page, None
        if create and (changed := files.put_back(page, os.fstat(page), usage_page.USAGE_SIZE, USAGE_MODE)):
            log.warning("usage_page_restored", reason=str(self.tampering(changed)))
        return page

    def reset(self) -> None:
        """Empty the usage page. While a process of it lives, only the slots of dead processes are freed."""
        self._last = None
        page = self.open_usage(create=True)
        with files.locked(page, 0, usage_page.MAX_SLOTS) as alone:
            if alone:
                files.write(page, 0, usage_page.build_usage())
                return
        try:
            slots = self._read(page, 0).slots
        except PageError:
            # The living process broke its own page; a page that nobody can read serves nobody.
            files.write(page, 0, usage_page.build_usage())
            return
        try:
            files.held(page, [slot.index for slot in slots])
        except files.TooManyLocks:
            log.warning("usage_page_kept", reason=str(self.tampering(_TOO_MANY_LOCKS)))
            return
        for slot in slots:
            with files.locked(page, slot.index, 1) as dead:
                if dead:
                    offset = usage_page.USAGE_HEAD_SIZE + slot.index * usage_page.SLOT_SIZE
                    files.write(page, offset, bytes(usage_page.SLOT_SIZE))

    def observe(self) -> Observed:
        """Read the usage page. Raises Tampered, NodeUnready, OSError.

        The content of one container's page costs the agent a bounded part of a second: after a reading that
        took long, the next calls return that reading for a while.
        """
        if self._last is None or self._monotonic_ns() >= self._rests_until:
            began = time.thread_time_ns()
            try:
                self._last = self._look()
            except Tampered as error:
                self._last = error
            cost = time.thread_time_ns() - began
            if cost > _COSTLY_NS:
                self._rests_until = self._monotonic_ns() + _REST_TIMES * cost
        last = self._last
        if self._monotonic_ns() >= self._rests_until:
            self._last = None
        if isinstance(last, Tampered):
            raise last.with_traceback(None)
        return last

    def _look(self) -> Observed:
        cards = self.limited_cards()
        page = self._usage
        status = os.fstat(page) if page is not None else None
        if page is None or status is None or not status.st_nlink:
            page = self.open_usage()
            status = os.fstat(page)
        changed = files.put_back(page, status, usage_page.USAGE_SIZE, USAGE_MODE)
        if changed:
            raise self.tampering(f"{changed}; that is put back")
        try:
            found = self._read(page, len(cards))
            alive = frozenset(files.held(page, [slot.index for slot in found.slots]))
        except PageError as error:
            raise self.tampering(str(error)) from error
        except files.TooManyLocks as error:
            raise self.tampering(_TOO_MANY_LOCKS) from error
        return cards, found, [slot for slot in found.slots if slot.index in alive]

    def limited_cards(self) -> tuple[CardUuid, ...]:
        """Return the cards of the limits page, which is read once.

        Raises NodeUnready, OSError and PageError.
        """
        if self.cards is None:
            if self._limits is None:
                with files.directory(self._root, self._name) as here:
                    self._limits = self._opened(here, LIMITS)
            if self._limits is None:
                raise NodeUnready(f"the limits page of {self._where} is gone: its container must start again")
            self.cards = limited_cards(self._limits)
        return self.cards

    def tampering(self, what: str, which: str = USAGE) -> Tampered:
        """Count an illegal change of a page, and return the error to raise."""
        self.attacks += 1
        self.last_attack = what
        return Tampered(
            f"the {which} page of {self._where} was tampered with: {what} "
            f"(found {self.attacks} times); look at what runs in its container"
        )

    def remove(self) -> None:
        """Close both pages, and delete the directory with all that is in it. Absent is fine."""
        self.close()
        files.remove(self._root, self._name, self._mounts.unmount)

    def _make(self) -> None:
        """Make the directory, on a file system of its own unless an earlier agent has made it without."""
        with files.directory(self._root, self._name, create=True) as here:
            is_new = not os.listdir(here)  # noqa: PTH208  # of a descriptor
            is_mounted = os.fstat(here).st_dev != self._root.stat().st_dev
        if is_new and not is_mounted:
            self._mounts.mount(self._root / self._name)

    def _opened(self, here: int, name: str) -> int | None:
        """Return a descriptor of the page, None if there is none. Raises Tampered where a container keeps the
        agent from opening it.
        """
        try:
            return files.open_page(here, name)
        except BlockingIOError:
            page = self._breaker.open(here, name)
        except OSError as error:
            if error.errno != errno.ETXTBSY:
                raise
            raise self.tampering(f"a process runs the {name} page as its program", name) from error
        if page is None:
            raise self.tampering(
                f"a process holds a lease on the {name} page; the agent waits for its end", name
            )
        return page

    @staticmethod
    def _closed(page: int | None) -> None:
        if page is not None:
            os.close(page)

    def _read(self, page: int, cards: int) -> usage_page.Usage:
        """Return the page's content; an unchanged page, as of an idle container, is not parsed again.

        Raises PageError for an incomplete page.
        """
        before = self.image
        if before is not None and cards == len(before.usage.cards) and before.is_of(page):
            return before.usage
        image = files.read(page, usage_page.USAGE_HEAD_SIZE)
        if len(image) < usage_page.USAGE_HEAD_SIZE:
            raise PageError(f"the usage page shrank to {len(image)} bytes while {self._name} was read")
        extent = usage_page.usage_extent(image)
        # Not the head once more: a process that takes a slot meanwhile would make it say more than was read.
        image += os.pread(page, extent - len(image), len(image))
        usage = usage_page.read_usage(image, cards)
        self.image = None
        if extent <= _KEPT_BYTES:
            head, slots = image[: usage_page.card_offset(cards)], image[usage_page.USAGE_HEAD_SIZE :]
            self.image = PageImage(head, slots, usage)
        return usage


# linux/include/uapi/linux/mount.h
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MNT_DETACH: Final = 2
DEFAULT_INODES: Final = 32
_ESCAPES: Final = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


@dataclass(frozen=True, slots=True)
class PageMounts:
    """Mounts them. ``size`` (bytes) of each container's file system; 0: none is made."""

    size: int = 0
    inodes: int = DEFAULT_INODES
    mountinfo: Path = Path("/proc/self/mountinfo")

    def mount(self, path: Path) -> None:
        """Mount a file system of its own at this empty directory, if that can be done; else log why not."""
        if not self.size:
            return
        why = "" if _propagates(path, self.mountinfo) else "mounts of this container do not reach the node"
        if not why:
            data = f"size={self.size},nr_inodes={self.inodes},mode=0700".encode()
            flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.mount(b"vcuda", os.fsencode(path), b"tmpfs", ctypes.c_ulong(flags), data) == 0:
                return
            why = os.strerror(ctypes.get_errno())
        log.warning("pages_share_file_system", directory=str(path), reason=why)

    @staticmethod
    def unmount(path: Path) -> None:
        """Detach the mount at this place, if any: the container's own mounts of its files stay."""
        try:
            if path.stat().st_dev == path.parent.stat().st_dev:
                return
        except FileNotFoundError:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.umount2(os.fsencode(path), _MNT_DETACH) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))


def _propagates(path: Path, mountinfo: Path) -> bool:
    """True if what is mounted here reaches the peers of the mount that the path lies on."""
    inside, found = os.path.realpath(path), ("", False)
    try:
        lines = mountinfo.read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    for line in lines:  # of mounts over one another the last counts
        words = line.split()
        point = words[4]
        for escaped, plain in _ESCAPES.items():
            point = point.replace(escaped, plain)
        if len(point) >= len(found[0]) and (inside + "/").startswith(point.rstrip("/") + "/"):
            found = point, any(word.startswith("shared:") for word in words[6 : words.index("-")])
    return found[1]
