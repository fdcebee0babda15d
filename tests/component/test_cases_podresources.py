"""What passes between kubelet and plugin, judged by the kubelet's own view: cases 2, 9, 14, 26, 27, 52 to 55."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpu_manager.adapters.kubelet.client import KubeletClient, unix_target
from gpu_manager.domain.contract import CORE, MEMORY, RESOURCES
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB
from gpu_manager.domain.topology import Topology
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from gpu_manager.pb.podresources.v1 import api_pb2 as podresources
from gpu_manager.pb.podresources.v1 import api_pb2_grpc as podresources_grpc
from gpu_manager.servers.plugin_registration import SOCKETS
from gpu_manager.services.allocation.books import Books, NodeCards
from sandbox.api import StandInApi
from sandbox.kubelet import NumaPolicy, StandInKubelet, Step
from tests.fakes.agent import agent_command
from tests.fakes.node import NODE, NodeRig, container, pod
from tests.fakes.ports import FakeClock, cards
from tests.fakes.waiting import PATIENCE, until


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[NodeRig]:
    with NodeRig(tmp_path) as node:
        yield node


@pytest.fixture
def lister(rig: NodeRig) -> Iterator[podresources_grpc.PodResourcesListerStub]:
    with grpc.insecure_channel(unix_target(rig.kubelet.pod_resources / "kubelet.sock")) as channel:
        yield podresources_grpc.PodResourcesListerStub(channel)


def uid(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["uid"])


def ours(rig: NodeRig) -> dict[tuple[str, str], dict[str, frozenset[str]]]:
    """Our books in the shape of the kubelet's listing: (pod name, container) → resource → ids."""
    return {(g.allocation.pod_name, key[1]): dict(g.ids) for key, g in rig.state.view.grants.items()}


def test_case_02_the_plugin_serves_while_its_registration_is_still_being_answered(tmp_path: Path) -> None:
    """The kubelet calls back inside Register: whoever serves on the thread that registers waits for ever."""
    rig = NodeRig(tmp_path)
    directory = tmp_path / "device-plugins"
    directory.mkdir()
    options: dict[str, api_pb2.DevicePluginOptions] = {}
    devices: dict[str, int] = {}

    class CallingBack(api_pb2_grpc.RegistrationServicer):
        def Register(self, request: api_pb2.RegisterRequest, context: grpc.ServicerContext) -> api_pb2.Empty:  # noqa: N802
            with grpc.insecure_channel(unix_target(directory / request.endpoint)) as channel:
                plugin = api_pb2_grpc.DevicePluginStub(channel)
                answer = plugin.GetDevicePluginOptions(api_pb2.Empty(), timeout=PATIENCE)
                first = next(plugin.ListAndWatch(api_pb2.Empty(), timeout=PATIENCE))
                devices[request.resource_name] = len(first.devices)
                options[request.resource_name] = answer
                assert (request.version, request.options) == ("v1beta1", answer)
                assert "/" not in request.endpoint
            return api_pb2.Empty()

    server = grpc.server(ThreadPoolExecutor(4))
    api_pb2_grpc.add_RegistrationServicer_to_server(CallingBack(), server)
    server.add_insecure_port(unix_target(directory / "kubelet.sock"))
    server.start()
    rig.start_agent(wait=False)
    try:
        rig.until(lambda: devices == {CORE: 800, MEMORY: 512})
        assert options[CORE].pre_start_required
    finally:
        rig.stop_agent()
        server.stop(0).wait()


def test_case_09_sigterm_ends_the_program_and_leaves_no_socket_behind(tmp_path: Path) -> None:
    api, kubelet = StandInApi(), StandInKubelet(tmp_path / "kubelet")
    api.start()
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    kubelet.start()
    agent = subprocess.Popen(agent_command(tmp_path, api=api.url), stderr=subprocess.PIPE, text=True)
    try:
        kubelet.wait({CORE: 400})
        until(lambda: kubelet.allocatable().get(MEMORY))  # the second to register
        agent.send_signal(signal.SIGTERM)
        _, log = agent.communicate(timeout=PATIENCE)
        assert agent.returncode == 0, log
        assert "Traceback" not in log
        assert [name for name in SOCKETS.values() if (kubelet.device_plugins / name).exists()] == []
        kubelet.wait({CORE: 0, MEMORY: 0})
        assert kubelet.capacity()[CORE] == 400, "capacity stays while the plugin is away"
    finally:
        agent.kill()
        agent.wait()
        kubelet.stop()
        api.stop()


