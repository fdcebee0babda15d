"""``kubectl vcuda ui``: the console on loopback, with the login of a kubeconfig and a secret in its address."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import pytest

from gpu_manager import ui
from gpu_manager.cli.kubectl.main import run
from gpu_manager.domain.contract import TOKEN_HEADER
from sandbox.api import ADMIN_TOKEN, StandInApi
from tests.fakes.background import SIGINT_IGNORED
from tests.fakes.browser import NEEDS_A_BROWSER, browsing
from tests.fakes.console import card, cluster, holder, node, past
from tests.fakes.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("kubectl_login")

ADMISSION = "/api/v1/namespaces/kube-system/services/https:gpu-quota-admission:443/proxy"
PROGRAM = "import sys; from gpu_manager.cli.kubectl.main import run; sys.exit(run(sys.argv[1:]))"
DATA = cluster(node("n1", card(0, holder("train", 30))))


class Service:
    """The admission service as the API server reaches it. ``narrow``: the caller may not get all pods."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str | None, bytes]] = []
        self.narrow = False

    def __call__(self, path: str, method: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        self.asked.append((method, path, headers.get(TOKEN_HEADER.lower()), body))
        file = ui.asset(path)
        if file is not None:
            return 200, file[1]
        if self.narrow and "namespace=" not in path:
            return 403, b'{"error": "this needs the right to get pods in all namespaces"}'
        answers = {
            "/ui/data": DATA,
            "/ui/history": past("train"),
            "/ui/trends": {"cards": {}},
            "/ui/what-if": {},
        }
        return 200, json.dumps(answers[path.partition("?")[0]]).encode()


@pytest.fixture
def service(api: StandInApi) -> Service:
    running = Service()
    api.serve_behind(ADMISSION, running)
    return running


@contextmanager
def opened(
    *words: str, ended_by: signal.Signals = signal.SIGINT, started_by: Sequence[str] = ()
) -> Iterator[str]:
    """The address that it prints; ended as by Ctrl+C, which is no failure."""
    command = [*started_by, sys.executable, "-c", PROGRAM, "ui", "--no-browser", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as program:
        assert program.stdout is not None
        try:
            yield program.stdout.readline().strip()
        finally:
            program.send_signal(ended_by)
            assert program.wait(PATIENCE) == 0


def get(url: str, body: bytes | None = None, **headers: str) -> tuple[int, Mapping[str, str], bytes]:
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def test_every_request_has_the_callers_token_and_none_is_answered_without_the_secret(
    service: Service,
) -> None:
    with opened() as address:
        parts = urlsplit(address)
        assert parts.hostname == "127.0.0.1"
        base = address.removesuffix("/ui")
        status, headers, body = get(address)
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert headers["Content-Security-Policy"] == ui.CONTENT_POLICY
        assert headers["Referrer-Policy"] == "no-referrer"
        assert body == ui.asset("/ui")[1]  # type: ignore[index]
        assert get(f"{base}/ui/preact.mjs")[1]["Content-Type"] == "text/javascript; charset=utf-8"
        assert json.loads(get(f"{base}/ui/data?namespace=team-a")[2]) == DATA
        assert service.asked[-1][:3] == ("GET", "/ui/data?namespace=team-a", f"Bearer {ADMIN_TOKEN}")
        assert get(f"{base}/ui/what-if", b"kind: Pod")[0] == 200
        assert service.asked[-1] == ("POST", "/ui/what-if", f"Bearer {ADMIN_TOKEN}", b"kind: Pod")
        get(f"{base}/ui/data", Authorization="Bearer typed")
        assert service.asked[-1][2] == "Bearer typed", "a token of the page's own form comes first"
        before = len(service.asked)
        origin = f"http://{parts.netloc}"
        for path in (
            "/ui",
            "/x/ui/data",
            "/",
            "//ui",
            f"{parts.path}/../../explain/a/b",
            f"{parts.path}/%2e%2e",
        ):
            assert get(origin + path)[0] == 404, path
        assert get(f"{base}/simulate", b"{}")[0] == get(f"{base}/quota")[0] == 404, (
            "the console's pages alone"
        )
        assert get(f"{base}/ui/what-if", b"x", **{"Content-Length": str((3 << 20) + 1)})[0] == 413
        assert len(service.asked) == before


@pytest.mark.parametrize(
    "line", [b"GET ui HTTP/1.1", b"GET http://[ HTTP/1.1", b"POST /x HTTP/1.1", b"\xff\xfe"]
)
def test_a_malformed_request_ends_nothing(service: Service, line: bytes) -> None:
    with opened() as address:
        with closing(socket.create_connection(("127.0.0.1", urlsplit(address).port or 0), PATIENCE)) as peer:
            peer.sendall(line + b"\r\nContent-Length: -1\r\nConnection: close\r\n\r\n")
            assert b" 4" in peer.recv(4096)
        assert get(address)[0] == 200


def test_who_may_see_one_namespace_gets_its_view(service: Service) -> None:
    service.narrow = True
    with opened() as address:
        assert address.endswith("/ui#/overview?namespace=default")
    with opened("-n", "team-a") as address:
        assert address.endswith("/ui#/overview?namespace=team-a")


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_a_background_job_of_a_shell_ends_as_well(service: Service, ended_by: signal.Signals) -> None:
    with opened(ended_by=ended_by, started_by=SIGINT_IGNORED) as address:
        assert get(address)[0] == 200


def test_a_service_that_cannot_be_asked_is_an_error_and_says_what_to_do(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ui", "--no-browser"]) == 1
    assert "kube-system/gpu-quota-admission: there is no such service" in capsys.readouterr().err
    assert run(["ui", "--no-browser", "--admission", "gpu"]) == 2
    assert "write NAMESPACE/NAME" in capsys.readouterr().err


def test_a_port_that_is_taken_is_named(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        assert run(["ui", "--no-browser", "--port", str(port)]) == 1
        assert f"127.0.0.1:{port}" in capsys.readouterr().err


@NEEDS_A_BROWSER
def test_the_console_works_below_its_secret_path(
    service: Service, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with opened() as address, browsing(tmp_path_factory.mktemp("profile")) as page:
        page.open(address, "document.querySelector('.heat .cell')")
        page.click(".heat .name")
        page.wait("document.querySelector('main h1').innerText == 'Node n1'")
        assert "team-a/train main" in page.text()
        assert page.complaints == []
