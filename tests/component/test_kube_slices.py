"""The node's ResourceSlice at the API server: one object, written only where it would differ."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_manager.adapters.kube.claims import KubeClaims, KubeSlices
from gpu_manager.adapters.kube.connection import connect
from gpu_manager.domain.contract import DRA_CORDONED, DRA_DRIVER
from gpu_manager.domain.dra.claim import Taint
from gpu_manager.domain.dra.device import CapacityRange, SharedDevice, Version
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from sandbox.api import StandInApi
from tests.fakes.claims import claim_object, result

NODE = "n1"
MEMORY = 125 * GIB  # of which the API server makes a number of thousands


def device(name: str, *taints: Taint, memory: int = MEMORY) -> SharedDevice:
    capacities = {
        "cores": CapacityRange(1, 1, 100),
        "memory": CapacityRange(DEFAULT_UNIT, DEFAULT_UNIT, memory),
    }
    return SharedDevice(name, capacities, {"index": 0, "driverVersion": Version("615.10.2")}, taints)


class Server:
    def __init__(self) -> None:
        self.api = StandInApi()
        self.api.start()
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        self.connection = connect(url=self.api.url)
        self.slices = KubeSlices(self.connection, NODE)

    def close(self) -> None:
        self.connection.close()
        self.api.stop()

    @property
    def stored(self) -> dict[str, Any]:
        [one] = self.api.list("resourceslices")
        return one

    def change(self, **spec: Any) -> None:
        """As the API server, or somebody else, writes it."""
        self.api.patch("resourceslices", self.stored["metadata"]["name"], {"spec": spec})


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def test_a_slice_is_made_with_its_node_as_owner_and_written_once(server: Server) -> None:
    assert server.slices.publish([device("gpu-0")])
    assert not server.slices.publish([device("gpu-0")])
    spec = server.stored["spec"]
    assert (spec["driver"], spec["nodeName"]) == (DRA_DRIVER, NODE)
    assert spec["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    assert server.stored["metadata"]["ownerReferences"][0]["kind"] == "Node"


def test_another_order_is_another_generation(server: Server) -> None:
    server.slices.publish([device("gpu-0"), device("gpu-1")])
    assert server.slices.publish([device("gpu-1"), device("gpu-0")])
    assert [one["name"] for one in server.stored["spec"]["devices"]] == ["gpu-1", "gpu-0"]
    assert server.stored["spec"]["pool"]["generation"] == 2


def test_what_the_api_server_writes_in_its_own_form_is_not_written_again(server: Server) -> None:
    devices = [device("gpu-0", Taint(DRA_CORDONED, "NoSchedule"))]
    server.slices.publish(devices)
    shown = server.stored["spec"]["devices"]
    shown[0]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    shown[0]["capacity"]["memory"]["value"] = f"{MEMORY // 1000}k"
    server.change(devices=shown)
    assert not server.slices.publish(devices)


@pytest.mark.parametrize(
    "field", [{"allowMultipleAllocations": False}, {"taints": [{"key": "k", "effect": "NoSchedule"}]}]
)
def test_what_somebody_else_changed_is_put_right(server: Server, field: dict[str, Any]) -> None:
    server.slices.publish([device("gpu-0")])
    server.change(devices=[server.stored["spec"]["devices"][0] | field])
    assert server.slices.publish([device("gpu-0")])
    assert server.stored["spec"]["devices"] == [device("gpu-0").as_json()]
    assert server.stored["spec"]["pool"]["generation"] == 2


def test_a_second_slice_of_the_pool_is_removed(server: Server) -> None:
    server.slices.publish([device("gpu-0")])
    other = {"metadata": {"name": "left-over"}, "spec": server.stored["spec"]}
    other["spec"]["pool"]["generation"] = 7
    server.api.create({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **other})
    assert server.slices.publish([device("gpu-0")])
    assert server.stored["spec"]["pool"]["generation"] == 8


class Dropping(Server):
    """An API server whose feature gates are off: it drops fields."""

    def __init__(self, *fields: str) -> None:
        super().__init__()
        request = self.connection.request

        def asked(what: str, method: str, path: str, **rest: Any) -> dict[str, Any]:
            rest = copy.deepcopy(rest)
            for one in (rest.get("body") or {}).get("spec", {}).get("devices", ()):
                for field in fields:
                    one.pop(field, None)
            return request(what, method, path, **rest)

        self.connection.request = asked  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("field", "gate"),
    [("allowMultipleAllocations", "DRAConsumableCapacity"), ("taints", "DRADeviceTaints")],
)
def test_an_api_server_without_the_feature_is_named(field: str, gate: str) -> None:
    server = Dropping(field)
    with pytest.raises(NodeUnready, match=gate):
        server.slices.publish([device("gpu-0", Taint(DRA_CORDONED, "NoSchedule"))])
    server.close()


def test_a_write_that_somebody_overtook_is_refused_and_the_next_is_not(server: Server) -> None:
    server.slices.publish([device("gpu-0")])
    server.api.fail(1, 409, match="update resourceslices")
    with pytest.raises(NodeUnready):
        server.slices.publish([device("gpu-1")])
    assert server.slices.publish([device("gpu-1")])


def test_a_claim_is_read_by_its_own_name_alone(server: Server) -> None:
    claims = KubeClaims(server.connection, DEFAULT_UNIT)
    server.api.create(claim_object("a", result("gpu-0"), namespace="default"))
    found = claims.read("default", "a")
    assert found is not None
    assert [share.amount for share in found.shares] == [Amount(30, 4 * GIB)]
    assert found.pods == (("uid-train-0", "train-0"),)
    assert claims.read("default", "b") is None
    assert claims.read("default", "../default/resourceclaims/a") is None


def test_devices_that_claims_hold_are_listed_and_those_that_they_look_at_are_not(server: Server) -> None:
    claims = KubeClaims(server.connection, DEFAULT_UNIT)
    server.api.create(claim_object("a", result("gpu-0"), namespace="default"))
    server.api.create(claim_object("w", result("gpu-0", adminAccess=True), namespace="default"))
    server.api.create(claim_object("v", result("gpu-1", adminAccess=True), namespace="default"))
    server.api.create(claim_object("b", result("gpu-2", pool="n2"), namespace="default"))
    assert claims.allocated("n1") == {"gpu-0": "default/a"}


def test_a_claim_that_is_not_allocated_and_a_server_that_is_away_are_told_apart(server: Server) -> None:
    claims = KubeClaims(server.connection, DEFAULT_UNIT)
    server.api.create(claim_object("a", namespace="default"))
    with pytest.raises(RequestInvalid, match="0 devices"):
        claims.read("default", "a")
    server.api.fail(1, 503, match="get resourceclaims")
    with pytest.raises(NodeUnready):
        claims.read("default", "a")
