"""What a process has open, as ``/proc`` lists it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def open_files(pid: int | None = None) -> list[str]:
    """The targets of the process's descriptors, of this process without a ``pid``.

    Descriptors that the process closes while they are listed are left out: a listing is no snapshot.
    """
    found = []
    for entry in list(Path(f"/proc/{pid or os.getpid()}/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):
            found.append(str(entry.readlink()))
    return found
