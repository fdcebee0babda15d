"""One HTTP connection: in the clear or by TLS, directly or through a proxy."""

from __future__ import annotations

import contextlib
import http.client
import io
import select
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

PIECE: Final = 1 << 16  # bytes that are read at once
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Way:
    """How a server is reached: its URL, TLS and the name that its certificate must have (empty: the URL's),
    URL of an HTTP proxy (empty: none), and options for ``setsockopt``.
    """

    url: str
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    proxy: str = ""
    options: tuple[tuple[int, int, int], ...] = ()


class Line(http.client.HTTPConnection):
    """A connection, opened by its first request. ``kept``: it has carried an answer before."""

    kept = False

    def __init__(self, way: Way, seconds: float) -> None:
        """``seconds`` bound the connecting."""
        parts = urlsplit(way.url)
        self.default_port = _PORTS[parts.scheme]
        super().__init__(parts.hostname or "", parts.port or self.default_port, timeout=seconds)
        self._way = way

    def connect(self) -> None:
        """Open it, through the proxy if there is one."""
        way, proxy = self._way, urlsplit(self._way.proxy)
        host, port = self.host, self.port
        if proxy.hostname:
            host, port = proxy.hostname, proxy.port or _PORTS[proxy.scheme]
        self.sock = socket.create_connection((host, port), self.timeout)
        for option in way.options:
            self.sock.setsockopt(*option)
        if proxy.scheme == "https":
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=host)
        if way.tls is None:
            return
        if proxy.hostname:
            self._tunnel_to(f"[{self.host}]" if ":" in self.host else self.host)
        name = way.server_name or self.host
        if proxy.scheme == "https":
            self.sock = _TlsInTls(self.sock, way.tls, name)
        else:
            self.sock = way.tls.wrap_socket(self.sock, server_hostname=name)

    def send_request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str | tuple[str, ...]],
        body: bytes | None,
        seconds: float,
    ) -> None:
        """Send a request; ``seconds`` bound each wait for its answer."""
        if self.sock is None:
            self.connect()
        self.sock.settimeout(seconds)
        self.putrequest(method, url, skip_accept_encoding="Accept-Encoding" in headers)
        for name, value in headers.items():
            for one in (value,) if isinstance(value, str) else value:
                self.putheader(name, one)
        if body is not None or method in ("POST", "PUT", "PATCH"):
            self.putheader("Content-Length", str(len(body or b"")))
        self.endheaders(body)

    def was_closed(self) -> bool:
        """Whether it cannot carry another request: an idle server sends nothing but its end."""
        if self.sock is None or self.sock.fileno() < 0:
            return True
        looking = select.poll()
        looking.register(self.sock.fileno(), select.POLLIN)
        return bool(looking.poll(0))

    def _tunnel_to(self, host: str) -> None:
        target = f"{host}:{self.port}"
        self.sock.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        answer = http.client.HTTPResponse(self.sock, method="CONNECT")
        try:
            answer.begin()
            if answer.status != http.HTTPStatus.OK:
                raise ConnectionError(f"its proxy refused: {answer.status} {answer.reason}")
        finally:
            answer.close()


class _TlsInTls(io.RawIOBase):
    """TLS to a server inside TLS to its proxy, which ``ssl`` does not do with sockets. Carries one answer."""

    def __init__(self, outer: socket.socket, tls: ssl.SSLContext, name: str) -> None:
        super().__init__()
        self._outer, self._came, self._goes = outer, ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._came, self._goes, server_hostname=name)
        self.settimeout, self.shutdown = outer.settimeout, outer.shutdown
        self._do(self._tls.do_handshake)

    def _do(self, step: Callable[..., Any], *arguments: Any) -> Any:
        while True:
            try:
                with contextlib.suppress(ssl.SSLWantReadError):
                    return step(*arguments)
            finally:
                if self._goes.pending:
                    self._outer.sendall(self._goes.read())
            piece = self._outer.recv(PIECE)
            if piece:
                self._came.write(piece)
            else:
                self._came.write_eof()

    def sendall(self, data: bytes) -> None:
        self._do(self._tls.write, data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return int(self._do(self._tls.read, len(buffer), buffer))

    def fileno(self) -> int:
        return self._outer.fileno()

    def close(self) -> None:
        self._outer.close()
        super().close()
