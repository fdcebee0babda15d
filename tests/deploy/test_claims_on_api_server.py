"""Claims on a real API server, where one is built: the policies refuse and take, and the slice is stored as it
was meant.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gpu_manager.adapters.kube.claims import KubeClaims, KubeSlices
from gpu_manager.adapters.kube.connection import connect
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.published import published_devices
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB
from gpu_manager.domain.rules.request import PlacementPolicy
from tests.agreement.claim_cases import ILLEGAL, LEGAL, asks, claim, exactly, template
from tests.deploy.chart import CHART, HELM, KUBECTL, SETS
from tests.deploy.test_chart_on_api_server import AGENT, SERVERS, Server
from tests.fakes.sandbox import short_directory

NODE = "n1"
pytestmark = pytest.mark.skipif(
    not SERVERS or shutil.which("etcd") is None,
    reason="no kube-apiserver below build/cluster (make cluster-build builds one), or no etcd on the PATH",
)


@pytest.fixture(scope="module", params=SERVERS or [None], ids=lambda p: p.parent.name if p else "none")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with short_directory() as directory:
        running = Server(directory, request.param)
        try:
            running.start()
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
            assert "created" in running.run(KUBECTL, "create", "-f", "-", given=json.dumps(node))
            admin = "resource.kubernetes.io/admin-access=true"  # without it Kubernetes itself refuses it
            assert "labeled" in running.run(KUBECTL, "label", "namespace", "default", admin)
            said = running.run(
                HELM, "install", "gpu-manager", str(CHART), "-n", "kube-system", *SETS["claims"]
            )
            assert "STATUS: deployed" in said, said
            _await_policies(running)
            yield running
        finally:
            running.stop()


def create(server: Server, obj: dict[str, Any], *more: str) -> str:
    """What the API server says; nothing is stored."""
    return server.run(KUBECTL, "create", "--dry-run=server", "-f", "-", *more, given=json.dumps(obj))


def _await_policies(server: Server) -> None:
    tick = threading.Event()
    for made in (claim, template):
        for _ in range(50):  # the API server takes new policies in within a second or so
            if "FAILED" in create(server, made(ILLEGAL["parameters"][0], "far")):
                break
            tick.wait(0.2)
        else:
            raise AssertionError("parameters were never refused")


@pytest.mark.parametrize("made", [claim, template])
def test_every_legal_shape_is_taken_and_every_illegal_one_refused_with_the_nearest(
    server: Server, made: Any
) -> None:
    wrong = []
    for name, spec in LEGAL.items():
        said = create(server, made(spec, "legal"))
        if "created" not in said:
            wrong.append((name, said))
    for name, (spec, says) in ILLEGAL.items():
        said = create(server, made(spec, "illegal"))
        if "FAILED" not in said or not re.search(says, said):
            wrong.append((name, said))
    assert wrong == []


def cards(*states: CardState) -> Any:
    return published_devices(
        states, {}, PlacementPolicy.BINPACK, DEFAULT_UNIT, 5, {"driverVersion": "615.10.02"}
    )


def test_a_slice_is_stored_as_it_was_meant_and_written_once(server: Server) -> None:
    connection = connect(kubeconfig=server.directory / "kubeconfig")
    slices = KubeSlices(connection, NODE)
    one, two = (
        CardState(
            Card(n, CardUuid(f"GPU-{n:08x}-0000"), "T4", 125 * GIB, numa=0, pci_bus_id="00000000:3B:00.0")
        )
        for n in range(2)
    )
    assert slices.publish(cards(one, two))
    assert not slices.publish(cards(one, two))
    closed = cards(one, replace(two, cordoned=True))
    assert slices.publish(closed)
    assert not slices.publish(closed), "a taint with the time that the API server adds"
    [stored] = json.loads(server.run(KUBECTL, "get", "resourceslices", "-o", "json"))["items"]
    assert stored["spec"]["pool"] == {"generation": 2, "name": NODE, "resourceSliceCount": 1}
    assert [device["name"] for device in stored["spec"]["devices"]] == ["gpu-00000000", "gpu-00000001"]
    connection.close()


def test_a_claim_that_waits_is_known_as_not_allocated(server: Server) -> None:
    obj = json.dumps(claim(exactly(asks(30, "4Gi")), "waits"))
    assert "created" in server.run(KUBECTL, "create", "-f", "-", given=obj)
    connection = connect(kubeconfig=server.directory / "kubeconfig")
    claims = KubeClaims(connection, DEFAULT_UNIT)
    with pytest.raises(RequestInvalid, match="0 devices"):
        claims.read("default", "waits")
    assert claims.read("default", "other") is None
    connection.close()


def test_an_agent_may_publish_its_own_node_alone(server: Server) -> None:
    def published(node: str) -> dict[str, Any]:
        spec = {
            "driver": DRA_DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [],
        }
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-x"},
            "spec": spec,
        }

    assert "created" in create(server, published("n1"), *AGENT)
    assert "of its own node alone" in create(server, published("n2"), *AGENT)
