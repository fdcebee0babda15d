"""Grants that no question preceded, and what comes between such a grant and the start of its container."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import GIB
from gpu_manager.services.allocation.unidentified_grants import is_unidentified
from gpu_manager.services.recovery.reclaimer import SETTLE_SECONDS
from sandbox.kubelet import NumaPolicy, Step
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.ports import FakeClock, cards

UNITS = 16  # of one card here


def core_first(resources: Sequence[str]) -> list[str]:
    return sorted(resources)


def memory_first(resources: Sequence[str]) -> list[str]:
    return sorted(resources, reverse=True)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[NodeRig]:
    """Two NUMA nodes of one card of 4 GiB each; a policy that lets pods lie on one node alone."""
    states = tuple(replace(s, card=replace(s.card, numa=s.card.index, memory=4 * GIB)) for s in cards(2))
    with NodeRig(tmp_path, states, numa=NumaPolicy.SINGLE) as node:
        yield node


def asked(rig: NodeRig, obj: dict[str, Any], resource: str) -> bool:
    uid = obj["metadata"]["uid"]
    names = [s.name for s in rig.kubelet.steps if (s.pod, s.resource) == (uid, resource)]
    assert "Allocate" in names
    return "GetPreferredAllocation" in names


def unnamed(rig: NodeRig) -> int:
    return sum(is_unidentified(a.pod) for a in rig.state.view.ledger)


def booked(rig: NodeRig) -> list[tuple[int, int]]:
    """(cores, memory units) of each card."""
    held = [rig.state.view.ledger.booked(s.card.uuid) for s in rig.states]
    return [(amount.cores, amount.memory >> 28) for amount in held]


def directory(result: Any, name: str = "c") -> str:
    mount = next(m for m in result.containers[name].mounts if m.container_path == "/etc/vcuda/limits")
    return Path(mount.host_path).parent.name


@pytest.mark.parametrize("watched", [True, False])
def test_two_whole_cards_that_nobody_asked_about_are_two(rig: NodeRig, watched: bool) -> None:
    """The second pod comes before the first one starts; the watch may not have shown it yet."""
    one, two = pod("one", container("c", 100, 0)), pod("two", container("c", 100, 0))
    results = [rig.admit(one), rig.admit(two, watched=watched)]
    assert all(r.admitted for r in results), results
    assert not asked(rig, one, CORE)
    assert not asked(rig, two, CORE)
    assert [cores for cores, _ in booked(rig)] == [100, 100]
    for obj in (one, two):
        rig.start(obj)
    assert {rig.cards_of(one, "c"), rig.cards_of(two, "c")} == {(0,), (1,)}
    assert unnamed(rig) == 0


@pytest.mark.parametrize(
    ("second", "watched"), [(core_first, True), (memory_first, True), (memory_first, False)]
)
def test_the_next_pod_of_the_same_shape_takes_nothing_of_an_unnamed_grant(
    rig: NodeRig, second: Any, watched: bool
) -> None:
    """Cores are asked about, memory never: each pod takes the last ids of its node."""
    one, two = pod("one", container("c", 40, UNITS)), pod("two", container("c", 40, UNITS))
    rig.kubelet.hooks.order = core_first
    first = rig.admit(one)
    rig.kubelet.hooks.order = second
    next_ = rig.admit(two, watched=watched)
    assert first.admitted, first.message
    assert next_.admitted, next_.message
    assert asked(rig, one, CORE)
    assert not asked(rig, one, MEMORY)
    assert not asked(rig, two, MEMORY)
    assert directory(first) != directory(next_), "each has control pages of its own"
    assert booked(rig) == [(40, UNITS), (40, UNITS)]
    for obj in (two, one):
        rig.start(obj)
    assert {rig.cards_of(one, "c"), rig.cards_of(two, "c")} == {(0,), (1,)}
    for result in (first, next_):
        (limit,) = rig.limits(result, "c")
        assert (limit.cores, limit.memory) == (40, 4 * GIB)
    assert booked(rig) == [(40, UNITS), (40, UNITS)]
    assert unnamed(rig) == 0


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("order", [core_first, memory_first])
@pytest.mark.parametrize("lost", [True, False])
def test_a_restart_before_the_start_keeps_an_unnamed_grant_once_and_whole(
    rig: NodeRig, order: Any, watched: bool, lost: bool
) -> None:
    rig.kubelet.hooks.order = order
    fill = pod("fill", container("c", 60, 4))
    assert rig.admit(fill).admitted
    rig.start(fill)
    (full,) = rig.cards_of(fill, "c")
    one = pod("one", container("c", 40, 12), on={"c": [(rig.states[full], 40, 12 << 28)]})
    result = rig.admit(one, watched=watched)
    assert result.admitted, result.message
    assert not asked(rig, one, CORE)
    if lost:
        rig.store.state = None
    rig.restart_agent()
    rig.pods.watch()
    (card,) = {0, 1} - {n for n, amount in enumerate(booked(rig)) if amount == (0, 0)} - {full} or {full}
    assert booked(rig)[card] == ((100, 16) if card == full else (40, 12)), "booked once"
    rig.start(one)
    assert rig.cards_of(one, "c") == (card,)
    (limit,) = rig.limits(result, "c")
    assert (limit.cores, limit.memory) == (40, 3 * GIB)
    assert unnamed(rig) == 0
    assert sum(cores for cores, _ in booked(rig)) == 100


def test_news_of_the_pod_books_nothing_again_while_it_is_unnamed(rig: NodeRig) -> None:
    whole = pod("whole", container("c", 100, 0), on={"c": [(rig.states[1], 100, UNITS << 28)]})
    assert rig.admit(whole).admitted
    assert unnamed(rig) == 1
    before = booked(rig)
    rig.state.introduce(rig.parsed(whole))
    assert booked(rig) == before


def test_the_second_container_does_not_have_the_first_booked_again(rig: NodeRig) -> None:
    """The first takes the last ids of node 0 unasked; about the second the kubelet asks."""
    one = pod("one", container("a", 100, 0), container("b", 40, 8))
    result = rig.admit(one)
    assert result.admitted, result.message
    assert sorted(booked(rig)) == [(40, 8), (100, UNITS)]
    rig.start(one)
    assert unnamed(rig) == 0
    assert sorted(booked(rig)) == [(40, 8), (100, UNITS)]


def test_memory_that_was_booked_beside_its_container_is_settled_at_the_start(rig: NodeRig) -> None:
    """The pod is known for its cores by a question to the API alone; for its memory nobody could be meant."""
    fill = pod("fill", container("c", 10, 8))
    assert rig.admit(fill).admitted
    rig.start(fill)
    rig.kubelet.hooks.order = core_first
    one = pod("one", container("c", 40, 8), on={"c": [(rig.states[rig.cards_of(fill, "c")[0]], 40, 8 << 28)]})
    result = rig.admit(one, watched=False)
    assert result.admitted, result.message
    assert asked(rig, one, CORE)
    assert not asked(rig, one, MEMORY)
    assert unnamed(rig) == 1
    rig.start(one)
    assert unnamed(rig) == 0
    assert sorted(booked(rig)) == [(0, 0), (50, UNITS)]
    (limit,) = rig.limits(result, "c")
    assert (limit.cores, limit.memory) == (40, 2 * GIB)


def test_a_plan_made_anew_leaves_out_what_is_booked_under_a_made_up_name(tmp_path: Path) -> None:
    """The card planned for the second container closes while the first one is not named yet."""
    numa = (0, 1, 1)
    states = tuple(replace(s, card=replace(s.card, numa=n)) for s, n in zip(cards(3), numa, strict=True))
    with NodeRig(tmp_path, states, numa=NumaPolicy.SINGLE) as rig:
        one = pod("one", container("a", 100, 0), container("b", 40, 8))
        closed: list[int] = []

        def close(step: Step) -> None:
            if step.name == "GetPreferredAllocation" and not closed:
                closed.extend(rig.cards_of(one, "b"))
                now = [replace(s, cordoned=s.card.index in closed) for s in rig.states]
                rig.state.refit(now, rig.topology)

        rig.kubelet.hooks.before = close
        result = rig.admit(one)
        assert result.admitted, result.message
        assert closed
        rig.start(one)
        assert rig.cards_of(one, "a") == (0,)
        assert rig.cards_of(one, "b") == ({1: 2, 2: 1}[closed[0]],)
        assert unnamed(rig) == 0


def test_a_decision_that_was_never_followed_is_nobody_elses(tmp_path: Path) -> None:
    """The answer reaches the kubelet, its Allocate does not reach us; nobody asks about the next pod."""
    with NodeRig(tmp_path, cards(3)) as rig:
        lost = pod("lost", container("c", 100, 0), on={"c": [(rig.states[0], 100, 16 * GIB)]})

        def fail(step: Step) -> None:
            if step.name == "Allocate" and step.pod == lost["metadata"]["uid"]:
                raise NodeUnready("the connection broke")

        rig.kubelet.hooks.before = fail
        assert not rig.admit(lost).admitted
        rig.delete(lost)
        two = pod("two", container("c", 100, 0), on={"c": [(rig.states[2], 100, 16 * GIB)]})
        rig.pods.bind(rig.parsed(two))
        rig.state.introduce(rig.parsed(two))
        ids = rig.state.node.ids.of_card[CORE][rig.states[2].card.uuid]
        rig.allocator.allocate(CORE, ids)
        holders = [(g.allocation.pod, g.allocation.cards) for g in rig.state.view.grants.values()]
        assert [cards_ for _, cards_ in holders] == [(rig.states[2].card.uuid,)]
        assert PodUid(lost["metadata"]["uid"]) not in {uid for uid, _ in holders}


def test_unknown_ids_use_up_the_decision_too(tmp_path: Path) -> None:
    with NodeRig(tmp_path, cards(2)) as rig:
        lost = pod("lost", container("c", 30, 8))

        def fail(step: Step) -> None:
            if step.name == "Allocate" and step.pod == lost["metadata"]["uid"]:
                with pytest.raises(RequestInvalid, match="unknown device id"):
                    rig.allocator.allocate(step.resource, ["ffffffff-c00"])
                raise NodeUnready("refused")

        rig.kubelet.hooks.before = fail
        rig.kubelet.hooks.order = core_first
        assert not rig.admit(lost).admitted
        rig.delete(lost)
        free = rig.state.node.ids.of_card[CORE][rig.states[1].card.uuid]
        rig.allocator.allocate(CORE, free[:30])
        assert unnamed(rig) == 1


def test_what_cannot_be_written_down_is_not_given_unasked(rig: NodeRig) -> None:
    """Nothing stays booked for a grant that failed; who may be meant keeps its place."""
    one = pod("one", container("c", 100, 0), on={"c": [(rig.states[1], 100, UNITS << 28)]})
    rig.pods.bind(rig.parsed(one))
    rig.state.introduce(rig.parsed(one))
    rig.store.broken = True
    assert not rig.kubelet.admit(one).admitted
    assert unnamed(rig) == 0
    assert booked(rig) == [(0, 0), (100, UNITS)]


def test_pods_that_have_left_are_not_remembered(tmp_path: Path) -> None:
    clock = FakeClock()
    with NodeRig(tmp_path, cards(2), clock=clock) as rig:
        one, two = pod("one", container("c", 30, 8)), pod("two", container("c", 30, 8))
        uid = PodUid(one["metadata"]["uid"])
        assert rig.admit(one).admitted
        assert rig.admit(two).admitted
        assert rig.departed.seen(uid)
        for obj in (one, two):
            rig.delete(obj)
        clock.pass_(SETTLE_SECONDS + 5)
        for _ in range(3):
            rig.reclaimer.round()
        assert len(rig.state.view.ledger) == 0
        assert rig.admit(pod("three", container("c", 30, 8))).admitted
        assert not rig.departed.seen(uid)
