"""Serves the status pages over HTTP: read-only, bounded in time and number, with a bearer token if asked.

Anybody on the network may talk to this port: what one peer may keep open, and for how long, is bounded by
:mod:`gpu_manager.servers.connections`. Health is answered at once, whatever else is asked.
"""

from __future__ import annotations

import gzip
import hmac
import io
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

import structlog

from gpu_manager import ui
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.listening import bound, spoken
from gpu_manager.scrape import accepts_gzip
from gpu_manager.servers.connections import DEFAULT_BOUNDS, Bounds, ConnectionLoop
from gpu_manager.servers.status import TEXT, Status

log = structlog.get_logger(__name__)

_COMPRESSED_FROM: Final = 1024  # bytes; a shorter answer fits into one packet
_COMPRESSION_LEVEL: Final = 1  # a scrape becomes a tenth of its size for little processor time


class StatusServer:
    """Serves :class:`Status` on one address until stopped."""

    def __init__(
        self,
        status: Status,
        address: str,
        port: int,
        token: str | None = None,
        *,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        """Bind. An empty ``address`` is every address of the host, of IPv6 and IPv4; ``port`` 0 takes a free
        one. With ``token`` all but health asks for a bearer token.

        Raises:
            NodeUnready: the address is taken or not ours.
        """
        try:
            listening = bound(address, port)
        except OSError as error:
            raise NodeUnready(
                f"cannot listen on {spoken(address, port)}: {error.strerror}; "
                "choose another --http-port or --http-address"
            ) from error
        self.port: int = listening.getsockname()[1]

        def respond(request: bytes, peer: str) -> bytes:
            return _Handler(request, peer, status, token).wfile.getvalue()

        loop = ConnectionLoop(listening, respond, bounds)
        self.start, self.stop = loop.start, loop.stop


class _Handler(BaseHTTPRequestHandler):
    """Answers one request; the answer is in ``wfile``."""

    server_version = "gpu-manager"
    sys_version = ""
    rfile: io.BytesIO
    wfile: io.BytesIO

    def __init__(self, request: bytes, peer: str, status: Status, token: str | None) -> None:
        self._status = status
        self._token = token
        self.rfile = io.BytesIO(request)
        self.wfile = io.BytesIO()
        self.client_address = (peer, 0)
        self.handle()

    def do_GET(self) -> None:  # http.server's name
        try:
            address = urlsplit(self.path)
        except ValueError:  # a whole URL whose host is none
            self._send(HTTPStatus.BAD_REQUEST, TEXT, b"this is not the address of a page\n")
            return
        asked = address.path
        if asked == "/ui/":  # its links are relative, so that it works behind a proxy's prefix
            self._send(HTTPStatus.PERMANENT_REDIRECT, TEXT, b"", {"Location": "../ui"})
            return
        path = asked.rstrip("/") or "/"
        open_to_all = path in ("/healthz", "/readyz") or ui.asset(path) is not None
        if self._token is not None and not open_to_all and not self._authorised(self._token):
            self._send(HTTPStatus.UNAUTHORIZED, TEXT, b"a bearer token is needed\n")
            return
        status, content_type, body = self._status.answer(path, self.headers.get("Accept", ""), address.query)
        more = {"Vary": "Accept, Accept-Encoding"}
        if len(body) >= _COMPRESSED_FROM and accepts_gzip(self.headers.get("Accept-Encoding", "")):
            body = gzip.compress(body, _COMPRESSION_LEVEL)
            more["Content-Encoding"] = "gzip"
        self._send(status, content_type, body, more)

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
