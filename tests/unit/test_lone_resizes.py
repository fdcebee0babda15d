"""Without an extender the agent judges requests for another size itself, on its own books."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.contract import EVENT_RESIZE_WAITS, RESIZE
from tests.fakes.ports import cards
from tests.fakes.resizing import ResizingRig

Obj = dict[str, Any]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ResizingRig]:
    with ResizingRig(tmp_path, states=cards()[:1], alone=True) as node:
        yield node


def ask(rig: ResizingRig, obj: Obj, **size: Any) -> None:
    """The pod's owner asks for this size, or for nothing any more."""
    others = {k: v for k, v in obj["metadata"].get("annotations", {}).items() if k != RESIZE}
    asked = {RESIZE: json.dumps({"v": 1, "containers": {"c": size}})} if size else {}
    obj["metadata"]["annotations"] = others | asked
    rig.pods.bind(rig.parsed(obj))
    rig.resizer.follow(rig.parsed(obj))


def waits(rig: ResizingRig) -> list[str]:
    return [text for _, reason, text in rig.pods.events if reason == EVENT_RESIZE_WAITS]


def test_a_request_is_followed_and_taken_back(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 8)
    ask(rig, one, cores=50, memory="4Gi")
    assert rig.booked(one) == rig.in_force(one) == (50, 16)
    ask(rig, one)
    rig.second()
    rig.second()
    assert rig.booked(one) == rig.in_force(one) == (30, 8)
    assert rig.allocatable() == (100, 64)


def test_what_does_not_fit_waits_with_the_arithmetic_until_it_does(rig: ResizingRig) -> None:
    one, two = rig.run("one", 30, 8), rig.run("two", 60, 8)
    ask(rig, one, cores=60)
    rig.second()
    assert rig.booked(one) == rig.in_force(one) == (30, 8)
    (why,) = waits(rig)
    assert why == (
        'container "c" keeps its size: 60 cores, 2 GiB on card 0 does not fit: it holds 30 cores, 2 GiB and '
        "the card has 10 cores, 12 GiB free, so at most 40 cores, 14 GiB"
    )
    ask(rig, two, cores=20)
    rig.second()
    assert rig.booked(one) == rig.in_force(one) == (60, 8)


def test_an_illegal_request_changes_nothing_and_says_what_works(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 8)
    ask(rig, one, cores=100)
    assert rig.booked(one) == (30, 8)
    assert "use 99" in waits(rig)[0]


def test_the_clusters_smallest_part_counts_without_an_extender_too(tmp_path: Path) -> None:
    with ResizingRig(tmp_path, states=cards()[:1], alone=True, minimum_cores=10) as rig:
        one = rig.run("one", 30, 8)
        ask(rig, one, cores=5)
        assert rig.booked(one) == (30, 8)
        assert "use 10" in waits(rig)[0]
        ask(rig, one, cores=10)
        assert rig.booked(one) == (10, 8)


def test_an_answer_of_an_extender_that_is_gone_counts_no_more(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 8)
    rig.answer(one, 50, 8)
    assert rig.booked(one) == (30, 8)


def test_a_size_survives_a_restart(rig: ResizingRig) -> None:
    one = rig.run("one", 30, 8)
    ask(rig, one, cores=50)
    rig.restart_agent()
    assert rig.booked(one) == rig.in_force(one) == (50, 8)


def test_beside_an_extender_the_request_waits_for_its_answer(tmp_path: Path) -> None:
    with ResizingRig(tmp_path, states=cards()[:1]) as rig:
        one = rig.run("one", 30, 8)
        ask(rig, one, cores=50)
        rig.second()
        assert rig.booked(one) == rig.in_force(one) == (30, 8)
