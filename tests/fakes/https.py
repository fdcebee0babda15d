"""The webhooks over HTTPS on loopback: served under a certificate of the tests' own, and called as an API server does."""

from __future__ import annotations

import functools
import http.client
import json
import socket
import ssl
import time
from typing import Any, NamedTuple, Self

from admission.config import AdmissionSettings, ConnectionBounds, InflightBounds
from admission.program import AdmissionProgram
from admission.serving.certs import Issued, Switch, issue
from admission.serving.metrics import AdmissionMetrics
from gpu_manager.domain.errors import NodeUnready
from tests.fakes.waiting import PATIENCE

HOST = "localhost"


class Visit(NamedTuple):
    status: int
    body: str
    resumed: bool | None
    session: ssl.SSLSession | None


def trusting(*authorities: bytes) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=b"".join(authorities).decode())


def visit(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> Visit:
    """One GET on a connection of its own, resumed from ``session`` if the server lets it."""
    with (
        socket.create_connection((HOST, port), timeout=PATIENCE) as line,
        context.wrap_socket(line, server_hostname=HOST, session=session) as wrapped,
    ):
        wrapped.sendall(f"GET /healthz HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
        with http.client.HTTPResponse(wrapped) as answer:
            answer.begin()
            body = answer.read().decode()
        return Visit(answer.status, body, wrapped.session_reused, wrapped.session)


@functools.cache
def issued() -> Issued:
    """The certificate of all :class:`Webhooks` that are given no other."""
    return issue((HOST,), time.time(), 90, "test authority")


class Caller:
    """One connection, kept open as long as the service lets it."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._connection = http.client.HTTPSConnection(HOST, port, context=context, timeout=PATIENCE)

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


class Given:
    """A certificate that is there from the first look on, or once it is ``issued``."""

    def __init__(self, switch: Switch) -> None:
        self.switch = switch
        self.issued: Issued | None = issued()

    def check(self) -> None:
        if self.issued is None:
            raise NodeUnready("no certificate yet")
        if self.switch.pair != self.issued.pair:
            self.switch.take(self.issued.pair)


class Webhooks:
    """The program in this process, without a cluster behind it."""

    def __init__(
        self,
        bounds: InflightBounds | None = None,
        *,
        port: int = 0,
        certified: bool = True,
        connections: ConnectionBounds | None = None,
        probes: tuple[str, int] | None = None,
        **more: Any,
    ) -> None:
        switch = Switch()
        self.certificates = Given(switch)
        if not certified:
            self.certificates.issued = None
        settings = AdmissionSettings(
            address="127.0.0.1",
            port=port,
            bounds=bounds or InflightBounds(),
            connections=connections or ConnectionBounds(),
            probes=probes,
        )
        self.program = AdmissionProgram(
            settings, self.certificates, switch, AdmissionMetrics("0"), check_seconds=0.01, **more
        )
        self.program.start()
        self.port = self.program.port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.program.stop()

    def caller(self) -> Caller:
        return Caller(self.port, trusting(issued().authority))
