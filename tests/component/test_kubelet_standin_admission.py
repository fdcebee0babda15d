"""The stand-in's admission, by the paragraphs of the device plugin API's description (1.3, 1.5, 1.6, 1.9)."""

import threading
from collections.abc import Iterator

import pytest

from gpu_manager.domain.errors import Bug, DoesNotFit, NodeUnready, RequestInvalid
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import (
    CDIDevice,
    ContainerAllocateResponse,
    DeviceSpec,
    Mount,
)
from sandbox.kubelet import Step
from tests.fakes.kubelet_node import Node, lowest, pod
from tests.fakes.plugin import CORE, MEMORY, devices
from tests.fakes.waiting import PATIENCE

RDMA = "x.io/rdma"


@pytest.fixture
def node() -> Iterator[Node]:
    with Node() as node:
        yield node


def names(node: Node) -> list[tuple[str, str, str]]:
    return [(step.name, step.pod, step.container) for step in node.kubelet.steps]


def test_1_5_all_calls_of_one_pod_are_contiguous_and_follow_the_order_of_its_containers(node):
    node.both()
    limits = {CORE: 2, MEMORY: 1}
    node.kubelet.admit(pod("u", {"b": limits, "a": limits}, init={"z": {CORE: 1}}))
    node.kubelet.admit(pod("v", {"main": limits}))
    per_container = list(dict.fromkeys((p, c) for _, p, c in names(node)))
    assert per_container == [("u", "z"), ("u", "b"), ("u", "a"), ("v", "main")]
    assert [n for n, p, c in names(node) if (p, c) == ("v", "main")] == [
        "GetPreferredAllocation",
        "Allocate",
    ] * 2


def test_1_5_the_two_resources_come_in_both_orders_the_first_name_more_often(node):
    node.both(cores=400, memory=400)
    for i in range(200):
        node.kubelet.admit(pod(f"u{i}", {"main": {CORE: 1, MEMORY: 1}}))
    first = {}
    for step in node.kubelet.steps:
        first.setdefault(step.pod, step.resource)
    core_first = sum(resource == CORE for resource in first.values())
    assert 130 <= core_first <= 180  # 78 % of 200, within four standard deviations


def test_1_5_a_third_resource_may_come_between_the_two():
    with Node() as node:
        node.both(cores=100, memory=100)
        node.kubelet.set_foreign(RDMA, 1000)
        turns = []
        node.kubelet.hooks.before = lambda step: (
            turns.append(step.resource) if step.name == "resource" else None
        )
        for i in range(60):
            node.kubelet.admit(pod(f"u{i}", {"main": {CORE: 1, MEMORY: 1, RDMA: 1}}))
        orders = {tuple(turns[i : i + 3]) for i in range(0, len(turns), 3)}
        assert {(CORE, RDMA, MEMORY), (MEMORY, RDMA, CORE)} <= orders


def test_1_5_the_same_seed_makes_the_same_choices():
    chosen = []
    for _ in range(2):
        with Node(seed=7) as node:
            node.both()
            chosen.append(
                [node.kubelet.admit(pod(f"u{i}", {"m": {CORE: 5, MEMORY: 3}})).ids for i in range(5)]
            )
    assert chosen[0] == chosen[1]


def test_1_5_a_restarted_container_is_announced_again_and_never_allocated_again(node):
    core, memory = node.both()
    memory.describe = lambda: memory.options  # the memory plugin wants no PreStartContainer
    held = node.kubelet.admit(pod("u", {"main": {CORE: 3, MEMORY: 3}})).ids["main"]
    received = []
    for _ in range(3):
        received.append(node.kubelet.start_container("u", "main"))
        node.kubelet.stop_container("u", "main", exit_code=137)
    assert core.asked("S") == [held[CORE]] * 3
    assert len(core.asked("A")) == 1
    assert {response.envs["IDS_a-core"] for response in received} == {",".join(sorted(held[CORE]))}
    status = node.kubelet.pod("u")["status"]["containerStatuses"][0]
    assert status["restartCount"] == 2
    assert status["state"] == {"terminated": {"exitCode": 137}}


def test_1_6_an_allocate_that_fails_rejects_the_pod_with_its_words_and_the_next_pod_is_fine(node):
    core, _ = node.both()
    core.answer = lambda _ids: 1 // 0
    result = node.kubelet.admit(pod("u", {"main": {CORE: 3}}))
    assert not result.admitted
    assert result.reason == "UnexpectedAdmissionError"
    assert result.message.startswith("Allocate failed due to rpc error: code = Unknown desc = ")
    assert result.message.endswith(", which is unexpected")
    status = node.kubelet.pod("u")["status"]
    assert status["phase"] == "Failed"
    assert status["message"] == f"Pod was rejected: {result.message}"
    assert node.kubelet.rejections == {"UnexpectedAdmissionError": 1}
    core.answer = lambda _ids: ContainerAllocateResponse()
    assert node.kubelet.admit(pod("v", {"main": {CORE: 100}})).admitted


