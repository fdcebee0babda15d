"""Connections that are left open, never finished or never read: who keeps his place, and who is answered."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from admission.config import ConnectionBounds
from admission.serving.https_server import HttpsServer, ProbeServer
from admission.webhook.admit import CreateTimeChecks
from sandbox.api import StandInApi
from tests.fakes.admission import ROOT, Process
from tests.fakes.https import HOST, Webhooks, issued, trusting
from tests.fakes.reviews import review
from tests.fakes.waiting import PATIENCE

Serve = Callable[..., Webhooks]
ASK = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
IDLE = ConnectionBounds().total + 500  # the bench opens 5,000
MOST_MIB = 400


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as running:
        yield lambda *given, **more: running.enter_context(Webhooks(*given, **more))


def line_to(port: int, source: str = "127.0.0.1") -> ssl.SSLSocket:
    line = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE, source_address=(source, 0))
    return trusting(issued().authority).wrap_socket(line, server_hostname=HOST)


def answered(line: ssl.SSLSocket) -> bool:
    try:
        line.sendall(ASK)
        said = b""
        while not said.endswith(b"ok\n"):
            piece = line.recv(65_536)
            if not piece:
                return False
            said += piece
    except OSError:
        return False
    return True


def test_at_the_bound_of_an_address_its_longest_idle_connection_goes(serve: Serve) -> None:
    service = serve(connections=ConnectionBounds(total=10, per_source=3))
    with line_to(service.port, "127.0.0.2") as other, ExitStack() as lines:
        assert answered(other)
        kept = [lines.enter_context(line_to(service.port)) for _ in range(3)]
        assert all(map(answered, kept))
        assert answered(kept[0])  # so that the second is idle longest
        assert answered(lines.enter_context(line_to(service.port)))
        assert [answered(line) for line in kept] == [True, False, True]
        assert answered(other)


def test_at_the_bound_of_all_an_idle_connection_of_the_address_that_holds_most_goes(serve: Serve) -> None:
    service = serve(connections=ConnectionBounds(total=4, per_source=4))
    with line_to(service.port, "127.0.0.2") as other, ExitStack() as lines:
        assert answered(other)
        kept = [lines.enter_context(line_to(service.port)) for _ in range(3)]
        assert all(map(answered, kept))
        with line_to(service.port, "127.0.0.3") as new:
            assert answered(new)
            assert [answered(line) for line in kept] == [False, True, True]
            assert answered(other)


def test_who_never_ends_the_handshake_gives_way_too(serve: Serve) -> None:
    service = serve(connections=ConnectionBounds(total=8, per_source=4))
    with ExitStack() as silent:
        for _ in range(20):
            silent.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE))
        with service.caller() as caller:
            assert caller.post("/validate", review())[0] == 200


def test_a_review_at_work_keeps_its_connection(serve: Serve) -> None:
    begun, go_on = threading.Event(), threading.Event()
    checks = CreateTimeChecks(warn=lambda *_: (begun.set(), go_on.wait(PATIENCE), ())[2])
    service = serve(connections=ConnectionBounds(total=3, per_source=2), checks=checks)
    results: list[int] = []

    def ask() -> None:
        with service.caller() as caller:
            results.append(caller.post("/validate", review())[0])

    asking = threading.Thread(target=ask)
    asking.start()
    assert begun.wait(PATIENCE)
    with ExitStack() as lines:
        for _ in range(6):
            assert answered(lines.enter_context(line_to(service.port)))
        go_on.set()
        asking.join()
    assert results == [200]


def test_a_client_that_takes_none_of_its_answer_is_cut_off() -> None:
    ended = threading.Event()

    async def endless(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        ended.set()

    server = HttpsServer(endless, "127.0.0.1", 0, patience_seconds=0.3)
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as line:
            line.sendall(ASK)
            assert ended.wait(PATIENCE)
    finally:
        server.stop()


def test_probes_have_a_port_of_their_own(serve: Serve) -> None:
    service = serve(probes=("127.0.0.1", 0))
    port = service.program.ports()["probe_port"]
    assert probe(port, "/healthz") == (200, "ok\n")
    assert probe(port, "/readyz") == (200, '{"serving":true,"certificate":true}')
    assert probe(port, "/metrics")[0] == 404


def test_a_stalled_listener_fails_the_liveness_probe() -> None:
    server = ProbeServer("127.0.0.1", 0, stalled=lambda: True, checks=lambda: {"serving": False})
    server.start()
    try:
        assert probe(server.port, "/healthz") == (503, "the webhook's listener is stalled\n")
        assert probe(server.port, "/readyz") == (503, '{"serving":false}')
    finally:
        server.stop()


@pytest.mark.timeout(300)
def test_reviews_and_probes_are_answered_beside_more_idle_connections_than_are_kept(api: StandInApi) -> None:
    arguments = f"--api-url={api.url}", "--leader-mode=alone"
    with Process(*arguments) as service, idle_connections(service.port, IDLE):
        for _ in range(20):
            status, answer = service.send(
                "POST", "/validate", review(), None, **{"Content-Type": "application/json"}
            )
            assert (status, json.loads(answer)["response"]["allowed"]) == (200, True)
            assert probe(service.probe_port, "/healthz") == (200, "ok\n")
            assert probe(service.probe_port, "/readyz")[0] == 200
        assert resident_mib(service.program.pid) <= MOST_MIB
        evicted = service.figures()["vcuda_admission_connections_evicted_total", ()]
        assert evicted >= IDLE - ConnectionBounds().total


@contextmanager
def idle_connections(port: int, count: int) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.fakes.idle_connections", str(port), str(count)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "open\n"
            yield
        finally:
            process.kill()


def resident_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) >> 10


def probe(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
