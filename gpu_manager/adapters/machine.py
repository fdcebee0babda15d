"""The machine: its clocks, the name of its boot, its SELinux labels."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final
from uuid import uuid4

# SELinux labels with which containers may read the files that the agent mounts into them.
# By default, SELinux gives files under /var/lib and /run types that no container may open. Every container
# may open `container_file_t` without categories. Only an agent that may relabel (`spc_t`, as in privileged
# pods) can set it.


LABEL: Final = b"system_u:object_r:container_file_t:s0\0"
_ATTRIBUTE: Final = "security.selinux"


def label_of(proc: Path = Path("/proc")) -> bytes | None:
    """The label for shared files; None where the kernel runs without SELinux.

    ``/proc/filesystems`` is the kernel's in every container; ``/sys/fs/selinux`` is the host's alone.
    """
    try:
        known = (proc / "filesystems").read_text().split()
    except OSError:
        return None
    return LABEL if "selinuxfs" in known else None


def put_label(target: int | Path, label: bytes | None) -> None:
    """Label an open file or a path, if there is a label. Raises OSError if the node refuses."""
    if label is not None:
        os.setxattr(target, _ATTRIBUTE, label)


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        return time.monotonic()


def boot_id(proc: Path = Path("/proc")) -> str:
    """The name of this boot of the node (``random/boot_id`` of proc(5)); a new one if it cannot be read."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return str(uuid4())
