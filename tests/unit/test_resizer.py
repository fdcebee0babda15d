"""Running fractions change their size: booked before it is in force, and given back only once it is free."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.contract import (
    ALLOCATION,
    CORE,
    EVENT_RESIZE_WAITS,
    EVENT_RESIZED,
    MEMORY,
    decode_assignment,
)
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.pb.deviceplugin.v1beta1.api_pb2 import Empty
from gpu_manager.ports.control_pages import Limit
from gpu_manager.servers.device_plugin import LIST_SECONDS, ResourceServer
from gpu_manager.services.enforcement.usage_sample import Sample
from gpu_manager.services.recovery.reclaimer import LOOK_SECONDS, SETTLE_SECONDS
from tests.fakes.node import container, pod
from tests.fakes.ports import cards
from tests.fakes.resizing import ResizingRig

UNITS = 64  # of one card of 16 GiB


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ResizingRig]:
    with ResizingRig(tmp_path, states=cards()[:2]) as node:
        yield node


def test_a_growth_is_booked_in_force_withdrawn_and_written_back_at_once(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 8)
    all_cores, all_units = rig.allocatable()
    rig.answer(one, 50, 20)
    assert rig.booked(one) == rig.in_force(one) == (50, 20)
    assert rig.allocatable() == (all_cores - 20, all_units - 12)
    written = decode_assignment(rig.pods.annotations[PodUid(one["metadata"]["uid"])][ALLOCATION])
    assert written is not None
    ((_, amount),) = written.containers["c"]
    assert (amount.cores, amount.memory) == (50, 20 * DEFAULT_UNIT)
    assert rig.pods.events[-1][1:] == (EVENT_RESIZED, 'container "c" has 50 cores, 5 GiB of card 0 now')


def test_no_withdrawn_id_is_held_and_the_grown_card_gives_its_own_first(rig: ResizingRig) -> None:
    one, two = rig.run("one", 30, 8), rig.run("two", 60, 8)
    rig.answer(one, 40, 8)
    withdrawn = rig.state.offer.withdrawn
    assert {r: len(ids) for r, ids in withdrawn.items()} == {CORE: 10}
    assert not withdrawn[CORE] & {d for held in rig.listed().values() for d in held.get(CORE, ())}
    card = rig.state.view.grants[PodUid(one["metadata"]["uid"]), "c"].allocation.cards[0]
    assert rig.state.node.ids.cards_of(CORE, withdrawn[CORE]) == {card}
    rig.delete(two)


def test_a_node_that_is_grown_full_admits_what_still_fits_and_no_more(rig: ResizingRig) -> None:
    """The kubelet counts a node: a pod that no card has room for is not even tried."""
    one = rig.run("one", 30, 8)
    rig.answer(one, 99, 60)
    assert rig.allocatable()[0] == 200 - 69
    assert rig.admit(pod("whole", container("c", 100, 0))).admitted
    refused = rig.admit(pod("late", container("c", 2, 1)))
    assert "devices unavailable for tencent.com/vcuda-core. Requested: 2, Available: 1" in refused.message
    assert rig.admit(pod("small", container("c", 1, 1))).admitted


def test_a_planned_pod_keeps_the_ids_that_it_will_need(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 8)
    later = pod("later", container("c", 40, 8), on={"c": [(rig.states[0], 40, 8)]})
    rig.state.introduce(rig.parsed(later))
    rig.answer(one, 60, 8)
    assert rig.booked(one) == (60, 8)
    assert rig.admit(later).admitted


def test_a_growth_that_finds_no_room_waits_and_comes_when_there_is(rig: ResizingRig) -> None:
    one, two = rig.run("one", 30, 8), rig.run("two", 60, 8)
    rig.answer(one, 60, 8)
    assert rig.booked(one) == rig.in_force(one) == (30, 8)
    rig.second()
    waits = [text for _, reason, text in rig.pods.events if reason == EVENT_RESIZE_WAITS]
    assert ["the booking would leave" in text for text in waits] == [True]
    rig.delete(two)
    rig.objects.pop("two")
    rig.state.release([(PodUid(two["metadata"]["uid"]), "c")])
    rig.second()
    assert rig.booked(one) == rig.in_force(one) == (60, 8)


def test_fewer_cores_are_in_force_before_they_are_given_back(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 8)
    rig.store.broken = True
    rig.answer(one, 10, 8)
    assert rig.in_force(one)[0] == 10, "the page comes first"
    rig.store.broken = False
    rig.second()
    assert rig.booked(one) == rig.in_force(one) == (10, 8)
    assert rig.allocatable() == (200, 2 * UNITS), (
        "the ids below its spec stay its own: the kubelet counts them"
    )


def _written(rig: ResizingRig, obj: dict[str, Any]) -> tuple[int, int]:
    """Cores and units in the pod's annotation, which the scheduler counts."""
    said = decode_assignment(rig.pods.annotations[PodUid(obj["metadata"]["uid"])][ALLOCATION])
    assert said is not None
    ((_, amount),) = said.containers["c"]
    return amount.cores, amount.memory // DEFAULT_UNIT


