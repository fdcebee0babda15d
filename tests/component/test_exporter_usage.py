"""Figures of cards and containers on /metric: where they come from, which are absent, nothing stale."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.ports.cards import CardUse, ProcessUse
from gpu_manager.ports.control_pages import TenantUse
from gpu_manager.services.billing import SAVE_SECONDS
from tests.fakes import scraped_node
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeClock
from tests.fakes.scraped_node import Board, grant
from tests.fakes.state import put

board = scraped_node.board


def test_request_and_limits_are_there_before_the_first_sample(board: Board) -> None:
    board.admit("part", 30, 20)
    assert board.of("container_request_gpu_memory", pod_name="part") == [5120]
    assert board.of("vcuda_container_core_limit_ratio", pod="part") == [0.3]
    assert board.of("vcuda_container_memory_used_bytes", pod="part") == [0], "its page is empty"
    board.admit("whole", 100, 0)
    assert board.of("vcuda_container_memory_used_bytes", pod="whole") == [], "nobody has looked yet"
    assert board.of("vcuda_container_enforcement", pod="whole", state="exclusive") == [1]


def test_a_released_pod_leaves_no_series_behind(board: Board) -> None:
    one = board.admit("gone", 30, 20)
    board.usage.sample()
    assert board.of("vcuda_container_core_limit_ratio", pod="gone")
    uid = PodUid(one["metadata"]["uid"])  # type: ignore[index]  # a pod object
    board.rig.state.forget_pod(uid)
    assert board.of("vcuda_container_core_limit_ratio") == board.of("container_request_gpu_memory") == [], (
        "not even before the next sample"
    )


def test_what_the_driver_cannot_tell_has_no_series(board: Board) -> None:
    board.admit("whole", 100, 0)
    first, second = (s.card.uuid for s in board.rig.states[:2])
    silent = {"lists_processes": False, "samples_processes": False}
    board.cards.uses = [CardUse(first, None, None, **silent), CardUse(second, GIB, None, **silent)]
    board.usage.sample()
    assert board.of("vcuda_card_memory_used_bytes") == [GIB]
    assert board.of("vcuda_card_utilization_ratio") == []
    assert board.of("vcuda_container_memory_used_bytes") == []
    assert board.of("container_gpu_memory_total") == []
    assert len(board.of("vcuda_card_memory_total_bytes")) == 8
    board.cards.lost = True
    board.usage.sample()
    assert board.of("vcuda_card_memory_used_bytes") == []
    assert board.of("vcuda_scrape_errors_total", source="cards") == [1]


def test_the_memory_of_a_card_that_has_none_of_its_own_is_absent(board: Board) -> None:
    """As of GB10, which works in the host's memory."""
    states = [replace(s, card=replace(s.card, memory=0)) for s in board.rig.states[:1]]
    board.rig.state.refit((*states, *board.rig.states[1:]), board.rig.topology)
    assert len(board.of("vcuda_card_memory_total_bytes")) == 7
    assert len(board.of("vcuda_card_healthy")) == 8


def test_whole_cards_are_measured_by_the_drivers_processes(board: Board) -> None:
    one = board.admit("whole", 100, 0)
    uid = one["metadata"]["uid"]  # type: ignore[index]  # a pod object
    live = board.rig.kubelet.start_container(uid, "c", container_id="c" * 64)
    assert live is not None
    board.rig.pods.bind(parse_pod(board.rig.kubelet.pod(uid)))
    (index,) = board.rig.cards_of(one, "c")
    board.cards.processes = [ProcessUse(board.rig.states[index].card.uuid, 42, 3 * GIB, 50.0)]
    board.rig.processes.containers[42] = (PodUid(uid), "c" * 64)
    board.usage.sample()
    assert board.of("vcuda_container_memory_used_bytes", pod="whole") == [3 * GIB]
    assert board.of("vcuda_container_core_usage_ratio", pod="whole") == [0.5]
    assert board.of("container_gpu_memory_total", pod_name="whole", gpu_memory="total") == [3072]


def test_a_whole_card_that_nobody_works_on_is_used_at_zero_where_that_can_be_known(board: Board) -> None:
    one = board.admit("whole", 100, 0)
    uuid = board.rig.states[board.rig.cards_of(one, "c")[0]].card.uuid
    board.cards.uses = [CardUse(uuid, 0, 0.0)]
    board.usage.sample()
    assert board.of("vcuda_container_core_usage_ratio", pod="whole") == [], "not started yet"
    board.start(one)
    board.usage.sample()
    assert board.of("vcuda_container_core_usage_ratio", pod="whole") == [0.0]
    assert board.of("vcuda_container_memory_used_bytes", pod="whole") == [0]
    board.cards.uses = [CardUse(uuid, 0, 0.0, samples_processes=False)]
    board.usage.sample()
    assert board.of("vcuda_container_core_usage_ratio", pod="whole") == []
    assert board.of("vcuda_container_memory_used_bytes", pod="whole") == [0]
    board.slots.sees = False
    board.usage.sample()
    assert board.of("vcuda_container_memory_used_bytes", pod="whole") == []


