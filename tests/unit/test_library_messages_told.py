"""What libvcuda notes reaches the node's administrator: log, metric, Event, doctor; and a flood of it does not."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.domain.contract import CORE, EVENT_LIBRARY_MESSAGE, MEMORY
from gpu_manager.domain.enforcement.library_messages import Framework, LibraryMessage, LibraryMessageKind
from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.ports.control_pages import Limit
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.enforcement.library_messages import (
    EVENT_SECONDS,
    MOST_LINES,
    OLD_SECONDS,
    WINDOW_SECONDS,
    LibraryMessages,
)
from tests.fakes.metrics import counts, service_metrics
from tests.fakes.ports import FakeClock, FakePods, cards
from tests.fakes.state import state_of
from vcuda.page import usage as usage_page

CARD = cards(1)[0].card.uuid
NAME = "0123456789abcdef" * 2


@dataclass
class Pages:
    """The witness: what each directory's page holds."""

    held: dict[str, tuple[LibraryMessage, ...]] = field(default_factory=dict)

    def registered(self, name: str) -> frozenset[int]:
        return frozenset()

    def attacks(self, name: str) -> tuple[int, str]:
        return 0, ""

    def tampering(self) -> Mapping[str, int]:
        return {}

    def noted(self) -> Collection[str]:
        return self.held

    def notes(self, name: str) -> tuple[LibraryMessage, ...]:
        return self.held.get(name, ())


def grant(pod: str) -> Grant:
    share = Share(CARD, Amount(30, 5 * GIB))
    allocation = Allocation(
        PodUid(f"uid-{pod}"), "train", ContainerKind.APP, 0, (share,), "team", pod, granted=True
    )
    return Grant(allocation, f"dir-{pod}", 0, {CORE: frozenset(), MEMORY: frozenset()}, proven=True)


class Rig:
    """One container, ``team/a train``, and who listens."""

    def __init__(self) -> None:
        self.pods, self.pages, self.clock, self.metrics = FakePods(), Pages(), FakeClock(), service_metrics()
        self.state = state_of(cards(1), grant("a"))
        container = Container("train", ContainerKind.APP, core=30, memory_units=20)  # type: ignore[arg-type]
        self.pods.bind(Pod(PodUid("uid-a"), "team", "a", (container,), node="n1"))
        self.anew()

    def anew(self) -> None:
        """The agent starts again."""
        self.notes = LibraryMessages(self.state, self.pods, self.pages, self.clock, self.metrics)

    def note(
        self, number: int, kind: LibraryMessageKind = LibraryMessageKind.MEMORY_REFUSED, *, ago: float = 0.0
    ) -> None:
        at = self.clock.monotonic() - ago
        made = LibraryMessage(number, at, kind, 17, CARD, 6 * GIB, 4 * GIB, 5 * GIB, "limits is too short")
        self.pages.held["dir-a"] = (*self.pages.held.get("dir-a", ()), made)[-24:]

    def look(self) -> list[MutableMapping[str, Any]]:
        with capture_logs() as logs:
            self.notes.look()
        return logs


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_note_is_told_once_in_the_log_as_a_metric_and_to_the_pods_owner(rig: Rig) -> None:
    rig.note(1)
    (line,) = rig.look()
    assert line == {
        "event": "library_message", "log_level": "info", "pod": "team/a", "container": "train",
        "kind": "memory-refused", "note": line["note"],
    }  # fmt: skip
    assert line["note"].startswith(
        "process 17 was refused 6 GiB of card 0: the container holds 4 GiB of its 5 GiB; "
    )
    assert "tencent.com/vcuda-memory: 40 (10 GiB)" in line["note"]
    assert rig.pods.events == [("team/a", EVENT_LIBRARY_MESSAGE, f'container "train": {line["note"]}')]
    assert counts(rig.metrics.library_messages) == {"memory-refused": 1}
    assert rig.look() == []
    assert len(rig.pods.events) == 1


