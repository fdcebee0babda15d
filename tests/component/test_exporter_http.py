"""The port that anybody may talk to: methods, paths, tokens, slow peers, too many peers, faults."""

from __future__ import annotations

import gzip
import json
import socket
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.resources import GIB
from gpu_manager.servers.connections import DEFAULT_BOUNDS, Bounds
from gpu_manager.servers.exporter import Exporter
from gpu_manager.servers.http import StatusServer
from gpu_manager.servers.status import Status
from gpu_manager.services.cards.health import Health
from gpu_manager.services.enforcement.usage import UsageSampler
from gpu_manager.services.enforcement.usage_sample import UsagePast
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.ports import FakeCards, FakeNodeObject
from tests.fakes.waiting import PATIENCE

PATHS = (
    "/ui",
    "/ui/data",
    "/ui/health",
    "/ui/advice",
    "/ui/waste",
    "/metric",
    "/metrics",
    "/usage",
    "/advice",
    "/graph",
    "/version",
    "/healthz",
    "/readyz",
)


class Served:
    """A node's pages on a port of their own."""

    def __init__(self, rig: NodeRig, *, token: str | None = None, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        self.checks = {"registered": True, "cards": True}
        self.why = ""
        self.usage = UsageSampler(
            rig.state, FakeCards(rig.states), rig.pods, rig.tenants, rig.processes, rig.clock, rig.metrics
        )
        registry = CollectorRegistry()
        registry.register(Exporter(rig.state, self.usage, "1.2.3"))
        self.health = Health(FakeCards(rig.states), FakeNodeObject(), rig.clock)
        self.health.discover()
        self.past = UsagePast(rig.state.node.name)
        self.status = Status(
            rig.state,
            self.usage,
            registry,
            "1.2.3",
            lambda: self.checks,
            lambda: self.why,
            health=self.health,
            past=self.past,
        )
        self.server = StatusServer(self.status, "127.0.0.1", 0, token, bounds=bounds)
        self.server.start()

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.server.port}{path}", method=method, headers=headers
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            with closing(error):
                return error.code, str(error.headers["Content-Type"]), error.read().decode()

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        address = ("127.0.0.1", self.server.port)
        return socket.create_connection(address, timeout=PATIENCE, source_address=(source, 0))


@pytest.fixture(scope="module")
def rig() -> Iterator[NodeRig]:
    with tempfile.TemporaryDirectory(prefix="gm-") as directory, NodeRig(Path(directory)) as node:
        yield node


@pytest.fixture(scope="module")
def pages(rig: NodeRig) -> Iterator[Served]:
    running = Served(rig)
    yield running
    running.server.stop()


@pytest.fixture
def served(pages: Served) -> Iterator[Served]:
    """The shared pages, as they were before the test."""
    before, checks = pages.status.usage, dict(pages.checks)
    yield pages
    pages.checks, pages.why = checks, ""
    pages.status.usage = before  # type: ignore[method-assign]


def test_the_console_of_a_node_remembers_what_it_showed(served: Served, rig: NodeRig) -> None:
    node = rig.state.node.name
    assert json.loads(served.ask("/ui/data")[2])["ranges"] == ["10m", "1h"]
    code, kind, body = served.ask(f"/ui/history?subject=node&name={node}")
    assert (code, kind) == (200, "application/json")
    assert json.loads(body)["source"] == "agents"
    code, _, body = served.ask("/ui/history?subject=planet")
    assert code == 400
    assert body == 'there is no history of a "planet": ask for cluster, node, card, pod\n'


def test_the_console_of_a_node_tells_what_happened_to_a_card(served: Served, rig: NodeRig) -> None:
    uuid = rig.state.node.cards[0].card.uuid
    told = json.loads(served.ask(f"/ui/health?card={uuid}")[2])
    assert told["since"] == served.health.began
    assert [(one["event"], one["count"]) for one in told["events"]] == [("card_found", 1)]
    assert json.loads(served.ask("/ui/health?card=GPU-none")[2])["events"] == []


