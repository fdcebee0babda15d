"""Containers whose mounts are not those of their grant are named, once, and no other is."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.contract import EVENT_NOT_INJECTED
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.services.enforcement.container_starts import (
    PATIENCE_SECONDS,
    PERIOD_SECONDS,
    RARELY_SECONDS,
    InjectionCheck,
)
from tests.fakes.mounted import KINDS, PID, ROOTS, Mounted, MountedNode

BARE, SOUND = KINDS[1], KINDS[0]


@pytest.mark.parametrize("made", ROOTS, ids=lambda made: f"{made.name}, {made.tree}")
def test_a_container_is_named_within_ten_seconds_if_its_mounts_differ_from_its_grant(
    tmp_path: Path, made: Mounted
) -> None:
    named = MountedNode(tmp_path, made).named_after(10)
    assert (named is None) is made.sound


def test_forty_nodes_of_every_runtime_are_looked_at() -> None:
    assert len(ROOTS) >= 40


def test_it_is_said_once_on_the_pod_with_what_is_missing_and_what_to_do(tmp_path: Path) -> None:
    node = MountedNode(tmp_path, BARE)
    node.named_after(10)
    for _ in range(5):
        node.clock.pass_(PERIOD_SECONDS)
        node.check.look()
    ((pod, reason, text),) = node.pods.events
    assert (pod, reason) == ("team/train", EVENT_NOT_INJECTED)
    assert 'container "c"' in text
    assert "nothing is mounted at /etc/vcuda/limits" in text
    assert "no libcuda.so is mounted" in text
    assert "by cdi" in text


def test_a_container_that_is_being_made_is_not_taken_for_one_without_its_mounts(tmp_path: Path) -> None:
    node = MountedNode(tmp_path, BARE)
    node.check.look()
    node.mount(PID, SOUND.mounts[0])
    assert node.named_after(10) is None


def test_a_container_that_started_again_is_judged_anew(tmp_path: Path) -> None:
    node = MountedNode(tmp_path, BARE)
    node.named_after(10)
    node.bind(running=False)
    node.check.look()
    assert node.check.found == ()
    node.mount(PID, SOUND.mounts[0])
    node.bind()
    assert node.named_after(10) is None


def test_what_is_sound_is_not_looked_at_again(tmp_path: Path) -> None:
    node = MountedNode(tmp_path, SOUND)
    node.check.look()
    node.mount(PID, BARE.mounts[0])
    assert node.named_after(10) is None


class Unseen:
    """Shows no process, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def mounts(self, containers: Collection[tuple[PodUid, str]]) -> dict[tuple[PodUid, str], list[Any]]:
        self.asked += 1
        return {}


def test_a_container_whose_process_is_not_seen_is_looked_for_rarely(tmp_path: Path) -> None:
    node, unseen = MountedNode(tmp_path, BARE), Unseen()
    check = InjectionCheck(node.state, node.pods, unseen, node.clock, "cdi", driver=True)
    for _ in range(int((PATIENCE_SECONDS + 2 * RARELY_SECONDS) / PERIOD_SECONDS)):
        check.look()
        node.clock.pass_(PERIOD_SECONDS)
    assert unseen.asked == PATIENCE_SECONDS / PERIOD_SECONDS + 2
    assert check.found == ()
