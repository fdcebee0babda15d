# ruff: noqa: N802 - the names are the binding's
"""The thread that waits for the driver's events: what it tells, when, and how it ends."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from gpu_manager.adapters.nvml.cards import NvmlCards
from gpu_manager.adapters.nvml.faults import FaultPolicy
from gpu_manager.ports.cards import CardEvent, HealthChange, XidError
from tests.fakes.nvml import FakeNvml, Gpu
from tests.fakes.waiting import PATIENCE


class Watched:
    """Cards under watch; ``next`` waits for what the watch tells."""

    def __init__(self, *gpus: Gpu, quiet: float = 0.0, listed: bool = True, patience: float = 3.0) -> None:
        self.nvml = FakeNvml(*gpus)
        self.ticks = 100.0
        self.told: queue.Queue[HealthChange] = queue.Queue()
        self.xids: queue.Queue[XidError] = queue.Queue()
        self.threads: set[str] = set()
        policy = FaultPolicy(quiet_seconds=quiet)
        self.cards = NvmlCards(
            self.nvml,
            policy=policy,
            sysfs=Path("/nonexistent"),
            monotonic=lambda: self.ticks,
            patience=patience,
        )
        if listed:
            self.cards.list()
        self.cards.watch(self.hear)

    def hear(self, change: CardEvent) -> None:
        self.threads.add(threading.current_thread().name)
        if isinstance(change, XidError):
            self.xids.put(change)
        else:
            self.told.put(change)

    def next(self) -> HealthChange:
        return self.told.get(timeout=PATIENCE)

    def settle(self) -> None:
        """Returns when the thread has taken every event made so far, and gone round once more."""
        self.settle_on(self.nvml.gpus[0])

    def settle_on(self, gpu: Gpu) -> None:
        for _ in range(2):
            done = threading.Event()
            self.nvml.events.put(Marker(gpu, done))
            assert done.wait(PATIENCE)


class Marker(SimpleNamespace):
    """An event that means nothing: its type is read when the thread comes to it."""

    def __init__(self, gpu: Gpu, done: threading.Event) -> None:
        super().__init__(device=gpu, eventData=0)
        self._done = done

    @property
    def eventType(self) -> int:
        self._done.set()
        return 0


@pytest.fixture
def watched(request):
    made: list[Watched] = []

    def make(*gpus: Gpu, **options) -> Watched:
        made.append(Watched(*gpus, **options))
        return made[-1]

    yield make
    for one in made:
        one.cards.close()
        assert one.nvml.open == 0
        assert one.nvml.sets == 0


@pytest.mark.parametrize("where", ["", "event_types"], ids=["at work", "as its events are asked for"])
def test_a_card_that_hangs_keeps_no_event_of_another_from_being_told(watched, where):
    first, second = Gpu(0), Gpu(1)
    w = watched(first, second, listed=False, patience=1)
    if not where:
        w.cards.list()
        w.settle()
    free = w.nvml.hang(first, where)
    w.cards.usage()
    assert (change := w.next()).uuid == first.uuid
    assert not change.healthy
    w.nvml.xid(second, 79)
    assert w.xids.get(timeout=PATIENCE).uuid == second.uuid
    w.settle_on(second)
    free.set()
    changes = iter(w.next, None)  # the other card's, by its XID, among them
    assert next(change for change in changes if change.uuid == first.uuid).healthy
    w.settle()  # its own events are heard, too
    assert first.uuid in w.nvml.registered


def test_a_critical_xid_closes_its_card_and_no_other(watched):
    w = watched(Gpu(0), Gpu(1), quiet=60)
    w.nvml.xid(w.nvml.gpus[1], 48)
    change = w.next()
    assert (change.uuid, change.healthy) == (w.nvml.gpus[1].uuid, False)
    assert change.reason.startswith("XID 48: ")
    assert w.xids.get(timeout=PATIENCE) == XidError(change.uuid, 48, closes=True)
    assert [s.healthy for s in w.cards.list()] == [True, False]  # what the watch tells, the list says
    assert w.threads == {"nvml-events"}


def test_an_application_error_closes_nothing(watched):
    w = watched(Gpu(0))
    for xid in (13, 31, 43, 45, 68, 109):
        w.nvml.xid(w.nvml.gpus[0], xid)
        assert w.xids.get(timeout=PATIENCE) == XidError(w.nvml.gpus[0].uuid, xid, closes=False)
    assert w.told.empty()
    assert w.cards.list()[0].healthy


def test_a_card_that_is_well_again_is_reported_once(watched):
    w = watched(Gpu(0), quiet=60)
    w.nvml.xid(w.nvml.gpus[0], 95)
    assert not w.next().healthy
    w.settle()
    assert w.told.empty()
    w.ticks += 60
    change = w.next()
    assert change.healthy
    assert "XID 95" in change.reason
    w.settle()
    assert w.told.empty()
    assert w.cards.list()[0].healthy


def test_every_critical_event_begins_the_quiet_time_anew(watched):
    w = watched(Gpu(0), quiet=60)
    w.nvml.xid(w.nvml.gpus[0], 95)
    assert not w.next().healthy
    w.ticks += 59
    w.nvml.xid(w.nvml.gpus[0], 95)
    w.settle()
    w.ticks += 59
    w.settle()
    assert w.told.empty()
    assert not w.cards.list()[0].healthy


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (pynvml.nvmlEventTypeDoubleBitEccError, "double-bit"),
        (pynvml.nvmlEventTypeDramRetirementFailure, "retired"),
        (pynvml.nvmlEventTypeFatalPoisonError, "poison"),
        (pynvml.nvmlEventTypeGpuUnavailableError, "unavailable"),
    ],
)
def test_other_fatal_events_close_the_card(watched, kind, word):
    w = watched(Gpu(0), quiet=60)
    assert w.cards.list()[0].healthy
    w.nvml.events.put(SimpleNamespace(device=w.nvml.gpus[0], eventType=kind, eventData=0))
    assert word in w.next().reason


def test_a_changed_recovery_action_closes_the_card(watched):
    w = watched(Gpu(0), quiet=60)
    w.nvml.gpus[0].action = 2
    kind = pynvml.nvmlEventTypeGpuRecoveryAction
    w.nvml.events.put(SimpleNamespace(device=w.nvml.gpus[0], eventType=kind, eventData=2))
    assert "reboot" in w.next().reason


def test_a_lost_card_found_while_sampling_is_told(watched):
    w = watched(Gpu(0), Gpu(1), quiet=60)
    w.nvml.gpus[0].failing = pynvml.NVML_ERROR_GPU_IS_LOST
    w.cards.usage()
    change = w.next()
    assert change.uuid == w.nvml.gpus[0].uuid
    assert "off the bus" in change.reason


def test_an_event_of_a_card_too_broken_to_say_its_name_is_traced_to_it(watched):
    w = watched(Gpu(0), Gpu(1), quiet=60)
    w.nvml.gpus[1].failing = pynvml.NVML_ERROR_GPU_IS_LOST
    w.nvml.xid(w.nvml.gpus[1], 79)
    assert w.next().uuid == w.nvml.gpus[1].uuid
    w.settle()
    assert w.told.empty()


def test_a_wait_that_fails_finds_the_broken_card_and_goes_on(watched):
    w = watched(Gpu(0), Gpu(1), quiet=60)
    w.nvml.gpus[0].failing = pynvml.NVML_ERROR_GPU_IS_LOST
    w.nvml.events.put(pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))
    assert w.next().uuid == w.nvml.gpus[0].uuid
    w.nvml.xid(w.nvml.gpus[1], 48)
    assert w.next().uuid == w.nvml.gpus[1].uuid


def test_cards_in_mig_mode_and_cards_without_events_are_not_registered(watched):
    w = watched(
        Gpu(0, mig=1), Gpu(1, fail={"event_types": pynvml.NVML_ERROR_NOT_SUPPORTED}), Gpu(2), quiet=60
    )
    w.nvml.xid(w.nvml.gpus[2], 48)
    assert not w.next().healthy
    assert set(w.nvml.registered) == {w.nvml.gpus[2].uuid}


def test_the_watch_may_begin_before_the_driver_is_there(watched):
    w = watched(Gpu(0), quiet=60, listed=False)
    w.cards.list()
    w.nvml.xid(w.nvml.gpus[0], 48)
    assert not w.next().healthy


def test_the_watch_survives_a_driver_that_went_away_and_came_back(watched):
    w = watched(Gpu(0), quiet=60)
    w.nvml.broken = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    with pytest.raises(Exception, match="not loaded"):
        w.cards.list()
    w.nvml.broken = 0
    w.cards.list()
    w.nvml.xid(w.nvml.gpus[0], 48)
    assert not w.next().healthy


def test_close_ends_the_thread():
    others = set(threading.enumerate())
    w = Watched(Gpu(0))
    w.cards.close()
    assert "nvml-events" not in {t.name for t in set(threading.enumerate()) - others}
    w.cards.close()
