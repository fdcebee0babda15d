"""In which order waiting writes go out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gpu_manager.adapters.kube.connection import Refused
from gpu_manager.adapters.kube.outbox import Outbox, Task
from gpu_manager.adapters.kube.tasks import EventTeller, PostEvent
from gpu_manager.domain.contract import (
    EVENT_ALLOCATED,
    EVENT_EVADER,
    EVENT_NOT_INJECTED,
    EVENT_REFUSED,
    EVENT_WITHOUT_DEVICES,
)
from gpu_manager.domain.kube.pod import parse_pod
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeClock
from tests.fakes.waiting import until


@dataclass(frozen=True)
class Noted:
    """A write that notes its name in a list."""

    key: str
    written: list[str]
    expendable: bool = False

    @property
    def patient(self) -> bool:
        return self.expendable

    def over(self, older: Task) -> Task:
        return self

    def run(self) -> None:
        self.written.append(self.key)

    def final(self, refusal: Refused) -> bool:
        return True


def test_what_others_wait_for_goes_before_events() -> None:
    clock, written = FakeClock(), list[str]()
    outbox = Outbox(clock)
    for name in ("event-1", "event-2", "pod", "event-3", "node"):
        outbox.put(Noted(name, written, expendable=name.startswith("event")))
        clock.pass_(0.1)
    outbox.put(Noted("later", written), delay=60)
    outbox.start()
    until(lambda: len(written) == 5)
    assert written == ["pod", "node", "event-1", "event-2", "event-3"]
    clock.pass_(60)
    outbox.put(Noted("event-4", written, expendable=True))
    until(lambda: len(written) == 7)
    assert written[5:] == ["later", "event-4"]
    outbox.close()


class Spoken(EventTeller):
    """Notes the reasons that it was asked to tell of."""

    def __init__(self, written: list[str]) -> None:
        self.written = written

    def tell(self, event: PostEvent) -> float | None:
        self.written.append(event.reason)
        return None


@pytest.mark.parametrize("reason", [EVENT_EVADER, EVENT_NOT_INJECTED, EVENT_WITHOUT_DEVICES])
def test_who_must_be_named_within_seconds_waits_for_no_other_write(reason: str) -> None:
    clock, written = FakeClock(), list[str]()
    outbox, teller, who = Outbox(clock), Spoken(written), parse_pod(pod("old", container("c", 30, 20)))
    for told in (EVENT_ALLOCATED, EVENT_REFUSED, reason):
        outbox.put(PostEvent(teller, who, told, "m", warning=True, first=0.0, last=0.0))
        clock.pass_(0.1)
    outbox.put(Noted("pod", written))
    outbox.start()
    until(lambda: len(written) == 4)
    assert written == [reason, "pod", EVENT_ALLOCATED, EVENT_REFUSED]
    outbox.close()
