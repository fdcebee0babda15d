"""Exact association on the kubelet stand-in: spec association.md section 6, and cases 24 to 38 of kubelet.md."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.adapters.kubelet.client import KubeletClient
from gpu_manager.domain.contract import ALLOCATION, CORE, MEMORY
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB
from gpu_manager.ports.records import PodResourcesEntry
from sandbox.kubelet import Limiter, Step
from tests.fakes.metrics import counts
from tests.fakes.node import NodeRig, container, pod


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[NodeRig]:
    with NodeRig(tmp_path) as node:
        yield node


def core_first(resources: Sequence[str]) -> list[str]:
    return sorted(resources)


def memory_first(resources: Sequence[str]) -> list[str]:
    return sorted(resources, reverse=True)


@pytest.mark.parametrize("order", [core_first, memory_first])
def test_case_24_the_second_resource_follows_the_first_ones_card_in_both_orders(
    rig: NodeRig, order: Any
) -> None:
    rig.kubelet.hooks.order = order
    one = pod("one", container("c", 30, 20), on={"c": [(rig.states[3], 30, 20 * DEFAULT_UNIT)]})
    result = rig.admit(one)
    assert result.admitted, result.message
    card = rig.states[3].card.uuid
    for resource, count in ((CORE, 30), (MEMORY, 20)):
        ids = result.ids["c"][resource]
        assert len(ids) == count
        assert rig.state.node.ids.cards_of(resource, ids) == {card}
    (limit,) = rig.limits(result, "c")
    assert (limit.card, limit.cores, limit.memory) == (card, 30, 5 * GIB)


def test_case_25_the_annotation_is_followed_and_yields_when_it_does_not_fit(rig: NodeRig) -> None:
    full = pod("full", container("c", 80, 4), on={"c": [(rig.states[2], 80, GIB)]})
    assert rig.admit(full).admitted
    assert rig.cards_of(full, "c") == (2,)
    second = pod("second", container("c", 30, 4), on={"c": [(rig.states[2], 30, GIB)]})
    assert rig.admit(second).admitted
    assert rig.cards_of(second, "c") != (2,)
    assert counts(rig.metrics.annotation_overridden) == {"": 1}


@pytest.mark.parametrize("order", [core_first, memory_first])
def test_a_silent_rejection_between_core_and_memory_does_not_mislead(rig: NodeRig, order: Any) -> None:
    """The next pod's call looks exactly like the rejected one's second resource."""
    rig.kubelet.hooks.order = order
    ghost = pod("ghost", container("c", 30, 20), on={"c": [(rig.states[1], 30, 5 * GIB)]})
    second = order([CORE, MEMORY])[1]
    rejected: list[str] = []

    def refuse(step: Step) -> None:
        if step.name == "resource" and step.resource == second and step.pod == ghost["metadata"]["uid"]:
            rejected.append(step.resource)
            raise NodeUnready("the CPU manager has no room")

    rig.kubelet.hooks.before = refuse
    assert not rig.admit(ghost).admitted
    assert rejected == [second]
    heir = pod("heir", container("c", 30, 20), on={"c": [(rig.states[6], 30, 5 * GIB)]})
    result = rig.admit(heir)
    assert result.admitted, result.message
    assert rig.cards_of(heir, "c") == (6,)
    assert rig.limits(result, "c")[0].card == rig.states[6].card.uuid


def test_case_33_what_the_rejected_pod_was_granted_comes_back(rig: NodeRig) -> None:
    rig.kubelet.set_foreign("x.io/rdma", 0)
    ghost = pod("ghost", container("c", 90, 20))
    ghost["spec"]["containers"][0]["resources"]["limits"]["x.io/rdma"] = 1
    rig.kubelet.hooks.order = lambda names: sorted(names, key=lambda n: n == "x.io/rdma")
    rig.kubelet.set_foreign("x.io/rdma", 1)
    rig.kubelet.publish_node()
    taker = pod("taker")
    taker["spec"]["containers"] = [{"name": "t", "resources": {"limits": {"x.io/rdma": 1}}}]
    rig.kubelet.hooks.before = _fail_for("x.io/rdma", ghost)
    assert not rig.admit(ghost).admitted
    follower = pod("follower", container("c", 10, 4))
    assert rig.admit(follower).admitted
    held = [a.pod_name for a in rig.state.view.ledger]
    assert held == ["follower"]


def _fail_for(resource: str, obj: dict[str, Any]) -> Any:
    def fail(step: Step) -> None:
        if step.name == "resource" and step.resource == resource and step.pod == obj["metadata"]["uid"]:
            raise NodeUnready("no devices left")

    return fail


def test_case_36_equal_pods_admitted_in_another_order_get_their_own_cards(rig: NodeRig) -> None:
    pods = [pod(f"p{i}", container("c", 30, 20), on={"c": [(rig.states[i], 30, 5 * GIB)]}) for i in range(8)]
    for one in pods:
        rig.pods.bind(parse_pod(one))
    for i in (5, 2, 7, 0, 3, 6, 1, 4):
        result = rig.kubelet.admit(pods[i])
        assert result.admitted
        assert rig.cards_of(pods[i], "c") == (i,)
        rig.start(pods[i])
        assert rig.limits(result, "c")[0].card == rig.states[i].card.uuid


def test_case_37_a_pod_unknown_to_the_watch_is_asked_for_directly(rig: NodeRig) -> None:
    late = pod("late", container("c", 30, 20), on={"c": [(rig.states[4], 30, 5 * GIB)]})
    assert rig.admit(late, watched=False).admitted
    assert rig.cards_of(late, "c") == (4,)


def test_a_namesake_behind_a_late_watch_is_not_taken_for_the_new_pod(rig: NodeRig) -> None:
    old = pod("same", container("c", 30, 20), on={"c": [(rig.states[1], 30, 5 * GIB)]})
    assert rig.admit(old).admitted
    rig.start(old)
    rig.kubelet.delete(old["metadata"]["uid"])
    rig.pods.forget("default/same", watched=False)
    new = pod("same", container("c", 30, 20), on={"c": [(rig.states[5], 30, 5 * GIB)]})
    assert rig.admit(new, watched=False).admitted
    assert rig.cards_of(new, "c") == (5,)


@pytest.mark.parametrize("watched", [True, False])
def test_a_pod_that_was_deleted_before_its_admission_takes_nobodys_room_and_closes_nothing(
    rig: NodeRig, watched: bool
) -> None:
    """The kubelet is seconds behind the API: by then the room is another pod's, by its scheduler's word."""
    states = rig.states
    gone = pod("gone", container("c", 60, 20), on={"c": [(states[2], 60, 5 * GIB)]})
    rig.pods.bind(parse_pod(gone))
    rig.state.introduce(parse_pod(gone))
    rig.pods.forget("default/gone", watched=watched)
    heirs = [pod(f"heir{i}", container("c", 60, 20), on={"c": [(states[i], 60, 5 * GIB)]}) for i in range(8)]
    for heir in heirs:
        rig.pods.bind(parse_pod(heir), watched=watched or heir is not heirs[2])
    ghost = rig.kubelet.admit(gone)
    assert not ghost.admitted
    assert "was deleted before the kubelet admitted it" in ghost.message
    for i, heir in enumerate(heirs):
        assert rig.kubelet.admit(heir).admitted
        assert rig.cards_of(heir, "c") == (i,)
    assert rig.allocator.refused() == ()
    assert rig.pods.events == []
    assert counts(rig.metrics.allocations) == {"deleted": 1, "granted": 16}


def test_of_a_pod_that_was_deleted_before_the_agent_began_the_kubelets_list_is_proof_enough(
    rig: NodeRig,
) -> None:
    """All that can be read have what they ask for. Its name may be another pod's a moment later."""
    beside = pod("beside", container("c", 30, 20))
    assert rig.admit(beside).admitted
    ghost = rig.kubelet.admit(pod("same", container("c", 60, 20)))
    assert not ghost.admitted
    assert "was deleted before the kubelet admitted it" in ghost.message
    assert counts(rig.metrics.preferred_allocation_unidentified) == {}
    assert rig.admit(pod("same", container("c", 60, 20)), watched=False).admitted