def test_what_goes_past_the_page_is_used_too(board: Board) -> None:
    one = board.admit("part", 30, 20)
    (index,) = board.rig.cards_of(one, "c")
    uuid = board.rig.states[index].card.uuid
    (name,) = board.rig.tenants.limits
    board.rig.tenants.uses[name] = (TenantUse(uuid, GIB, 10.0, 0.0, 0, 1),)
    board.start(one, pid=41)
    board.rig.processes.containers[42] = board.rig.processes.containers[41]
    board.cards.uses = [CardUse(uuid, GIB, 60.0)]
    board.cards.processes = [ProcessUse(uuid, 41, GIB, 20.0), ProcessUse(uuid, 42, 0, 40.0)]
    board.slots.holders = {41}
    board.usage.sample()
    assert board.of("vcuda_container_core_usage_ratio", pod="part") == [pytest.approx(0.4)]
    board.slots.holders = {41, 42}
    board.usage.sample()
    assert board.of("vcuda_container_core_usage_ratio", pod="part") == [0.0], "the page accounts for both"


def test_an_init_container_that_has_ended_has_no_series_and_is_billed_once(board: Board) -> None:
    obj = pod("two", container("c", 50, 20), init=[container("prepare", 50, 20)])
    assert board.rig.admit(obj).admitted
    board.usage.sample()
    assert board.of("vcuda_container_core_limit_ratio") == [0.5, 0.5]
    obj["status"]["initContainerStatuses"] = [{"name": "prepare", "state": {"terminated": {"exitCode": 0}}}]
    board.rig.pods.bind(parse_pod(obj))
    board.usage.sample()
    assert board.of("vcuda_container_core_limit_ratio") == [0.5]
    assert board.of("container_request_gpu_utilization") == [0.5]
    assert board.of("vcuda_pod_core_booked_ratio", pod="two") == [0.5]
    assert isinstance(board.rig.clock, FakeClock)
    for _ in range(2):
        board.bills.look()
        board.rig.clock.pass_(SAVE_SECONDS)
    board.bills.look()
    assert board.of("vcuda_namespace_core_seconds_total") == [50 * 2 * SAVE_SECONDS]


def test_a_pod_that_has_ended_leaves_the_series_before_it_leaves_the_books(board: Board) -> None:
    one = board.admit("job", 30, 20)
    board.usage.sample()
    board.rig.pods.bind(replace(parse_pod(one), phase="Succeeded"))
    board.usage.sample()
    assert board.of("vcuda_container_core_limit_ratio") == []
    assert board.of("vcuda_pod_core_booked_ratio") == []
    assert board.rig.state.view.grants


def test_a_fractions_figures_come_from_its_page(board: Board) -> None:
    one = board.admit("part", 30, 20)
    (index,) = board.rig.cards_of(one, "c")
    (name,) = board.rig.tenants.limits
    uuid = board.rig.states[index].card.uuid
    board.rig.tenants.uses[name] = (TenantUse(uuid, 2 * GIB, 10.0, 4.0, 7, 1, variance=0.0),)
    board.usage.sample()
    assert isinstance(board.rig.clock, FakeClock)
    board.rig.clock.pass_(1.0)
    board.rig.tenants.uses[name] = (TenantUse(uuid, 2 * GIB, 10.15, 4.5, 7, 1, variance=0.0),)
    board.usage.sample()
    assert board.of("vcuda_container_memory_used_bytes", pod="part") == [2 * GIB]
    assert board.of("vcuda_container_core_usage_ratio", pod="part") == [pytest.approx(0.15)]
    assert board.of("vcuda_container_core_usage_error_ratio", pod="part") == [pytest.approx(0.00475)]
    assert board.of("vcuda_container_core_delivered_ratio", pod="part") == [pytest.approx(0.5)]
    assert board.of("vcuda_container_throttled_seconds_total", pod="part") == [4.5]
    assert board.of("vcuda_container_memory_refusals_total", pod="part") == [7]


def test_a_page_that_cannot_be_trusted_gives_a_state_and_no_figures(board: Board) -> None:
    board.admit("bad", 30, 20)
    board.rig.tenants.tampered = set(board.rig.tenants.limits)
    board.usage.sample()
    assert board.of("vcuda_container_enforcement", pod="bad", state="tampered") == [1]
    assert board.of("vcuda_container_memory_used_bytes", pod="bad") == []
    assert board.of("vcuda_container_memory_limit_bytes", pod="bad") == [5 * GIB]


def test_a_container_on_vanished_cards_keeps_its_limits(board: Board) -> None:
    lost = replace(
        grant("big"),
        allocation=replace(
            grant("big").allocation,
            shares=tuple(Share(f"GPU-lost-{n}", Amount(100, GIB)) for n in range(2)),  # type: ignore[arg-type]
        ),
    )
    put(board.rig.state, lost)
    assert board.of("vcuda_container_core_limit_ratio", pod="big", card="") == [1, 1]
    assert board.of("container_request_gpu_utilization", pod_name="big") == [2]
