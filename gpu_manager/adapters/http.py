"""The HTTP client: urllib3 with a deadline for every answer, bounded bodies and a pool of connections.

The server may close an idle connection, which is noticed at its next use. The request is then repeated once
on a new connection, if its method is safe to repeat. Of a server that closes after each answer, as the agent
does, :func:`fetch` asks at half of the processor time.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict, Unpack
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from gpu_manager.domain.errors import NodeUnready, RequestInvalid

NO_DELAY: Final = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
IDEMPOTENT: Final = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_PIECE: Final = 1 << 16
_DEAD: Final = (ConnectionError, http.client.BadStatusLine, ssl.SSLError)
FOREIGN: Final = (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError)
"""What urllib3 raises, and what a connection raises while a body is read."""


class NoAnswer(NodeUnready):
    """No answer, none in time, or one that is too long. The text is the reason, in few words."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer; header names in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Seconds to connect, and from the request to the end of the answer; bytes of the longest answer."""

    connect: float = 5.0
    answer: float = 10.0
    largest: int = 16 << 20


class RequestParts(TypedDict, total=False):
    """What a request may carry: parameters of its URL, a body, headers (one may have several lines)."""

    query: Mapping[str, str] | None
    body: bytes | None
    headers: Mapping[str, str | tuple[str, ...]] | None


class HttpClient:
    """Client of one server; thread-safe.

    Args:
        url: ``http://host:port`` or ``https://…``, with a path that all requests begin with.
        limits: of time and size.
        tls: trusted CAs and the client's certificate; None: the system's CAs. With its ``check_hostname`` off
            a certificate that it trusts is taken under any name.
        server_name: the name expected in the server's certificate, if it is not the URL's host.
        proxy: URL of an HTTP proxy, empty for none.
        keep: number of idle connections kept.
        socket_options: as ``socket.setsockopt`` takes them, for every connection.
        repeatable: methods that are repeated on a new connection if a kept one was closed.

    Raises:
        RequestInvalid: ``url`` is malformed.
    """

    def __init__(
        self,
        url: str,
        *,
        limits: HttpLimits | None = None,
        tls: ssl.SSLContext | None = None,
        server_name: str = "",
        proxy: str = "",
        keep: int = 8,
        socket_options: Sequence[tuple[int, int, int]] = NO_DELAY,
        repeatable: frozenset[str] = IDEMPOTENT,
    ) -> None:
        self._base = checked_url(url)
        self.limits = limits or HttpLimits()
        self._repeatable = repeatable
        settings: dict[str, Any] = {"maxsize": keep, "socket_options": list(socket_options)}
        if self._base.startswith("https"):
            settings["ssl_context"] = tls
            if tls is not None and tls.verify_mode is ssl.CERT_NONE:  # the caller has decided so
                urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            if tls is not None and not tls.check_hostname:
                settings["assert_hostname"] = False
            if server_name:
                settings["server_hostname"] = server_name
        self._pools = urllib3.ProxyManager(proxy, **settings) if proxy else urllib3.PoolManager(**settings)
        self._pools.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}

    def close(self) -> None:
        """Close idle connections; a manager that is cleared alone leaves that to the garbage collector."""
        for key in self._pools.pools.keys():  # noqa: SIM118 - no mapping: it refuses to be iterated
            pool = self._pools.pools.get(key)
            if pool is not None:
                pool.close()
        self._pools.clear()

    def ask(self, method: str, path: str, **parts: Unpack[RequestParts]) -> HttpAnswer:
        """Send a request and read the whole answer, whatever its status. No redirects. Raises NoAnswer."""
        ends = time.monotonic() + self.limits.answer
        response = self.open(method, path, **parts)
        try:
            sock = getattr(response.connection, "sock", None)
            data = _whole(response, sock, ends, self.limits)
        except FOREIGN as error:
            response.close()
            raise NoAnswer(reason(error)) from error
        except NoAnswer:
            response.close()
            raise
        response.release_conn()
        return HttpAnswer(response.status, data, {k.lower(): v for k, v in response.headers.items()})

    def open(self, method: str, path: str, **parts: Unpack[RequestParts]) -> urllib3.BaseHTTPResponse:
        """Send a request; the caller reads the answer, then closes or releases it. Raises NoAnswer."""
        url = self._base + path
        if query := parts.get("query"):
            url += ("&" if "?" in url else "?") + urlencode(query)
        headers = urllib3.HTTPHeaderDict()
        for name, value in (parts.get("headers") or {}).items():
            for line in (value,) if isinstance(value, str) else value:
                headers.add(name, line)
        for again in (method in self._repeatable, False):
            try:
                return self._pools.urlopen(
                    method,
                    url,
                    body=parts.get("body"),
                    headers=headers,
                    timeout=urllib3.Timeout(connect=self.limits.connect, read=self.limits.answer),
                    retries=False,
                    redirect=False,
                    preload_content=False,
                )
            except FOREIGN as error:
                if not (again and _was_dead(error)):
                    raise NoAnswer(reason(error)) from error
        raise AssertionError  # the second try returns or raises


