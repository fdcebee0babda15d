"""The stand-in's registration and streams, by the paragraphs of the device plugin API's description (1.1-1.12)."""

import json
from collections.abc import Iterator

import grpc
import pytest

from gpu_manager.adapters.kubelet.registration import register
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from tests.fakes.kubelet_node import Node, pod
from tests.fakes.plugin import CORE, Plugin, device, devices
from tests.fakes.waiting import PATIENCE


@pytest.fixture
def node() -> Iterator[Node]:
    with Node() as node:
        yield node


def call_register(node: Node, **fields: object) -> None:
    with grpc.insecure_channel(f"unix://{node.kubelet.device_plugins}/kubelet.sock") as channel:
        api_pb2_grpc.RegistrationStub(channel).Register(api_pb2.RegisterRequest(**fields), timeout=PATIENCE)


@pytest.mark.parametrize(
    ("version", "resource", "words"),
    [
        ("v1alpha", CORE, 'requested API version "v1alpha" is not supported'),
        ("v1beta1", "vcuda-core", 'the ResourceName "vcuda-core" is invalid'),
        ("v1beta1", "x.kubernetes.io/a", "is invalid"),
        ("v1beta1", "requests.x.io/a", "is invalid"),
    ],
)
def test_1_2_1_a_wrong_version_or_name_is_refused_but_counted(node, version, resource, words):
    with pytest.raises(grpc.RpcError) as refused:
        call_register(node, version=version, endpoint="x.sock", resource_name=resource)
    assert words in refused.value.details()
    assert node.kubelet.registrations[resource] == 1
    assert node.kubelet.capacity() == {}


def test_1_2_2_the_kubelet_dials_back_before_register_returns(node):
    plugin = node.serve(CORE, devices("c", 3))
    asked = []
    plugin.describe = lambda: asked.append(1) or plugin.options
    plugin.register(node.kubelet.device_plugins)
    assert asked == [1]


def test_1_2_2_register_fails_when_the_options_cannot_be_had(node):
    plugin = node.serve(CORE, devices("c", 3))
    plugin.describe = lambda: 1 // 0
    with pytest.raises(NodeUnready, match=r"refused to register .*: failed to get device plugin options"):
        plugin.register(node.kubelet.device_plugins)
    assert node.kubelet.capacity() == {}


def test_1_2_2_register_fails_when_nobody_serves_the_endpoint():
    with Node(dial_seconds=0.5) as node, pytest.raises(NodeUnready, match="failed to dial device plugin"):
        register(node.kubelet.device_plugins, CORE, "nobody.sock", api_pb2.DevicePluginOptions())


def test_1_2_3_the_options_that_count_are_those_of_the_plugin_not_of_the_request(node):
    plugin = node.serve(CORE, devices("c", 3))
    plugin.describe = api_pb2.DevicePluginOptions
    node.register(plugin)  # the request says that both are wanted
    assert node.kubelet.admit(pod("u", {"main": {CORE: 2}})).admitted
    node.kubelet.start_container("u", "main")
    assert not plugin.asked("P")
    assert not plugin.asked("S")


def test_1_2_4_each_message_replaces_the_list_and_rewrites_the_checkpoint(node):
    plugin = node.plugin(CORE, devices("c", 3))
    plugin.send([device("other"), device("bad", healthy=False)])
    node.kubelet.wait({CORE: 1})
    assert node.kubelet.capacity() == {CORE: 2}
    data = json.loads(node.kubelet.checkpoint_path.read_bytes())
    assert data["Data"]["RegisteredDevices"] == {CORE: ["other"]}