def test_trouble_is_a_warning_and_what_the_owner_cannot_mend_is_no_event(rig: Rig) -> None:
    rig.note(1, LibraryMessageKind.CUDA_REFUSED)
    rig.note(2, LibraryMessageKind.UNKNOWN_FUNCTION)
    levels = [(line["log_level"], line["kind"]) for line in rig.look()]
    assert levels == [("warning", "cuda-refused"), ("warning", "unknown-function")]
    assert [text for _, _, text in rig.pods.events] == [
        'container "train": process 17 was refused CUDA: limits is too short'
    ]


def test_a_tenant_that_floods_its_page_fills_neither_the_log_nor_the_events(rig: Rig) -> None:
    lines = []
    for second in range(600):
        for each in range(24):
            rig.note(second * 24 + each + 1)
        lines += rig.look()
        rig.clock.pass_(1.0)
    windows = 600 / WINDOW_SECONDS
    told = [line for line in lines if line["event"] == "library_message"]
    left = [line["count"] for line in lines if line["event"] == "library_messages_dropped"]
    assert len(told) <= MOST_LINES * (windows + 1)
    assert len(left) <= windows
    assert len(rig.pods.events) <= 600 / EVENT_SECONDS + 1
    assert counts(rig.metrics.library_messages) == {"memory-refused": 600 * 24}


def test_numbers_that_jump_are_the_tenants_own_loss(rig: Rig) -> None:
    rig.note(2**62)
    rig.look()
    rig.clock.pass_(1.0)
    rig.note(5)
    rig.pages.held["dir-a"] = rig.pages.held["dir-a"][-1:]
    assert len(rig.look()) == 1, "a page begun anew counts from one again"


def test_a_container_that_starts_again_and_fails_again_is_told_of_again(rig: Rig) -> None:
    """Its page is begun anew: the first note of the second life has the first one's number."""
    for _ in range(3):
        rig.pages.held.clear()
        rig.note(1, LibraryMessageKind.CUDA_REFUSED)
        assert len(rig.look()) == 1
        assert rig.look() == []
        rig.clock.pass_(20.0)
    assert counts(rig.metrics.library_messages) == {"cuda-refused": 3}


def test_an_agent_that_starts_again_tells_what_was_noted_meanwhile_and_no_old_tales(rig: Rig) -> None:
    rig.note(1, ago=OLD_SECONDS + 1)
    rig.note(2, ago=3.0)
    rig.anew()
    rig.look()
    assert counts(rig.metrics.library_messages) == {"memory-refused": 1}


def test_a_container_that_is_gone_is_forgotten(rig: Rig) -> None:
    rig.note(1)
    rig.look()
    rig.state.forget_pod(PodUid("uid-a"))
    rig.look()
    assert rig.notes._heard == {}


def test_an_event_waits_for_a_pod_that_is_not_known_yet(rig: Rig) -> None:
    rig.pods.known = {}
    rig.note(1)
    assert len(rig.look()) == 1
    assert rig.pods.events == []
    rig.pods.watch()
    rig.note(2)
    rig.look()
    assert len(rig.pods.events) == 1


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[FileControlPages]:
    pages = FileControlPages(tmp_path / "pages")
    pages.open(NAME, [Limit(CARD, 5 << 30, 30, 30)])
    yield pages
    pages.close()


def test_notes_are_those_of_the_page_as_it_was_last_read(tenants: FileControlPages, tmp_path: Path) -> None:
    usage = tmp_path / "pages" / NAME / "usage"
    with usage.open("r+b") as file:
        file.seek(usage_page._NOTES_WRITTEN_OFFSET)
        file.write(struct.pack("<Q", 2))
        file.seek(usage_page._NOTES_OFFSET)
        file.write(usage_page._NOTE.pack(1, 2_000_000_000, 1, 17, 0, 3, 3, 2, 1, b"x", 1))
        file.write(usage_page._NOTE.pack(2, 2_000_000_000, 99, 17, 0, 0, 3, 2, 1, b"of a later library", 0))
    assert tenants.notes(NAME) == ()
    tenants.usage(NAME)
    assert tenants.notes(NAME) == (
        LibraryMessage(
            1, 2.0, LibraryMessageKind.MEMORY_REFUSED, 17, CARD, 3, 2, 1, "x", 1, Framework.PYTORCH
        ),
    )
    tenants.remove(NAME)
    assert tenants.notes(NAME) == ()
