"""Callers that are slow, endless or too many, and the end of the service: who is answered, who is cut off."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from admission.config import InflightBounds
from admission.webhook.admit import CreateTimeChecks
from gpu_manager.domain.errors import NodeUnready
from tests.fakes.https import HOST, Webhooks, issued, trusting
from tests.fakes.reviews import review
from tests.fakes.waiting import PATIENCE

Serve = Callable[..., Webhooks]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as running:
        yield lambda *given, **more: running.enter_context(Webhooks(*given, **more))


def raw(port: int) -> ssl.SSLSocket:
    line = socket.create_connection((HOST, port), timeout=PATIENCE)
    return trusting(issued().authority).wrap_socket(line, server_hostname=HOST)


def asked_beside(service: Webhooks) -> tuple[threading.Thread, list[int]]:
    """A thread that asks for one review, and where the answer's status will be."""
    results: list[int] = []

    def ask() -> None:
        with service.caller() as caller:
            results.append(caller.post("/validate", review())[0])

    asking = threading.Thread(target=ask)
    asking.start()
    return asking, results


def test_a_body_that_never_ends_gives_its_place_back(serve: Serve) -> None:
    service = serve(InflightBounds(seconds=3, at_work=1, waiting=0))
    with raw(service.port) as slow, service.caller() as caller:
        slow.sendall(
            b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        assert caller.get("/healthz")[0] == 200
        assert slow.recv(65_536).startswith(b"HTTP/1.1 408")
        assert caller.post("/validate", review())[0] == 200


def test_a_header_that_never_ends_is_cut_off_and_an_idle_connection_is_not(serve: Serve) -> None:
    service = serve(InflightBounds(seconds=3))
    with raw(service.port) as silent, raw(service.port) as slow, service.caller() as caller:
        assert caller.get("/healthz")[0] == 200
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        for cut in (silent, slow):
            assert cut.recv(1) == b""
        assert caller.post("/validate", review())[0] == 200  # the same connection, after a longer pause


def test_more_than_may_wait_are_sent_away_and_health_is_still_answered(serve: Serve) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: Any) -> tuple[()]:
        begun.set()
        assert go_on.wait(PATIENCE)
        return ()

    service = serve(InflightBounds(at_work=1, waiting=0), checks=CreateTimeChecks(warn=slow))
    first, results = asked_beside(service)
    assert begun.wait(PATIENCE)
    with service.caller() as caller:
        status, answer = caller.post("/validate", review())
        assert (status, answer["error"], caller.headers["retry-after"]) == (
            503,
            "too many requests at once: try again",
            "1",
        )
    with service.caller() as caller:
        assert caller.get("/readyz")[0] == 200
    go_on.set()
    first.join()
    assert results == [200]


def test_a_port_that_is_taken_is_named() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(NodeUnready, match="cannot listen on"),
    ):
        Webhooks(port=taken.getsockname()[1])


def test_while_draining_it_answers_says_so_and_closes(serve: Serve) -> None:
    service = serve()
    with service.caller() as caller, service.caller() as other:
        assert caller.get("/readyz")[0] == 200
        assert other.get("/readyz")[0] == 200
        ending = threading.Thread(target=service.program.stop, args=(2.0,))
        ending.start()
        status, text = caller.get("/readyz")
        while json.loads(text)["serving"]:
            status, text = caller.get("/readyz")
        assert (status, json.loads(text)["serving"]) == (503, False)
        assert caller.headers["connection"] == "close"
        assert other.post("/validate", review())[0] == 200
        ending.join()
    with pytest.raises(OSError):
        socket.create_connection((HOST, service.port), timeout=PATIENCE).close()


def test_a_review_at_work_is_answered_before_the_end(serve: Serve) -> None:
    begun, go_on = threading.Event(), threading.Event()
    checks = CreateTimeChecks(warn=lambda *_: (begun.set(), go_on.wait(PATIENCE), ())[2])
    service = serve(checks=checks)
    asking, results = asked_beside(service)
    assert begun.wait(PATIENCE)
    ending = threading.Thread(target=service.program.stop)
    ending.start()
    assert service.program._ended.wait(PATIENCE)
    go_on.set()
    asking.join()
    ending.join()
    assert results == [200]