def test_1_2_5_a_stopped_plugin_keeps_its_capacity_for_five_minutes_and_is_never_redialled(node):
    plugin = node.plugin(CORE, devices("c", 3))
    plugin.stop()
    node.kubelet.wait({CORE: 0})
    assert node.kubelet.capacity() == {CORE: 3}
    again = node.serve(CORE, devices("c", 3))  # serves on the same socket, but says nothing
    node.clock.pass_(299)
    assert (node.kubelet.capacity(), node.kubelet.allocatable()) == ({CORE: 3}, {CORE: 0})
    node.clock.pass_(2)
    assert (node.kubelet.capacity(), node.kubelet.allocatable()) == ({}, {})
    node.register(again)
    assert node.kubelet.allocatable() == {CORE: 3}


def test_1_2_6_the_end_of_an_old_stream_disconnects_its_successor(node):
    old = node.plugin(CORE, devices("c", 3))
    new = node.plugin(CORE, devices("d", 5), endpoint="second.sock")
    assert node.kubelet.allocatable() == {CORE: 5}
    old.stop()
    assert new.ended.wait(PATIENCE)
    node.kubelet.wait({CORE: 0})
    assert node.kubelet.capacity() == {CORE: 5}
    new.register(node.kubelet.device_plugins)
    node.kubelet.wait({CORE: 5})


def test_1_2_6_a_server_closed_before_it_registers_again_does_no_harm(node):
    old = node.plugin(CORE, devices("c", 3))
    old.stop()
    node.kubelet.wait({CORE: 0})
    node.plugin(CORE, devices("c", 4))
    assert node.kubelet.admit(pod("u", {"main": {CORE: 4}})).admitted


def test_1_2_7_capacity_counts_unhealthy_devices_and_allocatable_does_not(node):
    node.plugin(CORE, [*devices("c", 3), device("bad", healthy=False)])
    assert node.kubelet.capacity() == {CORE: 4}
    assert node.kubelet.allocatable() == {CORE: 3}


def test_1_2_8_what_was_given_stays_given_when_its_device_turns_bad_or_vanishes(node):
    plugin = node.plugin(CORE, devices("c", 3))
    held = node.kubelet.admit(pod("u", {"main": {CORE: 3}})).ids["main"][CORE]
    plugin.send([device("c0000", healthy=False)])
    node.kubelet.wait({CORE: 0})
    assert node.client.listing()["default", "u"][0].ids[CORE] == held
    assert not node.kubelet.admit(pod("v", {"main": {CORE: 1}})).admitted


def test_1_3_a_start_deletes_every_socket_and_nothing_else(node):
    plugin = node.plugin(CORE, devices("c", 3))
    note = node.kubelet.device_plugins / "DEPRECATION"
    note.write_text("x")
    node.kubelet.restart()
    assert not (node.kubelet.device_plugins / plugin.endpoint).exists()
    assert note.exists()
    assert node.kubelet.checkpoint_path.exists()


def test_1_12_a_list_above_4_mib_ends_the_stream_and_the_resource_shows_nothing(node):
    plugin = node.serve(CORE, [device(f"{i:063}") for i in range(60_000)])
    plugin.register(node.kubelet.device_plugins)
    assert plugin.ended.wait(PATIENCE)
    assert node.kubelet.allocatable().get(CORE, 0) == 0


def test_a_stream_cut_by_the_kubelet_is_not_dialled_again(node):
    plugin = node.plugin(CORE, devices("c", 3))
    node.kubelet.cut(CORE)
    node.kubelet.wait({CORE: 0})
    assert plugin.ended.wait(PATIENCE)
    result = node.kubelet.admit(pod("u", {"main": {CORE: 1}}))
    assert "no healthy devices present; cannot allocate unhealthy devices" in result.message
    node.register(plugin)


def test_a_kubelet_that_stops_while_it_dials_back_does_not_wait_for_the_plugin():
    with Node() as node:
        plugin = Plugin(CORE, devices("c", 1))
        plugin.describe = lambda: node.kubelet.stop() or plugin.options
        plugin.serve(node.kubelet.device_plugins)
        node.plugins.append(plugin)
        with pytest.raises(NodeUnready):
            plugin.register(node.kubelet.device_plugins)
