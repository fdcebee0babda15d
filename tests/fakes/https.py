"""A caller of the admission service as an API server is one: HTTPS on loopback, trusting what it is told."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any, Self

HOST = "localhost"


def trusting(*authorities: bytes) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=b"".join(authorities).decode())


class Caller:
    """One connection, kept open as long as the service lets it."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._connection = http.client.HTTPSConnection(HOST, port, context=context, timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def post(self, path: str, body: Any, kind: str = "application/json", **headers: str) -> tuple[int, Any]:
        """Status and JSON."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.request("POST", path, sent, {"Content-Type": kind, **headers})
        with self._connection.getresponse() as answer:
            self.headers = answer.headers
            return answer.status, json.loads(answer.read())

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Status and text."""
        self._connection.request("GET", path, headers=headers)
        with self._connection.getresponse() as answer:
            self.headers = answer.headers
            return answer.status, answer.read().decode()
