"""A ledger that this agent cannot read is kept, and what was done stands in an Event on the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_manager.adapters.store import FORMAT, FileStore
from gpu_manager.domain.contract import EVENT_LEDGER_REBUILT
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.services.recovery.rebuild import load_books
from tests.fakes.metrics import service_metrics
from tests.fakes.ports import FakeStore

GOOD = b'{"v":1,"allocations":[]}'


class Node:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.metrics = service_metrics()

    def load(self, store: FileStore | FakeStore) -> bytes | None:
        return load_books(store, lambda reason, text: self.events.append((reason, text)), self.metrics)

    @property
    def disagreements(self) -> float:
        return self.metrics.recovery_disagreements.labels("store")._value.get()


@pytest.mark.parametrize("stored", [None, GOOD])
def test_books_that_can_be_read_are_not_spoken_of(stored: bytes | None) -> None:
    node = Node()
    assert node.load(FakeStore(stored)) == stored
    assert (node.events, node.disagreements) == ([], 0)


@pytest.mark.parametrize("state", [b'{"v":3,"allocations":[]}', b"rubbish", b'{"v":1}'])
def test_a_state_of_another_format_is_kept_aside_and_said(tmp_path: Path, state: bytes) -> None:
    FileStore(tmp_path).save(state)
    node, store = Node(), FileStore(tmp_path)
    assert node.load(store) is None
    ((reason, text),) = node.events
    assert reason == EVENT_LEDGER_REBUILT
    assert "kept as ledger.a.unread" in text
    assert "rebuilt from the kubelet's checkpoint" in text
    assert node.disagreements == 1
    store.save(GOOD)
    assert state in (tmp_path / "ledger.a.unread").read_bytes()


def test_a_file_of_another_format_is_kept_aside_and_said(tmp_path: Path) -> None:
    FileStore(tmp_path).save(GOOD)
    path = tmp_path / "ledger.a"
    path.write_bytes(path.read_bytes().replace(b"v%d " % FORMAT, b"v9 "))
    node = Node()
    assert node.load(FileStore(tmp_path)) is None
    ((reason, text),) = node.events
    assert reason == EVENT_LEDGER_REBUILT
    assert "ledger.a.format-9" in text


def test_what_cannot_even_be_kept_is_said_too() -> None:
    class Stuck(FakeStore):
        def set_aside(self, why: str) -> tuple[str, ...]:
            raise NodeUnready("the file system is read-only")

    node = Node()
    assert node.load(Stuck(b"rubbish")) is None
    assert "written over: the file system is read-only" in node.events[0][1]


def test_a_disk_that_cannot_be_read_is_said_and_the_agent_starts(tmp_path: Path) -> None:
    for name in ("ledger.a", "ledger.b"):
        (tmp_path / name).write_bytes(b"rubbish")
    node = Node()
    assert node.load(FileStore(tmp_path)) is None
    assert "no readable ledger" in node.events[0][1]
