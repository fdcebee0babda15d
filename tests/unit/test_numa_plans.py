"""Under a NUMA policy ids move pods: bound pods keep a plan, the scheduler hears of it, guesses refuse nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.card import CardState
from gpu_manager.domain.contract import ALLOCATION, ASSIGNED, CORE, decode_assignment
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import GIB
from gpu_manager.domain.topology import Link, LinkKind, NumaPolicy, Topology
from tests.fakes.direct import DirectRig
from tests.fakes.node import container, pod
from tests.fakes.ports import FakeClock, cards

WHOLE = 16 * GIB


def on_nodes(count: int, per_node: int) -> tuple[CardState, ...]:
    return tuple(replace(s, card=replace(s.card, numa=s.card.index // per_node)) for s in cards(count))


def rig_of(directory: Path, count: int = 4, policy: NumaPolicy = NumaPolicy.SINGLE) -> DirectRig:
    """NUMA nodes of two cards; the agent knows the policy."""
    links = replace(Topology.uniform(count, Link(LinkKind.SYS)), numa_policy=policy)
    return DirectRig(
        directory, on_nodes(count, 2), topology=links, clock=FakeClock(), numa=policy, patience=0.25
    )


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[DirectRig]:
    with rig_of(tmp_path) as node:
        yield node


def uid(obj: dict[str, Any]) -> PodUid:
    return PodUid(obj["metadata"]["uid"])


def whole(rig: DirectRig, name: str, *indices: int) -> dict[str, Any]:
    return pod(
        name,
        container("c", 100 * len(indices), 0),
        on={"c": [(rig.states[index], 100, WHOLE) for index in indices]},
    )


def part(rig: DirectRig, name: str, card: int, cores: int, units: int = 4) -> dict[str, Any]:
    return pod(name, container("c", cores, units), on={"c": [(rig.states[card], cores, units << 28)]})


def bound(rig: DirectRig, *objs: dict[str, Any]) -> None:
    for obj in objs:
        rig.pods.bind(rig.parsed(obj))
        rig.state.introduce(rig.parsed(obj))


def told(rig: DirectRig, obj: dict[str, Any]) -> tuple[int, ...]:
    """The cards that the agent has written into the pod's annotation."""
    written = decode_assignment(rig.pods.annotations[uid(obj)][ALLOCATION])
    assert written is not None
    index = {s.card.uuid: s.card.index for s in rig.states}
    return tuple(sorted(index[card] for card, _ in written.containers["c"]))


def test_of_two_pods_alike_either_may_be_the_one_that_ids_without_a_question_are_for(rig: DirectRig) -> None:
    """All cards are planned for the two; the kubelet admits the second first, with the ids of the lower node."""
    first, second = whole(rig, "first", 0, 1), whole(rig, "second", 2, 3)
    bound(rig, first, second)
    for obj in (second, first):
        result = rig.admit(obj)
        assert result.admitted, result.message
        assert "GetPreferredAllocation" not in [s.name for s in rig.kubelet.steps if s.pod == uid(obj)]
        rig.start(obj)
    assert (rig.cards_of(first, "c"), rig.cards_of(second, "c")) == ((2, 3), (0, 1))


def test_a_guess_that_has_no_room_is_no_reason_to_refuse(rig: DirectRig) -> None:
    """40 ids are left, all of card 1. Two pods ask for as many, one of them for more memory than there is."""
    for card, cores in ((0, 100), (1, 60), (2, 100), (3, 100)):
        obj = whole(rig, f"fill{card}", card) if cores == 100 else part(rig, f"fill{card}", card, cores)
        assert rig.admit(obj).admitted
        rig.start(obj)
    much, little = part(rig, "much", 1, 40, 62), part(rig, "little", 1, 40, 8)
    bound(rig, much, little)
    rig.kubelet.hooks.order = sorted
    result = rig.admit(little)
    assert result.admitted, result.message
    assert "GetPreferredAllocation" not in [
        s.name for s in rig.kubelet.steps if (s.pod, s.resource) == (uid(little), CORE)
    ]
    rig.start(little)
    assert rig.cards_of(little, "c") == (1,)