def test_case_14_a_list_that_the_kubelet_would_refuse_is_refused_at_the_start(tmp_path: Path) -> None:
    rig = NodeRig(tmp_path, cards(8, 141 * GIB))
    rig.kubelet.start()
    rig.start_agent(wait=False)
    try:
        rig.await_registered()
        mib = NodeCards.of(NODE, 1 << 20, rig.states, rig.topology)
        rig.state.open(Books(mib))
        with pytest.raises(NodeUnready, match="use a memory unit of"):
            rig.plugin.run_once()
    finally:
        rig.stop_agent()
        rig.kubelet.stop()


def test_case_26_with_564_ids_of_each_of_8_cards_on_offer_the_answer_is_right(tmp_path: Path) -> None:
    states = cards(8, 141 * GIB, "H200")
    with NodeRig(tmp_path, states) as rig:
        one = pod("one", container("c", 60, 400), on={"c": [(states[5], 60, 100 * GIB)]})
        offered: list[int] = []
        rig.kubelet.hooks.before = lambda step: (
            offered.append(len(step.ids)) if step.name == "GetPreferredAllocation" else None
        )
        result = rig.admit(one)
        assert result.admitted, result.message
        assert sorted(offered) == [800, 8 * 564]
        for resource, count in ((CORE, 60), (MEMORY, 400)):
            ids = result.ids["c"][resource]
            assert len(ids) == count
            assert rig.state.node.ids.cards_of(resource, ids) == {states[5].card.uuid}


def test_case_27_core_carries_everything_and_memory_nothing(rig: NodeRig) -> None:
    one = pod("one", container("c", 30, 20))
    answers: dict[str, api_pb2.AllocateResponse] = {}

    def ask(step: Step) -> None:
        if step.name == "Allocate":
            with grpc.insecure_channel(
                unix_target(rig.kubelet.device_plugins / SOCKETS[step.resource])
            ) as channel:
                request = api_pb2.ContainerAllocateRequest(devices_ids=sorted(step.ids))
                answers[step.resource] = api_pb2_grpc.DevicePluginStub(channel).Allocate(
                    api_pb2.AllocateRequest(container_requests=[request])
                )

    rig.kubelet.hooks.after = ask  # the same ids once more: Allocate is idempotent
    assert rig.admit(one).admitted
    (core,), (memory,) = answers[CORE].container_responses, answers[MEMORY].container_responses
    assert memory == api_pb2.ContainerAllocateResponse(), "disjoint, whatever core answers"
    assert core.envs["VCUDA_CARDS"]
    assert [m.container_path for m in core.mounts] == ["/etc/vcuda/limits"]
    assert list(core.annotations) == ["tencent.com/vcuda-allocation"]


def test_case_52_the_list_equals_our_books_before_and_after(rig: NodeRig) -> None:
    assert rig.listed() == ours(rig) == {}
    pods = [
        pod("plain", container("c", 30, 20)),
        pod("two", container("a", 20, 4), container("b", 40, 8)),
        pod("side", container("app", 10, 4), init=[container("s", 10, 4, sidecar=True)]),
        pod("whole", container("c", 200, 0)),
    ]
    for one in pods:
        assert rig.admit(one).admitted
        rig.start(one)
        assert rig.listed() == ours(rig)
    rig.delete(pods[1])
    assert rig.admit(pod("last", container("c", 10, 4))).admitted
    assert rig.listed() == ours(rig)
    assert ("two", "a") not in ours(rig)