def fetch(host: str, port: int, path: str, headers: Mapping[str, str], limits: HttpLimits) -> HttpAnswer:
    """Send a GET over plain HTTP on a connection of its own, and read the whole answer. Raises NoAnswer."""
    line = http.client.HTTPConnection(host, port, timeout=limits.connect)
    try:
        line.connect()
        line.sock = sock = _DeadlineSocket(line.sock, limits.answer)
        line.request("GET", path, headers=headers)
        with line.getresponse() as response:
            data = _whole(response, None, sock.ends, limits)
            if response.length:
                raise NoAnswer("the answer was cut short")
            return HttpAnswer(response.status, data, {k.lower(): v for k, v in response.getheaders()})
    except FOREIGN as error:
        raise NoAnswer(reason(error)) from error
    finally:
        line.close()


class _DeadlineSocket(socket.socket):
    """Takes over a connected socket; whatever is received, headers too, ends ``seconds`` from now."""

    def __init__(self, connected: socket.socket, seconds: float) -> None:
        super().__init__(fileno=connected.detach())
        self.ends = time.monotonic() + seconds
        self.settimeout(seconds)

    def recv_into(self, *args: Any) -> int:
        left = self.ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)
        return super().recv_into(*args)


def _whole(
    response: urllib3.BaseHTTPResponse | http.client.HTTPResponse,
    sock: socket.socket | None,
    ends: float,
    limits: HttpLimits,
) -> bytes:
    """Read the body. The deadline holds for the whole of it, however slowly its pieces arrive."""
    pieces: list[bytes] = []
    size = 0
    while True:
        left = ends - time.monotonic()
        if left <= 0:
            raise NoAnswer(f"the answer did not end within {limits.answer:g} s")
        if sock is not None:
            sock.settimeout(left)
        piece = response.read1(_PIECE)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
        if size > limits.largest:
            raise NoAnswer(f"the answer has more than {limits.largest} bytes")


def body_pieces(response: urllib3.BaseHTTPResponse, seconds: float) -> Iterator[bytes]:
    """Yield the body as it arrives, then close or release its connection.

    ``seconds`` bound the waiting for all of it; the time in which the caller works on a piece does not count.

    Raises:
        NoAnswer: it did not arrive in time, or was cut short.
    """
    sock, left = getattr(response.connection, "sock", None), seconds
    try:
        while left > 0:
            if sock is not None:
                sock.settimeout(left)
            began = time.monotonic()
            piece = response.read1(_PIECE)
            left -= time.monotonic() - began
            if not piece:
                response.release_conn()
                return
            yield piece
        raise NoAnswer(f"the answer did not end within {seconds:g} s")
    except FOREIGN as error:
        raise NoAnswer(reason(error)) from error
    finally:
        response.close()


class _KeptConnectionError(ConnectionError):
    """A kept connection was closed before this answer began."""


class _Watched:
    """Mixin: tells a closed kept connection from one that never answered."""

    _answers = 0

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]  # of the class beside it
        self._answers = 0

    def request(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().request(*args, **kwargs)  # type: ignore[misc]  # same
        except _DEAD as error:
            raise self._said(error) from error

    def getresponse(self) -> Any:
        try:
            response = super().getresponse()  # type: ignore[misc]  # same
        except _DEAD as error:
            raise self._said(error) from error
        self._answers += 1
        return response

    def _said(self, error: Exception) -> Exception:
        return _KeptConnectionError(str(error)) if self._answers else error


class _Connection(_Watched, HTTPConnection):
    pass


class _TlsConnection(_Watched, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def checked_url(url: str) -> str:
    """The URL without a slash at its end. Raises RequestInvalid: it is none."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or not url.isprintable():
        raise RequestInvalid(f"{url[:200]!r}, no URL: write it like https://host:port")
    return url.rstrip("/")


def _was_dead(error: BaseException) -> bool:
    return any(isinstance(cause, _KeptConnectionError) for cause in _causes(error))


def _causes(error: BaseException) -> list[BaseException]:
    """The error and its causes, the root cause last."""
    found: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, BaseException) and one not in found:
            found.append(one)
            waiting += [*one.args, getattr(one, "reason", None), one.__cause__]
    return found


def reason(error: BaseException) -> str:
    """The reason for a missing answer, in few words."""
    for cause in reversed(_causes(error)):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message or cause}"
        if isinstance(cause, TimeoutError | urllib3.exceptions.TimeoutError):
            return "it did not answer in time"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return " ".join(str(error).split())[:300] or type(error).__name__


def proxy_of(url: str) -> str:
    """The proxy that the environment names for this URL, by ``HTTPS_PROXY``, ``HTTP_PROXY``, ``NO_PROXY``."""
    parts = urlsplit(url)
    bypassed = [word.strip() for word in _variable("NO_PROXY").split(",")]
    if _goes_directly(parts.hostname or "", bypassed):
        return ""
    return _variable(f"{parts.scheme.upper()}_PROXY")


def _variable(name: str) -> str:
    return os.environ.get(name) or os.environ.get(name.lower(), "")


def _goes_directly(host: str, bypassed: Sequence[str]) -> bool:
    """True for loopback, and for hosts that NO_PROXY covers by name, domain, address or network."""
    if host == "localhost" or "*" in bypassed:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        names = [word.removeprefix("*").removeprefix(".") for word in bypassed if word]
        return any(host == name or host.endswith(f".{name}") for name in names)
    return address.is_loopback or any(address in network for network in map(_network, bypassed) if network)


def _network(word: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(word, strict=False)
    except ValueError:
        return None
