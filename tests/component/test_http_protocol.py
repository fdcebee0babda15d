"""HTTP on one connection in the clear: what is malformed, endless, late or too much ahead ends the connection."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.fakes.http_lines import lines_to

ASK = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


async def pong(_scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
    await send({"type": "http.response.body", "body": b"ok\n"})


@contextmanager
def listening(app: Any = pong, patience_seconds: float = 10.0) -> Iterator[Callable[[], socket.socket]]:
    """Connections to a server in the clear."""
    with lines_to(app, patience_seconds=patience_seconds) as connect:
        yield connect


def said(line: socket.socket) -> bytes:
    """All that comes until the server closes."""
    pieces = []
    try:
        while piece := line.recv(65_536):
            pieces.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(pieces)


def sent_until_closed(line: socket.socket, piece: bytes, most: int) -> bool:
    """True if the server closes before it has taken ``most`` bytes."""
    try:
        for _ in range(most // len(piece)):
            line.sendall(piece)
    except OSError:
        return True
    return False


_POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(b"GET /", id="path"),
        pytest.param(_POST + b"X-A: ", id="header"),
        pytest.param(_CHUNKED + b"5;a=", id="chunk-extension"),
        pytest.param(_CHUNKED + b"0\r\nX-A: ", id="trailer"),
    ],
)
def test_what_is_no_body_and_never_ends_is_cut_off(begin: bytes) -> None:
    with listening() as connect:
        line = connect()
        line.sendall(begin)
        assert sent_until_closed(line, b"a" * 4096, 64 << 20)
        assert answered(connect())


def test_many_headers_and_many_trailers_are_cut_off() -> None:
    with listening() as connect:
        line = connect()
        line.sendall(_POST)
        assert sent_until_closed(line, b"X-A: b\r\n" * 512, 64 << 20)
        line = connect()
        line.sendall(_CHUNKED + b"0\r\n")
        assert sent_until_closed(line, b"X-A: b\r\n" * 512, 64 << 20)


def test_requests_that_are_sent_ahead_are_answered_in_turn_up_to_a_bound() -> None:
    with listening() as connect:
        line = connect()
        line.sendall(ASK * 8 + ASK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert said(line).count(b"200 OK") == 9
        line = connect()
        line.sendall(ASK * 1000)
        assert said(line).count(b"200 OK") == 0
        assert answered(connect())


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\r\n", id="empty line"),
        pytest.param(b"GET / HTTP/1.1\r\nHost:", id="header"),
        pytest.param(ASK + b"GET", id="next header"),
    ],
)
def test_who_begins_no_request_or_never_ends_its_header_is_cut_off(begin: bytes) -> None:
    with listening(patience_seconds=0.2) as connect:
        line = connect()
        line.sendall(begin)
        assert said(line).count(b"200 OK") == begin.count(ASK)


def test_a_connection_that_waits_for_its_next_request_is_kept() -> None:
    with listening(patience_seconds=0.1) as connect:
        line, other = connect(), connect()
        assert answered(line)
        assert said(other) == b""  # so that longer than the patience has gone by
        assert answered(line)


def answered(line: socket.socket) -> bool:
    line.sendall(ASK)
    got = b""
    while not got.endswith(b"ok\n"):
        piece = line.recv(65_536)
        if not piece:
            return False
        got += piece
    return True


def test_what_is_not_http_is_refused() -> None:
    with listening() as connect:
        for nonsense in (b"\x16\x03\x01\x02\x00\x01", b"GET \xff HTTP/1.1", b"CONNECT x HTTP/1.1"):
            line = connect()
            line.sendall(nonsense + b"\r\n\r\n")
            assert said(line).startswith(b"HTTP/1.1 400 ")


def test_an_answer_has_its_head_whether_or_not_a_body_follows() -> None:
    with listening() as connect:
        line = connect()
        line.sendall(b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        head = said(line)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert head.endswith(b"\r\n\r\n")
        line = connect()
        line.sendall(ASK.replace(b"GET", b"HEAD") + ASK)
        assert answered(line)


def test_who_asks_whether_to_go_on_is_told() -> None:
    with listening() as connect:
        line = connect()
        line.sendall(_POST + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: 2\r\n\r\n")
        assert line.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.sendall(b"{}")
        assert said(line).endswith(b"\r\n\r\nok\n")
