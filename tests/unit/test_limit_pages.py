"""Who writes limits of admitted containers: each writes the whole page, and none what another has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.contract import CORE_LIMIT
from gpu_manager.ports.control_pages import Limit
from tests.fakes.ports import cards
from tests.fakes.resizing import ResizingRig

Writer = Callable[[ResizingRig, dict[str, Any]], None]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ResizingRig]:
    with ResizingRig(tmp_path, states=cards()[:2]) as node:
        yield node


def _elastic_limit(rig: ResizingRig, obj: dict[str, Any]) -> None:
    obj["metadata"]["annotations"] = {CORE_LIMIT: "90"}
    rig.elastic_limit.follow(rig.parsed(obj))


def _start(rig: ResizingRig, obj: dict[str, Any]) -> None:
    rig.kubelet.start_container(obj["metadata"]["uid"], "c")


def _settings(rig: ResizingRig, _: dict[str, Any]) -> None:
    rig.limit_pages.apply_settings()


@pytest.mark.parametrize("writer", [_elastic_limit, _start, _settings])
def test_who_writes_a_page_while_it_is_resized_does_not_write_the_former_size(
    rig: ResizingRig, monkeypatch: pytest.MonkeyPatch, writer: Writer
) -> None:
    one = rig.run("one", 30, 8)
    write = rig.tenants.open
    growing = threading.Thread(target=rig.answer, args=(one, 50, 20))
    written: list[Sequence[Limit]] = []

    def interrupted(name: str, limits: Sequence[Limit]) -> None:
        monkeypatch.setattr(rig.tenants, "open", write)
        written.append(limits)
        growing.start()
        growing.join(0.2)  # unless it has to wait
        write(name, limits)

    monkeypatch.setattr(rig.tenants, "open", interrupted)
    writer(rig, one)
    growing.join()
    assert [limits[0].cores for limits in written] == [30]
    assert rig.booked(one) == rig.in_force(one) == (50, 20)
