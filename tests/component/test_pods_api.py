"""The kubelet's Pods API as the first source of the node's pods, and what is asked when it goes away."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpu_manager.adapters.kube.connection import Connection, Timeouts, connect
from gpu_manager.adapters.kube.outbox import Outbox
from gpu_manager.adapters.kube.pods import FirstSource, KubePods
from gpu_manager.adapters.kubelet import pods_api
from gpu_manager.adapters.kubelet.pods_api import PodsApi
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.pb.pods.v1alpha1 import api_pb2, api_pb2_grpc
from sandbox.api import ADMIN_TOKEN, StandInApi
from sandbox.kubelet.pods_api import PodsApiServer, encode_pod
from sandbox.kubelet.serving import SocketServer
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeClock
from tests.fakes.sandbox import short_directory
from tests.fakes.waiting import PATIENCE

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "pods-api" / "pods.json").read_text("utf-8"))[
    "pods"
]


class Recorded(api_pb2_grpc.PodsServicer):
    """Answers with these bytes, whatever they are."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = answers

    def ListPods(self, _request: Any, _context: grpc.ServicerContext) -> api_pb2.ListPodsResponse:  # noqa: N802
        return api_pb2.ListPodsResponse(pods=self._answers)


@pytest.fixture
def place() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory


def answered(place: Path, *answers: bytes) -> list[Pod] | None:
    socket = place / "recorded.sock"
    server = SocketServer(
        "recorded", lambda s: api_pb2_grpc.add_PodsServicer_to_server(Recorded(*answers), s)
    )
    server.start(socket)
    source = PodsApi(socket, SystemClock())
    try:
        found = source.pods()
        return None if found is None else list(found)
    finally:
        source.close()
        server.stop()


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row["pod"]["metadata"]["name"])
def test_a_pod_as_kubernetes_itself_writes_it_is_the_pod_of_its_json(
    row: dict[str, Any], place: Path
) -> None:
    [found] = answered(place, base64.b64decode(row["bytes"])) or ()
    assert found == parse_pod(row["pod"])


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row["pod"]["metadata"]["name"])
def test_the_stand_in_writes_pods_that_are_read_the_same(row: dict[str, Any], place: Path) -> None:
    [found] = answered(place, encode_pod(row["pod"])) or ()
    assert found == parse_pod(row["pod"])


def test_a_pod_that_is_not_legal_is_left_out_and_bytes_that_are_no_pod_are_no_answer(place: Path) -> None:
    good, odd = pod("good"), pod("odd", container("c", 30, 4))
    odd["spec"]["containers"][0]["resources"]["limits"]["tencent.com/vcuda-core"] = "many"
    found = answered(place, encode_pod(odd), encode_pod(good))
    assert [one.name for one in found or ()] == ["good"]
    assert answered(place, b"\xff\xff\xff") is None
    late = encode_pod(good) + b"\x0a\x0b\x42\x09\x08\xff\xff\xff\xff\xff\xff\xff\x7f"
    assert answered(place, late) is None, "a creation time far beyond every calendar"


def test_a_kubelet_without_the_api_is_asked_nothing_and_nothing_is_wrong(place: Path) -> None:
    source = PodsApi(place / "pods-api" / "pods-api.sock", SystemClock())
    assert source.pods() is None
    assert source.error is None


def test_one_that_does_not_answer_is_left_alone_for_a_while_and_asked_again(place: Path) -> None:
    clock, server = FakeClock(), PodsApiServer(place, lambda: [pod("p")])
    server.start()
    source = PodsApi(server.socket, clock)
    assert [one.name for one in source.pods() or ()] == ["p"]
    server.stop(leave=True)
    assert source.pods() is None
    assert source.error
    again = PodsApiServer(place, lambda: [pod("q")])
    again.start()
    assert source.pods() is None, "it rests"
    clock.pass_(pods_api._REST_SECONDS)
    assert [one.name for one in source.pods() or ()] == ["q"]
    assert source.error is None
    source.close()
    again.stop()


class Port:
    """The kubelet's port, which serves ``/pods``."""

    def __init__(self) -> None:
        self.asked = 0
        self.there: list[Pod] | None = None

    def pods(self) -> list[Pod] | None:
        self.asked += 1
        return self.there

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def api() -> Iterator[StandInApi]:
    server = StandInApi()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def connection(api: StandInApi) -> Iterator[Connection]:
    one = connect(
        url=api.url, token=ADMIN_TOKEN, timeouts=Timeouts(connect=PATIENCE, answer=PATIENCE, watch=30)
    )
    yield one
    one.close()


def test_the_socket_comes_before_the_port_and_the_port_before_the_api_server(
    place: Path, api: StandInApi, connection: Connection
) -> None:
    """The watch is not even started: what the kubelet is about to admit is known all the same."""
    clock, there = SystemClock(), [pod("early", container("c", 30, 4))]
    server, port = PodsApiServer(place, lambda: there), Port()
    server.start()
    sources = FirstSource(PodsApi(server.socket, clock), port)
    pods = KubePods(connection, "n1", clock=clock, outbox=Outbox(clock), kubelet=sources)
    found = pods.fetch("default", "early")
    assert found is not None
    assert found == parse_pod(there[0])
    assert [f.pod for f in pods.local()["default/early"]] == [found]
    assert (server.calls, port.asked) == (1, 0)
    server.stop()
    port.there = [replace(found, name="by-port", uid=found.uid)]
    assert pods.fetch("default", "by-port") is not None
    assert port.asked == 1
    port.there = None
    api.create(pod("by-api", container("c", 30, 4)))
    assert pods.fetch("default", "by-api") is not None
    sources.close()


def test_a_pod_of_the_kubelets_that_the_api_has_no_longer_is_a_tombstone(
    api: StandInApi, connection: Connection
) -> None:
    """It was deleted by force before this agent watched, and the kubelet has yet to admit it."""
    clock, port = SystemClock(), Port()
    pods = KubePods(connection, "n1", clock=clock, outbox=Outbox(clock), kubelet=port)
    gone = parse_pod(pod("gone", container("c", 30, 4)))
    there = parse_pod(api.create(pod("there", container("c", 30, 4))))
    port.there = [gone]
    assert pods.fetch("default", "gone") == gone
    assert [f.tombstone for f in pods.local()["default/gone"]] == [False], "nothing is watched yet"
    pods.start()
    assert pods.wait(PATIENCE)
    port.there = [gone, there]
    assert pods.fetch("default", "there") == there
    assert pods.fetch("default", "gone") == gone
    assert [f.tombstone for f in pods.local()["default/gone"]] == [True]
    assert [f.tombstone for f in pods.local()["default/there"]] == [False]
    pods.close()
