"""The HTTP client: a deadline for every answer, bounded bodies, kept connections, TLS and proxies.

The server may close an idle connection, which is noticed at its next use. The request is then repeated once
on a new connection, if its method is safe to repeat.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import os
import re
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict, Unpack
from urllib.parse import quote, urlencode, urlsplit

from gpu_manager.adapters.http_connection import PIECE, Line, Way, authority
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, printable

NO_DELAY: Final = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
IDEMPOTENT: Final = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_DEAD: Final = (ConnectionError, http.client.BadStatusLine, ssl.SSLError)
FOREIGN: Final = (http.client.HTTPException, OSError, ValueError)
"""What a connection raises, of itself and while a body is read."""


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
        parts, proxy = urlsplit(self._base), checked_url(proxy) if proxy else ""
        self._way = Way(
            self._base,
            (tls or ssl.create_default_context()) if parts.scheme == "https" else None,
            server_name,
            proxy,
            ssl.create_default_context() if urlsplit(proxy).scheme == "https" else None,
            tuple(socket_options),
        )
        self._through = parts.path
        if proxy and self._way.tls is None:
            self._through = f"http://{authority(parts)}{parts.path}"
        self._idle: list[Line] = []
        weakref.finalize(self, _close_all, self._idle)
        self._keep = keep

    def close(self) -> None:
        """Close idle connections, and those in use after their answers."""
        self._keep = 0
        _close_all(self._idle)

    def ask(self, method: str, path: str, **parts: Unpack[RequestParts]) -> HttpAnswer:
        """Send a request and read the whole answer, whatever its status. No redirects. Raises NoAnswer."""
        ends = time.monotonic() + self.limits.answer
        return self.open(method, path, **parts).whole(ends, self.limits)

    def open(self, method: str, path: str, **parts: Unpack[RequestParts]) -> HttpStream:
        """Send a request; the caller reads the answer to its end, or closes it. Raises NoAnswer."""
        url = self._through + path or "/"
        if query := parts.get("query"):
            url += ("&" if "?" in url else "?") + urlencode(query)
        if not url.isascii() or not url.isprintable() or " " in url:
            url = quote(url, safe="/?&=%#:;,@!$'()*+~[]")
        line = self._taken()
        for again in (method in self._repeatable, False):
            try:
                line.send_request(
                    method, url, parts.get("headers") or {}, parts.get("body"), self.limits.answer
                )
                return HttpStream(line, line.answer(method), self._kept)
            except FOREIGN as error:
                line.close()
                if not (again and line.kept and isinstance(error, _DEAD)):
                    raise NoAnswer(reason(error)) from error
                line = Line(self._way, self.limits.connect)
        raise AssertionError  # the second try returns or raises

    def _taken(self) -> Line:
        """An idle connection that is still open, else a new one."""
        with contextlib.suppress(IndexError):
            while True:
                line = self._idle.pop()
                if line.is_usable():
                    return line
                line.close()
        return Line(self._way, self.limits.connect)

    def _kept(self, line: Line) -> None:
        line.kept = True
        if len(self._idle) < self._keep:
            self._idle.append(line)
            if not self._keep:  # closed meanwhile
                self.close()
        else:
            line.close()


def _close_all(idle: list[Line]) -> None:
    with contextlib.suppress(IndexError):
        while True:
            idle.pop().close()


class HttpStream:
    """An answer whose body is still to be read; read to its end, it leaves its connection to ``keep``.

    ``headers`` have names in lower case. Of :data:`FOREIGN`, all may be raised while it is read.
    """

    def __init__(self, line: Line, response: http.client.HTTPResponse, keep: Callable[[Line], None]) -> None:
        self._line, self._response, self._keep = line, response, keep
        self._lock = threading.Lock()
        self._open = True
        self._seconds = 0.0
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def settimeout(self, seconds: float) -> None:
        """Wait so long for each piece from here on."""
        self._seconds = seconds

    def read1(self, size: int = PIECE) -> bytes:
        """What has arrived of the body, at most ``size`` bytes; empty at its end."""
        if not self._open:
            return b""
        if self._seconds:
            self._line.ends = time.monotonic() + self._seconds
        piece = self._response.read1(size) if self._response.length != 0 else b""
        if piece:
            return piece
        if self._response.length:
            raise http.client.IncompleteRead(b"", self._response.length)
        if self._response.will_close:
            self.close()
        elif self._ended():
            self._keep(self._line)
        return b""

    def whole(self, ends: float, limits: HttpLimits) -> HttpAnswer:
        """Read the body, to ``ends`` by ``time.monotonic``.

        Raises:
            NoAnswer: it did not arrive in time, was cut short or is too long.
        """
        self._line.ends = ends
        pieces: list[bytes] = []
        size = 0
        try:
            while piece := self.read1():
                pieces.append(piece)
                size += len(piece)
                if size > limits.largest:
                    raise NoAnswer(f"the answer has more than {limits.largest} bytes")
            return HttpAnswer(self.status, b"".join(pieces), self.headers)
        except FOREIGN as error:
            raise NoAnswer(reason(error)) from error
        finally:
            self.close()

    def pieces(self, seconds: float) -> Iterator[bytes]:
        """Yield the body as it arrives, then close or keep its connection.

        ``seconds`` bound the waiting for all of it; the time in which the caller works on a piece does not
        count.

        Raises:
            NoAnswer: it did not arrive in time, or was cut short.
        """
        left = seconds
        try:
            while left > 0:
                self.settimeout(left)
                began = time.monotonic()
                piece = self.read1()
                left -= time.monotonic() - began
                if not piece:
                    return
                yield piece
            raise NoAnswer(f"the answer did not end within {seconds:g} s")
        except FOREIGN as error:
            raise NoAnswer(reason(error)) from error
        finally:
            self.close()

    def begun(self, most: int) -> bytes:
        """At most so many bytes of the body; the connection is closed."""
        try:
            return self._response.read(most)
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection, unless all of the answer has been read."""
        if self._ended():
            self._line.close()

    def shutdown(self) -> None:
        """From another thread: end the waiting for a piece."""
        with self._lock:  # a connection that was left to others is not touched
            if self._open:
                self._line.shutdown()

    def _ended(self) -> bool:
        """Whether it was open."""
        with self._lock:
            was, self._open = self._open, False
        self._response.close()
        return was


def checked_url(url: str) -> str:
    """The URL without a slash at its end. Raises RequestInvalid: it is none."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or not url.isprintable() or " " in url:
        shown = re.sub(r"(?s)^(\w+://)?.*@", r"\1…@", url)  # a login is a secret
        raise RequestInvalid(f"{shown[:200]!r}, no URL: write it like https://host:port")
    return url.rstrip("/")


def reason(error: BaseException) -> str:
    """The reason for a missing answer, in few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message or error}"
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, http.client.IncompleteRead):
        return "the answer was cut short"
    said = printable(" ".join(str(error).split()))[:300] or type(error).__name__
    if type(error) is http.client.BadStatusLine:
        return f"it does not answer as HTTP servers do: {said}"
    return said


def proxy_of(url: str) -> str:
    """The proxy that the environment names for this URL, by ``HTTPS_PROXY``, ``HTTP_PROXY``, ``NO_PROXY``."""
    parts = urlsplit(url)
    bypassed = [word.strip() for word in _variable("NO_PROXY").split(",")]
    if _goes_directly(parts.hostname or "", bypassed):
        return ""
    named = _variable(f"{parts.scheme.upper()}_PROXY")
    return f"http://{named}" if named and "://" not in named else named


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
