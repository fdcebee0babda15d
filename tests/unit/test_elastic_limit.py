"""The elastic ceiling is the pod's annotation: while it runs, and after the books were lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.contract import CORE_LIMIT
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.control_pages import Limit
from gpu_manager.services.allocation.prestart import LimitPages
from gpu_manager.services.enforcement.resizer import ElasticLimit
from tests.fakes.direct import DirectRig
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeTenants


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[DirectRig]:
    with DirectRig(tmp_path) as node:
        yield node


def running(rig: DirectRig, ceiling: str | None, *containers: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    one = pod("one", *containers or (container("c", 30, 8),), annotations=written(ceiling))
    result = rig.admit(one)
    assert result.admitted, result.message
    rig.start(one)
    return one, result


def written(ceiling: str | None) -> dict[str, str]:
    return {} if ceiling is None else {CORE_LIMIT: ceiling}


def change(rig: DirectRig, obj: dict[str, Any], ceiling: str | None) -> None:
    obj["metadata"]["annotations"] = written(ceiling)
    ElasticLimit(rig.state, rig.limit_pages).follow(rig.parsed(obj))


def ceiling(rig: DirectRig, result: Any, name: str = "c") -> int:
    (limit,) = rig.limits(result, name)
    return limit.ceiling


@pytest.mark.parametrize(
    ("before", "after", "expected"), [(None, "80", 80), ("80", "50", 50), ("80", None, 30)]
)
def test_a_changed_annotation_is_in_force_at_once_and_outlives_a_restart(
    rig: DirectRig, before: str | None, after: str | None, expected: int
) -> None:
    one, result = running(rig, before)
    change(rig, one, after)
    assert ceiling(rig, result) == expected
    (limit,) = rig.limits(result, "c")
    assert (limit.cores, limit.memory) == (30, 8 << 28), "nothing else has changed"
    rig.pods.bind(rig.parsed(one))
    rig.restart_agent()
    rig.kubelet.start_container(one["metadata"]["uid"], "c")
    assert ceiling(rig, result) == expected


@pytest.mark.parametrize("nonsense", ["", "fast", "0", "-5", "29", "101", "1e2", "\uff18\uff10"])
def test_what_is_no_ceiling_changes_nothing(rig: DirectRig, nonsense: str) -> None:
    one, result = running(rig, "80")
    change(rig, one, nonsense)
    assert ceiling(rig, result) == 80


def test_every_fraction_of_the_pod_follows_and_whole_cards_have_no_page(rig: DirectRig) -> None:
    one, result = running(rig, "60", container("a", 30, 8), container("b", 10, 4), container("w", 100, 0))
    pages = len(rig.tenants.limits)
    change(rig, one, "90")
    assert [ceiling(rig, result, name) for name in "ab"] == [90, 90]
    assert len(rig.tenants.limits) == pages


def test_an_unchanged_pod_costs_no_write(rig: DirectRig) -> None:
    one, _ = running(rig, "80")
    rig.store.broken = True
    rig.tenants.limits.clear()
    change(rig, one, "80")
    assert rig.tenants.limits == {}


def test_a_full_disk_keeps_no_ceiling_from_being_in_force_and_is_written_to_later(rig: DirectRig) -> None:
    one, result = running(rig, None)
    rig.store.broken = True
    change(rig, one, "80")
    assert ceiling(rig, result) == 80
    rig.store.broken = False
    change(rig, one, "80")
    assert b'"ceiling":80' in (rig.store.state or b"")


def test_a_page_that_cannot_be_written_is_written_at_the_next_look(rig: DirectRig) -> None:
    class Refusing(FakeTenants):
        def open(self, name: str, limits: Sequence[Limit]) -> None:
            raise NodeUnready("the page cannot be written")

    one, result = running(rig, None)
    one["metadata"]["annotations"] = written("80")
    ElasticLimit(rig.state, LimitPages(rig.state, Refusing())).follow(rig.parsed(one))
    assert ceiling(rig, result) == 30
    change(rig, one, "80")
    assert ceiling(rig, result) == 80


@pytest.mark.parametrize("known", [True, False])
def test_books_that_were_lost_are_rebuilt_with_the_ceiling(rig: DirectRig, known: bool) -> None:
    """Also where the API server shows the pod only after the agent's start."""
    one, result = running(rig, "80")
    rig.store.state = None
    there = rig.parsed(one)
    if not known:
        rig.pods.known.clear()
    rig.restart_agent()
    if not known:
        ElasticLimit(rig.state, rig.limit_pages).follow(there)
    rig.kubelet.start_container(one["metadata"]["uid"], "c")
    assert ceiling(rig, result) == 80
