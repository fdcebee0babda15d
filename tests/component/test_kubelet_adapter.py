"""The agent's own door to the kubelet, against the stand-in and against kubelets that misbehave."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from gpu_manager.adapters.kubelet.checkpoint import MAX_BYTES
from gpu_manager.adapters.kubelet.client import KubeletClient
from gpu_manager.domain.contract import ALLOCATION, CORE_SOCKET, MEMORY_SOCKET
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse
from gpu_manager.pb.podresources.v1 import api_pb2, api_pb2_grpc
from gpu_manager.ports.records import CheckpointEntry, Kubelet, PodResourcesEntry
from sandbox.kubelet import Limiter
from tests.fakes.kubelet_node import Node, lowest, pod
from tests.fakes.plugin import CORE, MEMORY, device, devices
from tests.fakes.waiting import PATIENCE


@pytest.fixture
def node() -> Iterator[Node]:
    with Node() as node:
        yield node


class Lister:
    """A PodResources server whose List is a function."""

    def __init__(self, answer: Callable[[grpc.ServicerContext], api_pb2.ListPodResourcesResponse]) -> None:
        self.answer = answer
        self.Get = self.GetAllocatableResources = None

    def List(self, _request, context):  # noqa: N802  # the service's name
        return self.answer(context)


@contextmanager
def kubelet_that(directory: Path, answer: Callable[[grpc.ServicerContext], object]) -> Iterator[None]:
    pool = ThreadPoolExecutor(4)
    server = grpc.server(pool)
    api_pb2_grpc.add_PodResourcesListerServicer_to_server(Lister(answer), server)
    server.add_insecure_port(f"unix://{directory / 'kubelet.sock'}")
    server.start()
    try:
        yield
    finally:
        server.stop(grace=None).wait()
        pool.shutdown()


@contextmanager
def client_of(directory: Path, **options: object) -> Iterator[KubeletClient]:
    client = KubeletClient(directory, directory, **options)
    try:
        yield client
    finally:
        client.close()


def test_it_is_the_port(node):
    port: Kubelet = node.client
    assert port.listing() == {}
    assert port.checkpoint() is None


def test_a_listing_names_every_app_container_with_our_ids_and_merges_numa_nodes(node):
    node.plugin(CORE, [device("a", nodes=[0]), device("b", nodes=[1]), device("c")])
    node.plugin(MEMORY, devices("m", 5)).prefer = lowest
    node.kubelet.set_foreign("x.io/rdma", 3)
    limits = {CORE: 3, MEMORY: 1, "x.io/rdma": 2}
    node.kubelet.admit(pod("u", {"main": limits, "idle": {}}, init={"init": {CORE: 1}}))
    node.kubelet.admit(pod("v", {"other": {}}))
    held = {CORE: frozenset("abc"), MEMORY: frozenset({"m0000"})}
    assert node.client.listing() == {
        ("default", "u"): (
            PodResourcesEntry("default", "u", "main", held),
            PodResourcesEntry("default", "u", "idle", {}),
        ),
        ("default", "v"): (PodResourcesEntry("default", "v", "other", {}),),
    }


def test_the_devices_of_other_plugins_are_told_by_resource(node):
    node.plugin(CORE, devices("c", 2))
    assert node.client.other_offers() == {}
    node.plugin("nvidia.com/gpu", [device("GPU-1", nodes=[0]), device("GPU-2", nodes=[1])])
    assert node.client.other_offers() == {"nvidia.com/gpu": {"GPU-1", "GPU-2"}}


def test_the_kubelet_is_asked_for_its_devices_only_beside_another_plugins_socket(tmp_path):
    for ours in (CORE_SOCKET, MEMORY_SOCKET, "kubelet.sock"):
        (tmp_path / ours).touch()
    with client_of(tmp_path) as client:
        assert client.other_offers() == {}, "nobody answers here"
        (tmp_path / "other.sock").touch()
        with pytest.raises(NodeUnready, match="did not tell its devices"):
            client.other_offers()


def test_38_a_hog_of_the_limiter_is_waited_out():
    with Node(limiter=Limiter()) as node:
        node.kubelet.admit(pod("u", {"main": {}}))
        done = threading.Event()

        def hog() -> None:
            with client_of(node.kubelet.pod_resources, sleep=lambda _seconds: time.sleep(0.002)) as greedy:
                while not done.is_set():
                    greedy.listing()

        thread = threading.Thread(target=hog)
        thread.start()
        try:
            for _ in range(10):
                assert set(node.client.listing()) == {("default", "u")}
        finally:
            done.set()
            thread.join(PATIENCE)
        assert node.kubelet.lists()["refused"] > 0


def test_38_a_limiter_that_never_yields_is_named_after_the_deadline(tmp_path):
    pauses = []

    def refuse(context):
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(seconds)

    with (
        kubelet_that(tmp_path, refuse),
        client_of(tmp_path, deadline=1, sleep=sleep) as client,
        pytest.raises(NodeUnready, match=r"limiter refused for 1 s: another client"),
    ):
        client.listing()
    assert pauses
    assert all(0.005 <= pause <= 0.015 for pause in pauses)


def test_38_a_last_try_that_ends_unanswered_after_refusals_names_the_limiter(tmp_path):
    asked, release = [], threading.Event()

    def refuse_for_most_of_the_time(context):
        asked.append(context.time_remaining())
        if asked[-1] < 0.4:
            release.wait(PATIENCE)
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    with kubelet_that(tmp_path, refuse_for_most_of_the_time), client_of(tmp_path, deadline=1) as client:
        with pytest.raises(NodeUnready, match=r"limiter refused for 1 s: another client"):
            client.listing()
        release.set()
    assert len(asked) > 1


def test_a_kubelet_that_is_away_is_told_at_once_and_found_again_at_once(node):
    with client_of(node.kubelet.pod_resources, deadline=10 * PATIENCE) as client:
        assert client.listing() == {}
        node.kubelet.stop()
        for _ in range(3):
            with pytest.raises(NodeUnready, match="the kubelet does not answer at"):
                client.listing()
        node.kubelet.start()
        node.kubelet.resume([pod("u", {"main": {}})])
        assert set(client.listing()) == {("default", "u")}


def test_a_kubelet_that_hangs_is_given_up_at_the_deadline(tmp_path):
    release = threading.Event()
    with client_of(tmp_path, deadline=0.2) as client:

        def hang(_context):
            release.wait(PATIENCE)
            return api_pb2.ListPodResourcesResponse()

        with kubelet_that(tmp_path, hang):
            with pytest.raises(NodeUnready, match=r"did not list its pods within 0\.2 s"):
                client.listing()
            release.set()


def test_any_other_refusal_carries_the_kubelets_words(tmp_path):
    def refuse(context):
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")

    with (
        kubelet_that(tmp_path, refuse),
        client_of(tmp_path) as client,
        pytest.raises(NodeUnready, match=r"refused to list its pods at .*: not you \(PERMISSION_DENIED\)"),
    ):
        client.listing()


def big(mebibytes: int) -> api_pb2.ListPodResourcesResponse:
    part = api_pb2.ContainerDevices(resource_name=CORE, device_ids=[f"{i:063}" for i in range(16_384)])
    container = api_pb2.ContainerResources(name="c", devices=[part])
    pods = [
        api_pb2.PodResources(name=f"p{i}", namespace="n", containers=[container]) for i in range(mebibytes)
    ]
    return api_pb2.ListPodResourcesResponse(pod_resources=pods)


def test_a_listing_of_12_mib_is_read_and_one_of_20_is_refused_without_a_retry(tmp_path):
    answers = [big(12), big(20)]
    pauses = []
    with (
        kubelet_that(tmp_path, lambda _context: answers.pop(0)),
        client_of(tmp_path, deadline=20, sleep=pauses.append) as client,
    ):
        assert len(client.listing()) == 12
        with pytest.raises(NodeUnready, match="larger than max"):
            client.listing()
    assert not pauses


def test_several_threads_may_list_while_the_kubelet_restarts(node):
    node.kubelet.admit(pod("u", {"main": {}}))
    stop = threading.Event()
    strange = []

    def look() -> None:
        while not stop.is_set():
            try:
                node.client.listing()
            except NodeUnready:
                continue
            except Exception as error:  # noqa: BLE001  # told to the test below
                strange.append(error)
                return

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        node.kubelet.restart()
        node.kubelet.resume()
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert not strange
    assert set(node.client.listing()) == {("default", "u")}


def test_a_closed_client_may_be_used_again(node):
    node.client.listing()
    node.client.close()
    node.client.close()
    assert node.client.listing() == {}


def test_the_checkpoint_tells_the_owner_by_uid_with_our_annotation(node):
    core = node.plugin(CORE, devices("c", 5))
    core.prefer = lowest
    core.answer = lambda _ids: ContainerAllocateResponse(annotations={ALLOCATION: "{}"})
    node.kubelet.admit(pod("u", {"main": {CORE: 1}}, init={"init": {CORE: 1}}))
    assert sorted(node.client.checkpoint(), key=lambda e: e.container) == [
        CheckpointEntry("u", "init", CORE, frozenset({"c0000"}), "{}"),
        CheckpointEntry("u", "main", CORE, frozenset({"c0000"}), "{}"),
    ]


def test_3_10_foreign_entries_are_passed_over(node):
    node.plugin(CORE, devices("c", 5))
    node.kubelet.set_foreign("x.io/rdma", 3)
    node.kubelet.admit(pod("u", {"main": {"x.io/rdma": 2}}))
    assert node.client.checkpoint() == ()


def test_49_a_torn_or_missing_or_monstrous_checkpoint_is_none(node):
    path = node.kubelet.checkpoint_path
    assert node.client.checkpoint() is None
    node.plugin(CORE, devices("c", 5))
    node.kubelet.admit(pod("u", {"main": {CORE: 2}}))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert node.client.checkpoint() is None
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert node.client.checkpoint() is None
    path.unlink()
    path.mkdir()
    assert node.client.checkpoint() is None
    path.rmdir()
    path.write_bytes(whole)
    assert [e.pod for e in node.client.checkpoint()] == ["u"]


def test_an_unchanged_checkpoint_is_parsed_once(node):
    node.plugin(CORE, devices("c", 5))
    node.kubelet.admit(pod("u", {"main": {CORE: 2}}))
    first = node.client.checkpoint()
    assert node.client.checkpoint() is first
    node.kubelet.admit(pod("v", {"main": {CORE: 2}}))
    assert {e.pod for e in node.client.checkpoint()} == {"u", "v"}
