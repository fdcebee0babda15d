"""``kubectl vcuda`` over the API stand-in: an agent and an admission service behind its proxies."""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from admission.app import compose
from admission.config import AdmissionSettings, ExtenderEndpoint, LeaderMode, Leadership
from gpu_manager.cli.kubectl.main import PROGRAM, run
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import (
    ALLOCATION,
    CORDON,
    CORE,
    INVENTORY,
    MEMORY,
    TOKEN_HEADER,
    Assignment,
    Inventory,
    encode_assignment,
    encode_inventory,
)
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.domain.topology import Link, Topology
from sandbox.api import StandInApi
from tests.fakes.node import container, pod
from tests.fakes.sandbox import until

ADMISSION = "/api/v1/namespaces/kube-system/services/https:gpu-quota-admission:443/proxy"
AGENT_POD = "/api/v1/namespaces/kube-system/pods/agent-1:5678/proxy"


def a_node(api: StandInApi, name: str = "n1", cards: int = 2, **status: Any) -> None:
    states = tuple(CardState(Card(i, CardUuid(f"GPU-{i}"), "V100", 16 * GIB)) for i in range(cards))
    inventory = Inventory(256 << 20, states, Topology.uniform(cards, Link.parse("SYS")))
    annotations = {INVENTORY: encode_inventory(inventory)}
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": annotations,
                "labels": {"tencent.com/gpu-model": "V100"},
            },
            "status": {"allocatable": {CORE: str(100 * cards), MEMORY: "128", **status}},
        }
    )


def a_share(
    api: StandInApi, name: str, cores: int, card: str | None = "GPU-0", **meta: Any
) -> Mapping[str, Any]:
    """A pod that is bound; on that card, or on none that is said."""
    made = api.create(
        {**pod(name, container("c", cores, 8)), "metadata": {"name": name, "namespace": "default", **meta}}
    )
    if not made["spec"].get("nodeName"):
        api.bind(name, "n1", made["metadata"]["namespace"])
    if card is not None:
        shares = {"c": ((CardUuid(card), Amount(cores, 2 * GIB)),)}
        said = encode_assignment(Assignment("n1", made["metadata"]["uid"], shares))
        api.patch(
            "pods", name, {"metadata": {"annotations": {ALLOCATION: said}}}, made["metadata"]["namespace"]
        )
    return made


def an_agent(api: StandInApi, page: Any, code: int = 200) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "gpu-manager-daemonset", "uid": "u"}
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "agent-1", "namespace": "kube-system", "ownerReferences": [owner]},
            "spec": {"nodeName": "n1", "containers": [{"name": "agent", "image": "a"}]},
        }
    )
    api.patch("pods", "agent-1", {"status": {"phase": "Running"}}, "kube-system", subresource="status")
    api.serve_behind(AGENT_POD, lambda *_: (code, json.dumps(page).encode()))


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInApi]:
    with StandInApi() as running:
        monkeypatch.setenv("KUBECONFIG", str(running.kubeconfig(tmp_path / "config")))
        monkeypatch.delenv("VCUDA_ADMISSION", raising=False)
        yield running


