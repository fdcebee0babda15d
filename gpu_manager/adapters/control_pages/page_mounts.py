"""A small file system for each container's pages, so that a container can fill only its own.

A tenant may reserve all space of the file system that has its usage page (``fallocate``), and take all inodes
with extended attributes. On ``/run`` that stops the node. The node's runtime must see the mount, or
containers would start with an empty directory's files: nothing is mounted if mounts do not propagate from
here.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger(__name__)

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
