"""What the sandbox's kubelet, scheduler and claim controller do to one claim at the same time.

Each test lets one of them act between two steps of another, by an API that calls back after a read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse
from gpu_manager.pb.dra.v1 import api_pb2
from sandbox.api import StandInApi
from sandbox.claim_controller import ClaimController
from sandbox.claim_kubelet import ClaimKubelet
from sandbox.claims import ClaimScheduler
from sandbox.kubelet.dra import DraManager

Obj = Mapping[str, Any]
DRIVER = "driver.example.com"


class CallingBackApi(StandInApi):
    """Calls ``then`` once, after the next read of that kind of objects."""

    def __init__(self) -> None:
        super().__init__()
        self.after: tuple[str, Callable[[], object]] | None = None

    def get(self, resource: str, name: str, namespace: str = "default") -> Any:
        found = super().get(resource, name, namespace)
        self._call_back(resource)
        return found

    def list(self, resource: str, *of: str, **selectors: str) -> Sequence[Any]:
        found = super().list(resource, *of, **selectors)
        self._call_back(resource)
        return found

    def _call_back(self, resource: str) -> None:
        if self.after is not None and self.after[0] == resource:
            then, self.after = self.after[1], None
            then()


class Driver:
    def __init__(self) -> None:
        self.prepared: set[str] = set()

    def NodePrepareResources(self, request: Any, *, timeout: float) -> Any:  # noqa: N802
        self.prepared |= {claim.uid for claim in request.claims}
        device = api_pb2.Device(request_names=["r"], pool_name="n1", device_name="card-0")
        answers = {
            claim.uid: api_pb2.NodePrepareResourceResponse(devices=[device]) for claim in request.claims
        }
        return api_pb2.NodePrepareResourcesResponse(claims=answers)

    def NodeUnprepareResources(self, request: Any, *, timeout: float) -> Any:  # noqa: N802
        self.prepared -= {claim.uid for claim in request.claims}
        answers = {claim.uid: api_pb2.NodeUnprepareResourceResponse() for claim in request.claims}
        return api_pb2.NodeUnprepareResourcesResponse(claims=answers)


class DeviceManager:
    """The kubelet's other half: it knows the API's pods, and grants nothing."""

    def __init__(self, api: StandInApi) -> None:
        self._api = api

    def pod(self, uid: str) -> Obj:
        return next(pod for pod in self._api.list("pods") if pod["metadata"]["uid"] == uid)

    def start_container(self, *_: str) -> ContainerAllocateResponse:
        return ContainerAllocateResponse()


class Node:
    """A claim that is allocated, and a kubelet whose driver answers."""

    def __init__(self, directory: Path) -> None:
        self.api, self.driver = CallingBackApi(), Driver()
        self.kubelet = ClaimKubelet(directory, directory / "cdi", self.api, DeviceManager(self.api))
        self.kubelet.connect(DRIVER, self.driver)
        self.scheduler = ClaimScheduler(self.api)
        self.controller = ClaimController(self.api, self.scheduler, self.kubelet)
        requests = [{"name": "r", "exactly": {"deviceClassName": "any"}}]
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "shared"}}
        self.api.create({**claim, "spec": {"devices": {"requests": requests}}})
        result = {"request": "r", "driver": DRIVER, "pool": "n1", "device": "card-0"}
        status = {"allocation": {"devices": {"results": [result]}}}
        self.api.patch("resourceclaims", "shared", {"status": status}, "default", subresource="status")

    def pod(self, name: str) -> Obj:
        """One more that shares the claim."""
        container = {"name": "c", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}
        spec = {"containers": [container], "resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}
        return self.api.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, "default"
        )

    def starts(self, pod: Obj) -> None:
        assert self.scheduler.allocate(pod, "n1")
        self.kubelet.start_container(pod["metadata"]["uid"], "c")

    def ends(self, pod: Obj) -> None:
        self.api.delete("pods", pod["metadata"]["name"], "default", grace=0)

    @property
    def users(self) -> list[str]:
        claim = self.api.get("resourceclaims", "shared")
        return [one["name"] for one in (claim["status"].get("reservedFor") or ())]

    @property
    def is_allocated(self) -> bool:
        return bool(self.api.get("resourceclaims", "shared")["status"].get("allocation"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize("read", ["pods", "resourceclaims"])
def test_a_pod_that_comes_while_the_controller_looks_keeps_its_prepared_claim(node: Node, read: str) -> None:
    node.starts(first := node.pod("first"))
    node.ends(first)
    node.api.after = read, lambda: node.starts(node.pod("late"))
    for _ in range(2):
        node.controller.look()
    assert (node.users, len(node.driver.prepared)) == (["late"], 1)
    assert [len(record.pods) for record in node.kubelet.records()] == [1]


def test_a_reservation_made_while_another_pods_is_released_stands(node: Node) -> None:
    node.starts(first := node.pod("first"))
    late = node.pod("late")
    node.api.after = "resourceclaims", lambda: node.scheduler.allocate(late, "n1")
    node.scheduler.release("default", "shared", first["metadata"]["uid"])
    assert (node.users, node.is_allocated) == (["late"], True)


def test_a_claim_that_is_freed_while_it_is_reserved_is_allocated_anew_or_not_at_all(node: Node) -> None:
    node.starts(first := node.pod("first"))
    node.api.after = (
        "resourceclaims",
        lambda: node.scheduler.release("default", "shared", first["metadata"]["uid"]),
    )
    assert not node.scheduler.allocate(node.pod("late"), "n1"), "no slice offers a device"
    assert (node.users, node.is_allocated) == ([], False)


def test_a_claim_that_is_not_prepared_any_more_is_said_and_tried_again(tmp_path: Path, node: Node) -> None:
    manager = DraManager(tmp_path, lambda namespace, name: node.api.get("resourceclaims", name, namespace))
    manager.connect(DRIVER, node.driver)
    pod = node.pod("first")
    assert node.scheduler.allocate(pod, "n1")
    with pytest.raises(NodeUnready, match="claim default/shared is not prepared any more"):
        manager.cdi_devices(pod, "c")
    manager.prepare(pod)
    assert manager.cdi_devices(pod, "c") == ()


def test_a_kubelet_that_has_ended_writes_no_records_any_more(tmp_path: Path, node: Node) -> None:
    manager = DraManager(tmp_path, lambda namespace, name: node.api.get("resourceclaims", name, namespace))
    pod = node.pod("first")
    assert node.scheduler.allocate(pod, "n1")
    manager.close()
    with pytest.raises(NodeUnready, match="kubelet is not running"):
        manager.prepare(pod)
    assert not (tmp_path / "dra_manager_state").exists()
