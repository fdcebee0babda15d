"""What the stand-in forgets and remembers over its own restart (device plugin API 1.3, 1.4, association 3.7-3.9)."""

import base64
import json
import threading
from collections.abc import Iterator

import pytest

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse
from sandbox.kubelet import StandInKubelet
from tests.fakes.kubelet_node import Node, lowest, pod
from tests.fakes.plugin import CORE, MEMORY, Plugin, device, devices
from tests.fakes.waiting import PATIENCE, until


@pytest.fixture
def node() -> Iterator[Node]:
    with Node() as node:
        yield node


def come_back(node: Node, plugin: Plugin) -> None:
    """What a plugin does when the kubelet is back: serve anew, since its socket is gone, and register."""
    plugin.stop()
    plugin.serve(node.kubelet.device_plugins)
    node.register(plugin)


def test_1_4_the_checkpoint_has_the_kubelets_format_and_holds_init_containers_too(node):
    core = node.plugin(CORE, [device("a", nodes=[0]), device("b", nodes=[1]), device("c")])
    core.answer = lambda _ids: ContainerAllocateResponse(envs={"K": "v"}, annotations={"x/y": "z"})
    node.kubelet.admit(pod("u", {"main": {CORE: 3}}, init={"init": {CORE: 3}}))
    top = json.loads(node.kubelet.checkpoint_path.read_bytes())
    assert set(top) == {"Data", "Checksum"}
    assert isinstance(top["Checksum"], int)
    assert sorted(top["Data"]["RegisteredDevices"][CORE]) == ["a", "b", "c"]
    entries = {entry["ContainerName"]: entry for entry in top["Data"]["PodDeviceEntries"]}
    assert set(entries) == {"init", "main"}
    assert entries["main"]["PodUID"] == "u"
    assert entries["main"]["ResourceName"] == CORE
    assert entries["main"]["DeviceIDs"] == {"-1": ["c"], "0": ["a"], "1": ["b"]}
    response = ContainerAllocateResponse.FromString(base64.b64decode(entries["main"]["AllocResp"]))
    assert dict(response.annotations) == {"x/y": "z"}


def test_1_4_the_checkpoint_is_written_at_the_end_of_a_containers_allocation_before_its_start(node):
    node.both()
    node.kubelet.hooks.order = sorted
    seen = []

    def look(step) -> None:
        entries = json.loads(node.kubelet.checkpoint_path.read_bytes())["Data"]["PodDeviceEntries"]
        seen.append((step.name, sorted({e["ContainerName"] for e in entries or ()})))

    node.kubelet.hooks.before = look
    node.kubelet.admit(pod("u", {"a": {CORE: 1, MEMORY: 1}, "b": {CORE: 1}}))
    node.kubelet.start_container("u", "a")
    assert [names for name, names in seen if name == "Allocate"] == [[], [], ["a"]]
    assert ("PreStartContainer", ["a", "b"]) in seen


def test_1_4_entries_of_ended_pods_linger_until_the_next_allocation(node):
    node.plugin(CORE, devices("c", 10))
    node.kubelet.admit(pod("u", {"main": {CORE: 1}}))
    node.kubelet.delete("u")
    assert [e.pod for e in node.client.checkpoint()] == ["u"]
    node.kubelet.admit(pod("v", {"main": {CORE: 1}}))
    assert [e.pod for e in node.client.checkpoint()] == ["v"]


def test_1_3_until_the_plugin_registers_again_the_resource_counts_nothing(node):
    node.plugin(CORE, devices("c", 10))
    node.kubelet.restart()
    assert node.kubelet.capacity() == {CORE: 0}
    assert node.kubelet.allocatable() == {CORE: 0}
    node.clock.pass_(301)
    assert node.kubelet.capacity() == {}


def test_1_3_running_containers_keep_their_ids_and_nothing_is_allocated_again(node):
    core = node.plugin(CORE, devices("c", 10))
    held = node.kubelet.admit(pod("u", {"main": {CORE: 3}})).ids
    node.kubelet.start_container("u", "main")
    node.kubelet.restart()
    (result,) = node.kubelet.resume()  # even before the plugin is back
    assert result.admitted
    assert result.ids == held
    come_back(node, core)
    assert len(core.asked("A")) == 1
    assert node.kubelet.running("u") == {"main"}


def test_1_3_a_pod_that_runs_is_not_refused_for_want_of_a_node_that_counts_nothing_yet(node):
    node.plugin(CORE, devices("c", 10))
    node.kubelet.admit(pod("u", {"main": {CORE: 3}}))
    node.kubelet.start_container("u", "main")
    node.kubelet.restart()
    assert node.kubelet.publish_node() == {CORE: 0}
    old, new = sorted(node.kubelet.resume([pod("v", {"main": {CORE: 3}})]), key=lambda result: result.uid)
    assert old.admitted
    assert "no healthy devices present" in new.message


