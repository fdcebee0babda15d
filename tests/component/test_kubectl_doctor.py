"""``kubectl vcuda doctor`` over the API stand-in."""

from __future__ import annotations

import base64
import datetime as dt
import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gpu_manager.cli.kubectl.main import run
from gpu_manager.domain.contract import CORE
from sandbox.api import StandInApi
from sandbox.simulated_cluster import Sandbox, SandboxSettings
from tests.fakes.kubectl import a_node, a_share, an_agent, said
from tests.fakes.sandbox import short_directory

pytestmark = pytest.mark.usefixtures("kubectl_login")


def test_doctor_sees_the_clusters_troubles_and_names_each_cure(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api, **{"nvidia.com/gpu": "1"})
    a_share(api, "stray", 30)
    api.patch("pods", "stray", {"status": {"phase": "Running"}}, subresource="status")
    a_share(api, "late", 30)
    failed = {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": "no healthy devices present",
    }
    api.patch("pods", "late", {"status": failed}, subresource="status")
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
        "left-over-capacity",
        "pod-refused",
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


def test_doctor_names_pods_to_which_another_system_has_given_a_part_of_a_card(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    a_node(api)
    for name, labels in (
        ("shared", {"runai-gpu-group": "4076"}),
        ("plain", {}),
        ("done", {"runai-gpu-group": "4077"}),
    ):
        meta = {"name": name, "namespace": "default", "labels": labels}
        spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    api.patch("pods", "done", {"status": {"phase": "Succeeded"}}, subresource="status")
    run(["doctor", "-o", "json"])
    report = json.loads(said(capsys)[0])
    assert [f["text"] for f in report["findings"] if f["check"] == "shared-elsewhere"] == [
        "node n1: pod default/shared has a part of a card by KAI or Run:ai"
    ]


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


def test_a_sandbox_that_is_well_is_in_no_trouble(capsys: pytest.CaptureFixture[str]) -> None:
    with short_directory() as directory, Sandbox(SandboxSettings(directory / "s")) as sandbox:
        assert run(["doctor", "--kubeconfig", str(sandbox.kubeconfig)]) == 0
    assert "0 in trouble, 0 with a warning, 0 not looked at" in capsys.readouterr().out
