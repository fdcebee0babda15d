"""The quota of claims on a real API server, where one is built: the chart's webhook and the service behind it."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.api_server import ABSENT, SERVERS, THERE, Server, free_port, serving_certificate
from tests.deploy.chart import CHART, HELM, KUBECTL, SETS
from tests.fakes.extender import node
from tests.fakes.sandbox import short_directory

pytestmark = pytest.mark.skipif(not THERE, reason=ABSENT)
QUOTA = {"default": {"quota": {"T4": 1}}}


def claim(name: str, cores: int, cls: str = "vcuda.tencent.com") -> dict[str, Any]:
    asked = {"deviceClassName": cls, "capacity": {"requests": {"cores": str(cores), "memory": "1Gi"}}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": asked}]}},
    }


@pytest.fixture(scope="module", params=SERVERS or [None], ids=lambda p: p.parent.name if p else "none")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with short_directory() as directory:
        running = Server(directory, request.param)
        try:
            running.start()
            _install(running)
            yield running
        finally:
            running.stop()


def _install(server: Server) -> None:
    """The chart's classes and webhook, and the service at a port of its own."""
    here, port = server.directory, free_port()
    serving_certificate(here)
    rendered = server.run(HELM, "template", "gpu-manager", str(CHART), "-n", "kube-system", *SETS["claims"])
    objects = [one for one in yaml.safe_load_all(rendered) if one]
    classes = [one for one in objects if one["kind"] == "DeviceClass"]
    [hooks] = [one for one in objects if one["kind"] == "ValidatingWebhookConfiguration"]
    [ours] = [one for one in hooks["webhooks"] if one["name"].startswith("claim.")]
    assert ours["clientConfig"]["service"]["name"] == "gpu-quota-admission"
    bundle = base64.b64encode((here / "tls.crt").read_bytes()).decode()
    ours["clientConfig"] = {"url": f"https://127.0.0.1:{port}/validate", "caBundle": bundle}
    given_back = {"holderIdentity": "", "leaseDurationSeconds": 12, "leaseTransitions": 1}
    stored = [
        *classes,
        node("n1", 2, claimed=[0, 1]),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "gpuquota", "namespace": "kube-system"},
            "data": {"gpu_quota": json.dumps(QUOTA)},
        },
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "gpu-quota-admission", "namespace": "kube-system"},
            "spec": given_back,
        },
    ]
    for obj in stored:
        said = server.run(KUBECTL, "create", "-f", "-", given=json.dumps(obj))
        assert "created" in said, said
    server.spawn(
        *(sys.executable, "-m", "admission", "--claims", "--leader-mode=lease"),
        *("--webhook-address=127.0.0.1", f"--webhook-port={port}", "--extender-address=127.0.0.1:0"),
        *("--probe-address=127.0.0.1:0", f"--tls-cert-file={here}/tls.crt"),
        *(f"--tls-private-key-file={here}/tls.key", f"--kubeconfig={here}/kubeconfig"),
    )
    hooks["webhooks"] = [ours]
    said = server.run(KUBECTL, "create", "-f", "-", given=json.dumps(hooks))
    assert "created" in said, said
    tick = threading.Event()
    for _ in range(60):
        said = create(server, claim("first", 60), "--dry-run=server")
        if "created" in said:
            break
        tick.wait(0.5)
    else:
        raise AssertionError(f"{said}\n{_log(server)}")


def _log(server: Server) -> str:
    return (server.directory / f"{Path(sys.executable).name}.log").read_text()[-3000:]


def create(server: Server, obj: dict[str, Any], *more: str) -> str:
    """What the API server says; again where it is told to ask again, as on a machine that is busy."""
    tick = threading.Event()
    for _ in range(20):
        said = server.run(KUBECTL, "create", "-f", "-", *more, given=json.dumps(obj))
        if "create the claim again" not in said and "failed calling webhook" not in said:
            break
        tick.wait(0.5)
    return said


def test_a_claim_counts_from_its_creation_by_its_uid_and_a_refusal_shows_the_sums(server: Server) -> None:
    assert "created" in create(server, claim("a", 60)), _log(server)
    said = create(server, claim("b", 60))
    assert 'ExceedsGPUQuota: namespace "default": 1 card of T4, 0.6 used or being bound, 0.6 asked' in said
    assert "created" in create(server, claim("c", 40)), "what the watch shows counts once"
    assert "1 used or being bound, 0.01 asked" in create(server, claim("d", 1), "--dry-run=server")
    assert "deleted" in server.run(KUBECTL, "delete", "resourceclaim", "a", "-n", "default")
    tick = threading.Event()
    for _ in range(50):  # the watch shows it soon
        said = create(server, claim("e", 60))
        if "created" in said:
            break
        tick.wait(0.1)
    assert "created" in said, said


def test_claims_of_other_drivers_are_never_asked_about(server: Server) -> None:
    """Of a namespace without a quota here: a class that the service has not seen counts as one of ours."""
    theirs = claim("theirs", 60, "gpu.nvidia.com")
    theirs["metadata"]["namespace"] = "kube-public"
    assert "created" in create(server, theirs)
