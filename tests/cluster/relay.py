"""Carries connections from a socket of the machine's loopback into the cluster's network namespace.

``relay.py FD ADDRESS PORT``: the listening socket is inherited, everything else happens inside.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading

_PIECE = 1 << 16


def main() -> None:
    """Accept for ever."""
    listening = socket.socket(fileno=int(sys.argv[1]))
    target = (sys.argv[2], int(sys.argv[3]))
    while True:
        client, _ = listening.accept()
        threading.Thread(target=carry, args=(client, target), daemon=True).start()


def carry(client: socket.socket, target: tuple[str, int]) -> None:
    """One connection, until both sides have ended."""
    try:
        server = socket.create_connection(target, timeout=5)
    except OSError:
        client.close()
        return
    for end in (client, server):
        end.settimeout(None)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    back = threading.Thread(target=pump, args=(server, client), daemon=True)
    back.start()
    pump(client, server)
    back.join()
    client.close()
    server.close()


def pump(source: socket.socket, sink: socket.socket) -> None:
    """All bytes of one direction, then its end."""
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            sink.sendall(piece)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
