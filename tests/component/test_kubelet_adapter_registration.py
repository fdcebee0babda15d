"""Registering with the kubelet, and seeing when that has to be done again."""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import grpc
import pytest

from gpu_manager.adapters.kubelet.registration import SocketChange, SocketWatch, register
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from tests.fakes.kubelet_node import Node
from tests.fakes.plugin import CORE, devices
from tests.fakes.waiting import PATIENCE

OPTIONS = api_pb2.DevicePluginOptions()


@pytest.fixture
def node() -> Iterator[Node]:
    with Node() as node:
        yield node


def test_1_a_registration_carries_version_endpoint_name_and_options(tmp_path):
    heard = []

    class Registration:
        def Register(self, request, _context):  # noqa: N802  # the service's name
            heard.append(request)
            return api_pb2.Empty()

    pool = ThreadPoolExecutor(1)
    server = grpc.server(pool)
    api_pb2_grpc.add_RegistrationServicer_to_server(Registration(), server)
    server.add_insecure_port(f"unix://{tmp_path}/kubelet.sock")
    server.start()
    options = api_pb2.DevicePluginOptions(pre_start_required=True)
    register(tmp_path, CORE, "vcore.sock", options)
    server.stop(None).wait()
    pool.shutdown()
    assert heard == [
        api_pb2.RegisterRequest(version="v1beta1", endpoint="vcore.sock", resource_name=CORE, options=options)
    ]


def test_3_a_kubelet_that_is_absent_is_told_at_once(tmp_path):
    with pytest.raises(NodeUnready, match="the kubelet does not answer at"):
        register(tmp_path, CORE, "vcore.sock", OPTIONS)


def test_4_a_refusal_carries_the_kubelets_words(node):
    with pytest.raises(NodeUnready, match='refused to register bad: the ResourceName "bad" is invalid'):
        register(node.kubelet.device_plugins, "bad", "x.sock", OPTIONS)


def test_a_kubelet_that_does_not_answer_is_given_up(node):
    release = threading.Event()
    plugin = node.serve(CORE, devices("c", 1))
    plugin.describe = lambda: release.wait(PATIENCE) and plugin.options
    with pytest.raises(NodeUnready, match=r"did not answer the registration of .* within 0\.3 s"):
        register(node.kubelet.device_plugins, CORE, plugin.endpoint, OPTIONS, timeout=0.3)
    release.set()


def test_a_registration_is_abandoned_once_a_socket_was_replaced(node):
    """The kubelet dials a plugin whose socket it has itself deleted for 10 s, and answers only then."""
    abandon, asked, release = threading.Event(), threading.Event(), threading.Event()
    plugin = node.serve(CORE, devices("c", 1))

    def describe() -> api_pb2.DevicePluginOptions:
        asked.set()
        release.wait(PATIENCE)
        return plugin.options

    plugin.describe = describe
    with ThreadPoolExecutor(1) as pool:
        place = node.kubelet.device_plugins
        registering = pool.submit(register, place, CORE, plugin.endpoint, OPTIONS, abandon=abandon)
        assert asked.wait(PATIENCE)
        abandon.set()
        with pytest.raises(NodeUnready, match="was abandoned: a socket was replaced"):
            registering.result(PATIENCE)
        release.set()


class Watching:
    def __init__(self, node: Node, own: list[str]) -> None:
        self.changes: queue.Queue[SocketChange] = queue.Queue()
        self.watch = SocketWatch(node.kubelet.device_plugins, own, self.changes.put, interval=0.01)

    def __enter__(self) -> Self:
        self.watch.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.watch.stop()


def test_5_a_kubelet_made_anew_is_seen_every_time(node):
    with Watching(node, []) as watching:
        for _ in range(5):
            node.kubelet.restart()
            assert watching.changes.get(timeout=PATIENCE) is SocketChange.KUBELET
        assert watching.changes.empty()


def test_5_a_kubelet_that_only_went_away_is_no_change(node):
    plugin = node.serve(CORE, devices("c", 1))
    with Watching(node, [plugin.endpoint]) as watching:
        node.kubelet.stop()
        (node.kubelet.device_plugins / plugin.endpoint).unlink()
        assert watching.changes.get(timeout=PATIENCE) is SocketChange.OWN
        assert watching.changes.empty()


def test_6_a_lost_or_replaced_own_socket_is_told_once(node):
    path = node.kubelet.device_plugins / "mine.sock"
    path.touch()
    with Watching(node, ["mine.sock"]) as watching:
        path.unlink()
        assert watching.changes.get(timeout=PATIENCE) is SocketChange.OWN
        path.touch()
        node.kubelet.restart()  # comes after it, and is all that is told
        assert watching.changes.get(timeout=PATIENCE) is SocketChange.KUBELET
    assert watching.changes.empty()


def test_an_own_socket_that_is_missing_from_the_start_is_told_once(node):
    with Watching(node, ["mine.sock"]) as watching:
        assert watching.changes.get(timeout=PATIENCE) is SocketChange.OWN
        node.kubelet.restart()
        assert watching.changes.get(timeout=PATIENCE) is SocketChange.KUBELET
    assert watching.changes.empty()


def test_a_restart_before_the_watch_started_is_seen_too(node):
    watching = Watching(node, [])
    node.kubelet.restart()
    with watching:
        assert watching.changes.get(timeout=PATIENCE) is SocketChange.KUBELET


def test_a_restart_takes_the_own_socket_with_it(node):
    plugin = node.plugin(CORE, devices("c", 1))
    with Watching(node, [plugin.endpoint]) as watching:
        node.kubelet.restart()
        told = {watching.changes.get(timeout=PATIENCE), watching.changes.get(timeout=PATIENCE)}
    assert told == {SocketChange.KUBELET, SocketChange.OWN}


def test_a_watch_may_be_stopped_from_its_own_thread_and_before_it_started(node):
    ended = threading.Event()

    def stop(_change: SocketChange) -> None:
        watch.stop()
        ended.set()

    watch = SocketWatch(node.kubelet.device_plugins, [], stop, interval=0.01)
    watch.start()
    node.kubelet.restart()
    assert ended.wait(PATIENCE)
    SocketWatch(node.kubelet.device_plugins, [], stop).stop()
