"""The admission service over real HTTPS: bounds, health, metrics, the end; and as an API server calls it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from admission.__main__ import run
from admission.app import Program
from admission.certs import Issued, Switch, issue
from admission.config import Bounds, Settings, Terms
from admission.metrics import Metrics
from admission.webhook import Outlook
from gpu_manager.domain.contract import CORE, MEMORY, PREDICATE_NODE
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.sandbox.api import ADMIN_TOKEN, Hook, StandInApi, https_hook
from tests.fakes.https import HOST, Caller, trusting
from tests.fakes.reviews import container, pod, review
from tests.fakes.sandbox import until

ROOT = Path(__file__).parents[2]
ISSUED = issue((HOST,), time.time(), 90, "test authority")
TRUSTING = trusting(ISSUED.authority)


class Given:
    """A certificate that is there from the first look on."""

    def __init__(self, switch: Switch, issued: Issued | None = ISSUED) -> None:
        self.switch = switch
        self.issued = issued

    def check(self) -> None:
        if self.issued is None:
            raise NodeUnready("no certificate yet")
        if self.switch.pair != self.issued.pair:
            self.switch.take(self.issued.pair)


class Service:
    def __init__(self, settings: Settings, issued: Issued | None = ISSUED, **more: Any) -> None:
        switch = Switch()
        self.certificates = Given(switch, issued)
        self.program = Program(settings, self.certificates, switch, Metrics("0"), check_seconds=0.01, **more)
        self.program.start()
        self.port = self.program.port

    def caller(self) -> Caller:
        return Caller(self.port, TRUSTING)


@pytest.fixture
def serve() -> Iterator[Any]:
    running: list[Service] = []

    def start(bounds: Bounds | None = None, terms: Terms | None = None, **more: Any) -> Service:
        made = Settings(address="127.0.0.1", port=0, bounds=bounds or Bounds(), terms=terms or Terms())
        running.append(Service(made, **more))
        return running[-1]

    yield start
    for service in running:
        service.program.stop()


@pytest.fixture(scope="module")
def shared() -> Iterator[Service]:
    service = Service(Settings(address="127.0.0.1", port=0))
    yield service
    service.program.stop()


@pytest.fixture
def caller(shared: Service) -> Iterator[Caller]:
    with shared.caller() as caller:
        yield caller


# What is asked, what is answered.


def test_reviews_are_answered_over_one_connection(caller: Caller) -> None:
    for path in ("/mutate", "/validate", "/validate?timeout=10s"):
        status, answer = caller.post(path, review())
        assert (status, answer["response"]) == (200, {"uid": review()["request"]["uid"], "allowed": True})
    status, answer = caller.post("/validate", review(pod(container("train", "150"))))
    assert (status, answer["response"]["allowed"]) == (200, False)
    assert caller.headers["content-type"] == "application/json"


def test_a_name_that_nobody_has_judged_yet_fills_no_log(caller: Caller) -> None:
    """The API server asks before it looks at names, and a body has room for millions of characters."""
    long = "n" * 1_000_000
    obj = pod(container("train", "150"))
    obj["metadata"] = {"generateName": long}
    with structlog.testing.capture_logs() as logged:
        for sent in (review(obj, name=""), review(obj, name=long)):
            assert not caller.post("/validate", sent)[1]["response"]["allowed"]
    lines = [entry for entry in logged if entry["event"] == "judged"]
    assert [entry["result"] for entry in lines] == ["denied", "denied"]
    assert all(len(str(entry)) < 1000 for entry in lines)


@pytest.mark.parametrize(
    ("body", "kind", "status", "says"),
    [
        (b"{", "application/json", 400, "not JSON"),
        (b"", "application/json", 400, "not JSON"),
        (b'{"kind": "Pod"}', "application/json", 400, "reads AdmissionReview"),
        (review(), "text/plain", 415, "send application/json"),
        (review(), "", 415, "send application/json"),
        (review(), "application/json; charset=utf-8", 200, ""),
        (review(), "Application/JSON", 200, ""),
        (b" " * (3 << 20) + b"{", "application/json", 413, "more than 3145728 bytes"),
        (b"[" * (3 << 20), "application/json", 400, "nested too deeply"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_review_is_refused_with_status_and_sentence(
    caller: Caller, body: Any, kind: str, status: int, says: str
) -> None:
    found, answer = caller.post("/mutate", body, kind)
    assert found == status
    assert says in answer.get("error", "")


def test_a_body_sent_in_pieces_is_bounded_too(shared: Service) -> None:
    with shared.caller() as caller:
        pieces = (b" " * 65_536 for _ in range(64))
        caller._connection.request(
            "POST", "/validate", pieces, {"Content-Type": "application/json"}, encode_chunked=True
        )
        with caller._connection.getresponse() as answer:
            assert answer.status == 413
            answer.read()


def test_unknown_paths_and_methods_are_refused_and_counted_together(caller: Caller) -> None:
    assert caller.get("/nothing/here")[0] == 404
    assert caller.get("/mutate")[0] == 405
    assert caller.post("/healthz", {})[0] == 405
    figures = scrape(caller)
    assert figures["vcuda_admission_http_responses_total", ("404", "other")] >= 1
    assert not any("nothing" in str(labels) for _, labels in figures)


def test_health_version_and_readiness(caller: Caller) -> None:
    assert caller.get("/healthz") == (200, "ok\n")
    status, text = caller.get("/readyz")
    assert (status, json.loads(text)) == (200, {"serving": True, "certificate": True})
    assert re.match(r"\d+\.\d+", json.loads(caller.get("/version")[1])["version"])


def test_the_openapi_document_names_what_can_come_back(caller: Caller) -> None:
    document = json.loads(caller.get("/openapi.json")[1])
    assert set(document["paths"]) == {"/mutate", "/validate", "/metrics", "/healthz", "/readyz", "/version"}
    assert set(document["paths"]["/mutate"]["post"]["responses"]) == {
        "200",
        "400",
        "408",
        "413",
        "415",
        "503",
    }


def scrape(caller: Caller) -> dict[tuple[str, tuple[str, ...]], float]:
    status, page = caller.get("/metrics")
    assert status == 200
    return {
        (s.name, tuple(v for _, v in sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(page)
        for s in family.samples
    }


def test_decisions_durations_and_the_certificates_end_are_metrics(serve: Any) -> None:
    with serve().caller() as caller:
        caller.post("/mutate", review(pod(container(core="200", memory="3"))))
        caller.post("/validate", review(pod(container(core="150"))))
        caller.post("/validate", review())
        figures = scrape(caller)
        assert "# EOF" in caller.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")[1]
    decisions = {k: v for (name, k), v in figures.items() if name == "vcuda_admission_decisions_total"}
    assert decisions == {
        ("patched", "memory-beside-whole-cards", "mutate"): 1.0,
        ("denied", "core-not-multiple", "validate"): 1.0,
        ("allowed", "", "validate"): 1.0,
    }
    assert figures["vcuda_admission_duration_seconds_count", ("validate",)] == 2.0
    assert figures["vcuda_admission_certificate_expiry_timestamp_seconds", ()] == ISSUED.pair.not_after


def test_before_the_first_certificate_it_is_unready_and_then_ready_by_itself(serve: Any) -> None:
    service = serve(issued=None)
    assert service.program.ready() == {"certificate": False}
    with pytest.raises((ssl.SSLError, ConnectionError)), service.caller() as caller:
        caller.get("/readyz")
    service.certificates.issued = ISSUED
    until(lambda: service.program.ready()["certificate"])
    with service.caller() as caller:
        assert caller.get("/readyz")[0] == 200


# Bounds.


def raw(port: int) -> ssl.SSLSocket:
    return TRUSTING.wrap_socket(socket.create_connection((HOST, port), timeout=10), server_hostname=HOST)


def test_a_body_that_never_ends_gives_its_place_back(serve: Any) -> None:
    service = serve(Bounds(seconds=0.2, at_work=1, waiting=0))
    with raw(service.port) as slow, service.caller() as caller:
        slow.sendall(
            b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        assert caller.get("/healthz")[0] == 200
        assert slow.recv(65_536).startswith(b"HTTP/1.1 408")
        assert caller.post("/validate", review())[0] == 200


def test_a_header_that_never_ends_is_cut_off_and_an_idle_connection_is_not(serve: Any) -> None:
    service = serve(Bounds(seconds=0.2))
    with raw(service.port) as silent, raw(service.port) as slow, service.caller() as caller:
        assert caller.get("/healthz")[0] == 200
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        for cut in (silent, slow):
            assert cut.recv(1) == b""
        assert caller.post("/validate", review())[0] == 200  # the same connection, after a longer pause


def test_more_than_may_wait_are_sent_away_and_health_is_still_answered(serve: Any) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: Any) -> tuple[()]:
        begun.set()
        assert go_on.wait(10)
        return ()

    service = serve(Bounds(at_work=1, waiting=0), outlook=Outlook(warn=slow))
    results: list[int] = []

    def ask() -> None:
        with service.caller() as caller:
            results.append(caller.post("/validate", review())[0])

    first = threading.Thread(target=ask)
    first.start()
    assert begun.wait(10)
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
        Service(Settings(address="127.0.0.1", port=taken.getsockname()[1]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["/mutate", "/validate"]),
    st.binary(max_size=300)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    ).map(lambda value: {**review(), "request": {**review()["request"], "object": {"spec": value}}}),
)
def test_no_body_makes_the_service_fail(shared: Service, path: str, body: Any) -> None:
    with shared.caller() as caller:
        assert caller.post(path, body)[0] in (200, 400)


# The end.


def test_while_draining_it_answers_says_so_and_closes(serve: Any) -> None:
    service = serve()
    with service.caller() as caller, service.caller() as other:
        assert caller.get("/readyz")[0] == 200
        assert other.get("/readyz")[0] == 200
        ending = threading.Thread(target=service.program.stop, args=(0.5,))
        ending.start()
        status, text = caller.get("/readyz")
        while json.loads(text)["serving"]:
            status, text = caller.get("/readyz")
        assert (status, json.loads(text)["serving"]) == (503, False)
        assert caller.headers["connection"] == "close"
        assert other.post("/validate", review())[0] == 200
        ending.join()
    with pytest.raises(OSError):
        socket.create_connection((HOST, service.port), timeout=1).close()


def test_a_review_at_work_is_answered_before_the_end(serve: Any) -> None:
    begun, go_on = threading.Event(), threading.Event()
    outlook = Outlook(warn=lambda *_: (begun.set(), go_on.wait(10), ())[2])
    service = serve(outlook=outlook)
    results: list[int] = []

    def ask() -> None:
        with service.caller() as caller:
            results.append(caller.post("/validate", review())[0])

    asking = threading.Thread(target=ask)
    asking.start()
    assert begun.wait(10)
    ending = threading.Thread(target=service.program.stop)
    ending.start()
    assert service.program._ended.wait(10)
    go_on.set()
    asking.join()
    ending.join()
    assert results == [200]


def test_the_program_serves_files_and_ends_with_sigterm(tmp_path: Path, cluster: StandInApi) -> None:
    (tmp_path / "tls.crt").write_bytes(ISSUED.pair.certificate)
    (tmp_path / "tls.key").write_bytes(ISSUED.pair.key)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "admission", f"--tls-cert-file={tmp_path / 'tls.crt'}",
        f"--tls-private-key-file={tmp_path / 'tls.key'}", "--webhook-address=127.0.0.1", f"--webhook-port={port}",
        f"--api-url={cluster.url}", "--extender-address=127.0.0.1:0", "--drain-seconds=0", "--default-memory=4", "--pprofAddress", "127.0.0.1:1", "--logtostderr=true",
    ]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if k not in ("LOG_LEVEL", "EXTRA_FLAGS")}
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env=environment, text=True) as program:
        try:
            assert program.stderr is not None
            lines = [json.loads(program.stderr.readline()) for _ in range(3)]
            assert [line["event"] for line in lines] == [
                "flags of the predecessor ignored",
                "certificate taken",
                "running",
            ]
            with Caller(port, TRUSTING) as caller:
                _, answer = caller.post("/mutate", review(pod(container(core="30"))))
                assert "4 units (1 GiB)" in answer["response"]["warnings"][0]
                assert PREDICATE_NODE not in str(answer)
                program.send_signal(signal.SIGTERM)
                assert program.wait(10) == 0
            assert '"stopping"' in program.stderr.read()
        finally:
            program.kill()


@pytest.fixture
def own_log() -> Iterator[None]:
    """The program sets up the log of the whole process; other tests have theirs."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("own_log")
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--tls-cert-file=/x"], 2, "together"),
        (["--tls-cert-file=/x", "--tls-private-key-file=/y"], 1, "cannot read /x"),
        (["--memory-unit=1"], 2, "use whole bytes"),
        (["--unknown"], 2, "unknown argument"),
        (["--minimum-cores=0"], 2, "--minimum-cores"),
        (["--log-level=loud"], 2, "debug, info"),
    ],
)
def test_a_wrong_command_line_says_what_to_change(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    assert says in capsys.readouterr().err


# As an API server calls it.


@pytest.fixture(scope="module")
def cluster(shared: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInApi]:
    authority = tmp_path_factory.mktemp("ca") / "ca.crt"
    authority.write_bytes(ISSUED.authority)
    url = f"https://{HOST}:{shared.port}"
    hooks = [
        Hook("mutate.vcuda", https_hook(f"{url}/mutate", str(authority))),
        Hook("validate.vcuda", https_hook(f"{url}/validate", str(authority)), frozenset({"pods", "pods/status", "pods/binding"})),
    ]  # fmt: skip
    with StandInApi(hooks=hooks) as api:
        yield api


def create(
    api: StandInApi, obj: dict[str, Any], method: str = "POST", path: str = ""
) -> tuple[int, dict[str, Any], str]:
    """Status, object and warnings, as kubectl gets them."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {ADMIN_TOKEN}"}
    if method == "PATCH":
        headers["Content-Type"] = "application/merge-patch+json"
    url = f"{api.url}/api/v1/namespaces/default/pods{path}"
    sent = urllib.request.Request(url, json.dumps(obj).encode(), headers, method=method)
    try:
        with urllib.request.urlopen(sent, timeout=10) as answer:
            return answer.status, json.load(answer), " ".join(answer.headers.get_all("Warning") or [])
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), ""


def manifest(core: object = None, memory: object = None, **meta: Any) -> dict[str, Any]:
    limits = {k: v for k, v in ((CORE, core), (MEMORY, memory)) if v is not None}
    spec = {"containers": [{"name": "train", "image": "busybox", "resources": {"limits": limits}}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "train-", **meta}, "spec": spec}


@pytest.mark.parametrize(
    ("core", "memory"), [(30, 20), (56, 1), (100, None), (600, None), (3400, None), ("3e1", "20")]
)
def test_the_seeds_legal_pods_are_created(cluster: StandInApi, core: object, memory: object) -> None:
    status, made, warnings = create(cluster, manifest(core, memory))
    assert (status, warnings) == (201, "")
    assert made["metadata"]["name"].startswith("train-")


@pytest.mark.parametrize(
    ("core", "memory", "says"),
    [
        (150, None, "(100 or 200)"),
        (270, None, "(200 or 300)"),
        (354, None, "(300 or 400)"),
        (None, 20, "add tencent.com/vcuda-core, 1 to 99"),
        (30, None, "add tencent.com/vcuda-memory, 1 or more units of 256 MiB"),
        ("0.3", 20, "if 0.3 cards were meant, use 30"),
        (30, "0.5", "in whole numbers: use 1"),
        ("-30", 20, "use 1 to 100 for a part of one card"),
    ],
)
def test_the_seeds_illegal_pods_are_refused_with_the_nearest_value(
    cluster: StandInApi, core: object, memory: object, says: str
) -> None:
    status, answer, _ = create(cluster, manifest(core, memory))
    assert status == 422
    assert says in answer["message"]
    assert ".vcuda" in answer["message"]  # it was the webhook that said so


def test_what_is_mended_is_stored_mended_and_told(cluster: StandInApi) -> None:
    status, made, warnings = create(
        cluster, manifest(200, 20, annotations={PREDICATE_NODE: "n1", "mine": "x"})
    )
    assert status == 201
    assert made["metadata"]["annotations"] == {"mine": "x"}
    assert MEMORY not in str(made["spec"])
    assert "it is ignored" in warnings
    assert "is removed" in warnings


def test_a_tenant_cannot_annotate_its_own_pod(cluster: StandInApi) -> None:
    _, made, _ = create(cluster, manifest(100))
    path = f"/{made['metadata']['name']}"
    for sub in ("", "/status"):
        status, answer, _ = create(
            cluster, {"metadata": {"annotations": {PREDICATE_NODE: "n9"}}}, "PATCH", path + sub
        )
        assert (status, "leave it out" in answer["message"]) == (403, True)
    assert create(cluster, {"metadata": {"annotations": {"mine": "x"}}}, "PATCH", path)[0] == 200
    binding = {
        "metadata": {"name": path[1:], "annotations": {PREDICATE_NODE: "n9"}},
        "target": {"name": "n9"},
    }
    assert (
        create(cluster, {"apiVersion": "v1", "kind": "Binding", **binding}, path=f"{path}/binding")[0] == 403
    )


def test_a_dry_run_says_the_same_and_stores_nothing(cluster: StandInApi) -> None:
    before = len(cluster.list("pods"))
    assert create(cluster, manifest(150), path="?dryRun=All")[0] == 422
    assert create(cluster, manifest(100), path="?dryRun=All")[0] == 201
    assert len(cluster.list("pods")) == before
