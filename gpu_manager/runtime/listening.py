"""A TCP socket to listen on: one address, or every address of the host in both families."""

from __future__ import annotations

import errno
import socket
from typing import Final

_LAST_PORT: Final = 65535


def bound(address: str, port: int) -> socket.socket:
    """A socket bound to ``address``, which does not listen yet. An empty ``address`` is every address of the
    host: of IPv6 and IPv4, or of IPv4 alone where the kernel has no IPv6. ``port`` 0 takes a free one.

    Raises:
        OSError: the address is taken or not ours, or there is no such port.
    """
    if not 0 <= port <= _LAST_PORT:
        raise OSError(errno.EINVAL, f"ports go up to {_LAST_PORT}")
    every = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if every or ":" in address else socket.AF_INET
    # asyncio turns Nagle's delay off only for sockets that say that they are TCP.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not every)
        made.bind((address, port))
    except OSError:
        made.close()
        raise
    return made


def spoken(address: str, port: int) -> str:
    """The address for a sentence: ``127.0.0.1:80``, ``[::1]:80``, or ``port 80`` of every address."""
    if not address:
        return f"port {port}"
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
