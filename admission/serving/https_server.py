"""One port: uvicorn in a thread of its own, with the bounds on connections that uvicorn leaves to a proxy.

The kubelet's probes have a port of their own, so that a full webhook port gets no pod killed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router

from admission.config import ConnectionBounds
from admission.serving.connections import Connections
from admission.serving.http_protocol import BoundedHttp, Peers, Questions
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.runtime import threads
from gpu_manager.runtime.inbound import bound, spoken

_KEEP_ALIVE_SECONDS: Final = 120  # longer than API servers and schedulers keep idle connections
_START_SECONDS: Final = 10.0
_STALLED_SECONDS: Final = 30.0


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
        questions: Questions | None = None,
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
            http=BoundedHttp,
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
        shown, asked = peers or Peers(), questions or Questions({})
        connections = Connections(
            self._socket,
            lambda: BoundedHttp(self._server, connections, shown, asked, patience_seconds),
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
        """True if its event loop has not run for half a minute: no request is answered."""
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


_BOUNDS = ConnectionBounds(total=64, per_source=48)


class ProbeServer:
    """``/healthz`` and ``/readyz`` over HTTP, from :meth:`start` to :meth:`stop`.

    ``stalled`` is True while the program serves no request and only a restart would help; ``checks`` are the
    conditions for readiness, by name, ``why`` are other faults.
    """

    def __init__(
        self,
        address: str,
        port: int,
        stalled: Callable[[], bool],
        checks: Callable[[], Mapping[str, bool]],
        why: Callable[[], str] = str,
    ) -> None:
        """Bind. Raises NodeUnready: the address is taken or not ours."""
        self._stalled = stalled
        self._checks = checks
        self._why = why
        routes = [Route("/healthz", self._healthz), Route("/readyz", self._readyz)]
        self._server = HttpsServer(Router(routes), address, port, bounds=_BOUNDS, grace_seconds=1)
        self.port = self._server.port
        self.start, self.stop = self._server.start, self._server.stop

    async def _healthz(self, _request: Request) -> Response:
        if self._stalled():
            return PlainTextResponse("the webhook's listener is stalled\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return PlainTextResponse("ok\n")

    async def _readyz(self, _request: Request) -> Response:
        return readiness(self._checks(), self._why())


def readiness(checks: Mapping[str, bool], why: str) -> JSONResponse:
    """Every check and whether it holds, and ``why`` if it is not empty; 503 unless all hold."""
    status = HTTPStatus.OK if all(checks.values()) else HTTPStatus.SERVICE_UNAVAILABLE
    return JSONResponse({**checks, **({"why": why} if why else {})}, status_code=int(status))