@pytest.mark.parametrize("path", PATHS)
def test_every_path_answers_get_and_head_alike(served: Served, path: str) -> None:
    code, kind, body = served.ask(path)
    assert code == 200
    assert body
    assert served.ask(path, "HEAD") == (200, kind, "")
    assert served.ask(path + "/?x=1")[0] == 200


def test_an_unknown_path_names_the_known_ones(served: Served) -> None:
    code, _, body = served.ask("/metricz")
    assert code == 404
    assert set(PATHS) <= set(body.split())


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "CONNECT"])
def test_nothing_can_be_written(served: Served, method: str) -> None:
    assert served.ask("/graph", method)[0] == 501


def test_prometheus_chooses_the_format(served: Served) -> None:
    assert served.ask("/metrics")[1].startswith("text/plain")
    openmetrics = served.ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert openmetrics[1].startswith("application/openmetrics-text")
    assert openmetrics[2].endswith("# EOF\n")


def test_the_page_comes_with_a_policy_that_lets_nothing_else_in(served: Served) -> None:
    address = f"http://127.0.0.1:{served.server.port}"
    with urllib.request.urlopen(
        f"{address}/ui/", timeout=PATIENCE
    ) as answer:  # to where its relative links hold
        assert answer.url == f"{address}/ui"
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")


def test_with_a_token_all_but_health_and_the_empty_page_asks_for_it(rig: NodeRig) -> None:
    pages = Served(rig, token="s3cret")
    try:
        for path in PATHS:
            expected = 200 if path in ("/ui", "/healthz", "/readyz") else 401  # the page without its figures
            assert pages.ask(path)[0] == expected, path
            assert pages.ask(path, Authorization="Bearer wrong")[0] == expected, path
            assert pages.ask(path, Authorization="Bearer s3cret")[0] == 200, path
        assert pages.ask("/nowhere")[0] == 401, "what exists is not told"
        assert "s3cret" not in pages.ask("/metrics")[2]
        assert pages.ask("/metrics", Authorization="Bearer s3cr\u00e9t")[0] == 401
    finally:
        pages.server.stop()


def test_not_ready_says_why(served: Served) -> None:
    served.checks["cards"], served.why = False, "could not load the NVML library: not found"
    code, _, body = served.ask("/readyz")
    assert code == 503
    assert json.loads(body) == {"registered": True, "cards": False, "why": served.why}
    assert served.ask("/healthz")[0] == 200


def test_an_agent_that_can_inject_nothing_says_why_and_stays_ready(served: Served) -> None:
    """Its metrics go on, and a roll-out of the chart does not hang on it."""
    served.checks["injection"], served.why = False, "the node has no /dev/nvidia-uvm: load the driver"
    code, _, body = served.ask("/readyz")
    assert code == 200
    found = json.loads(body)
    assert (found["injection"], found["why"]) == (False, served.why)


def test_a_peer_that_talks_slowly_is_cut_off_in_bounded_time(rig: NodeRig) -> None:
    pages = Served(rig, bounds=Bounds(request_seconds=2.0))
    try:
        with pages.connect() as slow:
            slow.sendall(b"GET /metric HTTP/1.1\r\n")
            tick, ended = threading.Event(), False
            for _ in range(int(PATIENCE / 0.1)):
                try:
                    slow.sendall(b"x")  # one byte at a time, for ever
                except OSError:
                    ended = True
                    break
                tick.wait(0.1)
            assert ended, "the connection is still open"
        assert pages.ask("/healthz")[0] == 200
    finally:
        pages.server.stop()


def test_a_peer_that_keeps_many_connections_open_silences_nobody(rig: NodeRig) -> None:
    pages = Served(rig)
    before = threading.active_count()
    with ExitStack() as held:
        held.callback(pages.server.stop)
        for n in range(300):  # more than fit, of one address and of several
            peer = held.enter_context(pages.connect(f"127.0.0.{n % 7 + 2}"))
            if n % 3 == 0:
                peer.sendall(b"GET /metric HTTP/1.1\r\n")
        assert threading.active_count() == before
        assert pages.ask("/healthz")[0] == 200
        assert pages.ask("/metric")[0] == 200