def test_where_the_api_server_does_not_answer_nobody_is_taken_for_deleted(rig: NodeRig) -> None:
    rig.pods.away = True
    assert rig.kubelet.admit(pod("one", container("c", 60, 20))).admitted


def test_a_pod_that_is_being_deleted_gets_no_card_any_more(rig: NodeRig) -> None:
    going = pod("going", container("c", 60, 20), on={"c": [(rig.states[2], 60, 5 * GIB)]})
    rig.pods.bind(parse_pod(going))
    rig.state.introduce(parse_pod(going))
    going["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    rig.pods.bind(parse_pod(going))
    assert not rig.kubelet.admit(going).admitted
    assert list(rig.state.view.ledger) == []
    assert rig.allocator.refused() == ()


def test_a_pod_that_is_deleted_between_its_two_resources_keeps_the_card_that_it_has(rig: NodeRig) -> None:
    one = pod("one", container("c", 60, 20), on={"c": [(rig.states[5], 60, 5 * GIB)]})
    rig.kubelet.hooks.after = lambda step: (
        rig.pods.forget("default/one") if step.name == "Allocate" and step.resource == CORE else None
    )
    assert rig.admit(one).admitted
    assert rig.cards_of(one, "c") == (5,)
    assert rig.allocator.refused() == ()


def test_crash_looping_pods_without_devices_do_not_hide_an_equal_new_pod(tmp_path: Path) -> None:
    rig = NodeRig(tmp_path)
    rig.kubelet.start()
    old = [pod(f"old{i}", container("c", 30, 20)) for i in range(6)]
    for one in old:
        one["status"] = {"phase": "Running", "startTime": "2026-11-20T00:00:00Z"}
        rig.pods.bind(parse_pod(one))
        assert rig.kubelet.admit(one).admitted
    rig.start_agent()
    try:
        new = pod("new", container("c", 30, 20), on={"c": [(rig.states[3], 30, 5 * GIB)]})
        assert rig.admit(new).admitted
        assert rig.cards_of(new, "c") == (3,)
    finally:
        rig.stop_agent()
        rig.kubelet.stop()


def test_case_38_the_limiter_hogged_by_another_client_delays_and_does_not_mislead(rig: NodeRig) -> None:

    stop = threading.Event()

    def hog() -> None:
        client = KubeletClient(rig.kubelet.device_plugins, rig.kubelet.pod_resources, deadline=0.02)
        while not stop.is_set():
            try:
                client.listing()
            except NodeUnready:
                continue
        client.close()

    thread = threading.Thread(target=hog)
    thread.start()
    try:
        for i in range(8):
            one = pod(f"p{i}", container("c", 30, 20), on={"c": [(rig.states[7 - i], 30, 5 * GIB)]})
            assert rig.admit(one).admitted
            assert rig.cards_of(one, "c") == (7 - i,)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("order", [core_first, memory_first])
def test_case_38_a_kubelet_that_does_not_list_its_pods_costs_the_name_and_not_the_card(
    tmp_path: Path, order: Any
) -> None:
    """One pod alone could be meant: its card is taken, its name waits for the start."""
    with NodeRig(tmp_path, limiter=Limiter(rate=0.001, burst=0), list_seconds=0.05) as rig:
        rig.kubelet.hooks.order = order
        for card in (5, 2, 7):
            one = pod(f"p{card}", container("c", 30, 20), on={"c": [(rig.states[card], 30, 5 * GIB)]})
            result = rig.admit(one)
            assert result.admitted, result.message
            rig.start(one)
            assert rig.cards_of(one, "c") == (card,)
            (limit,) = rig.limits(result, "c")
            assert (limit.card, limit.cores, limit.memory) == (rig.states[card].card.uuid, 30, 5 * GIB)
        assert counts(rig.metrics.preferred_allocation_unidentified) == {CORE: 3, MEMORY: 3}
        booked = [a.shares[0].amount for a in rig.state.view.ledger]
        assert [(a.cores, a.memory) for a in booked] == [(30, 5 * GIB)] * 3


def test_several_containers_each_get_their_own_card_and_limits(rig: NodeRig) -> None:
    two = pod(
        "two",
        container("a", 30, 20),
        container("b", 30, 8),
        on={"a": [(rig.states[1], 30, 5 * GIB)], "b": [(rig.states[2], 30, 2 * GIB)]},
    )
    result = rig.admit(two)
    assert result.admitted
    assert (rig.cards_of(two, "a"), rig.cards_of(two, "b")) == ((1,), (2,))
    assert [limit.memory for name in "ab" for limit in rig.limits(result, name)] == [5 * GIB, 2 * GIB]


@pytest.mark.parametrize("first", [20, 30, 50])
def test_case_29_an_init_container_hands_its_ids_on_and_each_has_its_own_limits(
    rig: NodeRig, first: int
) -> None:
    one = pod("one", container("app", 30, 20), init=[container("init", first, 8)])
    result = rig.admit(one)
    assert result.admitted, result.message
    assert rig.cards_of(one, "init") == rig.cards_of(one, "app")
    rig.start(one)
    assert [rig.limits(result, n)[0].cores for n in ("init", "app")] == [first, 30]
    assert [rig.limits(result, n)[0].memory for n in ("init", "app")] == [2 * GIB, 5 * GIB]
    booked = rig.state.view.ledger.booked(rig.states[rig.cards_of(one, "app")[0]].card.uuid)
    assert (booked.cores, booked.memory) == (max(first, 30), 5 * GIB)


def test_case_30_a_sidecar_keeps_its_ids(rig: NodeRig) -> None:
    one = pod("one", container("app", 30, 20), init=[container("side", 30, 8, sidecar=True)])
    result = rig.admit(one)
    assert result.admitted
    assert not result.ids["side"][CORE] & result.ids["app"][CORE]


def test_an_init_container_on_another_card_than_the_app_is_refused_at_admission(rig: NodeRig) -> None:
    split = pod(
        "split",
        container("app", 30, 20),
        init=[container("init", 30, 20)],
        on={"init": [(rig.states[0], 30, 5 * GIB)], "app": [(rig.states[1], 30, 5 * GIB)]},
    )
    result = rig.admit(split)
    assert result.admitted, "an impossible assignment yields"
    assert rig.cards_of(split, "init") == rig.cards_of(split, "app")


def test_whole_cards_are_taken_exclusively(rig: NodeRig) -> None:
    small = pod("small", container("c", 10, 4))
    assert rig.admit(small).admitted
    big = pod("big", container("c", 200, 0))
    result = rig.admit(big)
    assert result.admitted, result.message
    assert len(rig.cards_of(big, "c")) == 2
    assert not set(rig.cards_of(big, "c")) & set(rig.cards_of(small, "c"))
    assert len(rig.state.node.ids.cards_of(CORE, result.ids["c"][CORE])) == 2


def test_case_34_a_refusal_is_the_pods_message_and_the_next_pod_is_fine(rig: NodeRig) -> None:
    bad = pod("bad", container("c", 30, 0))
    result = rig.admit(bad)
    assert (result.admitted, result.reason) == (False, "UnexpectedAdmissionError")
    assert 'container "c"' in result.message
    assert MEMORY in result.message
    assert [e for e in rig.pods.events if e[1] == "VcudaRefused"]
    assert rig.admit(pod("good", container("c", 30, 4))).admitted


def test_a_container_larger_than_any_room_is_refused_with_the_arithmetic(rig: NodeRig) -> None:
    for i in range(8):
        assert rig.admit(pod(f"p{i}", container("c", 60, 4), on={"c": [(rig.states[i], 60, GIB)]})).admitted
    result = rig.admit(pod("late", container("c", 50, 4)))
    assert not result.admitted
    assert "40" in result.message
    assert "card" in result.message


def test_the_truth_is_written_back_with_the_predecessors_keys(rig: NodeRig) -> None:
    one = pod("one", container("c", 30, 20))
    assert rig.admit(one).admitted
    rig.start(one)
    written = rig.pods.annotations[PodUid(one["metadata"]["uid"])]
    (index,) = rig.cards_of(one, "c")
    assert written["tencent.com/predicate-gpu-idx-0"] == str(index)
    assert written["tencent.com/gpu-assigned"] == "true"
    assert ALLOCATION in written
    assert any(reason == "VcudaAllocated" and f"card {index}" in text for _, reason, text in rig.pods.events)


def test_case_42_ids_that_the_checkpoint_does_not_show_do_not_start(rig: NodeRig) -> None:
    one = pod("one", container("c", 30, 20))
    assert rig.admit(one).admitted
    rig.kubelet.checkpoint_path.write_text(
        '{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{}},"Checksum":0}'
    )
    with pytest.raises(NodeUnready, match="checkpoint"):
        rig.start(one)


def test_case_41_43_a_restarted_container_is_proven_again_and_starts_from_zero(rig: NodeRig) -> None:
    one = pod("one", container("c", 30, 20))
    result = rig.admit(one)
    rig.start(one)
    rig.kubelet.start_container(one["metadata"]["uid"], "c")
    name = Path(result.containers["c"].mounts[0].host_path).parent.name
    assert rig.tenants.resets == [name, name]
    assert len([e for e in rig.pods.events if e[1] == "VcudaAllocated"]) == 1


def test_case_35_concurrent_allocates_keep_the_books_consistent(rig: NodeRig) -> None:

    node = rig.state.node
    ids = node.ids.of_card[CORE][rig.states[0].card.uuid]
    errors: list[BaseException] = []

    def take(part: tuple[str, ...]) -> None:
        try:
            rig.allocator.allocate(CORE, part)
        except BaseException as error:  # noqa: BLE001  # the test reports it
            errors.append(error)

    threads = [threading.Thread(target=take, args=(ids[i * 10 : i * 10 + 10],)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    booked = rig.state.view.ledger.booked(rig.states[0].card.uuid)
    assert booked.cores == 100


def test_a_tombstone_of_another_shape_does_not_stand_beside_its_running_namesake(rig: NodeRig) -> None:
    old = pod("same", container("a", 30, 4), container("b", 30, 4))
    assert rig.admit(old).admitted
    rig.delete(old)
    new = pod("same", container("c", 30, 8))
    assert rig.admit(new).admitted
    other = pod("other", container("a", 30, 4))
    assert rig.admit(other).admitted
    assert rig.cards_of(other, "a") != ()
    assert counts(rig.metrics.preferred_allocation_unidentified) == {}


def test_an_unidentified_grant_gets_its_name_and_amounts_at_the_start(rig: NodeRig) -> None:
    """Two pods that cannot be told apart: nobody is picked, the checkpoint settles it."""
    double = pod("double", container("c", 30, 20))
    rig.pods.bind(parse_pod(double))
    ghost = pod("ghost", container("c", 30, 8))
    rig.kubelet.hooks.before = lambda step: rig.pods.bind(parse_pod(ghost))
    listing = rig.client.listing

    def doubled() -> Any:
        seen = dict(listing())
        seen["default", "ghost"] = [PodResourcesEntry("default", "ghost", "c", {})]
        return seen

    rig.client.listing = doubled  # type: ignore[method-assign]  # the kubelet cannot be made to list a ghost
    result = rig.kubelet.admit(double)
    assert result.admitted, result.message
    assert counts(rig.metrics.preferred_allocation_unidentified) != {}
    rig.start(double)
    (limit,) = rig.limits(result, "c")
    assert (limit.cores, limit.memory) == (30, 5 * GIB)
    held = [(a.pod_name, a.container) for a in rig.state.view.ledger if a.granted]
    assert held == [("double", "c")]