def test_1_6_a_preference_that_fails_rejects_the_pod_too(node):
    core, _ = node.both()
    core.prefer = lambda _request: 1 // 0
    result = node.kubelet.admit(pod("u", {"main": {CORE: 3}}))
    assert "device plugin GetPreferredAllocation rpc failed with err: rpc error" in result.message


def test_1_6_an_answer_without_container_responses_rejects_the_pod(node):
    core, _ = node.both()
    core.answer = lambda _ids: None
    result = node.kubelet.admit(pod("u", {"main": {CORE: 3}}))
    assert "no containers return in allocation response" in result.message


def test_1_6_too_few_ids_are_named(node):
    node.both()
    result = node.kubelet.admit(pod("u", {"main": {CORE: 101}}))
    assert "requested number of devices unavailable for" in result.message
    assert "Requested: 101, Available: 100" in result.message


def test_1_6_what_was_granted_before_a_refusal_stays_in_the_books_until_the_next_allocation(node):
    core, memory = node.both()
    node.kubelet.hooks.order = sorted
    memory.answer = lambda _ids: 1 // 0
    node.kubelet.admit(pod("u", {"main": {CORE: 60, MEMORY: 1}}))
    assert [(g.pod, g.resource, len(g.ids)) for g in node.kubelet.grants()] == [("u", CORE, 60)]
    assert not any(entry.pod == "u" for entry in node.client.checkpoint())  # written at the end only
    assert core.asked("A")
    node.kubelet.admit(pod("v", {"main": {CORE: 100}}))
    assert [g.pod for g in node.kubelet.grants()] == ["v"]


def test_1_6_a_container_that_may_not_start_is_not_started(node):
    core, _ = node.both()
    node.kubelet.admit(pod("u", {"main": {CORE: 3}}))
    core.start = lambda _ids: 1 // 0
    with pytest.raises(NodeUnready, match="device plugin PreStartContainer rpc failed with err"):
        node.kubelet.start_container("u", "main")
    assert node.kubelet.running("u") == frozenset()
    core.start = lambda _ids: None
    node.kubelet.start_container("u", "main")
    assert node.kubelet.running("u") == {"main"}
    assert len(core.asked("A")) == 1


def test_1_6_a_start_that_takes_too_long_fails():
    with Node(pre_start_seconds=0.5) as node:
        core, _ = node.both()
        release = threading.Event()
        node.kubelet.admit(pod("u", {"main": {CORE: 3}}))
        core.start = lambda _ids: release.wait(PATIENCE)
        with pytest.raises(NodeUnready, match="code = DeadlineExceeded"):
            node.kubelet.start_container("u", "main")
        release.set()


def test_a_namesake_is_another_pod(node):
    node.plugin(CORE, devices("c", 20)).prefer = lowest
    first = node.kubelet.admit(pod("u1", {"main": {CORE: 2}}, name="web"))
    node.kubelet.delete("u1", force=True)
    second = node.kubelet.admit(pod("u2", {"main": {CORE: 3}}, name="web"))
    assert [len(c.ids[CORE]) for c in node.client.listing()["default", "web"]] == [3]
    assert {p["metadata"]["uid"] for p in node.kubelet.pods()} == {"u2"}
    assert first.ids["main"][CORE] <= second.ids["main"][CORE]  # though u1 may still run: nobody asked
    assert node.kubelet.running("u1") == frozenset()


def test_1_9_answers_are_merged_and_of_two_alike_one_wins(node):
    core, memory = node.both()
    core.answer = lambda _ids: ContainerAllocateResponse(
        envs={"A": "core", "B": "core"},
        mounts=[Mount(container_path="/x", host_path="/core"), Mount(container_path="/y", host_path="/core")],
        devices=[DeviceSpec(container_path="/dev/n", host_path="/dev/n", permissions="rw")],
        annotations={"k": "core"},
        cdi_devices=[CDIDevice(name="a/b=c")],
    )
    memory.answer = lambda _ids: ContainerAllocateResponse(
        envs={"A": "memory", "C": "memory"},
        mounts=[Mount(container_path="/x", host_path="/memory")],
        cdi_devices=[CDIDevice(name="a/b=c"), CDIDevice(name="a/b=d")],
    )
    result = node.kubelet.admit(pod("u", {"main": {CORE: 1, MEMORY: 1}})).containers["main"]
    assert dict(result.envs) | {"A": ""} == {"A": "", "B": "core", "C": "memory"}
    assert result.envs["A"] in {"core", "memory"}
    assert {m.container_path: m.host_path for m in result.mounts}["/y"] == "/core"
    assert len(result.mounts) == 2
    assert [d.permissions for d in result.devices] == ["rw"]
    assert dict(result.annotations) == {"k": "core"}
    assert {c.name for c in result.cdi_devices} == {"a/b=c", "a/b=d"}


