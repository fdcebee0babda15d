"""A client's HTTP connection: plain or over TLS, direct or through a proxy.

Python's ``http.client`` reads the answers. Requests are written and answers received here, each byte of them
within a deadline: that of a socket holds for one piece only, and a server may send as many as it likes.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

PIECE: Final = 1 << 16  # bytes that are read at once
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Way:
    """How a server is reached: its URL, TLS and the name that its certificate must have (empty: the URL's),
    URL of an HTTP proxy (empty: none) and TLS to it, and options for ``setsockopt``.
    """

    url: str
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    proxy: str = ""
    proxy_tls: ssl.SSLContext | None = None
    options: tuple[tuple[int, int, int], ...] = ()


class Line:
    """A connection, opened by its first request; for one thread at a time.

    ``kept``: it has carried an answer before. ``ends``: when all waiting ends, by ``time.monotonic``.
    """

    def __init__(self, way: Way, seconds: float) -> None:
        """``seconds`` bound the connecting."""
        self._way, self._seconds = way, seconds
        self._socket: Any = None
        self._carrier: Any = None  # the socket, or TLS inside of its TLS
        self.kept = False
        self.ends = 0.0

    def send_request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str | tuple[str, ...]],
        body: bytes | None,
        seconds: float,
    ) -> None:
        """Send a request; ``seconds`` bound the wait for all of its answer."""
        if self._socket is None:
            self.ends = time.monotonic() + self._seconds
            self._connect()
        way, given = self._way, {name.lower() for name in headers}
        own = {"Host": authority(urlsplit(way.url)), "Accept-Encoding": "identity"}
        if body is not None or method in ("POST", "PUT", "PATCH"):
            own["Content-Length"] = str(len(body or b""))
        if way.tls is None:
            own |= _login(urlsplit(way.proxy))
        lines = [f"{method} {url} HTTP/1.1", *(f"{k}: {v}" for k, v in own.items() if k.lower() not in given)]
        for name, value in headers.items():
            lines += [f"{name}: {one}" for one in ((value,) if isinstance(value, str) else value)]
            if any(end in lines[-1] for end in "\r\n\0"):  # the value may be a secret
                raise ValueError(f"the header {name} cannot be sent: it has a line break")
        self.ends = time.monotonic() + seconds
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # it may have been answered all the same
            self._send("\r\n".join([*lines, "\r\n"]).encode("latin-1") + (body or b""))

    def answer(self, method: str) -> http.client.HTTPResponse:
        """The answer, when its headers have arrived; those that only announce one (1xx) are passed over."""
        received = _Received(self)
        response = http.client.HTTPResponse(received, method=method)  # type: ignore[arg-type]  # makes a file
        response.begin()
        while response.status < http.HTTPStatus.OK:
            response.headers = None  # type: ignore[assignment]  # it begins anew
            response.begin()
        if received.ended:
            raise http.client.RemoteDisconnected("the answer was cut short")
        if len(set(response.headers.get_all("Content-Length", ()))) > 1:
            raise http.client.HTTPException("the answer names two lengths")
        return response

    def wait(self) -> Any:
        """The socket, set to wait no longer than ``ends``. Raises TimeoutError: that has passed."""
        left = self.ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        return self._socket

    def receive(self, buffer: Any) -> int:
        """Wait for some bytes; 0 at their end."""
        self.wait()
        return int(self._carrier.recv_into(buffer))

    def is_usable(self) -> bool:
        """Whether it can carry another request: an idle server sends nothing but its end."""
        if self._socket is None:
            return False
        looking = select.poll()
        looking.register(self._socket.fileno(), select.POLLIN)
        return not looking.poll(0) and not (self._way.tls and self._carrier.pending())

    def shutdown(self) -> None:
        """From another thread: end the waiting for what would still arrive."""
        if self._socket is not None:
            # Not the method of TLS: that forgets its keys, and what is on its way would be read as it is.
            socket.socket.shutdown(self._socket, socket.SHUT_RD)

    def close(self) -> None:
        """Close it. The next request opens it anew."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _connect(self) -> None:
        way, server, proxy = self._way, urlsplit(self._way.url), urlsplit(self._way.proxy)
        first = proxy if proxy.hostname else server
        place = first.hostname or "", first.port or _PORTS[first.scheme]
        self._socket = self._carrier = socket.create_connection(place, self._seconds)
        for option in way.options:
            self._socket.setsockopt(*option)
        if way.proxy_tls is not None:
            self._over_tls(way.proxy_tls, place[0])
        if way.tls is None:
            return
        name = way.server_name or server.hostname or ""
        if first is proxy:
            self._tunnel_to(authority(server, with_port=True))
        if way.proxy_tls is None:
            self._over_tls(way.tls, name)
        else:
            self._carrier = _TlsInTls(self._carrier, way.tls, name, self.wait)

    def _over_tls(self, tls: ssl.SSLContext, name: str) -> None:
        self._socket = self._carrier = tls.wrap_socket(self.wait(), server_hostname=name)

    def _tunnel_to(self, target: str) -> None:
        login = "".join(f"{k}: {v}\r\n" for k, v in _login(urlsplit(self._way.proxy)).items())
        self._send(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n".encode())
        answer = self.answer("CONNECT")
        if answer.status != http.HTTPStatus.OK:
            raise ConnectionError(f"its proxy refused: {answer.status} {answer.reason}")

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self.wait()
            rest = rest[self._carrier.send(rest) :]


class _Received(io.RawIOBase):
    """What a line receives, for one answer; ``ended``: all of it. Closing it leaves the line open."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line, self.ended = line, False

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = self._line.receive(buffer)
        self.ended = not size
        return size


class _TlsInTls:
    """TLS to a server inside TLS to its proxy, which ``ssl`` does not do with sockets."""

    def __init__(self, outer: socket.socket, tls: ssl.SSLContext, name: str, wait: Callable[[], Any]) -> None:
        self._outer, self._wait = outer, wait
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._came, self._goes, server_hostname=name)
        self.pending = self._tls.pending
        self._do(self._tls.do_handshake)

    def send(self, data: memoryview) -> int:
        return int(self._do(self._tls.write, data[:PIECE]))

    def recv_into(self, buffer: Any) -> int:
        return int(self._do(self._tls.read, len(buffer), buffer))

    def _do(self, step: Callable[..., Any], *arguments: Any) -> Any:
        while True:
            try:
                with contextlib.suppress(ssl.SSLWantReadError):
                    return step(*arguments)
            finally:
                if self._goes.pending:
                    self._outer.sendall(self._goes.read())
            self._wait()
            piece = self._outer.recv(PIECE)
            if piece:
                self._came.write(piece)
            else:
                self._came.write_eof()


def authority(parts: SplitResult, *, with_port: bool = False) -> str:
    """Host and port of a URL as requests name them; the usual port of its scheme only if asked for."""
    host, usual = parts.hostname or "", _PORTS[parts.scheme]
    name = f"[{host}]" if ":" in host else host if host.isascii() else host.encode("idna").decode()
    return f"{name}:{parts.port or usual}" if with_port or (parts.port or usual) != usual else name


def _login(proxy: SplitResult) -> dict[str, str]:
    """The header with user and password that a proxy's URL names; empty for none."""
    if proxy.username is None:
        return {}
    both = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(both).decode()}"}
