"""Cuts a connection between two running programs, neither of which ends: the kernel shuts the socket for both."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from pathlib import Path
from typing import Final

_PIDFD_GETFD: Final = 438  # Linux 5.6; the number is the same on every architecture
_CONNECTED: Final = "03"  # SS_CONNECTED, in /proc/net/unix


def cut(pid: int, name: str, peer: int) -> int:
    """Shut what the process has accepted on its Unix sockets of this file name; how many there were.

    ``peer`` has connected: the kernel counts the accepted end to the peer's network namespace.

    Raises:
        OSError: we may not touch that process.
    """
    inodes = set()
    for line in Path(f"/proc/{peer}/net/unix").read_text("utf-8").splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and words[5] == _CONNECTED and words[7].rpartition("/")[2] == name:
            inodes.add(f"socket:[{words[6]}]")
    count = 0
    for entry in list(Path(f"/proc/{pid}/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):
            if str(entry.readlink()) in inodes:
                with _taken(pid, int(entry.name)) as connection:
                    connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def _taken(pid: int, number: int) -> socket.socket:
    """The other process's socket as one of ours."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.pidfd_open(pid)
    try:
        taken = libc.syscall(_PIDFD_GETFD, handle, number, 0)
    finally:
        os.close(handle)
    if taken < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return socket.socket(fileno=taken)