def test_3_11_a_pod_beyond_the_published_node_is_refused_after_all_its_containers_were_allocated(node):
    without = node.kubelet.admit(pod("u", {"main": {CORE: 60}}))  # before the resource existed: it counts
    assert without.admitted
    core, _ = node.both()
    node.kubelet.publish_node()
    result = node.kubelet.admit(pod("v", {"a": {CORE: 30}, "b": {CORE: 11}}))
    assert result.reason == f"OutOf{CORE}"
    assert (
        result.message == f"Node didn't have enough resource: {CORE}, requested: 41, used: 60, capacity: 100"
    )
    assert [len(ids) for ids in core.asked("A")] == [30, 11]
    assert node.kubelet.rejections == {"OutOfExtendedResources": 1}
    node.kubelet.finish("u")
    assert node.kubelet.admit(pod("w", {"a": {CORE: 30}, "b": {CORE: 70}}, init={"i": {CORE: 90}})).admitted


def test_1_3_a_pod_that_asks_for_what_the_node_never_had_runs_without_it(node):
    result = node.kubelet.admit(pod("u", {"main": {CORE: 30}}))
    assert result.admitted
    assert result.ids == {"main": {}}
    node.kubelet.start_container("u", "main")


def test_3_6_a_pod_admitted_before_the_resource_existed_stays_in_list_and_cannot_start_again(node):
    node.kubelet.admit(pod("u", {"main": {CORE: 30}}))
    node.kubelet.start_container("u", "main")
    core, _ = node.both()
    node.kubelet.stop_container("u", "main")
    with pytest.raises(
        NodeUnready, match="no devices found allocated in local cache for pod u, container main"
    ):
        node.kubelet.start_container("u", "main")
    assert not core.calls
    assert node.client.listing()["default", "u"][0].ids == {}


def test_1_5_without_pre_start_such_a_container_is_allocated_when_it_starts(node):
    node.kubelet.admit(pod("u", {"main": {CORE: 30}}))
    core = node.serve(CORE, devices("c", 50))
    core.options.pre_start_required = False
    node.register(core)
    node.kubelet.start_container("u", "main")
    assert len(core.asked("A")) == 1


def test_3_2_a_refusal_between_two_resources_is_silent_and_the_next_pod_looks_the_same(node):
    core, memory = node.both()
    node.kubelet.set_foreign(RDMA, 1)
    node.kubelet.hooks.order = lambda resources: [CORE, *([RDMA] if RDMA in resources else []), MEMORY]
    assert node.kubelet.admit(pod("first", {"main": {CORE: 5, MEMORY: 5, RDMA: 1}})).admitted
    refused = node.kubelet.admit(pod("ghost", {"main": {CORE: 5, MEMORY: 5, RDMA: 1}}))
    assert (
        "requested number of devices unavailable for x.io/rdma. Requested: 1, Available: 0" in refused.message
    )
    node.kubelet.admit(pod("next", {"main": {CORE: 5, MEMORY: 5}}))
    assert len(core.asked("A")) == 3
    assert len(memory.asked("A")) == 2
    assert set(node.client.listing()) == {("default", "first"), ("default", "next")}


def test_3_2_another_manager_of_the_kubelet_may_refuse_between_two_resources(node):
    core, memory = node.both()
    node.kubelet.hooks.order = sorted

    def refuse(step: Step) -> None:
        if (step.name, step.resource) == ("resource", MEMORY):
            raise DoesNotFit("not enough cpus available to satisfy request")

    node.kubelet.hooks.before = refuse
    result = node.kubelet.admit(pod("u", {"main": {CORE: 5, MEMORY: 5}}))
    assert result.message.startswith("Allocate failed due to not enough cpus")
    assert core.asked("A")
    assert not memory.asked("P")


def test_foreign_devices_stand_in_the_checkpoint_and_are_filtered_by_name(node):
    node.plugin(CORE, devices("c", 10)).prefer = lowest
    node.kubelet.set_foreign(RDMA, 4)
    node.kubelet.admit(pod("u", {"main": {CORE: 2, RDMA: 1}}))
    assert b"x.io/rdma-" in node.kubelet.checkpoint_path.read_bytes()
    assert [(e.resource, sorted(e.ids)) for e in node.client.checkpoint()] == [(CORE, ["c0000", "c0001"])]


def test_a_pod_that_the_api_server_would_not_have_let_through_is_refused_in_words(node):
    with pytest.raises(RequestInvalid, match=r"metadata\.uid"):
        node.kubelet.admit({"metadata": {"name": "x"}})
    node.kubelet.admit(pod("u", {"main": {}}))
    with pytest.raises(Bug, match="added twice"):
        node.kubelet.admit(pod("u", {"main": {}}))
    with pytest.raises(RequestInvalid, match="knows no pod with UID nobody"):
        node.kubelet.finish("nobody")