def test_1_3_after_a_reboot_a_pod_fails_unless_the_plugin_was_faster(node):
    core = node.plugin(CORE, devices("c", 10))
    node.kubelet.admit(pod("u", {"main": {CORE: 3}}))
    node.kubelet.start_container("u", "main")
    node.kubelet.restart(reboot=True)
    assert node.kubelet.running("u") == frozenset()
    (late,) = node.kubelet.resume()
    assert "no healthy devices present; cannot allocate unhealthy devices" in late.message
    come_back(node, core)
    kept = node.kubelet.admit(pod("v", {"main": {CORE: 3}})).ids
    node.kubelet.restart(reboot=True)
    come_back(node, core)
    (early,) = node.kubelet.resume()
    assert early.ids == kept


@pytest.mark.parametrize("reboot", [True, False])
def test_1_3_a_kubelet_starts_no_container_of_a_pod_that_it_has_not_admitted_again(node, reboot):
    core = node.plugin(CORE, devices("c", 10))
    node.kubelet.admit(pod("u", {"main": {CORE: 3}}))
    node.kubelet.start_container("u", "main")
    node.kubelet.restart(reboot=reboot)
    come_back(node, core)
    node.kubelet.stop_container("u", "main", 137)
    with pytest.raises(NodeUnready, match="has not been admitted since the kubelet's start"):
        node.kubelet.start_container("u", "main")
    assert [result.admitted for result in node.kubelet.resume()] == [True]
    node.kubelet.start_container("u", "main")


def test_1_3_a_pod_whose_devices_are_gone_after_a_reboot_fails(node):
    core = node.plugin(CORE, devices("c", 10))
    core.prefer = lowest
    node.kubelet.admit(pod("u", {"main": {CORE: 3}}))
    node.kubelet.restart(reboot=True)
    core.offered = devices("d", 10)
    come_back(node, core)
    (result,) = node.kubelet.resume()
    assert "previously allocated devices are no longer healthy" in result.message


def test_1_3_a_resource_lost_with_its_checkpoint_is_unknown_and_the_pod_runs_without(node):
    node.plugin(CORE, devices("c", 10))
    node.kubelet.stop()
    node.kubelet.checkpoint_path.write_text('{"Data":{"PodDev')
    node.kubelet.start()
    (result,) = node.kubelet.resume([pod("u", {"main": {CORE: 3}})])
    assert result.admitted
    assert result.ids == {"main": {}}


def test_3_7_nothing_is_freed_during_the_first_batch(node):
    core = node.plugin(CORE, devices("c", 10))
    for i in range(5):
        node.kubelet.admit(pod(f"old{i}", {"main": {CORE: 2}}))
    node.kubelet.stop()
    for i in range(5):
        node.kubelet.delete(f"old{i}")
    node.kubelet.start()
    come_back(node, core)
    results = node.kubelet.resume([pod(f"new{i}", {"main": {CORE: 2}}) for i in range(5)])
    assert [r.admitted for r in results] == [False] * 5
    assert all("Requested: 2, Available: 0" in r.message for r in results)
    assert node.kubelet.admit(pod("later", {"main": {CORE: 10}})).admitted


def test_3_7_in_the_first_batch_the_list_grows_pod_by_pod(node):
    core = node.plugin(CORE, devices("c", 10))
    for i in range(4):
        node.kubelet.admit(pod(f"u{i}", {"main": {CORE: 2}}))
        node.kubelet.start_container(f"u{i}", "main")
    node.kubelet.restart()
    come_back(node, core)
    assert node.client.listing() == {}
    sizes = []
    node.kubelet.hooks.before = lambda step: (
        sizes.append(len(node.client.listing())) if step.name == "resource" else None
    )
    node.kubelet.resume()
    assert sizes == [1, 2, 3, 4]


def test_3_7_a_batch_goes_by_age_in_whole_seconds_and_at_random_within_one():
    orders = set()
    for seed in range(4):
        with Node(seed=seed) as node:
            young = [pod(f"y{i}", {"main": {}}, created="2026-01-01T00:00:01Z") for i in range(6)]
            old = [pod(f"o{i}", {"main": {}}, created="2026-01-01T00:00:00Z") for i in range(6)]
            order = [result.uid for result in node.kubelet.add([*young, *old])]
            assert {uid[0] for uid in order[:6]} == {"o"}
            orders.add(tuple(order))
    assert len(orders) > 1


