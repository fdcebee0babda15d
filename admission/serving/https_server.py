"""One port: uvicorn in a thread of its own, with the patience that uvicorn leaves to a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpu_manager.domain.errors import NodeUnready

_KEEP_ALIVE_SECONDS: Final = 120  # longer than API servers and schedulers keep idle connections
_MOST_CONNECTIONS: Final = 2048
_FAREWELL_SECONDS: Final = 0.5
_START_SECONDS: Final = 10.0


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


class _Patient(H11Protocol):
    """Closes a connection that begins no request, or never ends its headers."""

    header_seconds = 10.0
    peers = Peers()
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base
        super().connection_made(transport)
        self._wait()
        certificate = transport.get_extra_info("peercert")  # only of a handshake that verified it
        if certificate and self.client:
            self.peers.come(self.client, certificate, self._end)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait()  # headers have begun and not ended
        else:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self.client:
            self.peers.go(self.client)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            # TLS waits half a minute for the other side's farewell, and an idle client reads none.
            self.loop.call_later(_FAREWELL_SECONDS, self.transport.abort)

    def _end(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and this connection with it
            self.loop.call_soon_threadsafe(self.shutdown)

    def _wait(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.header_seconds, self._expire)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()


def _bound(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # asyncio turns Nagle's delay off only for sockets that say that they are TCP.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


class HttpsServer:
    """Serves an ASGI application on one address from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        app: Any,
        address: str,
        port: int,
        context: ssl.SSLContext | None = None,
        *,
        header_seconds: float = 10.0,
        grace_seconds: int = 10,
        peers: Peers | None = None,
    ) -> None:
        """Bind. ``port`` 0 takes a free one; ``grace_seconds`` is what requests get to end.

        ``peers`` learns which certificates clients show.

        A connection without a whole request header after ``header_seconds`` is closed.

        Raises:
            NodeUnready: the address is taken or not ours.
        """
        try:
            self._socket = _bound(address, port)
        except OSError as error:
            raise NodeUnready(
                f"cannot listen on {address}:{port}: {error.strerror or error}; choose another"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            http=type("_Patient", (_Patient,), {"header_seconds": header_seconds, "peers": peers or Peers()}),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=grace_seconds,
        )
        config.load()
        config.ssl = context
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._serve, name=f"http-{self.port}", daemon=True)

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

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
