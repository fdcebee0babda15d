"""Everything that can be wrong with an API server or a kubelet, as errors for the operator and nothing else."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from gpu_manager.adapters.kube.connection import Timeouts, connect
from gpu_manager.adapters.kube.kube import Kube, KubeletPods
from gpu_manager.adapters.kube.reflector import Pause
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.domain.errors import NodeUnready
from sandbox.api import ADMIN_TOKEN, StandInApi
from tests.fakes.certificates import self_signed
from tests.fakes.ports import FakeClock
from tests.fakes.waiting import PATIENCE
from tests.fakes.web import send, serving

PATIENT = Timeouts(connect=PATIENCE, answer=PATIENCE, watch=30)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize(
    ("respond", "words"),
    [
        (lambda h: send(h, b"<html>a proxy</html>"), "no answer"),
        (lambda h: send(h, b"[1, 2]"), "something else"),
        (lambda h: send(h, b'{"kind": "Po', length=500), "no answer"),
        (lambda h: send(h, b"[" * 200_000), "no answer"),
        (lambda h: send(h, b"\xff\xfe"), "no answer"),
        (lambda h: send(h, b'{"spec": {"containers": 7}}'), "not a pod"),
        (lambda h: send(h, b"<html>bad gateway</html>", 502), "bad gateway.*502"),
        (lambda h: send(h, b"[]", 500), "500"),
        (lambda h: h.wfile.write(b"I am no HTTP server\r\n\r\n"), "no answer"),
    ],
    ids=["html", "list", "cut", "deep", "bytes", "nopod", "502", "500", "nohttp"],
)
def test_every_bad_answer_is_one_error_for_the_operator(respond, words):
    with serving(respond) as url:
        refused(url, PATIENT, words)


@pytest.mark.parametrize("close", [False, True])
def test_no_answer_at_all_is_that_error_too(close):
    ended = threading.Event()
    with serving(lambda h: h.connection.close() if close else ended.wait(PATIENCE)) as url:
        refused(url, replace(PATIENT, answer=0.5), "no answer")
        ended.set()


def refused(url, timeouts, words):
    kube = Kube(connect(url=url, timeouts=timeouts), "n1", clock=SystemClock(), pause=Pause(0.01, 0.05))
    with pytest.raises(NodeUnready, match=words):
        kube.pods.fetch("default", "train")
    kube.start()
    assert not kube.pods.wait(0.05)
    kube.close()


def test_an_unknown_authority_is_named(certificate):
    with StandInApi(tls=certificate) as api:
        connection = connect(url=api.url, token=ADMIN_TOKEN, timeouts=PATIENT)
        with pytest.raises(NodeUnready, match=r"(?i)certificate"):
            connection.request("read", "GET", "/version")
        connection.close()


def test_a_kubeconfig_with_its_authority_works_over_tls(certificate, tmp_path):
    with StandInApi(tls=certificate) as api:
        connection = connect(kubeconfig=api.kubeconfig(tmp_path / "config"), timeouts=PATIENT)
        kube = Kube(connection, "n1", clock=SystemClock(), pause=Pause(0.01, 0.05))
        kube.start()
        assert kube.pods.wait(PATIENCE)
        kube.close()


@pytest.mark.parametrize(
    "text", [None, "", "{", "a: [", "[]", "7", "clusters: 7", '{"current-context": "x", "contexts": []}']
)
def test_a_kubeconfig_that_cannot_be_read_is_named(tmp_path, text):
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(NodeUnready, match=r"cannot find the API server by the kubeconfig .*--kubeconfig"):
        connect(kubeconfig=path)


def test_outside_a_cluster_the_missing_service_account_is_named(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(NodeUnready, match="service account of this pod"):
        connect()


def test_a_refused_token_says_what_to_do():
    with StandInApi() as api:
        connection = connect(url=api.url, token="wrong", timeouts=PATIENT)
        with pytest.raises(NodeUnready, match=r"Unauthorized \(401\): the token is not valid"):
            connection.request("list pods", "GET", "/api/v1/pods")
        connection.close()


# The kubelet's own /pods.


def pod(name, uid, **spec):
    return {
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}], **spec},
    }


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("secret\n")
    return path


@contextmanager
def node(api, kubelet_url, token, ca, clock=None):
    kube = Kube(
        connect(url=api.url, token=ADMIN_TOKEN, timeouts=PATIENT),
        "n1",
        clock=clock or SystemClock(),
        kubelet_url=kubelet_url,
        kubelet_ca=ca,
        token_file=token,
        pause=Pause(0.01, 0.05),
    )
    kube.start()
    assert kube.pods.wait(PATIENCE)
    try:
        yield kube
    finally:
        kube.close()


@pytest.mark.parametrize("names", [(), ("n1",)], ids=["its address", "the node's name alone"])
def test_the_kubelets_own_pods_are_asked_first_with_the_token(api, token, tmp_path, names):
    certificate = self_signed(tmp_path, 1, *names)
    asked = []

    def respond(handler):
        asked.append((handler.path, handler.headers["Authorization"]))
        send(handler, json.dumps({"items": [pod("train", "u1"), pod("other", "u2"), {"spec": 7}]}).encode())

    with serving(respond, certificate) as url, node(api, url, token, certificate[0]) as kube:
        assert kube.pods.fetch("default", "train").uid == "u1"
        assert {k: f[0].pod.uid for k, f in kube.pods.local().items()} == {
            "default/train": "u1",
            "default/other": "u2",
        }
        assert not kube.kubelet_unverified
    assert asked == [("/pods", "Bearer secret")]


def test_whoever_answers_at_the_kubelet_s_port_without_its_certificate_gets_no_token(
    api, token, certificate, tmp_path
):
    """Any user of the node can listen there while the kubelet does not, as can who answers for its address."""
    seen = []
    (tmp_path / "other").mkdir()
    wrong_name = self_signed(tmp_path / "other", 1, "nobody")
    made = api.create({"apiVersion": "v1", "kind": "Pod", **pod("train", "")})

    def steal(handler):
        seen.append(dict(handler.headers))
        send(handler, json.dumps({"items": [pod("train", "forged")]}).encode())

    for theirs, trusted in ((certificate, wrong_name[0]), (wrong_name, wrong_name[0])):
        with serving(steal, theirs) as url, node(api, url, token, trusted) as kube:
            for _ in range(3):
                assert kube.pods.fetch("default", "train").uid == made["metadata"]["uid"]
            assert kube.kubelet_unverified
    assert seen == []


def test_a_kubelet_that_gets_its_serving_certificate_is_asked_again(token, certificate, tmp_path):
    clock, authority = FakeClock(), tmp_path / "ca.pem"
    (tmp_path / "other").mkdir()
    authority.write_bytes(self_signed(tmp_path / "other")[0].read_bytes())
    with serving(lambda h: send(h, b'{"items": []}'), certificate) as url:
        kubelet = KubeletPods(url, clock, token, authority)
        assert kubelet.pods() is None
        assert kubelet.unverified
        assert "serverTLSBootstrap" in kubelet.error
        authority.write_bytes(certificate[0].read_bytes())
        clock.pass_(301)
        assert kubelet.pods() == []
        assert not kubelet.unverified
        kubelet.close()


def test_a_pod_that_the_kubelet_does_not_know_is_asked_of_the_api_server(api, token, certificate):
    made = api.create({"apiVersion": "v1", "kind": "Pod", **pod("train", "")})
    with (
        serving(lambda h: send(h, b'{"items": []}'), certificate) as url,
        node(api, url, token, certificate[0]) as kube,
    ):
        assert kube.pods.fetch("default", "train").uid == made["metadata"]["uid"]
        assert kube.pods.fetch("default", "nobody") is None


@pytest.mark.parametrize(
    "respond",
    [
        lambda h: send(h, b"", 403),
        lambda h: send(h, b"", 401),
        lambda h: send(h, b"", 404),
        lambda h: send(h, b"<html>"),
        lambda h: send(h, b"7"),
        lambda h: h.connection.close(),
    ],
    ids=["403", "401", "404", "html", "number", "close"],
)
def test_a_kubelet_that_does_not_answer_is_left_alone_and_the_api_server_asked(
    api, token, certificate, respond
):
    asked = []

    def counting(handler):
        asked.append(handler.path)
        respond(handler)

    made = api.create({"apiVersion": "v1", "kind": "Pod", **pod("train", "")})
    with serving(counting, certificate) as url, node(api, url, token, certificate[0]) as kube:
        for _ in range(3):
            assert kube.pods.fetch("default", "train").uid == made["metadata"]["uid"]
        assert len(asked) == 1


def test_a_kubelet_that_closes_kept_connections_is_asked_again_at_once(api, token, certificate):
    def respond(handler):
        send(handler, json.dumps({"items": [pod("train", "u1")]}).encode())
        handler.close_connection = True

    with serving(respond, certificate) as url, node(api, url, token, certificate[0]) as kube:
        for _ in range(3):
            assert kube.pods.fetch("default", "train").uid == "u1"


def test_an_absent_kubelet_or_an_unknown_authority_is_said_and_is_no_error(token, certificate, tmp_path):
    away = KubeletPods("https://127.0.0.1:1", SystemClock(), token, certificate[0])
    assert away.pods() is None
    assert "no answer" in away.error
    other = tmp_path / "empty.pem"
    other.write_text("")
    with serving(lambda h: send(h, b'{"items": []}'), certificate) as url:
        untrusted = KubeletPods(url, SystemClock(), token, other)
        assert untrusted.pods() is None
        tokenless = KubeletPods(url, SystemClock(), tmp_path / "absent", certificate[0])
        assert tokenless.pods() is None
    with pytest.raises(NodeUnready, match="give https://<node>:10250"):
        KubeletPods("http://127.0.0.1:10255", SystemClock(), token, certificate[0])
