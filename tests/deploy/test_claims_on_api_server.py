"""Claims on a real API server, where one is built: the policies refuse and take, and the slice is stored as it
was meant.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gpu_manager.adapters.kube.claims import KubeClaims, KubeSlices
from gpu_manager.adapters.kube.connection import connect
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.dra.allocation import AllocatedClaim
from gpu_manager.domain.dra.device import published_devices
from gpu_manager.domain.dra.parameters import ShareTerms
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, ZERO
from gpu_manager.domain.rules.request import PlacementPolicy
from gpu_manager.services.claims.prepare import ClaimPreparer
from sandbox.claims import allocated_config
from tests.agreement.claim_cases import (
    ILLEGAL,
    LEGAL,
    SHARE_PARAMETERS,
    asks,
    claim,
    exactly,
    first,
    opaque,
    template,
)
from tests.deploy.api_server import ABSENT, SERVERS, THERE, Server
from tests.deploy.chart import CHART, HELM, KUBECTL, SETS
from tests.deploy.test_chart_on_api_server import AGENT
from tests.fakes.metrics import service_metrics
from tests.fakes.ports import FakeInjector, FakePods, FakeProcesses, FakeTenants
from tests.fakes.sandbox import short_directory
from tests.fakes.state import state_of
from tests.fakes.waiting import until

NODE = "n1"
pytestmark = pytest.mark.skipif(not THERE, reason=ABSENT)


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
            # Nobody serves the webhooks here: what is tried is what the API server says by itself.
            kinds = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
            assert "deleted" in running.run(KUBECTL, "delete", kinds, "--all")
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
            if "FAILED" in create(server, made(ILLEGAL["a ceiling in words"][0], "far")):
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


def test_kubernetes_takes_admin_access_in_labelled_namespaces_alone(server: Server) -> None:
    obj = claim(LEGAL["admin access"], "elsewhere")
    obj["metadata"]["namespace"] = "kube-system"
    assert "resource.kubernetes.io/admin-access" in create(server, obj)


def cards(*states: CardState) -> Any:
    return published_devices(
        states, {}, PlacementPolicy.BINPACK, DEFAULT_UNIT, 5, {"driverVersion": "615.10.02"}
    )


def test_a_slice_is_stored_as_it_was_meant_and_written_once(server: Server) -> None:
    connection = connect(kubeconfig=server.directory / "kubeconfig")
    own = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "published"}}
    assert "created" in server.run(KUBECTL, "create", "-f", "-", given=json.dumps(own))
    slices = KubeSlices(connection, "published")
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
    all_there = json.loads(server.run(KUBECTL, "get", "resourceslices", "-o", "json"))["items"]
    [stored] = [one for one in all_there if one["spec"]["nodeName"] == "published"]
    assert stored["spec"]["pool"] == {"generation": 2, "name": "published", "resourceSliceCount": 1}
    assert [device["name"] for device in stored["spec"]["devices"]] == ["gpu-00000000", "gpu-00000001"]
    connection.close()


def test_the_real_scheduler_shares_our_cards_and_we_read_what_it_gave(server: Server) -> None:
    """kube-scheduler of the same version: two claims share the first card that is published."""
    program = server.program.with_name("kube-scheduler")
    if not program.exists():
        pytest.skip("no kube-scheduler beside kube-apiserver")
    kubeconfig = server.directory / "kubeconfig"
    connection = connect(kubeconfig=kubeconfig)
    states = [CardState(Card(n, CardUuid(f"GPU-{n:08x}-0000"), "T4", 16 * GIB)) for n in range(2)]
    KubeSlices(connection, NODE).publish(cards(*states))
    room = {"allocatable": {"pods": "110"}, "capacity": {"pods": "110"}}
    patched = server.run(
        *(KUBECTL, "patch", "node", NODE, "--subresource=status", "--type=merge", "-p"),
        json.dumps({"status": room}),
    )
    assert "patched" in patched, patched
    no_taints = json.dumps({"spec": {"taints": None}})  # no kubelet will take "not-ready" away
    assert "patched" in server.run(KUBECTL, "patch", "node", NODE, "--type=merge", "-p", no_taints)
    told = (f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0")
    server.spawn(str(program), *told)
    wanted = {"one": (30, 4 * GIB), "two": (50, 8 * GIB), "three": (40, 2 * GIB)}
    for name, (cores, memory) in wanted.items():
        for obj in (claim(exactly(asks(cores, memory)), name), _pod(name)):
            said = server.run(KUBECTL, "create", "-f", "-", given=json.dumps(obj))
            assert "created" in said, said
    claims = KubeClaims(connection, DEFAULT_UNIT)
    found = {name: until(lambda name=name: _allocated(claims, name)) for name in wanted}
    given = {name: (one.shares[0].amount.cores, one.shares[0].amount.memory) for name, one in found.items()}
    assert given == wanted
    assert all(one.pods[0][1] == name and one.shares[0].share_id for name, one in found.items())
    held: dict[str, int] = {}
    for one in found.values():
        held[one.shares[0].device] = held.get(one.shares[0].device, 0) + one.shares[0].amount.cores
    assert sorted(held) == ["gpu-00000000", "gpu-00000001"]
    assert max(held.values()) <= 100
    state = state_of(states)
    preparer = ClaimPreparer(
        state, claims, FakePods(), FakeTenants(), FakeInjector(), FakeProcesses(), service_metrics()
    )
    for name, one in found.items():
        [device] = preparer.prepare("default", one.uid, name)
        assert (device.device, device.share_id) == (one.shares[0].device, one.shares[0].share_id)
    booked = [state.view.ledger.booked(one.card.uuid).cores for one in states]
    assert sorted(booked) == sorted(held.values())
    _look_at_cards(server, claims, preparer, held["gpu-00000000"])
    assert [state.view.ledger.booked(one.card.uuid).cores for one in states] == booked
    _say_terms(server, claims)
    connection.close()


def _say_terms(server: Server, claims: KubeClaims) -> None:
    """Parameters of classes and of the claim reach the allocation as the stand-in scheduler writes them."""
    told = opaque(DRA_DRIVER, **SHARE_PARAMETERS, priority="best-effort", preload=False)["devices"]["config"]
    ours = {"cel": {"expression": f"device.driver == '{DRA_DRIVER}'"}}
    batch = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "batch"},
        "spec": {"selectors": [ours], "config": told},
    }
    in_batch = {"deviceClassName": "batch"}
    alternatives = first({**asks(90, "4Gi"), **in_batch}, asks(10, "256Mi"))["devices"]["requests"]
    second = {"name": "b", "exactly": {**asks(10, "256Mi"), **in_batch}}

    def says(*requests: str, **said: object) -> dict[str, Any]:
        entry = opaque(DRA_DRIVER, **SHARE_PARAMETERS, **said)["devices"]["config"][0]
        return {**entry, **({"requests": list(requests)} if requests else {})}

    config = [
        says("gpu/alt-0", "b", coreLimit=90),
        says("gpu", priority="protected"),
        says("gpu/alt-0", preload=True),
        says(preload=True),
    ]
    spec = {"devices": {"requests": [*alternatives, second], "config": config}}
    for obj in (batch, claim(spec, "terms"), _pod("terms")):
        said = server.run(KUBECTL, "create", "-f", "-", given=json.dumps(obj))
        assert "created" in said, said
    got = until(lambda: _allocated(claims, "terms"))
    assert got.terms == {
        "gpu": ShareTerms(0, Priority.PROTECTED),
        "b": ShareTerms(90, Priority.BEST_EFFORT),
    }
    stored = json.loads(server.run(KUBECTL, "get", "resourceclaim", "terms", "-o", "json"))
    given = stored["status"]["allocation"]["devices"]
    chosen = {one["request"] for one in given["results"]}
    assert chosen == {"gpu/alt-1", "b"}
    written = allocated_config(spec, chosen, lambda name: told if name == "batch" else ())
    assert [{**one, "requests": one.get("requests", [])} for one in given["config"]] == [
        {**one, "requests": one.get("requests", [])} for one in written
    ]


def _look_at_cards(server: Server, claims: KubeClaims, preparer: ClaimPreparer, held: int) -> None:
    """Admin access is allocated cards with room for what it names, and what it names is taken by nobody."""

    def run(name: str, spec: dict[str, Any]) -> None:
        for obj in (claim(spec, name), _pod(name)):
            said = server.run(KUBECTL, "create", "-f", "-", given=json.dumps(obj))
            assert "created" in said, said

    least = exactly(asks(5, "256Mi", adminAccess=True, allocationMode="All"))
    run("watch", least)
    watch = until(lambda: _allocated(claims, "watch"))
    assert [(one.device, one.is_admin, one.amount) for one in watch.shares] == [
        (name, True, ZERO) for name in ("gpu-00000000", "gpu-00000001")
    ]
    assert [one.device for one in preparer.prepare("default", watch.uid, "watch")] == [
        one.device for one in watch.shares
    ]
    run("rest", exactly(asks(100 - held, "256Mi")))
    rest = until(lambda: _allocated(claims, "rest"))
    assert rest.shares[0].device == "gpu-00000000", "all that was left, watched or not"
    first = {"selectors": [{"cel": {"expression": f"device.attributes['{DRA_DRIVER}'].index == 0"}}]}
    run("full", exactly(asks(5, "256Mi", adminAccess=True, **first)))
    run("whole", exactly(asks(adminAccess=True)))
    for name in ("full", "whole"):
        until(lambda name=name: "cannot allocate all claims" in _waits(server, name))
        assert _allocated(claims, name) is None


def _waits(server: Server, name: str) -> str:
    return server.run(KUBECTL, "get", "pod", name, "-o", "json")


def _pod(name: str) -> dict[str, Any]:
    """A pod that uses the claim of its name."""
    container = {"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _allocated(claims: KubeClaims, name: str) -> AllocatedClaim | None:
    try:
        return claims.read("default", name)
    except RequestInvalid:  # not allocated yet
        return None


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
