"""Advice in an agent's answer: names for those who may hear them, UIDs and digests for others, names again."""

from __future__ import annotations

from dataclasses import replace

from gpu_manager.domain.advice.size import Sized, advise, named_advice, read_sized, sized_json, within_scope
from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod, PodUid
from gpu_manager.domain.names import ALL_NAMES, NO_NAMES, NameScope, container_name
from tests.unit.test_advice import GIVEN, KNOWN, UNIT

POD = Pod(PodUid("u-1"), "team-a", "train", (Container("main", ContainerKind.APP),))
ONE = Sized(
    ("team-a", POD.workload, "main"),
    ("train",),
    GIVEN,
    UNIT,
    KNOWN,
    advise(KNOWN, GIVEN, UNIT),
    ("u-1",),
)


def test_names_are_told_to_whom_they_are_covered_for() -> None:
    assert within_scope(ONE, ALL_NAMES) is ONE
    assert within_scope(ONE, NameScope("team-a")) is ONE
    for scope in (NO_NAMES, NameScope("team-b")):
        told = str(sized_json(within_scope(ONE, scope)))
        assert not [name for name in ("team-a", "train", "main") if name in told]
        assert "u-1" in told


def test_who_knows_the_pods_has_the_names_again() -> None:
    unnamed = read_sized(sized_json(within_scope(ONE, NO_NAMES)))
    assert named_advice(unnamed, {"u-1": POD}) == ONE
    assert named_advice(unnamed, {"u-2": POD}) is None
    assert named_advice(ONE, {}) is ONE
    assert within_scope(replace(ONE, uids=()), NO_NAMES).workload == ("", "", "")
    assert named_advice(within_scope(replace(ONE, uids=()), NO_NAMES), {"u-1": POD}) is None


def test_a_name_that_was_told_plainly_stays() -> None:
    assert container_name("u-1", "other", POD) == "other"