def test_case_52_entries_split_by_numa_node_are_one_holding(tmp_path: Path) -> None:
    states = tuple(replace(s, card=replace(s.card, numa=s.card.index // 4)) for s in cards())
    with NodeRig(tmp_path, states) as rig:
        wide = pod("wide", container("c", 500, 0))
        assert rig.admit(wide).admitted
        with grpc.insecure_channel(unix_target(rig.kubelet.pod_resources / "kubelet.sock")) as channel:
            answer = podresources_grpc.PodResourcesListerStub(channel).List(
                podresources.ListPodResourcesRequest()
            )
        parts = answer.pod_resources[0].containers[0].devices
        assert len([p for p in parts if p.resource_name == CORE]) == 2, "the kubelet did split"
        assert rig.listed() == ours(rig)
        assert len(ours(rig)["wide", "c"][CORE]) == 500


def test_case_53_get_shows_one_pod_as_our_books_do_and_says_when_there_is_none(
    rig: NodeRig, lister: podresources_grpc.PodResourcesListerStub
) -> None:
    one = pod("one", container("c", 30, 20))
    assert rig.admit(one).admitted
    shown = lister.Get(podresources.GetPodResourcesRequest(pod_name="one", pod_namespace="default"))
    (only,) = shown.pod_resources.containers
    assert {d.resource_name: frozenset(d.device_ids) for d in only.devices} == ours(rig)["one", "c"]
    rig.delete(one)
    with pytest.raises(grpc.RpcError) as missing:
        lister.Get(podresources.GetPodResourcesRequest(pod_name="one", pod_namespace="default"))
    assert "not found" in missing.value.details()


def test_case_54_failed_and_ended_pods_leave_the_list_and_then_our_books(rig: NodeRig) -> None:
    kept, ended = pod("kept", container("c", 30, 4)), pod("ended", container("c", 30, 4))
    failed = pod("failed", container("c", 30, 4), container("d", 100, 0), container("e", 800, 0))
    for one in (kept, ended):
        assert rig.admit(one).admitted
        rig.start(one)
    assert not rig.admit(failed).admitted
    rig.kubelet.finish(uid(ended))
    rig.pods.bind(parse_pod(rig.kubelet.pod(uid(ended))))
    assert set(rig.listed()) == {("kept", "c")}
    assert rig.admit(pod("next", container("c", 10, 4))).admitted
    assert set(ours(rig)) == set(rig.listed()) == {("kept", "c"), ("next", "c")}


def test_case_55_one_list_for_each_decision_none_in_allocate_and_none_while_admitting(tmp_path: Path) -> None:
    with NodeRig(tmp_path, clock=FakeClock()) as rig:
        lists: Counter[str] = Counter()

        def note(step: Step) -> None:
            lists[step.name] -= rig.kubelet.lists()["List"]
            if step.name == "Allocate":
                rig.reclaimer.round()  # the kubelet would forget the ids in flight

        def noted(step: Step) -> None:
            lists[step.name] += rig.kubelet.lists()["List"]

        rig.kubelet.hooks.before, rig.kubelet.hooks.after = note, noted
        for number in range(20):
            one = pod(f"p{number}", container("c", 30, 4))
            assert rig.admit(one).admitted
            rig.start(one)
        names = Counter(step.name for step in rig.kubelet.steps)
        assert lists["GetPreferredAllocation"] == names["GetPreferredAllocation"] == 40
        assert lists["Allocate"] == lists["PreStartContainer"] == 0
        before = rig.kubelet.lists()["List"]
        assert isinstance(rig.clock, FakeClock)
        rig.clock.pass_(61)
        rig.reclaimer.round()
        assert rig.kubelet.lists()["List"] == before + 1, "a round asks once"


def test_case_55_refused_calls_are_spread_and_never_more_than_the_limiter_gives(rig: NodeRig) -> None:
    """Eight callers at once: every one is served, at the pace of the kubelet's own bucket."""
    client = KubeletClient(rig.kubelet.device_plugins, rig.kubelet.pod_resources)
    started, before = time.monotonic(), rig.kubelet.lists()
    failures: list[BaseException] = []

    def call() -> None:
        try:
            for _ in range(5):
                client.listing()
        except NodeUnready as error:
            failures.append(error)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - started
    client.close()
    assert failures == []
    accepted = rig.kubelet.lists()["List"] - before["List"]
    assert accepted == 40
    attempts = accepted + rig.kubelet.lists()["refused"] - before["refused"]
    assert attempts <= 40 + 8 * (took / 0.005 + 1), "a refused caller waits at least 5 ms"


@pytest.mark.parametrize("policy", list(NumaPolicy))
@pytest.mark.parametrize("seed", range(4))
def test_case_52_holds_under_a_numa_policy(tmp_path: Path, policy: NumaPolicy, seed: int) -> None:
    """Where exactly as many aligned ids are left as are needed, the kubelet asks for no preference: then the
    start settles whose they are.
    """
    states = tuple(replace(s, card=replace(s.card, numa=s.card.index // 4)) for s in cards())
    with NodeRig(tmp_path, states, numa=policy, seed=seed) as rig:
        for number in range(12):
            one = pod(f"p{number}", container("c", 40, 4))
            result = rig.admit(one)
            assert result.admitted, result.message
            rig.start(one)
            assert rig.listed() == ours(rig)
            (limit,) = rig.limits(result, "c")
            assert (limit.cores, limit.memory) == (40, GIB)
            assert limit.card == rig.states[rig.cards_of(one, "c")[0]].card.uuid


def test_nodes_without_cards_offer_nothing_and_say_so(tmp_path: Path) -> None:
    rig = NodeRig(tmp_path, ())
    rig.topology = Topology(())
    rig.kubelet.start()
    rig.start_agent(wait=False)
    try:
        assert rig.plugin.registered.wait(PATIENCE)
        rig.kubelet.wait({CORE: 0, MEMORY: 0})  # a resource it does not know yet is nothing to refuse for
        assert NodeCards.of(NODE, DEFAULT_UNIT, (), Topology(())).ids.of_card == {r: {} for r in RESOURCES}
        assert not rig.admit(pod("one", container("c", 30, 4))).admitted
    finally:
        rig.stop_agent()
        rig.kubelet.stop()
