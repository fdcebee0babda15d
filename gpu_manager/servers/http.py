"""Serves the status pages over HTTP: read-only, bounded in time and number, with a bearer token if asked.

Anybody on the network may talk to this port: a peer that talks slowly, or never, costs one of a fixed number
of connections, and that for some seconds only.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import sys
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

import structlog

from gpu_manager import threads, ui
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.servers.status import TEXT, Status

log = structlog.get_logger(__name__)

CONNECTION_SECONDS: Final = 10.0
MOST_CONNECTIONS: Final = 64


class StatusServer:
    """Serves :class:`Status` on one address until stopped."""

    def __init__(
        self,
        status: Status,
        address: str,
        port: int,
        token: str | None = None,
        *,
        connection_seconds: float = CONNECTION_SECONDS,
    ) -> None:
        """Bind. ``port`` 0 takes a free one; with ``token`` all but health asks for a bearer token. A
        connection ends after ``connection_seconds``, however slowly its peer talks.

        Raises:
            NodeUnready: the address is taken or not ours.
        """
        handler = type("Handler", (_Handler,), {"status": status, "token": token})
        try:
            self._server = _Server((address, port), handler, connection_seconds)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "ports go up to 65535"
            raise NodeUnready(
                f"cannot listen on {address}:{port}: {reason}; choose another --http-port or --http-address"
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threads.forever("http", lambda: self._server.serve_forever(poll_interval=0.5))

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and close every socket."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self._server.end_connections(0.0)


class _Server(ThreadingHTTPServer):
    """A thread a connection, at most so many, none for longer than its time."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[_Handler], seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}
        super().__init__(address, handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """False, which closes the connection, while too many are open."""
        with self._lock:
            if len(self._open) >= MOST_CONNECTIONS:
                return False
            self._open[request] = time.monotonic()
            return True

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        self.end_connections(self._seconds)

    def end_connections(self, older_than: float) -> None:
        """Break connections of that age, in seconds; their threads then end by themselves."""
        now = time.monotonic()
        with self._lock:
            old = [one for one, since in self._open.items() if now - since >= older_than]
            for one in old:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that went away is no news; a fault of ours is."""
        error = sys.exception()
        if isinstance(error, OSError):
            log.debug("http_connection_lost", client=client_address[0], reason=str(error))
        else:
            log.error("http_request_failed", client=client_address[0], exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    status: Status
    token: str | None
    timeout = CONNECTION_SECONDS
    server_version = "gpu-manager"
    sys_version = ""

    def do_GET(self) -> None:  # http.server's name
        try:
            asked = urlsplit(self.path).path
        except ValueError:  # a whole URL whose host is none
            self._send(HTTPStatus.BAD_REQUEST, TEXT, b"this is not the address of a page\n")
            return
        if asked == "/ui/":  # its links are relative, so that it works behind a proxy's prefix
            self._send(HTTPStatus.PERMANENT_REDIRECT, TEXT, b"", {"Location": "../ui"})
            return
        path = asked.rstrip("/") or "/"
        open_to_all = path in ("/healthz", "/readyz") or ui.asset(path) is not None
        if self.token is not None and not open_to_all and not self._authorised(self.token):
            self._send(HTTPStatus.UNAUTHORIZED, TEXT, b"a bearer token is needed\n")
            return
        self._send(*self.status.answer(path, self.headers.get("Accept", "")))

    do_HEAD = do_GET  # noqa: N815

    def _authorised(self, token: str) -> bool:
        return hmac.compare_digest(self.headers.get("Authorization", "").encode(), f"Bearer {token}".encode())

    def _send(
        self,
        status: HTTPStatus,
        content_type: str,
        body: bytes,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", ui.CONTENT_POLICY)
        for name, value in more.items():
            self.send_header(name, value)
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
        log.debug("http", client=self.client_address[0], line=format % args)