def test_3_7_pods_come_with_the_first_batch_and_not_before_it(node):
    node.kubelet.restart()
    with pytest.raises(NodeUnready, match=r"resume\(\) comes first"):
        node.kubelet.admit(pod("u", {"main": {}}))
    assert [r.uid for r in node.kubelet.resume([pod("u", {"main": {}})])] == ["u"]
    node.kubelet.stop()
    with pytest.raises(NodeUnready, match="not running"):
        node.kubelet.admit(pod("v", {"main": {}}))


def test_3_8_while_the_plugin_is_away_every_pod_is_rejected(node):
    core = node.plugin(CORE, devices("c", 10))
    kept = node.kubelet.admit(pod("u", {"main": {CORE: 2}})).ids
    core.stop()
    node.kubelet.wait({CORE: 0})
    assert "no healthy devices present" in node.kubelet.admit(pod("v", {"main": {CORE: 2}})).message
    with pytest.raises(NodeUnready, match="has been stopped"):
        node.kubelet.start_container("u", "main")
    come_back(node, core)
    node.kubelet.start_container("u", "main")
    assert {g.pod: frozenset(g.ids) for g in node.kubelet.grants()} == {"u": kept["main"][CORE]}


def test_3_8_a_plugin_that_dies_in_the_middle_of_an_allocation_rejects_that_pod(node):
    core = node.plugin(CORE, devices("c", 10))
    node.kubelet.hooks.before = lambda step: core.stop() if step.name == "GetPreferredAllocation" else None
    result = node.kubelet.admit(pod("u", {"main": {CORE: 2}}))
    assert result.reason == "UnexpectedAdmissionError"
    assert node.kubelet.grants() == ()


@pytest.mark.parametrize("at", ["GetPreferredAllocation", "Allocate"])
def test_3_9_a_kubelet_killed_in_the_middle_of_an_admission_keeps_nothing_of_it(node, at):
    core = node.plugin(CORE, devices("c", 10))
    node.kubelet.hooks.after = lambda step: node.kubelet.stop() if step.name == at else None
    with pytest.raises(NodeUnready, match="stopped while it admitted pod u"):
        node.kubelet.admit(pod("u", {"main": {CORE: 2}}))
    node.kubelet.hooks.after = lambda _step: None
    node.kubelet.start()
    assert node.kubelet.grants() == ()
    come_back(node, core)
    (result,) = node.kubelet.resume()
    assert result.admitted


def test_3_9_a_plugin_that_hangs_does_not_keep_the_kubelet_from_ending(node):
    core = node.plugin(CORE, devices("c", 10))
    entered, release = threading.Event(), threading.Event()

    def hang(_ids):
        entered.set()
        assert release.wait(PATIENCE)

    core.answer = hang
    outcome = []

    def admit() -> None:
        try:
            node.kubelet.admit(pod("u", {"main": {CORE: 2}}))
        except NodeUnready as error:
            outcome.append(str(error))

    thread = threading.Thread(target=admit)
    thread.start()
    assert entered.wait(PATIENCE)
    node.kubelet.stop()
    thread.join(PATIENCE)
    release.set()
    assert outcome == ["the kubelet was stopped while it admitted pod u"]


def test_a_succeeded_pod_is_not_admitted_again_and_its_ids_are_free(node):
    core = node.plugin(CORE, devices("c", 10))
    node.kubelet.admit(pod("u", {"main": {CORE: 10}}))
    node.kubelet.finish("u")
    node.kubelet.restart()
    come_back(node, core)
    assert node.kubelet.resume() == []
    assert node.kubelet.admit(pod("v", {"main": {CORE: 10}})).admitted


def test_a_directory_too_deep_for_sockets_is_refused_in_words(tmp_path):
    kubelet = StandInKubelet(tmp_path / ("x" * 100))
    with pytest.raises(NodeUnready, match=r"cannot listen on .*at most 107 characters"):
        kubelet.start()
    with pytest.raises(NodeUnready, match="the kubelet is not running"):
        kubelet.capacity()
    kubelet.stop()


def test_another_stand_in_reads_the_same_directory(node):
    node.plugin(CORE, devices("c", 10))
    node.kubelet.admit(pod("u", {"main": {CORE: 2}}))
    grants = node.kubelet.grants()
    node.kubelet.stop()
    heir = StandInKubelet(node.directory, clock=node.clock)
    heir.start()
    try:
        assert heir.grants() == grants
    finally:
        heir.stop()


def test_starting_and_stopping_many_times_leaves_no_thread(node):
    core = node.plugin(CORE, devices("c", 10))
    before = threading.active_count()
    for _ in range(10):
        node.kubelet.restart()
        node.kubelet.resume()
        come_back(node, core)
    until(lambda: threading.active_count() <= before + 3)  # gRPC's pools start threads as they need them