def test_a_pod_whose_cards_were_still_held_is_planned_as_soon_as_they_are_free(rig: DirectRig) -> None:
    old = whole(rig, "old", 0, 1)
    beside = whole(rig, "beside", 2)
    for obj in (old, beside):
        assert rig.admit(obj).admitted
        rig.start(obj)
    new, moved = whole(rig, "new", 0, 1), part(rig, "moved", 3, 30)
    rig.delete(old)
    bound(rig, new, moved)
    assert rig.cards_of(new, "c") == (), "the old pod is booked there still"
    result = rig.admit(moved)
    assert result.admitted, result.message
    rig.start(moved)
    aligned = {rig.state.node.ids.card_of[CORE][device] for device in result.ids["c"][CORE]}
    assert aligned <= {s.card.uuid for s in rig.states[:2]}, "the kubelet prefers the lower node"
    assert rig.cards_of(moved, "c") == (3,), "it would have broken the only pair of cards"
    assert rig.cards_of(new, "c") == (0, 1)


def test_a_pod_whose_cards_somebody_took_for_good_is_planned_on_others(rig: DirectRig) -> None:
    taken = whole(rig, "taken", 0)
    assert rig.admit(taken).admitted
    rig.start(taken)
    late = whole(rig, "late", 0)
    bound(rig, late)
    assert rig.cards_of(late, "c") == ()
    other = part(rig, "other", 1, 30)
    assert rig.admit(other).admitted
    assert rig.cards_of(late, "c") in ((2,), (3,))
    assert told(rig, late) == rig.cards_of(late, "c")
    assert rig.pods.annotations[uid(late)][ASSIGNED] == "false"


@pytest.mark.parametrize("policy", [NumaPolicy.BEST_EFFORT, NumaPolicy.SINGLE])
def test_the_scheduler_hears_at_once_of_a_pod_that_makes_room_and_of_the_one_that_it_is_for(
    tmp_path: Path, policy: NumaPolicy
) -> None:
    with rig_of(tmp_path, policy=policy) as rig:
        planned, first = whole(rig, "planned", 0), part(rig, "first", 2, 60)
        bound(rig, planned, first)
        fill = whole(rig, "fill", 1)
        assert rig.admit(fill).admitted
        assert rig.admit(first).admitted
        assert (rig.cards_of(first, "c"), told(rig, first)) == ((0,), (0,))
        assert rig.cards_of(planned, "c") == told(rig, planned) != (0,)


def test_plans_elsewhere_make_room_for_those_that_make_room(tmp_path: Path) -> None:
    """The pair planned where the ids are finds another only if a third pod exchanges its card."""
    with rig_of(tmp_path, 8) as rig:
        for obj in (whole(rig, "fill", 0), part(rig, "beside", 1, 30)):
            assert rig.admit(obj).admitted
            rig.start(obj)
        pair, lone, first, last = (
            whole(rig, "pair", 2, 3),
            whole(rig, "lone", 4),
            whole(rig, "first", 5),
            part(rig, "last", 7, 60),
        )
        bound(rig, pair, lone, first, last)
        for obj in (first, pair, lone, last):
            result = rig.admit(obj)
            assert result.admitted, result.message
            rig.start(obj)
        assert rig.cards_of(first, "c") in ((2,), (3,)), "where its ids are"
        assert rig.cards_of(pair, "c") in ((4, 5), (6, 7))
        assert told(rig, first) == rig.cards_of(first, "c")


def test_without_a_policy_nothing_is_told_and_nothing_is_planned_by_and_by(tmp_path: Path) -> None:
    with DirectRig(tmp_path, cards(2), clock=FakeClock()) as rig:
        held = whole(rig, "held", 0)
        assert rig.admit(held).admitted
        late = whole(rig, "late", 0)
        bound(rig, late)
        assert rig.admit(part(rig, "other", 1, 30)).admitted
        assert rig.cards_of(late, "c") == ()
        assert rig.pods.annotations == {}


def test_a_pod_that_has_gone_is_not_planned(rig: DirectRig) -> None:
    gone, deleting = whole(rig, "gone", 0), whole(rig, "deleting", 1)
    rig.pods.bind(rig.parsed(gone))
    rig.pods.forget("default/gone")
    deleting["metadata"]["deletionTimestamp"] = "2026-11-21T00:01:00Z"
    rig.pods.bind(rig.parsed(deleting))
    assert rig.admit(part(rig, "other", 2, 30)).admitted
    assert rig.cards_of(gone, "c") == rig.cards_of(deleting, "c") == ()
