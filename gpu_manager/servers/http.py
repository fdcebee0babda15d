"""Serves the status pages over HTTP: read-only, bounded in time and number, with a bearer token if asked.

Pods are named to callers with that token, or with one whose owner may get them according to the API server.
One thread answers the pages and must not wait: a question about an unknown token goes to a thread of its own,
and the request is answered once the verdict is there.

Anybody on the network may talk to this port: what one peer may keep open, and for how long, is bounded by
:mod:`gpu_manager.servers.connections`. Health is answered at once, whatever else is asked.
"""

from __future__ import annotations

import gzip
import hmac
import io
import queue
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Final
from urllib.parse import parse_qs, urlsplit

import structlog

from gpu_manager import ui
from gpu_manager.domain.contract import TOKEN_HEADER
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.names import NO_NAMES, NameScope
from gpu_manager.ports.clock import Clock
from gpu_manager.runtime import threads
from gpu_manager.runtime.inbound import AccessCheck, AccessVerdict, accepts_gzip, bound, spoken
from gpu_manager.servers.connections import DEFAULT_BOUNDS, Bounds, ConnectionLoop
from gpu_manager.servers.status import NAMING, TEXT, Status

log = structlog.get_logger(__name__)

_ALWAYS_OPEN: Final = ("/healthz", "/readyz")
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
        access: PageAccess | None = None,
        *,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        """Bind. An empty ``address`` is every address of the host, of IPv6 and IPv4; ``port`` 0 takes a free
        one. With ``token`` all but health asks for a bearer token: this, or one that ``access`` knows.
        Without ``access`` that token alone opens names.

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

        def respond(request: bytes, peer: str) -> bytes | None:
            handler = _Handler(request, peer, status, token, access)
            return None if handler.early else handler.wfile.getvalue()

        loop = ConnectionLoop(listening, respond, bounds)
        self._loop, self._access = loop, access
        if access is not None:
            access.answered = loop.look_again

    def start(self) -> None:
        """Begin to answer."""
        if self._access is not None:
            self._access.start()
        self._loop.start()

    def stop(self) -> None:
        """Close every connection and the listening socket."""
        if self._access is not None:
            self._access.stop()
        self._loop.stop()


class _Handler(BaseHTTPRequestHandler):
    """Answers one request; the answer is in ``wfile``, unless it is ``early``."""

    server_version = "gpu-manager"
    sys_version = ""
    rfile: io.BytesIO
    wfile: io.BytesIO

    def __init__(
        self, request: bytes, peer: str, status: Status, token: str | None, access: PageAccess | None
    ) -> None:
        self._status = status
        self._token = token
        self._access = access
        self.early = False  # whether its caller's rights are still being asked for
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
        try:
            scope = self._scope(path, address.query)
        except RequestInvalid as error:
            self._send(HTTPStatus.BAD_REQUEST, TEXT, f"{error}\n".encode())
            return
        except NodeUnready as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, f"{error}\n".encode())
            return
        if isinstance(scope, AccessVerdict):
            self._refuse(scope)
            return
        self.early = scope is None
        if scope is None:
            return
        accept = self.headers.get("Accept", "")
        status, content_type, body = self._status.answer(path, accept, address.query, scope)
        more = {"Vary": "Accept, Accept-Encoding"}
        if len(body) >= _COMPRESSED_FROM and accepts_gzip(self.headers.get("Accept-Encoding", "")):
            body = gzip.compress(body, _COMPRESSION_LEVEL)
            more["Content-Encoding"] = "gzip"
        self._send(status, content_type, body, more)

    do_HEAD = do_GET  # noqa: N815

    def _scope(self, path: str, query: str) -> NameScope | AccessVerdict | None:
        """Whose names the caller may hear; the verdict that keeps them out; None: that is being asked.

        Raises:
            RequestInvalid: no namespace can have that name.
            NodeUnready: nobody can say now.
        """
        if path in _ALWAYS_OPEN or ui.asset(path) is not None:
            return NO_NAMES
        wanted = parse_qs(query).get("namespace", [""])[0]
        # The API server's proxy takes Authorization off, so a second header may hold the token.
        shown = self.headers.get(TOKEN_HEADER) or self.headers.get("Authorization") or ""
        if self._token is not None and hmac.compare_digest(shown.encode(), f"Bearer {self._token}".encode()):
            return NameScope(wanted)
        if self._token is None and (path not in NAMING or not shown.removeprefix("Bearer").strip()):
            return NO_NAMES
        if self._access is None:
            return AccessVerdict.NOBODY
        verdict = self._access.may(shown, wanted)
        return NameScope(wanted) if verdict is AccessVerdict.YES else verdict

    def _refuse(self, verdict: AccessVerdict) -> None:
        if verdict is AccessVerdict.NO:
            where = (
                "in that namespace" if "namespace=" in self.path else "in all namespaces, or name ?namespace="
            )
            self._send(HTTPStatus.FORBIDDEN, TEXT, f"this needs the right to get pods {where}\n".encode())
        else:
            self._send(HTTPStatus.UNAUTHORIZED, TEXT, b"a bearer token is needed\n")

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


_MOST_WAITING: Final = 16  # questions; anybody may send tokens
FAILED_SECONDS: Final = 2.0  # for which the API server is not asked the same again after it gave no answer
_Question = tuple[str, str]  # the header's value, namespace


class PageAccess:
    """Thread-safe. ``answered`` is called whenever a question has its answer."""

    def __init__(self, check: AccessCheck, clock: Clock) -> None:
        self._check = check
        self._clock = clock
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._asked: set[_Question] = set()
        self._failed: dict[_Question, tuple[float, str]] = {}
        self.answered: Callable[[], object] = lambda: None
        self._thread = threads.forever("page-access", self._run)

    def start(self) -> None:
        """Start the query thread."""
        self._thread.start()

    def stop(self) -> None:
        """End; a question under way is waited for."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def may(self, authorization: str, namespace: str) -> AccessVerdict | None:
        """Whether the owner of the token may get pods in the namespace (empty: all). None: the query is in
        progress.

        Raises:
            RequestInvalid: no namespace can have that name.
            NodeUnready: the API server does not answer now.
        """
        known = self._check.known(authorization, namespace)
        if known is not None:
            return known
        question = (authorization, namespace)
        with self._lock:
            until, why = self._failed.get(question, (0.0, ""))
            if self._clock.monotonic() < until:
                raise NodeUnready(why)
            if question in self._asked:
                return None
            if len(self._asked) >= _MOST_WAITING:
                raise NodeUnready("too many tokens are being looked at: try again")
            self._asked.add(question)
        self._queue.put(question)
        return None

    def _run(self) -> None:
        while (question := self._queue.get()) is not None:
            failed = ""
            try:
                self._check.may(*question)
            except NodeUnready as error:
                failed = f"whether pods may be named cannot be asked now: {error}"
            finally:
                self._note(question, failed)

    def _note(self, question: _Question, failed: str) -> None:
        now = self._clock.monotonic()
        with self._lock:
            self._asked.discard(question)
            self._failed = {key: kept for key, kept in self._failed.items() if kept[0] > now}
            if failed:
                self._failed[question] = now + FAILED_SECONDS, failed
        self.answered()
