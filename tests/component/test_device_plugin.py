"""Registration, lifecycle, devices and health on the kubelet stand-in: cases 1 to 23 of kubelet.md section 4."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_manager.adapters.kubelet.client import unix_target
from gpu_manager.domain.contract import CORE, KUBELET_SOCKET, MEMORY
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB
from gpu_manager.domain.topology import Link, LinkKind, Topology
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from gpu_manager.servers.device_plugin import devices_of, options_of
from gpu_manager.servers.plugin_registration import SOCKETS
from gpu_manager.services.allocation.books import KubeletOffer, NodeCards
from sandbox.kubelet import NumaPolicy
from tests.fakes.metrics import counts
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.ports import cards
from tests.fakes.waiting import PATIENCE


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[NodeRig]:
    with NodeRig(tmp_path) as node:
        yield node


def stub(rig: NodeRig, resource: str) -> tuple[api_pb2_grpc.DevicePluginStub, grpc.Channel]:
    channel = grpc.insecure_channel(unix_target(rig.kubelet.device_plugins / SOCKETS[resource]))
    return api_pb2_grpc.DevicePluginStub(channel), channel


def test_case_01_both_resources_register_and_the_options_agree(rig: NodeRig) -> None:
    assert rig.kubelet.registrations == {CORE: 1, MEMORY: 1}
    for resource in (CORE, MEMORY):
        plugin, channel = stub(rig, resource)
        with channel:
            assert plugin.GetDevicePluginOptions(api_pb2.Empty()) == options_of(resource)
    assert options_of(CORE).pre_start_required
    assert not options_of(MEMORY).pre_start_required


def test_case_03_the_plugin_waits_for_a_kubelet_that_is_not_there_yet(tmp_path: Path) -> None:
    rig = NodeRig(tmp_path)
    rig.kubelet.device_plugins.mkdir(parents=True)
    rig.kubelet.pod_resources.mkdir(parents=True)
    rig.start_agent(wait=False)
    assert not rig.plugin.registered.wait(0.3)
    rig.kubelet.start()
    try:
        rig.await_registered()
    finally:
        rig.stop_agent()
        rig.kubelet.stop()


def test_case_04_a_refused_registration_is_counted_and_tried_again(tmp_path: Path) -> None:
    rig = NodeRig(tmp_path)
    directory = tmp_path / "device-plugins"
    directory.mkdir()
    refused = threading.Event()

    class Refusing(api_pb2_grpc.RegistrationServicer):
        def Register(self, request: api_pb2.RegisterRequest, context: grpc.ServicerContext) -> api_pb2.Empty:  # noqa: N802
            refused.set()
            context.abort(grpc.StatusCode.UNKNOWN, "the version is not supported")
            raise AssertionError

    server = grpc.server(ThreadPoolExecutor(2))
    api_pb2_grpc.add_RegistrationServicer_to_server(Refusing(), server)
    server.add_insecure_port(unix_target(directory / "kubelet.sock"))
    server.start()
    rig.start_agent(wait=False)
    try:
        assert refused.wait(PATIENCE)
        rig.until(lambda: counts(rig.metrics.registration_failures).get("", 0) >= 1)
        server.stop(0).wait()
        rig.kubelet.start()
        rig.await_registered()
    finally:
        rig.stop_agent()
        rig.kubelet.stop()


def test_case_05_a_restarted_kubelet_finds_both_again(rig: NodeRig) -> None:
    rig.kubelet.restart()
    rig.kubelet.resume()
    rig.until(
        lambda: rig.kubelet.allocatable().get(CORE) == 800 and rig.kubelet.allocatable().get(MEMORY) == 512
    )
    assert rig.kubelet.registrations[CORE] == 2


def test_case_05_a_kubelet_that_goes_has_our_devices_no_more(rig: NodeRig) -> None:
    """Schedulers hear of it at once: what they bound now, the kubelet would refuse for good when it is back."""
    rig.until(rig.plugin.offering)
    rig.kubelet.stop()
    assert rig.lost.wait(PATIENCE)
    assert not rig.plugin.offering()
    rig.kubelet.start()
    rig.await_registered()
    rig.until(rig.plugin.offering)


def test_case_05_a_kubelet_that_was_down_for_longer_is_met_at_once(tmp_path: Path) -> None:
    """A killed kubelet leaves its socket behind: attempts fail on it, with pauses that its return cuts short."""
    rig = NodeRig(tmp_path, back_off=(300.0, 300.0))
    rig.kubelet.start()
    rig.kubelet.stop(leave=True)
    assert (rig.kubelet.device_plugins / KUBELET_SOCKET).is_socket()
    rig.start_agent(wait=False)
    try:
        rig.until(lambda: counts(rig.metrics.registration_failures).get("", 0) >= 1)
        rig.kubelet.start()
        rig.await_registered()
    finally:
        rig.stop_agent()
        rig.kubelet.stop()


def test_case_05_a_kubelet_that_deletes_the_socket_it_is_told_of_is_not_waited_for(tmp_path: Path) -> None:
    """A starting kubelet deletes every socket: one made a moment before is dialled for 10 s in vain, and the
    first pods are admitted after 1 s.
    """
    rig = NodeRig(tmp_path, back_off=(0.1, 1.0))
    directory = tmp_path / "device-plugins"
    directory.mkdir()
    told: list[str] = []
    answered, release = threading.Event(), threading.Event()

    class Starting(api_pb2_grpc.RegistrationServicer):
        def Register(self, request: api_pb2.RegisterRequest, context: grpc.ServicerContext) -> api_pb2.Empty:  # noqa: N802
            told.append(request.resource_name)
            if len(told) == 1:
                (directory / request.endpoint).unlink()
                release.wait(PATIENCE)
            elif set(told[1:]) == set(SOCKETS):
                answered.set()
            return api_pb2.Empty()

    server = grpc.server(ThreadPoolExecutor(4))
    api_pb2_grpc.add_RegistrationServicer_to_server(Starting(), server)
    server.add_insecure_port(unix_target(directory / "kubelet.sock"))
    server.start()
    rig.start_agent(wait=False)
    try:
        assert answered.wait(PATIENCE), told
    finally:
        release.set()
        rig.stop_agent()
        server.stop(0).wait()


def test_case_06_an_own_socket_deleted_alone_is_made_again(rig: NodeRig) -> None:
    (rig.kubelet.device_plugins / SOCKETS[MEMORY]).unlink()
    rig.until(lambda: rig.kubelet.registrations[MEMORY] == 2)
    rig.await_registered()


def test_case_07_a_stream_cut_by_the_kubelet_leads_to_a_new_registration(rig: NodeRig) -> None:
    rig.kubelet.cut(CORE)
    rig.until(lambda: rig.kubelet.registrations[CORE] == 2)
    rig.until(lambda: rig.kubelet.allocatable().get(CORE) == 800)


def test_case_08_after_an_overlapping_old_instance_ends_the_resource_comes_back(tmp_path: Path) -> None:
    with NodeRig(tmp_path) as old:
        young = NodeRig(tmp_path)
        young.kubelet = old.kubelet
        young.start_agent()
        old.stop.set()
        old.plugin.wake()
        try:
            young.until(lambda: young.kubelet.registrations[CORE] >= 3)
            young.until(lambda: young.kubelet.allocatable().get(CORE) == 800)
        finally:
            young.stop_agent()


def test_case_09_a_stopped_plugin_removes_its_sockets(rig: NodeRig) -> None:
    rig.stop_agent()
    assert not [p for p in SOCKETS.values() if (rig.kubelet.device_plugins / p).exists()]
    rig.until(lambda: rig.kubelet.allocatable().get(CORE, 0) == 0)
    assert rig.kubelet.capacity()[CORE] == 800


def test_case_10_after_a_crash_assignments_are_kept_and_nothing_is_granted_twice(rig: NodeRig) -> None:
    pods = [pod(f"p{i}", container("c", 60, 20)) for i in range(8)]
    for one in pods:
        assert rig.admit(one).admitted
    before = [rig.cards_of(one, "c") for one in pods]
    rig.restart_agent()
    assert [rig.cards_of(one, "c") for one in pods] == before
    late = pod("late", container("c", 50, 4))
    assert not rig.admit(late).admitted
    assert rig.admit(pod("fits", container("c", 40, 4))).admitted


def test_case_15_an_unhealthy_card_takes_its_ids_out_of_both_resources_and_back(rig: NodeRig) -> None:
    sick = tuple(replace(s, healthy=s.card.index != 3, reason="XID 79") for s in rig.states)
    rig.state.refit(sick, rig.topology)
    rig.plugin.announce()
    rig.until(lambda: rig.kubelet.allocatable() | {} == {CORE: 700, MEMORY: 448})
    assert rig.kubelet.capacity() == {CORE: 800, MEMORY: 512}
    rig.state.refit(rig.states, rig.topology)
    rig.plugin.announce()
    rig.until(lambda: rig.kubelet.allocatable() == {CORE: 800, MEMORY: 512})


def test_case_16_an_unchanged_list_is_not_sent_again(rig: NodeRig) -> None:
    plugin, channel = stub(rig, CORE)
    with channel:
        stream = plugin.ListAndWatch(api_pb2.Empty(), timeout=1.5)
        assert len(next(stream).devices) == 800
        rig.plugin.announce()
        with pytest.raises(grpc.RpcError) as ended:
            next(stream)
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_case_17_both_resources_of_a_card_name_the_same_numa_node_or_none() -> None:
    states = (
        *cards(1, numa=1),
        *(replace(s, card=replace(s.card, index=1, uuid="GPU-feed")) for s in cards(1)),
    )
    node = NodeCards.of("n", DEFAULT_UNIT, states, Topology.uniform(2, Link(LinkKind.SYS)))
    for resource in (CORE, MEMORY):
        devices = devices_of(resource, KubeletOffer(node))
        by_card = {d.ID.split("-")[0]: [n.ID for n in d.topology.nodes] for d in devices}
        assert sorted(by_card.values()) == [[], [1]]
        assert all(d.HasField("topology") == (d.ID.split("-")[0] == "00000000") for d in devices)


def test_case_19_a_vanished_card_takes_its_ids_away_and_its_pods_stay_booked(rig: NodeRig) -> None:
    one = pod("one", container("c", 30, 20), on={"c": [(rig.states[7], 30, 5 * GIB)]})
    assert rig.admit(one).admitted
    rig.state.refit(rig.states[:7], Topology.uniform(7, Link(LinkKind.SYS)))
    rig.plugin.announce()
    rig.until(lambda: rig.kubelet.capacity()[CORE] == 700)
    held = rig.state.view.ledger.get(one["metadata"]["uid"], "c")
    assert held is not None


def test_case_20_the_fullest_card_that_fits_is_preferred(rig: NodeRig) -> None:
    first = pod("first", container("c", 50, 4), on={"c": [(rig.states[4], 50, GIB)]})
    assert rig.admit(first).admitted
    second = pod("second", container("c", 40, 4))
    result = rig.admit(second)
    assert rig.cards_of(second, "c") == (4,)
    assert len(rig.state.node.ids.cards_of(CORE, result.ids["c"][CORE])) == 1


def test_case_22_whole_cards_are_the_best_joined_ones(tmp_path: Path) -> None:
    sys, nv = Link(LinkKind.SYS), Link(LinkKind.NVLINK, 2)
    me = Link(LinkKind.SELF)
    pairs = {(2, 5), (5, 2)}
    links = tuple(tuple(me if i == j else nv if (i, j) in pairs else sys for j in range(8)) for i in range(8))
    with NodeRig(tmp_path, topology=Topology(links)) as rig:
        two = pod("two", container("c", 200, 0))
        assert rig.admit(two).admitted
        assert rig.cards_of(two, "c") == (2, 5)


def test_a_card_without_memory_of_its_own_is_given_whole_and_never_in_part(tmp_path: Path) -> None:
    unified, usual = cards(2)
    states = (replace(unified, card=replace(unified.card, memory=0)), usual)
    with NodeRig(tmp_path, states) as rig:
        for name, asks, card in (("part", (30, 4), 1), ("whole", (100, 0), 0)):
            one = pod(name, container("c", *asks))
            result = rig.admit(one)
            assert result.admitted, result.message
            assert rig.cards_of(one, "c") == (card,)


def test_case_23_an_internal_fault_gives_an_empty_answer(rig: NodeRig) -> None:
    assert rig.admit(pod("one", container("c", 30, 20))).admitted
    rig.pods.known = None  # type: ignore[assignment]  # nothing could be more broken
    plugin, channel = stub(rig, CORE)
    with channel:
        answer = plugin.GetPreferredAllocation(
            api_pb2.PreferredAllocationRequest(
                container_requests=[
                    api_pb2.ContainerPreferredAllocationRequest(available_deviceIDs=["x"], allocation_size=1)
                ]
            )
        )
    assert [list(r.deviceIDs) for r in answer.container_responses] == [[]]
    assert counts(rig.metrics.preferred_allocation_failures) == {CORE: 1}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_case_21_the_answer_holds_what_must_be_included_has_the_size_and_is_offered(
    rig: NodeRig, data: st.DataObject
) -> None:
    resource = data.draw(st.sampled_from([CORE, MEMORY]))
    every = [d for ids in rig.state.node.ids.of_card[resource].values() for d in ids]
    offered = data.draw(st.lists(st.sampled_from(every), min_size=1, max_size=200, unique=True))
    size = data.draw(st.integers(1, len(offered)))
    must = data.draw(st.lists(st.sampled_from(offered), max_size=size, unique=True))
    answer = rig.allocator.prefer(resource, offered, must, size)
    assert len(answer) == len(set(answer)) == size
    assert set(must) <= set(answer) <= set(offered)


def test_case_31_the_same_id_set_again_gives_the_same_answer(rig: NodeRig) -> None:
    one = pod("one", container("c", 30, 20))
    result = rig.admit(one)
    ids = sorted(result.ids["c"][CORE])
    plugin, channel = stub(rig, CORE)
    with channel:
        again = plugin.Allocate(
            api_pb2.AllocateRequest(container_requests=[api_pb2.ContainerAllocateRequest(devices_ids=ids)])
        )
    assert again.container_responses[0].mounts == result.containers["c"].mounts
    assert len(rig.state.view.grants) == 1


@pytest.mark.parametrize(
    ("ids", "text"),
    [([], "names no container"), ([[]], "no device ids"), ([["nonsense"]], "unknown device id 'nonsense'")],
)
def test_case_32_empty_and_unknown_requests_are_refused_with_a_reason(
    rig: NodeRig, ids: list[list[str]], text: str
) -> None:
    plugin, channel = stub(rig, CORE)
    request = api_pb2.AllocateRequest(
        container_requests=[api_pb2.ContainerAllocateRequest(devices_ids=i) for i in ids]
    )
    with channel, pytest.raises(grpc.RpcError) as refused:
        plugin.Allocate(request)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in refused.value.details()


def test_case_32_two_container_requests_are_both_answered(rig: NodeRig) -> None:
    ids = rig.state.node.ids.of_card[CORE][rig.states[0].card.uuid]
    plugin, channel = stub(rig, CORE)
    parts = [ids[:10], ids[10:30]]
    with channel:
        answer = plugin.Allocate(
            api_pb2.AllocateRequest(
                container_requests=[api_pb2.ContainerAllocateRequest(devices_ids=p) for p in parts]
            )
        )
    assert len(answer.container_responses) == 2


def test_case_40_the_books_are_on_disk_before_the_answer(rig: NodeRig) -> None:
    rig.store.broken = True
    result = rig.admit(pod("one", container("c", 30, 20)))
    assert not result.admitted
    assert "disk" in result.message
    rig.store.broken = False
    assert len(rig.state.view.grants) == 0
    assert rig.admit(pod("two", container("c", 30, 20))).admitted


def test_a_card_that_shrank_below_its_bookings_takes_nothing_more(rig: NodeRig) -> None:
    one = pod("one", container("c", 30, 60), on={"c": [(rig.states[0], 30, 15 * GIB)]})
    assert rig.admit(one).admitted
    small = tuple(
        replace(s, card=replace(s.card, memory=8 * GIB)) if s.card.index == 0 else s for s in rig.states
    )
    rig.state.refit(small, rig.topology)
    two = pod("two", container("c", 10, 4), on={"c": [(rig.states[0], 10, GIB)]})
    assert rig.admit(two).admitted
    assert rig.cards_of(two, "c") != (0,)


@pytest.mark.parametrize("policy", [NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED, NumaPolicy.SINGLE])
def test_a_numa_policy_decides_and_the_annotation_yields(tmp_path: Path, policy: NumaPolicy) -> None:
    states = tuple(replace(s, card=replace(s.card, numa=s.card.index // 4)) for s in cards())
    with NodeRig(tmp_path, states, numa=policy) as rig:
        one = pod("one", container("c", 30, 20), on={"c": [(rig.states[5], 30, 5 * GIB)]})
        result = rig.admit(one)
        assert result.admitted, result.message
        held = rig.state.node.ids.cards_of(CORE, result.ids["c"][CORE])
        (limit,) = rig.limits(result, "c")
        assert held == {limit.card} == rig.state.node.ids.cards_of(MEMORY, result.ids["c"][MEMORY])
        assert {rig.states[i].card.uuid for i in rig.cards_of(one, "c")} == held


def test_a_store_that_cannot_be_written_is_the_operators_trouble(rig: NodeRig) -> None:
    rig.store.broken = True
    with pytest.raises(NodeUnready, match="ledger"):
        rig.state.confirm([])
