"""HTTP to a program of the sandbox on loopback, in the clear, or by TLS for the name that a Service has."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Final

from gpu_manager.adapters.http import IDEMPOTENT, HttpClient, HttpLimits, NoAnswer
from gpu_manager.domain.errors import NodeUnready

LOOPBACK: Final = "127.0.0.1"
REPEATABLE: Final = IDEMPOTENT | {"POST"}  # reviews and a scheduler's questions may be asked twice
_MOST_IDLE: Final = 32


class LoopbackClient:
    """Thread-safe. ``trust`` gives the PEM of the authorities now, ``name`` is whom they must vouch for."""

    def __init__(
        self, port: int, name: str = "", trust: Callable[[], str] | None = None, timeout: float = 10.0
    ) -> None:
        self._port = port
        self._name = name
        self._trust = trust
        self._limits = HttpLimits(timeout, timeout)
        self._lock = threading.Lock()
        self._client: HttpClient | None = None
        self._trusted = ""

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body. Raises NodeUnready: no answer, or nobody there whom the authorities vouch for."""
        try:
            answer = self._connected().ask(method, path, body=body, headers=headers)
        except NoAnswer as error:
            raise NodeUnready(
                f"no answer from {self._name or LOOPBACK}:{self._port}{path}: {error}"
            ) from error
        return answer.status, answer.body

    def close(self) -> None:
        """Close what is kept."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> HttpClient:
        """Connections that were opened in another trust are not used again."""
        pem = self._trust() if self._trust is not None else ""
        if self._trust is not None and not pem:
            raise NoAnswer("nobody vouches for it yet")
        with self._lock:
            if self._client is None or pem != self._trusted:
                if self._client is not None:
                    self._client.close()
                self._client, self._trusted = self._opened(pem), pem
            return self._client

    def _opened(self, pem: str) -> HttpClient:
        return HttpClient(
            f"{'https' if pem else 'http'}://{LOOPBACK}:{self._port}",
            limits=self._limits,
            tls=ssl.create_default_context(cadata=pem) if pem else None,
            server_name=self._name if pem else "",
            keep=_MOST_IDLE,
            repeatable=REPEATABLE,
        )
