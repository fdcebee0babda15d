"""The open connections of one listener: accepted one by one, and bounded.

A port that every pod may reach holds as many connections as its callers like to leave open. Refusing the next
one would shut out the API server, which is not known by its address and shows no certificate. So a new
connection always gets in, and at a bound the one that was idle longest is closed for it. A connection counts
from the accept on: one that never ends its TLS handshake is bounded as well.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from admission.config import ConnectionBounds

# Bytes that asyncio keeps for each TLS connection to decrypt into. Its default of 256 KiB, for bulk
# transfers, is a GiB for 4,000 idle connections; a TLS record has at most 16 KiB.
_TLS_BUFFER: Final = 32 << 10
_CLOSE_NOTIFY_SECONDS: Final = 0.5  # for the client's part of the TLS farewell; an idle client sends none
_BACKLOG: Final = 2048
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_SECONDS: Final = 0.05


class ServerProtocol(asyncio.Protocol):
    """The protocol object of one connection."""

    transport: asyncio.Transport

    @property
    def busy(self) -> bool:
        """True from the end of a request to the end of its answer."""
        raise NotImplementedError


class _Connection(NamedTuple):
    source: str
    opening: asyncio.Task[None]


class Connections:
    """Accepts on ``listening`` and keeps within ``bounds``. Used in one event loop.

    ``make`` builds the protocol of a new connection; ``evicted`` is called for every connection that was
    closed to make room. A TLS handshake that takes more than ``handshake_seconds`` is ended.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], ServerProtocol],
        bounds: ConnectionBounds,
        *,
        context: ssl.SSLContext | None = None,
        handshake_seconds: float = 10.0,
        evicted: Callable[[], None] = lambda: None,
    ) -> None:
        self._listening = listening
        self._make = make
        self._bounds = bounds
        self._evicted = evicted
        self._tls: dict[str, Any] = {}
        if context is not None:
            sslproto.SSLProtocol.max_size = _TLS_BUFFER
            self._tls = {
                "ssl": context,
                "ssl_handshake_timeout": handshake_seconds,
                "ssl_shutdown_timeout": _CLOSE_NOTIFY_SECONDS,
            }
        self._open: dict[ServerProtocol, _Connection] = {}  # the one that was used last is last
        self._by_source: Counter[str] = Counter()

    def listen(self) -> None:
        """Let clients connect; they wait for :meth:`accept`."""
        self._listening.settimeout(0)
        self._listening.listen(_BACKLOG)

    async def accept(self) -> None:
        """Take connections until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                line, address = await loop.sock_accept(self._listening)
            except OSError as error:  # the client has left already, or there is no room for its socket
                if error.errno in _OUT_OF_RESOURCES:
                    self._evict(next(iter(self._open), None))
                    await asyncio.sleep(_RETRY_SECONDS)
                continue
            self._admit(line, str(address[0]))
            await asyncio.sleep(0)  # a burst of new connections does not delay the requests of open ones

    def used(self, protocol: ServerProtocol) -> None:
        """Record that the connection has just answered: all others have been idle longer."""
        known = self._open.pop(protocol, None)
        if known is not None:
            self._open[protocol] = known

    def ended(self, protocol: ServerProtocol) -> None:
        """Note that the connection is gone. Idempotent."""
        known = self._open.pop(protocol, None)
        if known is not None:
            self._by_source[known.source] -= 1
            if not self._by_source[known.source]:
                del self._by_source[known.source]

    def close_handshakes(self) -> None:
        """End the connections that are still in their TLS handshake."""
        for protocol in [p for p, known in self._open.items() if not known.opening.done()]:
            self._close(protocol)

    def _admit(self, line: socket.socket, source: str) -> None:
        if self._by_source[source] >= self._bounds.per_source:
            idle = (p for p, known in self._open.items() if known.source == source and not p.busy)
            self._evict(next(idle, None))
        if len(self._open) >= self._bounds.total:
            # An idle one, of the address that holds most.
            self._evict(min(self._open, key=lambda p: (p.busy, -self._by_source[self._open[p].source])))
        protocol = self._make()
        self._open[protocol] = _Connection(source, asyncio.create_task(self._serve(protocol, line)))
        self._by_source[source] += 1

    async def _serve(self, protocol: ServerProtocol, line: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, line, **self._tls)
        except (OSError, asyncio.CancelledError):  # no TLS client, too slow, or closed to make room
            self.ended(protocol)
        else:
            if transport.is_closing():
                self.ended(protocol)

    def _evict(self, protocol: ServerProtocol | None) -> None:
        if protocol is not None:
            self._close(protocol)
            self._evicted()

    def _close(self, protocol: ServerProtocol) -> None:
        opening = self._open[protocol].opening
        self.ended(protocol)
        if opening.done():
            protocol.transport.abort()
        else:
            opening.cancel()