def said(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_top_shows_shares_with_what_the_nodes_agent_says_is_used(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    made = a_share(api, "train", 30)
    device = {"uuid": "GPU-0", "gpu": 12.4, "mem": 512.0}
    an_agent(api, {"usage": {made["metadata"]["uid"]: {"stat": {"c": {"dev": [device]}}}}})
    assert run(["top"]) == 0
    out, err = said(capsys)
    assert out.splitlines()[1].split() == [
        "default",
        "train",
        "c",
        "n1",
        "0",
        "30",
        "12",
        "%",
        "2",
        "GiB",
        "512",
        "MiB",
    ]
    assert err == ""
    assert run(["top", "-o", "json"]) == 0
    (row,) = json.loads(said(capsys)[0])["containers"]
    assert (row["coresUsed"], row["memoryUsed"], row["cardKnown"]) == (12.4, 512 << 20, True)
    assert run(["top", "-n", "other"]) == 0
    assert "no container in namespace other holds a share" in said(capsys)[0]


@pytest.mark.parametrize(
    ("page", "code", "text"),
    [
        ({"usage": []}, 200, "answered with something else"),
        ({"usage": {"x": {"stat": {"c": {"dev": [{}]}}}}}, 200, "answered with something else"),
        ({"message": "forbidden"}, 403, "you lack this right"),
    ],
)
def test_usage_that_cannot_be_had_is_left_out_and_said(
    api: StandInApi, capsys: pytest.CaptureFixture[str], page: Any, code: int, text: str
) -> None:
    a_node(api)
    a_share(api, "train", 30)
    an_agent(api, page, code)
    assert run(["top", "-A", "-o", "wide"]) == 0
    out, err = said(capsys)
    assert out.splitlines()[1].split()[6] == "-"
    assert "usage of n1 is not known" in err
    assert text in err


def test_graph_charges_a_pod_that_says_no_card_where_the_node_would_put_it(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    a_share(api, "said", 60, "GPU-0")
    a_share(api, "silent", 60, None)
    a_share(api, "liar", 20, "GPU-of-another-node")
    api.patch("nodes", "n1", {"metadata": {"annotations": {CORDON: "GPU-1"}}})
    assert run(["graph", "n1", "-o", "yaml"]) == 0
    assert "cordoned: true" in said(capsys)[0]
    api.patch("nodes", "n1", {"metadata": {"annotations": {CORDON: None}}})
    assert run(["graph", "-o", "json"]) == 0
    first, second = json.loads(said(capsys)[0])["nodes"][0]["cards"]
    assert [(h["pod"], h["planned"]) for h in first["holders"]] == [("said", False), ("liar", True)]
    assert [(h["pod"], h["planned"]) for h in second["holders"]] == [("silent", True)]
    assert (first["cores_free"], second["cores_free"]) == (20, 40)


def test_a_pod_that_was_squeezed_in_is_charged_and_named(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api, cards=1)
    a_share(api, "said", 60, "GPU-0")
    a_share(api, "by-hand", 60, None)
    assert run(["graph"]) == 0
    drawn = said(capsys)[0]
    assert "-20 of 100 cores free" in drawn
    assert "no card has room for default/by-hand, which is bound here" in drawn
    assert run(["explain", "by-hand", "--admission", "-"]) == 0
    assert "where no card has room for it" in said(capsys)[0]


@pytest.mark.parametrize("odd", [{"tencent.com/vcuda-core-limit": "150"}, {"tencent.com/placement": "foo"}])
def test_a_running_pod_with_an_odd_annotation_holds_what_it_holds(
    api: StandInApi, capsys: pytest.CaptureFixture[str], tmp_path: Path, odd: dict[str, str]
) -> None:
    a_node(api, cards=1)
    a_share(api, "train", 60, "GPU-0")
    api.patch("pods", "train", {"metadata": {"annotations": odd}})
    assert run(["graph"]) == 0
    assert "40 of 100 cores free" in said(capsys)[0]
    assert run(["top", "-A"]) == 0
    assert said(capsys)[0].splitlines()[1].split()[1:6] == ["train", "c", "n1", "0", "60"]
    file = tmp_path / "web.yaml"
    file.write_text(MANIFEST % 50)
    assert run(["simulate", str(file)]) == 1, "the extender would refuse it"
    assert "50 cores asked, 40 free" in said(capsys)[0]
    assert run(["simulate", "--drain", "n1"]) == 1, "nobody makes it anew"
    assert "no controller would make it anew" in said(capsys)[0]


MANIFEST = """apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  template:
    spec:
      containers: [{name: c, resources: {limits: {tencent.com/vcuda-core: %d, tencent.com/vcuda-memory: 8}}}]
"""


def test_explain_judges_a_manifest_that_is_not_created(
    api: StandInApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a_node(api, cards=1)
    a_share(api, "train", 60)
    file = tmp_path / "web.yaml"
    file.write_text(MANIFEST % 30)
    assert run(["explain", str(file), "-n", "ml", "--admission", "-"]) == 0
    out, err = said(capsys)
    assert out.startswith("pod ml/web\nthere is room now: on n1 it would get 30 cores, 2 GiB of card 0\n")
    assert "judged by this program" in err
    file.write_text(MANIFEST % 50)
    assert run(["explain", str(file), "-o", "json"]) == 1
    (answer,) = json.loads(said(capsys)[0])["pods"]
    assert answer["nodes"][0]["cards"][0]["reason"].startswith("50 cores asked, 40 free")
    file.write_text(MANIFEST % 150)
    assert run(["explain", str(file)]) == 1
    assert "never runs" in said(capsys)[0]
    assert run(["explain", "train"]) == 0
    assert "bound to node n1: 60 cores, 2 GiB of card 0" in said(capsys)[0]


def test_explain_repeats_why_a_pod_has_failed(api: StandInApi, capsys: pytest.CaptureFixture[str]) -> None:
    a_node(api, cards=1)
    a_share(api, "late", 60)
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Pod was rejected: no card"}
    api.patch("pods", "late", {"status": status}, subresource="status")
    assert run(["explain", "late", "--admission", "-"]) == 1
    lines = said(capsys)[0].splitlines()
    assert lines[1:3] == [
        "ended on node n1, and holds nothing any more",
        "it failed: UnexpectedAdmissionError: Pod was rejected: no card",
    ]
    assert "make it anew" in lines[3]
    assert run(["explain", "late", "--admission", "-", "-o", "json"]) == 1
    assert json.loads(said(capsys)[0])["pods"][0]["failed"].startswith("UnexpectedAdmissionError: ")


def test_explain_tells_a_pod_that_waits_for_something_else_so(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api, cards=1)
    for name, units in (("picky", 8), ("large", 800)):
        waiting = pod(name, container("c", 30, units))
        waiting["spec"].pop("nodeName")
        api.create(waiting)
    assert run(["explain", "picky", "--admission", "-"]) == 0
    out, _ = said(capsys)
    assert (
        "\nwaits, but not for cards: there is room now: on n1 it would get 30 cores, 2 GiB of card 0. " in out
    )
    assert run(["explain", "large", "--admission", "-"]) == 1
    assert "\nwaits: the one node with cards has no room now; n1: " in said(capsys)[0]


def test_the_admission_service_is_asked_with_the_callers_token_in_a_header_that_survives_the_proxy(
    api: StandInApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a_node(api)
    a_share(api, "train", 30)
    asked: list[tuple[str, str, str | None, str]] = []

    def service(path: str, method: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        assert "authorization" not in headers
        asked.append((path, method, headers.get(TOKEN_HEADER.lower()), body.decode()))
        if path.startswith("/quota"):
            row = {"namespace": "default", "model": "V100", "cores": 100, "cores_used": 130}
            return 200, json.dumps({"quota": [{**row, "memory": None, "memory_used": 1 << 30}]}).encode()
        answer = {
            "pod": "default/x",
            "line": "waits: \x1b[2J",
            "counts": {"room": 1},
            "total": 1,
            "nodes": [7],
        }
        return 200, json.dumps({**answer, "quota": ["1 of 2 cards"]}).encode()

    api.serve_behind(ADMISSION, service)
    assert run(["explain", "train"]) == 1
    out, err = said(capsys)
    assert "\x1b" not in out
    assert "quota: 1 of 2 cards" in out
    assert "judged by the admission service" in err
    file = tmp_path / "web.yaml"
    file.write_text(MANIFEST % 30)
    assert run(["explain", str(file)]) == 1
    said(capsys)
    assert run(["quota", "default"]) == 1  # 1.3 of 1
    assert said(capsys)[0].splitlines()[1].split() == ["default", "V100", "1", "1.3", "-", "1", "GiB"]
    assert [(path, method) for path, method, _, _ in asked] == [
        ("/explain/default/train", "GET"),
        ("/explain", "POST"),
        ("/quota?namespace=default", "GET"),
    ]
    assert {token for _, _, token, _ in asked} == {"Bearer sandbox-admin"}
    assert json.loads(asked[1][3])["metadata"] == {"name": "web", "namespace": "default"}


def test_without_the_service_quota_comes_from_the_config_map_and_says_so(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    a_share(api, "train", 60)
    text = json.dumps({"default": {"quota": {"V100": 0.5}, "memory": {"V100": 4096}}})
    meta = {"name": "gpuquota", "namespace": "kube-system"}
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"gpu_quota": text}})
    assert run(["quota"]) == 1
    out, err = said(capsys)
    assert out.splitlines()[1].split() == ["default", "V100", "0.5", "0.6", "4", "GiB", "2", "GiB"]
    assert "from the ConfigMap" in err
    for text, words in (("{", "cannot be used: not JSON"), ('{"default": 3}', 'namespace "default" is 3')):
        api.patch("configmaps", "gpuquota", {"data": {"gpu_quota": text}}, "kube-system")
        assert run(["quota"]) == 1
        assert words in said(capsys)[1]
    api.delete("configmaps", "gpuquota", "kube-system")
    assert run(["quota"]) == 0
    assert "no quota limits namespace default" in said(capsys)[0]


def test_doctor_sees_the_clusters_troubles_and_names_each_cure(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api, **{"nvidia.com/gpu": "1"})
    a_share(api, "stray", 30)
    api.patch("pods", "stray", {"status": {"phase": "Running"}}, subresource="status")
    client = {"service": {"name": "gpu-quota-admission", "namespace": "kube-system"}, "caBundle": "bm9uZQ=="}
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    api.create(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "gpu"},
            "webhooks": [
                {"name": "v", "clientConfig": client, "rules": rules, "failurePolicy": "Ignore"},
            ],
        }
    )
    assert run(["doctor", "-o", "json"]) == 1
    report = json.loads(said(capsys)[0])
    found = {finding["check"] for finding in report["findings"]}
    assert {
        "two-plugins-on-node",
        "agent-absent",
        "webhook-missing",
        "webhook-certificate",
        "webhook-down",
        "webhook-fails-open",
        "scheduler-without-extender",
    } <= found
    assert "pod-without-card" in report["passed"]
    assert all(finding["cure"] for finding in report["findings"])


def test_doctor_finds_nothing_wrong_with_a_cluster_that_is_whole(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    made = a_share(api, "train", 30)
    assert made
    a_whole_cluster(api)
    assert run(["doctor"]) == 0, said(capsys)
    assert "0 in trouble, 0 with a warning, 0 not looked at" in said(capsys)[0]


def test_doctor_says_what_it_may_not_see(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StandInApi(authorize=lambda _, access: access.resource in ("nodes", "pods")) as api:
        a_node(api)
        config = str(api.kubeconfig(tmp_path / "config"))
        assert run(["doctor", "--kubeconfig", config]) in (0, 1)
        out = said(capsys)[0]
    assert "not looked at: webhook configurations" in out
    assert "you lack this right" in " ".join(out.split())


def authority() -> str:
    """A certificate of a year, as caBundle has it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=365))
        .sign(key, hashes.SHA256())
    )
    return base64.b64encode(made.public_bytes(serialization.Encoding.PEM)).decode()


def a_whole_cluster(api: StandInApi) -> None:
    scheduler = {
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "default-scheduler"}],
        "extenders": [{"managedResources": [{"name": CORE}]}],
    }
    meta = {"name": "scheduler", "namespace": "kube-system"}
    data = {"config.yaml": json.dumps(scheduler), "other": "KubeSchedulerConfiguration: ["}
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    an_agent(api, {})
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    api.patch("pods", "agent-1", {"status": ready, "metadata": {}}, "kube-system", subresource="status")
    api.patch("pods", "agent-1", {"metadata": {"labels": {"app": "agent"}}}, "kube-system")
    api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "gpu-manager-daemonset", "namespace": "kube-system"},
            "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": {"spec": {}}},
        }
    )
    client = {"service": {"name": "gpu-quota-admission", "namespace": "kube-system"}, "caBundle": authority()}
    for kind in ("Mutating", "Validating"):
        api.create(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": f"{kind}WebhookConfiguration",
                "metadata": {"name": "gpu"},
                "webhooks": [{"name": "v", "clientConfig": client}],
            }
        )
    labels = {"kubernetes.io/service-name": "gpu-quota-admission"}
    api.create(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "a", "namespace": "kube-system", "labels": labels},
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
        }
    )


def test_kubectl_completes_commands_options_and_values() -> None:
    assert "graph" in PROGRAM.completions(["gr"])
    assert "--all-namespaces" in PROGRAM.completions(["top", "--"])
    assert PROGRAM.completions(["top", "-o", "w"]) == ["wide"]
    assert PROGRAM.completions(["nosuch", "a\"'b"]) == []
    assert set(PROGRAM.commands) <= set(PROGRAM.completions([""]))


def test_the_real_admission_service_behind_the_proxy_answers_for_what_the_caller_may_see(
    api: StandInApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a_node(api, cards=1)
    a_share(api, "train", 60)
    service = compose(
        AdmissionSettings(
            address="127.0.0.1",
            port=0,
            api_url=api.url,
            extender=ExtenderEndpoint(port=0),
            leadership=Leadership(LeaderMode.ALONE),
            drain_seconds=0,
        )
    )
    service.start()

    def passed_on(path: str, method: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        # As API servers reach a service by https: they look at no certificate of it.
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", service.port, context=context, timeout=10)
        kept = ("accept", "content-type", TOKEN_HEADER.lower())
        try:
            connection.request(method, path, body, {k: v for k, v in headers.items() if k in kept})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    api.serve_behind(ADMISSION, passed_on)
    file = tmp_path / "web.yaml"
    file.write_text(MANIFEST % 50)
    try:
        until(lambda: all(service.ready().values()))
        assert run(["explain", str(file)]) == 1
        out, err = said(capsys)
        assert "judged by the admission service" in err
        assert "ask 40 cores" in out
        assert "50 cores asked, 40 free" in out
        assert run(["explain", "train"]) == 0
        assert "bound to node n1: 60 cores, 2 GiB of card 0" in said(capsys)[0]
    finally:
        service.stop()


def test_cards_are_closed_and_opened_whichever_node_they_are_in(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api, "n1", cards=1)
    a_node(api, "n2", cards=2)
    assert run(["cordon", "GPU-1"]) == 0
    assert said(capsys) == ("n2: 1 cordoned\n  GPU-1\n", "")
    assert run(["graph", "n2"]) == 0
    assert "cordoned" in said(capsys)[0]
    api.patch("nodes", "n2", {"metadata": {"annotations": {INVENTORY: None}}})  # the card is lost meanwhile
    assert run(["uncordon", "GPU-1", "-o", "json"]) == 0
    assert json.loads(said(capsys)[0]) == {"nodes": [{"node": "n2", "cordoned": []}]}
    assert CORDON not in api.get("nodes", "n2")["metadata"]["annotations"]
    assert run(["cordon", "GPU-9"]) == 2
    assert 'no node shows a card "GPU-9"' in said(capsys)[1]