def test_without_an_address_it_listens_on_every_family_that_the_machine_has(served: Served) -> None:
    addresses = ["127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])]
    server = StatusServer(served.status, "", 0)
    server.start()
    try:
        for address in addresses:
            with socket.create_connection((address, server.port), timeout=PATIENCE) as peer:
                peer.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
                assert b"200" in peer.recv(100)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("accept_encoding", "compressed"),
    [("gzip", True), ("deflate, gzip;q=0.5", True), ("gzip;q=0", False), ("identity", False), ("", False)],
)
def test_a_long_answer_is_compressed_for_who_takes_it(
    served: Served, accept_encoding: str, compressed: bool
) -> None:
    with served.connect() as peer:
        peer.sendall(f"GET /metric HTTP/1.1\r\nAccept-Encoding: {accept_encoding}\r\n\r\n".encode())
        head, _, body = b"".join(iter(lambda: peer.recv(65536), b"")).partition(b"\r\n\r\n")
    assert (b"Content-Encoding: gzip" in head) == compressed
    assert b"vcuda_build_info" in (gzip.decompress(body) if compressed else body)


def test_a_request_line_without_end_is_refused(served: Served) -> None:
    with served.connect() as peer:
        peer.sendall(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n")
        assert b" 414 " in peer.recv(200)


@pytest.mark.parametrize(
    ("request_line", "accept", "status"),
    [
        (b"GET http://[x]/metric HTTP/1.1", b"*/*", b"400"),
        (b"GET /metric HTTP/1.1", b"application/openmetrics-text;version=abc", b"200"),
        (b"GET /metric HTTP/1.1", b"application/openmetrics-text; version=1.0.0; escaping=\xff", b"200"),
        (b"GET /metric HTTP/1.1", b"text/plain;version=;q=\xff", b"200"),
        (b"GET /ui/../../etc/passwd HTTP/1.1", b"*/*", b"404"),
    ],
)
def test_nonsense_is_answered_and_leaves_no_trace_in_the_log(
    served: Served, capfd: pytest.CaptureFixture[str], request_line: bytes, accept: bytes, status: bytes
) -> None:
    """Else anybody could fill it."""
    with served.connect() as peer:
        peer.sendall(request_line + b"\r\nAccept: " + accept + b"\r\n\r\n")
        assert peer.recv(200).split(b" ")[1] == status
    assert "http_request_failed" not in capfd.readouterr().out


def test_a_peer_that_leaves_is_no_news_and_a_fault_of_ours_is_one_line(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    with served.connect() as peer:
        peer.sendall(b"GET /metr")
    served.status.usage = None  # type: ignore[method-assign,assignment]  # nothing could be more broken
    assert served.ask("/usage")[0] == 500
    assert served.ask("/healthz")[0] == 200
    captured = capfd.readouterr()
    assert "http_request_failed" in captured.out


@pytest.mark.parametrize("port", [1 << 17, -1])
def test_an_impossible_port_is_one_sentence(served: Served, port: int) -> None:
    with pytest.raises(NodeUnready, match="--http-port"):
        StatusServer(served.status, "127.0.0.1", port)


def test_a_taken_port_is_one_sentence(served: Served) -> None:
    with pytest.raises(NodeUnready, match="choose another --http-port"):
        StatusServer(served.status, "127.0.0.1", served.server.port)


def test_the_graph_cannot_move_a_terminals_cursor(rig: NodeRig, served: Served) -> None:
    one: dict[str, Any] = pod("evil", container("c", 30, 20), on={"c": [(rig.states[0], 30, 5 * GIB)]})
    one["metadata"]["name"] = "evil\x1b[2J\nforged: line"
    assert rig.admit(one).admitted
    _, _, text = served.ask("/graph")
    assert "\x1b" not in text
    assert "\nforged" not in text
    assert "30 cores, 5 GiB" in text
