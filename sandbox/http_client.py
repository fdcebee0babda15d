"""HTTP to a program of the sandbox on loopback, over connections that are kept: in the clear, or by TLS."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Final

from gpu_manager.domain.errors import NodeUnready

LOOPBACK: Final = "127.0.0.1"
_MOST_IDLE: Final = 32


class _Tls(http.client.HTTPSConnection):
    """To loopback, whatever the server's certificate calls itself."""

    def __init__(self, name: str, port: int, timeout: float, trust: ssl.SSLContext) -> None:
        super().__init__(name, port, timeout=timeout, context=trust)
        self._trust = trust

    def connect(self) -> None:
        """As an API server reaches a service: by its address, held to its name."""
        raw = socket.create_connection((LOOPBACK, self.port), self.timeout)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.sock = self._trust.wrap_socket(raw, server_hostname=self.host)
        except BaseException:
            raw.close()
            raise


class HttpClient:
    """Thread-safe. ``trust`` gives the PEM of the authorities now, ``name`` is whom they must vouch for."""

    def __init__(
        self, port: int, name: str = "", trust: Callable[[], str] | None = None, timeout: float = 10.0
    ) -> None:
        self._port = port
        self._name = name
        self._trust = trust
        self._timeout = timeout
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._trusted: tuple[str, ssl.SSLContext] | None = None

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body. Raises NodeUnready: no answer, or nobody there whom the authorities vouch for."""
        try:
            context = self._context()
            kept = self._take()
            if kept is not None:
                try:
                    return self._send(kept, method, path, body, headers)
                except (ConnectionError, http.client.HTTPException):
                    kept.close()  # it was closed while it lay idle: once more, on a new one
            return self._send(self._open(context), method, path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            raise NodeUnready(
                f"no answer from {self._name or LOOPBACK}:{self._port}{path}: {error}"
            ) from error

    def close(self) -> None:
        """Close what is kept."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _context(self) -> ssl.SSLContext | None:
        """Connections that were opened in another trust are not used again."""
        if self._trust is None:
            return None
        pem = self._trust()
        if not pem:
            raise ConnectionRefusedError("nobody vouches for it yet")
        with self._lock:
            known = self._trusted
        if known is not None and known[0] == pem:
            return known[1]
        context = ssl.create_default_context(cadata=pem)
        self.close()
        with self._lock:
            self._trusted = pem, context
        return context

    def _open(self, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
        if context is None:
            return http.client.HTTPConnection(LOOPBACK, self._port, timeout=self._timeout)
        return _Tls(self._name, self._port, self._timeout, context)

    def _take(self) -> http.client.HTTPConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> tuple[int, bytes]:
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            found = answer.status, answer.read()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if not answer.will_close and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                return found
        connection.close()
        return found