def test_what_is_given_back_on_a_full_disk_is_told_to_the_scheduler(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 20)
    rig.program(one, 4)
    rig.second()
    rig.answer(one, 30, 8)
    rig.store.broken = True
    rig.second()
    assert rig.booked(one) == (30, 8)
    rig.store.broken = False
    rig.second()
    assert _written(rig, one) == (30, 8)
    assert rig.pods.events[-1][1] == EVENT_RESIZED


def test_a_growth_whose_page_is_written_late_is_told_to_the_scheduler(
    rig: ResizingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for that before it answers the next request."""
    one = rig.run("one", 30, 20)

    def torn(_name: str, _limits: Sequence[Limit]) -> None:
        raise NodeUnready("the page is torn")

    with monkeypatch.context() as patch:
        patch.setattr(rig.tenants, "open", torn)
        rig.answer(one, 50, 20)
    rig.second()
    assert rig.booked(one) == rig.in_force(one) == _written(rig, one) == (50, 20)


def test_memory_is_given_back_as_the_program_frees_it_and_never_taken(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 20)
    rig.program(one, 15.5)
    rig.second()
    rig.answer(one, 30, 8)
    assert (rig.in_force(one), rig.booked(one)) == ((30, 16), (30, 20)), "lowered, and still booked"
    rig.second()
    assert (rig.in_force(one), rig.booked(one)) == ((30, 16), (30, 16))
    for units, expected in ((16, 16), (16, 16), (12, 12), (9.5, 10), (3, 8)):
        rig.program(one, units)
        rig.second()
        assert rig.in_force(one) == (30, expected)
        assert rig.booked(one)[1] >= expected
        rig.second()
        assert rig.booked(one) == (30, expected)
    assert rig.pods.events[-1][1] == EVENT_RESIZED
    waits = [text for _, reason, text in rig.pods.events if reason == EVENT_RESIZE_WAITS]
    assert (
        waits[0]
        == 'container "c" is not at 30 cores, 2 GiB yet: it waits until 2 GiB of its memory are freed'
    )


def test_a_shrink_that_has_nothing_to_wait_for_tells_of_no_wait(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 20)
    rig.program(one, 4)
    rig.second()
    rig.answer(one, 20, 8)
    rig.second()
    assert rig.booked(one) == rig.in_force(one) == (20, 8)
    assert [reason for _, reason, _ in rig.pods.events if reason.startswith("VcudaResize")] == [EVENT_RESIZED]


def test_what_the_driver_counts_beyond_the_page_is_not_given_back(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 20)
    rig.program(one, 4, beyond=3)
    rig.second()
    rig.answer(one, 30, 4)
    for _ in range(3):
        rig.second()
    assert rig.booked(one) == rig.in_force(one) == (30, 7)
    rig.program(one, 4)
    rig.second()
    rig.second()
    assert rig.booked(one) == rig.in_force(one) == (30, 4)


def test_memory_that_came_between_look_and_limit_stays_booked(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 20)
    rig.program(one, 4)
    rig.second()
    rig.answer(one, 30, 8)
    rig.program(one, 19)  # it allocated before it saw the lower limit
    for _ in range(3):
        rig.second()
    assert (rig.in_force(one), rig.booked(one)) == ((30, 8), (30, 20))
    rig.program(one, 8)
    rig.second()
    rig.second()
    assert rig.booked(one) == (30, 8)


def test_nothing_is_given_back_of_what_cannot_be_seen(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 20)
    rig.answer(one, 30, 8)
    rig.sample = Sample(rig.clock.monotonic())
    rig.resizer.look()
    assert (rig.in_force(one), rig.booked(one)) == ((30, 20), (30, 20))
    rig.tenants.tampered.add(next(iter(rig.tenants.limits)))
    rig.second()
    assert (rig.in_force(one), rig.booked(one)) == ((30, 20), (30, 20))
    rig.tenants.tampered.clear()
    rig.second()
    rig.second()
    assert rig.booked(one) == rig.in_force(one) == (30, 8)


def test_a_shrink_that_is_taken_back_gives_the_limit_back(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 20)
    rig.program(one, 15)
    rig.second()
    rig.answer(one, 30, 8)
    assert rig.in_force(one) == (30, 15)
    rig.answer(one, 30, 20)
    assert rig.booked(one) == rig.in_force(one) == (30, 20)
    rig.second()
    assert rig.booked(one) == (30, 20)


def test_more_cores_and_less_memory_in_one_change(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 20)
    rig.answer(one, 50, 8)
    assert (rig.in_force(one), rig.booked(one)) == ((50, 20), (50, 20))
    rig.second()
    rig.second()
    assert rig.booked(one) == rig.in_force(one) == (50, 8)


@pytest.mark.parametrize("cap", [True, False])
def test_restarts_of_agent_container_and_kubelet_keep_the_size(rig: ResizingRig, cap: bool) -> None:
    one = rig.run("one", 30, 20)
    rig.answer(one, 60, 30)
    if cap:
        rig.program(one, 25)
        rig.second()
        rig.answer(one, 60, 8)
    before = rig.booked(one), rig.in_force(one), rig.allocatable()
    rig.restart_agent()
    rig.kubelet.start_container(one["metadata"]["uid"], "c")
    assert (rig.booked(one), rig.in_force(one), rig.allocatable()) == before
    rig.kubelet.restart()
    rig.plugin.register()
    assert rig.allocatable() == before[2]
    if cap:
        rig.program(one, 5)
        for _ in range(3):
            rig.second()
        assert rig.booked(one) == rig.in_force(one) == (60, 8)


def test_a_page_that_cannot_be_written_is_written_at_the_next_look(
    rig: ResizingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = rig.run("one", 30, 8)

    def refuse(name: str, limits: Sequence[Limit]) -> None:
        raise NodeUnready("the page cannot be written")

    with monkeypatch.context() as broken:
        broken.setattr(rig.tenants, "open", refuse)
        rig.answer(one, 50, 8)
    assert (rig.booked(one), rig.in_force(one)) == ((50, 8), (30, 8))
    rig.second()
    assert rig.in_force(one) == (50, 8)


def test_a_full_disk_keeps_a_growth_from_being_in_force(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 8)
    rig.store.broken = True
    rig.answer(one, 50, 8)
    assert rig.booked(one) == rig.in_force(one) == (30, 8)
    rig.store.broken = False
    rig.second()
    assert rig.booked(one) == rig.in_force(one) == (50, 8)


def test_an_answer_that_came_before_the_admission_is_followed_after_it(rig: ResizingRig) -> None:
    one = pod("one", container("c", 30, 8))
    rig.pods.bind(rig.parsed(one))
    rig.answer(one, 50, 8)
    assert rig.admit(one).admitted
    rig.second()
    assert rig.booked(one) == rig.in_force(one) == (50, 8)


def test_what_ended_is_forgotten_and_gives_its_ids_back(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 8)
    rig.answer(one, 50, 20)
    rig.answer(one, 50, 8)
    rig.delete(one)
    rig.state.release([(PodUid(one["metadata"]["uid"]), "c")])
    rig.second()
    assert rig.allocatable() == (200, 2 * UNITS)
    assert not rig.state.withdrawing
    ended = {**one, "status": {"phase": "Succeeded"}}
    rig.resizer.follow(rig.parsed(ended))
    assert rig.allocatable() == (200, 2 * UNITS)


def test_the_ids_of_a_deleted_pod_that_had_grown_come_back_within_seconds(rig: ResizingRig) -> None:
    one, two = rig.run("one", 30, 8), rig.run("two", 20, 8)
    rig.answer(one, 50, 20)
    rig.clock.pass_(SETTLE_SECONDS + 1)
    for _ in range(3):
        rig.reclaimer.look()
    assert rig.booked(one) == (50, 20), "a pod that is there keeps what it has"
    rig.delete(one)
    assert rig.reclaimer.look() == (), "one look is no proof"
    rig.clock.pass_(LOOK_SECONDS)
    (freed,) = rig.reclaimer.look()
    assert freed.pod == one["metadata"]["uid"]
    assert rig.allocatable() == (200, 2 * UNITS)
    assert rig.booked(two) == (20, 8)


def test_a_card_that_is_closed_for_its_health_withdraws_nothing_of_the_others(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 8)
    rig.answer(one, 50, 8)
    rig.state.refit((replace(rig.states[0], healthy=False), rig.states[1]), rig.topology)
    assert rig.allocatable() == (100, UNITS)


def test_a_shrink_cancels_a_growth(rig: ResizingRig) -> None:
    """The kubelet counts the whole node."""
    one, two = rig.run("one", 30, 8), rig.run("two", 30, 8)
    rig.answer(one, 20, 8)
    assert rig.allocatable() == (200, 2 * UNITS)
    rig.answer(two, 45, 8)
    assert rig.allocatable() == (195, 2 * UNITS)


def test_an_id_that_is_handed_out_at_that_moment_is_replaced_by_another(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 8)
    rig.answer(one, 40, 8)
    taken = sorted(rig.state.offer.withdrawn[CORE])[:5]
    # The kubelet chose these before it heard of it, and another pod's Allocate comes with them.
    two = pod("two", container("c", 5, 1))
    rig.pods.bind(rig.parsed(two))
    rig.allocator.allocate(CORE, taken)
    withdrawn = rig.state.offer.withdrawn[CORE]
    assert len(withdrawn) == 10
    assert not withdrawn & set(taken)


def test_whole_cards_and_init_containers_keep_their_size(rig: ResizingRig) -> None:
    one = pod("one", container("c", 100, 0), container("d", 10, 4))
    assert rig.admit(one).admitted
    rig.start(one)
    rig.answer(one, 50, 8)
    assert rig.booked(one) == (100, UNITS)
    rig.answer(one, 20, 4, name="d")
    assert rig.booked(one, "d") == (20, 4)
    assert rig.allocatable() == (190, 2 * UNITS)
    assert {r: len(i) for r, i in rig.state.offer.withdrawn.items()} == {CORE: 10}
    assert MEMORY not in rig.state.offer.withdrawn


class Call:
    """A gRPC call that goes on."""

    def add_callback(self, callback: Any) -> bool:
        return True

    def is_active(self) -> bool:
        return True


def test_the_kubelet_is_sent_at_most_one_list_a_second_for_withdrawn_ids(rig: ResizingRig) -> None:
    """It rewrites its checkpoint at each. A card that fails does not wait."""
    one = rig.run("one", 30, 8)
    proof: Any = None
    server = ResourceServer(CORE, rig.state, rig.allocator, proof, rig.metrics, threading.Event())
    call: Any = Call()
    lists = server.ListAndWatch(Empty(), call)

    def healthy() -> int:
        return sum(d.health == "Healthy" for d in next(lists).devices)

    assert healthy() == 200
    before = time.monotonic()
    rig.answer(one, 40, 8)
    rig.answer(one, 45, 8)
    assert (healthy(), time.monotonic() - before >= LIST_SECONDS) == (185, True)
    rig.answer(one, 40, 8)
    states = rig.states[0], replace(rig.states[1], healthy=False)
    rig.state.refit(states, rig.topology)
    assert healthy() == 90
    server.stop()
    assert list(lists) == []
