"""Simulated cards under watch: changes by method and by file arrive from a thread of their own."""

from __future__ import annotations

import queue
import threading

import pytest

from gpu_manager.adapters.simulated import SimulatedCards
from gpu_manager.adapters.simulated_control import write_control
from gpu_manager.ports.cards import HealthChange, XidError
from tests.fakes.waiting import PATIENCE


@pytest.fixture
def watched(tmp_path):
    cards = SimulatedCards.named("t4x4", control=tmp_path / "control.yaml")
    told: queue.Queue[HealthChange] = queue.Queue()
    cards.watch(told.put)
    yield cards, told, tmp_path / "control.yaml"
    cards.close()
    assert "simulated-health" not in {t.name for t in threading.enumerate()}


def test_orders_by_method_are_told(watched):
    cards, told, _ = watched
    uuid = cards.list()[0].card.uuid
    cards.set_health(uuid, False, "XID 48")
    assert told.get(timeout=PATIENCE) == HealthChange(uuid, healthy=False, reason="XID 48")
    cards.set_load(uuid, 7, memory=5)
    cards.set_health(uuid, True)
    assert told.get(timeout=PATIENCE) == HealthChange(uuid, healthy=True, reason="")
    cards.remove(uuid)
    assert "removed" in told.get(timeout=PATIENCE).reason
    cards.add(uuid)
    assert told.get(timeout=PATIENCE).healthy
    new = cards.add()
    assert told.get(timeout=PATIENCE) == HealthChange(new, healthy=True, reason="a new card")
    assert told.empty()


def test_orders_by_file_are_told_although_nobody_asks(watched):
    cards, told, control = watched
    uuid = cards.list()[3].card.uuid
    write_control(control, {"3": {"error": "GPU is lost"}})
    assert told.get(timeout=PATIENCE) == HealthChange(uuid, healthy=False, reason="GPU is lost")
    control.unlink()
    assert told.get(timeout=PATIENCE).healthy


def test_xids_are_told_as_often_as_the_file_says_and_a_hung_driver_holds_up_whoever_asks(watched):
    cards, told, control = watched
    uuid = cards.list()[1].card.uuid
    write_control(control, {"1": {"xids": {31: 2}}})
    assert [told.get(timeout=PATIENCE) for _ in range(2)] == [XidError(uuid, 31, closes=False)] * 2
    write_control(control, {"1": {"xids": {31: 2, 79: 1}, "healthy": False}}, hangs=True)
    assert not told.get(timeout=PATIENCE).healthy
    assert told.get(timeout=PATIENCE) == XidError(uuid, 79, closes=True)
    answers: queue.Queue[int] = queue.Queue()
    asking = threading.Thread(target=lambda: answers.put(len(cards.list())))
    asking.start()
    assert answers.empty()
    control.unlink()
    assert answers.get(timeout=PATIENCE) == 4
    asking.join()


def test_closing_twice_and_watching_a_closed_one_is_harmless():
    cards = SimulatedCards.named("one")
    cards.close()
    cards.watch(lambda _: None)
    cards.close()
    assert "simulated-health" not in {t.name for t in threading.enumerate()}
