"""One port: uvicorn in a thread of its own, with the bounds on connections that uvicorn leaves to a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from admission.config import ConnectionBounds
from admission.serving.connections import Connections, ServerProtocol
from gpu_manager import threads
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.listening import bound, spoken

_KEEP_ALIVE_SECONDS: Final = 120  # longer than API servers and schedulers keep idle connections
_START_SECONDS: Final = 10.0
_STALLED_SECONDS: Final = 30.0


class _Peer(NamedTuple):
    names: frozenset[str]
    end: Callable[[], None]


class Peers:
    """Which certificates the clients of a listener have shown, by their address as ASGI has it."""

    def __init__(self) -> None:
        self._peers: dict[tuple[str, int], _Peer] = {}

    def names(self, client: tuple[str, int] | None) -> frozenset[str]:
        """The common names of the verified certificate behind that connection; empty if there is none."""
        peer = self._peers.get(client) if client else None
        return peer.names if peer else frozenset()

    def come(
        self,
        client: tuple[str, int],
        certificate: Mapping[str, Any],
        end: Callable[[], None] = lambda: None,
    ) -> None:
        """A connection was made with this certificate (as :meth:`ssl.SSLSocket.getpeercert` has it).

        ``end`` closes it once the request that is under way is answered.
        """
        parts = (part for group in certificate.get("subject", ()) for part in group)
        self._peers[client] = _Peer(frozenset(value for key, value in parts if key == "commonName"), end)

    def go(self, client: tuple[str, int]) -> None:
        """It has ended."""
        self._peers.pop(client, None)

    def end(self) -> None:
        """Close all of these connections, so that who comes again shows its certificate anew. Thread-safe."""
        for peer in tuple(self._peers.values()):
            peer.end()


class _BoundedHttp(H11Protocol, ServerProtocol):
    """HTTP on a connection that is closed if it begins no request, never ends its headers, or does not take
    its answer.
    """

    def __init__(
        self,
        server: uvicorn.Server,
        connections: Connections,
        peers: Peers,
        patience_seconds: float,
    ) -> None:
        super().__init__(server.config, server.server_state, {})
        self._open = connections
        self._peers = peers
        self._patience_seconds = patience_seconds
        self._unasked: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """See :class:`ServerProtocol`. A request that is still being sent is none: its sender may stop."""
        if self.cycle is None or self.cycle.response_complete:
            return False
        return self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base
        super().connection_made(transport)
        self._wait()
        certificate = transport.get_extra_info("peercert")  # only of a handshake that verified it
        if certificate and self.client:
            self._peers.come(self.client, certificate, self._end)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait()  # headers have begun and not ended
        else:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self.client:
            self._peers.go(self.client)
        self._open.ended(self)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._open.used(self)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self._patience_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _end(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and this connection with it
            self.loop.call_soon_threadsafe(self.shutdown)

    def _wait(self) -> None:
        if self._unasked is None:
            self._unasked = self.loop.call_later(self._patience_seconds, self._expire)

    def _stop(self) -> None:
        if self._unasked is not None:
            self._unasked.cancel()
            self._unasked = None

    def _expire(self) -> None:
        self._unasked = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


class _Server(uvicorn.Server):
    """Accepts within bounds; says when it listens, and when its event loop last came round."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self.listens = threading.Event()
        self.came_round = time.monotonic()
        self._connections = connections
        self._accepting: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])  # it would accept without bounds
        self._connections.listen()
        self._accepting = asyncio.create_task(self._connections.accept())
        self.listens.set()

    async def on_tick(self, counter: int) -> bool:
        self.came_round = time.monotonic()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
        self._connections.close_handshakes()
        await super().shutdown(sockets)


class HttpsServer:
    """Serves an ASGI application on one address from :meth:`start` to :meth:`stop`.

    It speaks TLS if it is given a ``context``, else HTTP.
    """

    def __init__(
        self,
        app: Any,
        address: str,
        port: int,
        context: ssl.SSLContext | None = None,
        *,
        bounds: ConnectionBounds | None = None,
        patience_seconds: float = 10.0,
        grace_seconds: int = 10,
        peers: Peers | None = None,
        evicted: Callable[[], None] = lambda: None,
    ) -> None:
        """Bind. An empty ``address`` is every address of the host, of IPv6 and IPv4; ``port`` 0 takes a free
        one; ``grace_seconds`` is what requests get to end.

        ``peers`` learns which certificates clients show; ``evicted`` is called for each connection that was
        closed because ``bounds`` were reached.

        A connection without a whole request header, or whose client takes none of its answer, is closed after
        ``patience_seconds``.

        Raises:
            NodeUnready: the address is taken or not ours.
        """
        try:
            self._socket = bound(address, port)
        except OSError as error:
            raise NodeUnready(
                f"cannot listen on {spoken(address, port)}: {error.strerror}; choose another"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            http=H11Protocol,
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=grace_seconds,
        )
        shown = peers or Peers()
        connections = Connections(
            self._socket,
            lambda: _BoundedHttp(self._server, connections, shown, patience_seconds),
            bounds or ConnectionBounds(),
            context=context,
            handshake_seconds=patience_seconds,
            evicted=evicted,
        )
        self._server = _Server(config, connections)
        self._thread = threads.once(f"http-{self.port}", self._serve)

    def _serve(self) -> None:
        self._server.run()

    @property
    def stalled(self) -> bool:
        """True if its event loop has not come round for half a minute: nobody is answered here."""
        return self._thread.is_alive() and time.monotonic() - self._server.came_round > _STALLED_SECONDS

    def start(self) -> None:
        """Answer from now on. Raises NodeUnready: it does not come up."""
        self._thread.start()
        if not self._server.listens.wait(_START_SECONDS):
            raise NodeUnready(
                f"the server on port {self.port} did not start within {_START_SECONDS:g} seconds"
            )

    def stop(self) -> None:
        """Take no new connection, end the requests at work, close. Idempotent."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()
