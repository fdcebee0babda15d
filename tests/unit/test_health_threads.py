"""The health service running: simulated cards break, and a subscriber hears of it from the service's thread."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from gpu_manager.adapters.machine import SystemClock
from gpu_manager.adapters.simulated import SimulatedCards
from gpu_manager.domain.card import CardState
from gpu_manager.services.cards.health import Health, HealthTimes
from tests.fakes.ports import FakeNodeObject
from tests.fakes.waiting import PATIENCE


class HookedCards(SimulatedCards):
    """Simulated cards with something to do before each look."""

    before = staticmethod(lambda: None)

    def list(self):
        self.before()
        return super().list()


class Running:
    """A running service over four simulated cards. ``until`` waits for a told state."""

    def __init__(self, **times: float) -> None:
        self.cards, self.inventory = HookedCards.named("t4x4"), FakeNodeObject()
        self.uuids = [s.card.uuid for s in self.cards.list()]
        self.told: queue.Queue[tuple[CardState, ...]] = queue.Queue()
        self.threads: set[str] = set()
        self.health = Health(self.cards, self.inventory, SystemClock(), HealthTimes(**times))
        self.health.subscribe(self.hear)

    def hear(self, states: tuple[CardState, ...]) -> None:
        self.threads.add(threading.current_thread().name)
        self.told.put(states)

    def until(self, wanted) -> tuple[CardState, ...]:
        deadline = time.monotonic() + PATIENCE
        while True:
            states = self.told.get(timeout=max(0.0, deadline - time.monotonic()))
            if wanted(states):
                return states


@pytest.fixture
def running():
    made: list[Running] = []

    def make(**times: float) -> Running:
        made.append(Running(**times))
        return made[-1]

    yield make
    for one in made:
        one.health.stop()
        one.cards.close()
    assert not {t.name for t in threading.enumerate()} & {
        "health-discovery",
        "health-settle",
        "simulated-health",
    }


def test_a_fault_is_told_long_before_the_next_look_and_so_is_the_recovery(running):
    r = running(period=3600, probation=0)
    r.health.start()
    assert len(r.told.get(timeout=PATIENCE)) == 4
    r.cards.set_health(r.uuids[2], False, "XID 79")
    states = r.told.get(timeout=PATIENCE)
    assert [s.healthy for s in states] == [True, True, False, True]
    assert states[2].reason == "XID 79"
    r.cards.set_health(r.uuids[2], True)
    assert all(s.healthy for s in r.told.get(timeout=PATIENCE))
    assert r.threads == {"health-settle"}


def test_a_cordon_is_told_long_before_the_next_look(running):
    r = running(period=3600)
    r.health.start()
    r.told.get(timeout=PATIENCE)
    r.inventory.closed = frozenset({r.uuids[1]})
    assert [s.open for s in r.told.get(timeout=PATIENCE)] == [True, False, True, True]


def test_a_removed_card_vanishes_and_a_new_one_is_found_without_waiting_for_the_period(running):
    r = running(period=3600)
    r.health.start()
    r.told.get(timeout=PATIENCE)
    r.cards.remove(r.uuids[0])
    assert not r.until(lambda states: not states[0].healthy)[0].open
    r.cards.add()
    assert len(r.until(lambda states: len(states) == 5)) == 5
    r.health.look()
    states = (
        r.until(lambda states: "vanished" in states[0].reason)
        if "vanished" not in r.health.states()[0].reason
        else r.health.states()
    )
    assert len(states) == 5
    assert r.health.forget(r.uuids[0])
    assert len(r.until(lambda states: len(states) == 4)) == 4


def test_a_driver_that_comes_late_brings_the_cards(running):
    r = running(retry_first=0.01, retry_last=0.02)
    r.cards.set_driver("could not load the NVML library: by order")
    began = threading.Event()
    r.cards.before = began.set
    r.health.start()
    assert began.wait(PATIENCE)
    assert r.told.empty()
    r.cards.set_driver()
    assert len(r.told.get(timeout=PATIENCE)) == 4


def test_an_unexpected_error_does_not_end_the_service(running):
    r = running(period=0.01)
    failures = iter([RuntimeError("bug one"), RuntimeError("bug two")])

    def fail_twice():
        for failure in failures:
            raise failure

    r.cards.before = fail_twice
    r.health.start()
    assert len(r.told.get(timeout=PATIENCE)) == 4
    assert r.health.counts()["discovery_failed"] == 2


def test_stop_ends_the_threads_and_nobody_is_told_any_more(running):
    r = running()
    r.health.start()
    r.told.get(timeout=PATIENCE)
    r.health.stop()
    r.cards.set_health(r.uuids[0], False, "late")
    assert r.told.empty()
    r.health.stop()
