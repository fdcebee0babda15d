"""In which order waiting writes go out."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_manager.adapters.kube.connection import Refused
from gpu_manager.adapters.kube.outbox import Outbox, Task
from tests.fakes.ports import FakeClock
from tests.fakes.waiting import until


@dataclass(frozen=True)
class Noted:
    """A write that notes its name in a list."""

    key: str
    written: list[str]
    expendable: bool = False

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
