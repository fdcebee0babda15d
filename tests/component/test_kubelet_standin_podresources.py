"""The stand-in's PodResources and what lists do to its books (device plugin API 2, association 3.1, 3.4, 3.7)."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import grpc
import pytest

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse
from gpu_manager.pb.podresources.v1 import api_pb2, api_pb2_grpc
from sandbox.kubelet import Limiter, PodsEndpoint
from tests.fakes.kubelet_node import Node, lowest, pod
from tests.fakes.plugin import CORE, MEMORY, device, devices
from tests.fakes.waiting import PATIENCE


@pytest.fixture
def node() -> Iterator[Node]:
    with Node() as node:
        yield node


@pytest.fixture
def stub(node: Node) -> Iterator[api_pb2_grpc.PodResourcesListerStub]:
    with grpc.insecure_channel(f"unix://{node.kubelet.pod_resources}/kubelet.sock") as channel:
        yield api_pb2_grpc.PodResourcesListerStub(channel)


def listed(stub: api_pb2_grpc.PodResourcesListerStub) -> dict[str, dict[str, list[tuple[str, int]]]]:
    answer = stub.List(api_pb2.ListPodResourcesRequest())
    return {
        p.name: {c.name: [(d.resource_name, len(d.device_ids)) for d in c.devices] for c in p.containers}
        for p in answer.pod_resources
    }


def test_2_ordinary_init_containers_are_not_listed_and_sidecars_are(node, stub):
    node.plugin(CORE, devices("c", 50))
    node.kubelet.admit(
        pod("u", {"app": {CORE: 3}, "idle": {}}, init={"init": {CORE: 9}}, sidecars={"side": {CORE: 2}})
    )
    assert listed(stub) == {"u": {"side": [(CORE, 2)], "app": [(CORE, 3)], "idle": []}}


def test_2_a_resource_stands_there_once_for_each_set_of_numa_nodes(stub, node):
    node.plugin(
        CORE, [device("a", nodes=[0]), device("b", nodes=[1]), device("c", nodes=[0, 1]), device("d")]
    )
    node.kubelet.admit(pod("u", {"app": {CORE: 4}}))
    (container,) = stub.List(api_pb2.ListPodResourcesRequest()).pod_resources[0].containers
    parts = {tuple(n.ID for n in d.topology.nodes): list(d.device_ids) for d in container.devices}
    assert parts == {(0,): ["a"], (1,): ["b"], (0, 1): ["c"], (): ["d"]}
    allocatable = stub.GetAllocatableResources(api_pb2.AllocatableResourcesRequest())
    assert sorted(i for d in allocatable.devices for i in d.device_ids) == ["a", "b", "c", "d"]


def test_2_ended_rejected_and_deleted_pods_are_not_listed(node, stub):
    node.plugin(CORE, devices("c", 10))
    for uid, count in (("ended", 1), ("gone", 1), ("forced", 1), ("leaving", 1), ("rejected", 99)):
        node.kubelet.admit(pod(uid, {"app": {CORE: count}}))
    node.kubelet.finish("ended")
    node.kubelet.delete("gone")
    node.kubelet.delete("forced", force=True)
    node.kubelet.begin_delete("leaving")
    assert set(listed(stub)) == {"leaving"}
    assert {g.pod for g in node.kubelet.grants()} == {"leaving"}


def test_2_get_answers_for_one_pod_and_says_when_there_is_none(node, stub):
    node.plugin(CORE, devices("c", 10))
    node.kubelet.admit(pod("u", {"app": {CORE: 2}}, name="web"))
    found = stub.Get(api_pb2.GetPodResourcesRequest(pod_name="web", pod_namespace="default"))
    assert len(found.pod_resources.containers[0].devices[0].device_ids) == 2
    with pytest.raises(grpc.RpcError) as missing:
        stub.Get(api_pb2.GetPodResourcesRequest(pod_name="u", pod_namespace="default"))
    assert missing.value.details() == "pod u in namespace default not found"


def test_2_all_callers_share_one_bucket_of_ten_refilled_a_hundred_times_a_second():
    with (
        Node(limiter=Limiter()) as node,
        grpc.insecure_channel(f"unix://{node.kubelet.pod_resources}/kubelet.sock") as channel,
    ):
        stub = api_pb2_grpc.PodResourcesListerStub(channel)
        calls = [stub.List.future(api_pb2.ListPodResourcesRequest()) for _ in range(60)]
        errors = [error for call in calls if (error := call.exception(timeout=PATIENCE)) is not None]
        assert {(e.code(), e.details()) for e in errors} == {
            (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        }
        assert node.kubelet.lists()["refused"] == len(errors)
        assert node.kubelet.lists()["List"] == 60 - len(errors) >= 10


def test_2_during_admission_the_pod_is_listed_with_what_it_got_so_far(node, stub):
    node.both()
    node.kubelet.hooks.order = sorted
    seen = []
    node.kubelet.hooks.before = lambda step: seen.append(listed(stub)) if step.name != "resource" else None
    node.kubelet.admit(pod("u", {"app": {CORE: 1, MEMORY: 2}}))
    before_core, _, before_memory, in_memory = (shown["u"]["app"] for shown in seen)
    assert before_core == []
    assert before_memory == in_memory == [(CORE, 1)]


def test_3_1_a_list_in_allocate_while_a_pod_ends_makes_the_kubelet_offer_the_ids_again(node, stub):
    core = node.plugin(CORE, devices("c", 10))
    core.prefer = lowest
    node.kubelet.admit(pod("old", {"app": {CORE: 1}}))

    def answer(_ids):
        node.kubelet.finish("old")
        listed(stub)
        return ContainerAllocateResponse()

    core.answer = answer
    victim = node.kubelet.admit(pod("victim", {"app": {CORE: 2}})).ids["app"][CORE]
    core.answer = lambda _ids: ContainerAllocateResponse()
    thief = node.kubelet.admit(pod("thief", {"app": {CORE: 2}})).ids["app"][CORE]
    assert victim == {"c0001", "c0002"}
    assert thief == {"c0000", "c0001"}
    assert victim <= set(core.asked("P")[2].available_deviceIDs)
    node.kubelet.delete("thief")  # the next collection that has something to remove heals it
    node.kubelet.admit(pod("next", {"app": {CORE: 1}}))
    assert not victim & set(core.asked("P")[3].available_deviceIDs)


def test_3_1_a_list_in_preferred_allocation_does_no_harm(node, stub):
    core = node.plugin(CORE, devices("c", 10))
    core.prefer = lambda request: (listed(stub), lowest(request))[1]
    held = []
    for i in range(4):
        node.kubelet.admit(pod(f"old{i}", {"app": {CORE: 1}}))
        held.append(node.kubelet.admit(pod(f"u{i}", {"app": {CORE: 2}})).ids["app"][CORE])
        node.kubelet.finish(f"old{i}")
    assert len(frozenset().union(*held)) == 8


def test_3_4_a_force_deleted_pod_is_announced_though_it_is_not_listed(node, stub):
    core = node.plugin(CORE, devices("c", 10))
    ids = node.kubelet.admit(pod("u", {"app": {CORE: 2}})).ids["app"][CORE]
    node.kubelet.delete("u", force=True)
    node.kubelet.start_container("u", "app")
    assert core.asked("S") == [ids]
    assert node.kubelet.pods() == []
    assert node.kubelet.running("u") == {"app"}
    assert [e.pod for e in node.client.checkpoint()] == ["u"]
    assert listed(stub) == {}
    with pytest.raises(NodeUnready, match="no devices found allocated in local cache"):
        node.kubelet.start_container("u", "app")  # its devices were collected by that list
    node.kubelet.reap("u")


def test_3_3_a_pod_may_be_force_deleted_while_it_is_admitted_and_keeps_what_it_got(node, stub):
    node.both()

    def delete(step) -> None:
        if step.name == "Allocate" and node.kubelet.pods():
            node.kubelet.delete("u", force=True)
        listed(stub)

    node.kubelet.hooks.after = delete
    result = node.kubelet.admit(pod("u", {"app": {CORE: 2, MEMORY: 3}}))
    assert {resource: len(ids) for resource, ids in result.ids["app"].items()} == {CORE: 2, MEMORY: 3}
    node.kubelet.hooks.after = lambda _step: None
    node.kubelet.start_container("u", "app")
    assert listed(stub) == {}


def test_pods_shows_each_pod_with_its_uid_annotations_and_state(node):
    node.plugin(CORE, devices("c", 10))
    phases = []
    node.kubelet.hooks.before = lambda _step: phases.append(node.kubelet.pods()[0]["status"])
    node.kubelet.admit(pod("u", {"app": {CORE: 2}}, init={"init": {}}))
    assert phases[0] == {"phase": "Pending"}  # under admission: no startTime yet
    status = node.kubelet.pods()[0]["status"]
    assert status["startTime"] == "1970-01-01T00:16:40Z"
    assert status["initContainerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}
    node.kubelet.start_container("u", "app", container_id="abc")
    node.kubelet.begin_delete("u")
    shown = node.kubelet.pods()[0]
    assert shown["metadata"]["deletionTimestamp"] == "1970-01-01T00:16:40Z"
    assert shown["status"]["phase"] == "Running"
    assert shown["status"]["containerStatuses"] == [
        {"name": "app", "state": {"running": {}}, "restartCount": 0, "containerID": "containerd://abc"}
    ]


def test_pods_are_served_over_http_to_who_has_the_token(node):
    node.kubelet.admit(pod("u", {"app": {}}))
    endpoint = PodsEndpoint(node.kubelet.pods, token="secret")
    endpoint.start()
    try:
        request = urllib.request.Request(f"{endpoint.url}/pods", headers={"Authorization": "Bearer secret"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            assert [p["metadata"]["uid"] for p in json.load(answer)["items"]] == ["u"]
        for path, headers, code in (("/pods", {}, 401), ("/run", {"Authorization": "Bearer secret"}, 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(
                    urllib.request.Request(endpoint.url + path, headers=headers), timeout=PATIENCE
                )
            assert refused.value.code == code
            refused.value.close()
    finally:
        endpoint.stop()


def test_lists_during_admissions_from_many_threads_keep_the_books_whole(node):
    node.both(cores=200, memory=200)
    done = threading.Event()
    failures = []

    def hog() -> None:
        while not done.is_set():
            try:
                for containers in node.client.listing().values():
                    assert all(len(c.ids.get(CORE, ())) in {0, 4} for c in containers)
            except Exception as error:  # noqa: BLE001  # told to the test below
                failures.append(error)
                return

    threads = [threading.Thread(target=hog) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(30):
        assert node.kubelet.admit(pod(f"u{i}", {"app": {CORE: 4, MEMORY: 4}})).admitted
    done.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failures
    held = [one for grant in node.kubelet.grants() for one in grant.ids]
    assert len(held) == len(set(held)) == 240
