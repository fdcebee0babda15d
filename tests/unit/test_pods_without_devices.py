"""Pods that were admitted before the node had our resources: named once, after two looks that agree."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_manager.domain.contract import CORE, EVENT_WITHOUT_DEVICES, MEMORY
from gpu_manager.domain.pod import MIRROR, parse_pod
from gpu_manager.ports.kubelet import CheckpointEntry
from gpu_manager.services.recovery.pods_without_devices import PodsWithoutDevices
from tests.fakes.metrics import counts, service_metrics
from tests.fakes.node import container, pod
from tests.fakes.ports import FakePods, cards
from tests.fakes.state import state_of


class Look:
    """A node on which one pod runs; each call is one look at it."""

    def __init__(self, *, evict: bool = True, **given: Any) -> None:
        self.pods, self.metrics = FakePods(), service_metrics()
        self.service = PodsWithoutDevices(state_of(cards(1)), self.pods, self.metrics, evict=evict)
        obj = pod("old", container("c", 30, 20), **given)
        obj["status"] = {"phase": "Running", "startTime": "2026-11-21T00:00:00Z"}
        self.pod = parse_pod(obj)
        self.pods.bind(self.pod)

    def entries(self, *resources: str) -> list[CheckpointEntry]:
        return [CheckpointEntry(self.pod.uid, "c", r, frozenset({f"{r}-1"})) for r in resources]

    def __call__(self, *resources: str, active: bool = True) -> list[tuple[str, str, str]]:
        self.service.look(self.entries(*resources), {("default", "old")} if active else set())
        return self.pods.events


def test_it_is_named_at_the_second_look_and_never_again() -> None:
    look = Look()
    assert look() == []
    ((name, why, text),) = look()
    assert (name, why) == ("default/old", EVENT_WITHOUT_DEVICES)
    assert f'container "c" was admitted before this node offered {CORE}' in text
    assert "; delete the pod, so that" in text
    assert len(look()) == 1
    assert counts(look.metrics.pods_without_devices) == {"": 1}
    assert look.pods.evicted == []


@pytest.mark.parametrize("evict", [True, False])
def test_a_controllers_pod_is_evicted_where_that_is_allowed(evict: bool) -> None:
    look = Look(evict=evict, controlled=True)
    look()
    ((_, _, text),) = look()
    assert look.pods.evicted == ([look.pod.uid] if evict else [])
    assert ("; the pod is evicted, so that" in text) == evict


def test_one_resource_of_two_is_as_bad_as_none() -> None:
    look = Look()
    look(CORE)
    ((_, _, text),) = look(CORE)
    assert MEMORY in text


def test_who_holds_all_that_it_asks_for_is_well() -> None:
    look = Look()
    assert [look(CORE, MEMORY) for _ in range(3)] == [[], [], []]


def test_a_source_that_is_missing_proves_nothing() -> None:
    look = Look()
    for _ in range(3):
        look.service.look(None, {("default", "old")})
        look.service.look([], None)
        look(active=False)
    assert look.pods.events == []


def test_of_a_copy_of_a_static_pod_nobody_can_say() -> None:
    look = Look(annotations={MIRROR: "digest"})
    assert not look.pod.static
    assert [look() for _ in range(3)] == [[], [], []]
