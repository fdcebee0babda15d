"""Association under a NUMA policy: calls that no question preceded, and aligned ids that nobody holds yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from gpu_manager.domain.topology import Link, LinkKind, Topology
from gpu_manager.services.allocation.unidentified_grants import is_unidentified
from sandbox.kubelet import NumaPolicy, Step
from tests.fakes.metrics import counts
from tests.fakes.node import NodeRig, container, pod
from tests.fakes.ports import cards

NIC = "x.io/nic"


def core_first(resources: Sequence[str]) -> list[str]:
    return sorted(resources)


def memory_first(resources: Sequence[str]) -> list[str]:
    return sorted(resources, reverse=True)


def on_nodes(count: int, per_node: int) -> tuple[Any, ...]:
    return tuple(replace(s, card=replace(s.card, numa=s.card.index // per_node)) for s in cards(count))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[NodeRig]:
    """Two NUMA nodes of two cards; a policy that lets pods lie on one node alone."""
    with NodeRig(tmp_path, on_nodes(4, 2), numa=NumaPolicy.SINGLE) as node:
        yield node


def fill(rig: NodeRig, *amounts: tuple[int, int, int]) -> None:
    """(card, cores, memory units) of pods that run."""
    for n, (card, cores, units) in enumerate(amounts):
        one = pod(
            f"fill{n}", container("c", cores, units), on={"c": [(rig.states[card], cores, units << 28)]}
        )
        assert rig.admit(one).admitted
        rig.start(one)
        assert rig.cards_of(one, "c") == (card,)


def unnamed(rig: NodeRig) -> int:
    return sum(is_unidentified(a.pod) for a in rig.state.view.ledger)


def booked_of(rig: NodeRig, card: CardUuid) -> Amount:
    return rig.state.view.ledger.booked(card)


def calls(rig: NodeRig, obj: dict[str, Any], resource: str) -> list[str]:
    uid = obj["metadata"]["uid"]
    return [s.name for s in rig.kubelet.steps if (s.pod, s.resource) == (uid, resource)]


@pytest.mark.parametrize("order", [core_first, memory_first])
def test_ids_that_nobody_asked_about_are_tokens_and_the_container_gets_a_card_with_room(
    rig: NodeRig, order: Any
) -> None:
    """Node 0 has 40 ids left, 20 on each card; the kubelet takes all of them without a word."""
    fill(rig, (0, 80, 4), (1, 80, 4))
    rig.kubelet.hooks.order = order
    one = pod("one", container("c", 40, 8))
    result = rig.admit(one)
    assert result.admitted, result.message
    assert calls(rig, one, CORE) == ["Allocate"], "the kubelet did not ask"
    assert unnamed(rig) == (order is memory_first), "the question about memory names the core ids' owner"
    rig.start(one)
    assert unnamed(rig) == 0
    (card,) = rig.cards_of(one, "c")
    assert card in (2, 3)
    (limit,) = rig.limits(result, "c")
    assert (limit.card, limit.cores, limit.memory) == (rig.states[card].card.uuid, 40, 2 * GIB)
    held = booked_of(rig, rig.states[card].card.uuid)
    assert (held.cores, held.memory) == (40, 2 * GIB), "booked once"


@pytest.mark.parametrize("order", [core_first, memory_first])
def test_the_assigned_card_is_taken_although_nobody_asked(rig: NodeRig, order: Any) -> None:
    fill(rig, (0, 80, 4), (1, 80, 4))
    rig.kubelet.hooks.order = order
    one = pod("one", container("c", 40, 8), on={"c": [(rig.states[3], 40, 8 << 28)]})
    assert rig.admit(one).admitted
    rig.start(one)
    assert rig.cards_of(one, "c") == (3,)


def test_ids_of_one_card_with_room_decide(rig: NodeRig) -> None:
    """Node 0 has 40 ids left, all of card 1: the policy has chosen that card."""
    fill(rig, (0, 100, 0), (1, 60, 4))
    one = pod("one", container("c", 40, 8), on={"c": [(rig.states[3], 40, 8 << 28)]})
    assert rig.admit(one).admitted
    rig.start(one)
    assert rig.cards_of(one, "c") == (1,)
    assert rig.pods.annotations, "the truth is written back"


@pytest.mark.parametrize("order", [core_first, memory_first])
def test_a_plan_makes_room_for_ids_that_nobody_asked_about(rig: NodeRig, order: Any) -> None:
    """Both cards of node 0 are left, and planned for fractions; the kubelet takes all their ids at once."""
    rig.kubelet.hooks.order = order
    planned = [
        pod(f"part{card}", container("c", 30, 4), on={"c": [(rig.states[card], 30, 4 << 28)]})
        for card in (0, 1)
    ]
    for one in planned:
        rig.state.introduce(rig.parsed(one))
    both = pod("both", container("c", 200, 0), on={"c": [(rig.states[c], 100, 64 << 28) for c in (2, 3)]})
    for obj, cards_ in ((both, {0, 1}), *((one, {2, 3}) for one in planned)):
        result = rig.admit(obj)
        assert result.admitted, result.message
        rig.start(obj)
        assert set(rig.cards_of(obj, "c")) <= cards_
    assert "GetPreferredAllocation" not in calls(rig, both, CORE), "the kubelet did not ask"


def test_without_room_on_any_card_the_pod_is_refused_with_the_reason(rig: NodeRig) -> None:
    fill(rig, (0, 80, 4), (1, 80, 4), (2, 70, 4), (3, 70, 4))
    result = rig.admit(pod("one", container("c", 40, 8)))
    assert not result.admitted
    assert "40 cores" in result.message
    assert unnamed(rig) == 0


@pytest.mark.parametrize("order", [core_first, memory_first])
def test_a_pod_rejected_after_an_unasked_grant_leaves_nothing_with_its_heir(rig: NodeRig, order: Any) -> None:
    """Another manager refuses the first pod between the calls; the second looks the same and has a card."""
    fill(rig, (0, 80, 4), (1, 80, 4))
    rig.kubelet.hooks.order = order
    ghost = pod("ghost", container("c", 40, 8), on={"c": [(rig.states[2], 40, 8 << 28)]})
    second = order([CORE, MEMORY])[1]

    def refuse(step: Step) -> None:
        if step.name == "resource" and step.resource == second and step.pod == ghost["metadata"]["uid"]:
            raise NodeUnready("the CPU manager has no room")

    rig.kubelet.hooks.before = refuse
    assert not rig.admit(ghost).admitted
    rig.delete(ghost)
    heir = pod("heir", container("c", 40, 8), on={"c": [(rig.states[3], 40, 8 << 28)]})
    result = rig.admit(heir)
    assert result.admitted, result.message
    rig.start(heir)
    (card,) = rig.cards_of(heir, "c")
    (limit,) = rig.limits(result, "c")
    assert (limit.card, limit.cores, limit.memory) == (rig.states[card].card.uuid, 40, 2 * GIB)
    assert card == 3


def test_both_resources_without_a_question_are_booked_once_and_named_at_the_start(tmp_path: Path) -> None:
    states = tuple(replace(s, card=replace(s.card, memory=4 * GIB)) for s in on_nodes(4, 2))
    with NodeRig(tmp_path, states, numa=NumaPolicy.SINGLE) as rig:
        fill(rig, (0, 80, 12), (1, 80, 12))
        one = pod("one", container("c", 40, 8))
        result = rig.admit(one)
        assert result.admitted, result.message
        assert calls(rig, one, CORE) == calls(rig, one, MEMORY) == ["Allocate"]
        assert unnamed(rig) == 1
        rig.start(one)
        (card,) = rig.cards_of(one, "c")
        assert card in (2, 3)
        for state in rig.states[2:]:
            booked = booked_of(rig, state.card.uuid)
            assert (booked.cores, booked.memory) == ((40, 2 * GIB) if state.card.index == card else (0, 0))
        assert rig.limits(result, "c")[0].memory == 8 * DEFAULT_UNIT


def test_an_unasked_whole_card_is_an_idle_one(rig: NodeRig) -> None:
    """The 100 ids left on node 0 lie on two cards: neither is whole."""
    fill(rig, (0, 50, 4), (1, 50, 4))
    one = pod("one", container("c", 100, 0))
    result = rig.admit(one)
    assert result.admitted, result.message
    rig.start(one)
    assert rig.cards_of(one, "c") in ((2,), (3,))


@pytest.mark.parametrize("order", [core_first, memory_first])
def test_a_plan_makes_room_for_the_pod_that_the_kubelet_admits_first(tmp_path: Path, order: Any) -> None:
    """Both were bound, each with its card; the kubelet gives the first it admits ids of the lower node."""
    with NodeRig(tmp_path, on_nodes(2, 1), numa=NumaPolicy.SINGLE) as rig:
        rig.kubelet.hooks.order = order
        early, late = (
            pod(name, container("c", 60, 8), on={"c": [(rig.states[card], 60, 8 << 28)]})
            for name, card in (("early", 0), ("late", 1))
        )
        for one in (early, late):
            rig.state.introduce(rig.parsed(one))
        for one, card in ((late, 0), (early, 1)):
            result = rig.admit(one)
            assert result.admitted, result.message
            rig.start(one)
            assert rig.cards_of(one, "c") == (card,)


@pytest.mark.parametrize("order", [core_first, memory_first])
def test_aligned_ids_that_nobody_holds_do_not_hide_the_pod(tmp_path: Path, order: Any) -> None:
    """Best effort: a device of another vendor pulls the pod to node 0, where too few ids are left. The kubelet
    takes these, and asks about the rest with them as what must be included.
    """
    with NodeRig(tmp_path, on_nodes(2, 1), numa=NumaPolicy.BEST_EFFORT) as rig:
        fill(rig, (0, 80, 60))
        rig.kubelet.set_foreign(NIC, 4, nodes=(0,))
        rig.kubelet.publish_node()
        rig.kubelet.hooks.order = lambda names: order([n for n in names if n != NIC]) + [NIC] * (NIC in names)
        one = pod("one", container("c", 30, 8), on={"c": [(rig.states[1], 30, 8 << 28)]})
        one["spec"]["containers"][0]["resources"]["limits"][NIC] = 1
        result = rig.admit(one)
        assert result.admitted, result.message
        (asked,) = [
            s for s in rig.kubelet.steps if s.name == "GetPreferredAllocation" and s.resource == CORE
        ][1:]
        assert len(asked.must_include) == 20, "the aligned ids"
        assert counts(rig.metrics.preferred_allocation_unidentified) == {}
        assert rig.cards_of(one, "c") == (1,), "named before it starts"
        rig.start(one)
        assert rig.limits(result, "c")[0].card == rig.states[1].card.uuid


@pytest.mark.parametrize(
    "others", [((0, 80, 4), (1, 80, 4)), ((0, 60, 64), (1, 100, 0))], ids=["of two cards", "no memory left"]
)
def test_without_own_books_and_checkpoint_the_agents_own_word_tells_cards_that_ids_do_not(
    rig: NodeRig, others: tuple[tuple[int, int, int], ...]
) -> None:
    """The ids that the kubelet took are tokens: the container lies on another card."""
    fill(rig, *others)
    one = pod("one", container("c", 40, 8), on={"c": [(rig.states[3], 40, 8 << 28)]})
    assert rig.admit(one).admitted
    assert calls(rig, one, CORE) == ["Allocate"]
    rig.start(one)
    assert rig.cards_of(one, "c") == (3,)
    one["metadata"]["annotations"] |= rig.pods.annotations[PodUid(one["metadata"]["uid"])]
    rig.pods.bind(rig.parsed(one))
    before = {s.card.uuid: booked_of(rig, s.card.uuid) for s in rig.states}
    rig.stop_agent()
    rig.store.state = None
    rig.kubelet.checkpoint_path.unlink()
    rig.start_agent()
    assert rig.cards_of(one, "c") == (3,)
    assert {s.card.uuid: booked_of(rig, s.card.uuid) for s in rig.states} == before


@pytest.mark.parametrize("order", [core_first, memory_first])
def test_the_second_container_of_a_pod_follows_its_ids_where_the_first_has_other_cards(
    rig: NodeRig, order: Any
) -> None:
    """Node 0 has 40 ids left, too few for both containers; the kubelet aligns each by itself."""
    rig.kubelet.hooks.order = order
    fill(rig, (0, 100, 4), (1, 60, 4))
    both = pod(
        "both",
        container("a", 60, 8),
        container("b", 30, 8),
        on={"a": [(rig.states[2], 60, 8 << 28)], "b": [(rig.states[2], 30, 8 << 28)]},
    )
    assert rig.admit(both).admitted
    rig.start(both)
    assert (rig.cards_of(both, "a"), rig.cards_of(both, "b")) == ((2,), (1,))


@pytest.mark.parametrize("order", [core_first, memory_first])
def test_a_container_follows_ids_of_another_node_where_its_own_card_has_none_left(
    tmp_path: Path, order: Any
) -> None:
    """A share on node 1 whose ids are of node 0 leaves room on node 0 that the kubelet does not see."""
    links = Topology.uniform(4, Link(LinkKind.SYS))
    told = replace(links, numa_policy=NumaPolicy.SINGLE)
    with NodeRig(tmp_path, on_nodes(4, 2), topology=told, numa=NumaPolicy.SINGLE) as rig:
        _follows_ids_of_another_node(rig, order)


def _follows_ids_of_another_node(rig: NodeRig, order: Any) -> None:
    rig.kubelet.hooks.order = order
    fill(rig, (0, 30, 4), (1, 30, 4))
    token = pod("token", container("c", 90, 8), on={"c": [(rig.states[2], 90, 8 << 28)]})
    assert rig.admit(token).admitted
    rig.start(token)
    assert rig.cards_of(token, "c") == (2,), "90 ids of node 0, and no card there has the room"
    one = pod("one", container("c", 60, 8), on={"c": [(rig.states[0], 60, 8 << 28)]})
    assert rig.admit(one).admitted
    rig.start(one)
    assert rig.cards_of(one, "c") == (3,), "where its ids are"


def test_a_pod_that_finds_no_room_on_the_offered_cards_keeps_its_plan_and_so_do_the_others(
    rig: NodeRig,
) -> None:
    fill(rig, (0, 70, 4), (1, 70, 4))
    plans = [
        pod(f"planned{card}", container("c", 25, 4), on={"c": [(rig.states[card], 25, 4 << 28)]})
        for card in (0, 1)
    ]
    one = pod("one", container("a", 40, 8), container("b", 5, 8), on={
        "a": [(rig.states[2], 40, 8 << 28)], "b": [(rig.states[2], 5, 8 << 28)],
    })  # fmt: skip
    for obj in (*plans, one):
        rig.pods.bind(rig.parsed(obj))
        rig.state.introduce(rig.parsed(obj))
    assert rig.admit(one).admitted
    rig.start(one)
    assert rig.cards_of(one, "a") == (2,), "60 ids of node 0, and no card there has room for 40"
    assert [rig.cards_of(obj, "c") for obj in plans] == [(0,), (1,)]
    for obj in plans:
        assert rig.admit(obj).admitted


def test_ids_that_nobody_asked_about_lead_to_a_card_of_their_node_whatever_was_planned(
    tmp_path: Path,
) -> None:
    """Node 0 has exactly 100 ids left, 80 are a token for a share on node 1: one of its cards is idle."""
    told = replace(Topology.uniform(4, Link(LinkKind.SYS)), numa_policy=NumaPolicy.SINGLE)
    with NodeRig(tmp_path, on_nodes(4, 2), topology=told, numa=NumaPolicy.SINGLE) as rig:
        gone = [
            pod(f"gone{card}", container("c", 30, 4), on={"c": [(rig.states[card], 30, 4 << 28)]})
            for card in (0, 1)
        ]
        token = pod("token", container("c", 80, 8), on={"c": [(rig.states[2], 80, 8 << 28)]})
        for obj in (*gone, token):
            assert rig.admit(obj).admitted
            rig.start(obj)
        assert rig.cards_of(token, "c") == (2,)
        for obj in gone:
            rig.delete(obj, force=True)
            rig.state.forget_pod(PodUid(obj["metadata"]["uid"]))
        fill(rig, (0, 20, 4))
        one = pod("one", container("c", 100, 0), on={"c": [(rig.states[3], 100, 64 << 28)]})
        assert rig.admit(one).admitted
        rig.start(one)
        assert "GetPreferredAllocation" not in calls(rig, one, CORE), "the kubelet did not ask"
        assert rig.cards_of(one, "c") == (1,)


@pytest.mark.parametrize("order", [core_first, memory_first])
def test_the_ids_of_an_init_container_are_passed_on_with_all_that_is_left_of_its_node(
    rig: NodeRig, order: Any
) -> None:
    """Node 0 has 40 ids left: 20 go to the init container, and come again with the other 20, unasked."""
    rig.kubelet.hooks.order = order
    fill(rig, (0, 100, 4), (1, 60, 4))
    staged = pod(
        "staged",
        container("app", 40, 8),
        init=[container("init", 20, 8)],
        on={name: [(rig.states[1], cores, 8 << 28)] for name, cores in (("init", 20), ("app", 40))},
    )
    result = rig.admit(staged)
    assert result.admitted, result.message
    rig.start(staged)
    assert rig.cards_of(staged, "app") == (1,)
    assert unnamed(rig) == 0
