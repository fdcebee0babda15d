"""One accounting: kubectl, the scheduler extender and quota say the same of who holds what, and so does the agent."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.cluster.snapshot import NODES, PODS, ClusterState
from bench.books import disagreement, random_cluster
from gpu_manager.adapters.kube.reading import cluster_of
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.node_books import NodeBooks, terminating_shares
from gpu_manager.domain.cluster.node_json import read_node, usual_unit, whole_number
from gpu_manager.domain.cluster.pod_charges import allocation_annotations, allocations_of
from gpu_manager.domain.contract import (
    ALLOCATION,
    ASSIGNED,
    CORE_LIMIT,
    GPU_MODEL,
    GPU_UUID,
    MODEL_LABEL,
    NVIDIA,
    PLACEMENT,
    Assignment,
    encode_assignment,
)
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid
from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.domain.placement.explain import Refusal
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.placement.place import place
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.domain.rules.legal_values import MOST_ASKING
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.services.allocation.books import Books, NodeCards
from gpu_manager.services.allocation.planner import plan
from tests.fakes.counted_calls import calls_of
from tests.fakes.extender import UNIT, World, bound, container, node, pod, uuid
from tests.seeds import seeds

Obj = dict[str, Any]


def says(name: str, *cards: CardUuid, cores: int = 60, where: str = "n1", units: int = 4) -> dict[str, str]:
    """The allocation annotation of the pod's container ``main``."""
    shares = tuple((card, Amount(cores, units * UNIT)) for card in cards)
    return {ALLOCATION: encode_assignment(Assignment(where, f"uid-default-{name}", {"main": shares}))}


def by_kubectl(nodes: list[Obj], pods: list[Obj]) -> dict[str, list[int]]:
    """Node → cores free on each card."""
    return {books.name: _free(books) for books in cluster_of(nodes, pods).with_cards}


def by_the_extender(nodes: list[Obj], pods: list[Obj]) -> dict[str, list[int]]:
    cluster = ClusterState(UNIT)
    cluster.replace(NODES, nodes)
    cluster.replace(PODS, pods)
    return {n: _free(view) for n, view in cluster.snapshot().nodes.items() if view.node.published}


def _free(books: NodeBooks) -> list[int]:
    return [books.ledger.free(state.card.uuid).cores for state in books.node.cards]


ONE = uuid("n1", 0)
GPUS = {"name": "main", "image": "image", "resources": {"limits": {NVIDIA: "1"}}}
CASES = {
    "a-ceiling-written-later": ([pod("a", 60, on="n1", annotations={CORE_LIMIT: "150", **says("a", ONE)})], 40),
    "a-policy-written-later": ([pod("a", 60, on="n1", annotations={PLACEMENT: "foo", **says("a", ONE)})], 40),
    "an-odd-annotation-and-no-card-said": ([pod("a", 60, on="n1", annotations={PLACEMENT: "foo"})], 40),
    "annotated-and-bound-by-hand": (
        [pod("a", 60, on="n1", annotations=says("a", ONE)), pod("b", 60, on="n1")], -20,
    ),
    "lent-as-nvidias": ([pod("a", containers=[GPUS], on="n1")], 0),
    "illegal-and-never-granted": ([pod("a", 150, None, on="n1", annotations=says("a", ONE))], 100),
    "illegal-now-and-granted-before": (
        [pod("a", 30, None, on="n1", annotations={ASSIGNED: "true", **says("a", ONE, cores=30)})], 70,
    ),
    "more-containers-than-are-legal-and-granted-before": (
        [
            pod(
                "a",
                containers=[container("main", 30, 4), *(container(f"c{n}", 1, 1) for n in range(MOST_ASKING))],
                on="n1",
                annotations={ASSIGNED: "true", **says("a", ONE, cores=30)},
            )
        ], 70,
    ),
    "two-pods-in-one-place-the-older-first": (
        [
            pod("young", 80, on="n1", created="2026-01-02T00:00:00Z"),
            pod("old", 60, on="n1", created="2026-01-01T00:00:00Z"),
        ],
        -40,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "free"), CASES.values(), ids=CASES)
def test_kubectl_and_the_extender_say_that_so_much_is_free(pods: list[Obj], free: int) -> None:
    nodes = [node("n1", 1, lends=True)]
    assert by_kubectl(nodes, pods) == by_the_extender(nodes, pods) == {"n1": [free]}


@pytest.mark.parametrize("block", range(8))
def test_of_no_odd_cluster_they_say_different_things(block: int) -> None:
    for seed in seeds(200)[block * 25 : block * 25 + 25]:
        assert disagreement(*random_cluster(random.Random(seed)), order=seed) == "", f"seed {seed}"


def test_a_difference_between_the_two_would_be_named() -> None:
    """The comparison is no tautology: a cluster whose objects differ for the two is told apart."""
    nodes, pods = [node("n1", 1)], [pod("a", 60, on="n1", annotations=says("a", ONE))]
    twice = [*pods, {**pod("a", 30, on="n1"), "metadata": {**pod("a")["metadata"], "uid": ""}}]
    assert disagreement(nodes, pods) == disagreement(nodes, twice) == ""
    other = [*pods, pod("b", 30, on="n1", uid="uid-default-a")]
    assert {disagreement(nodes, other, order) for order in range(8)} != {""}, "two pods of one UID"


def test_quota_counts_pods_on_nodes_that_publish_nothing_by_their_label() -> None:
    nodes = [node("n1", inventory=False, labels={MODEL_LABEL: "T4"})]
    cluster = cluster_of(nodes, [pod("a", 60, 4, on="n1"), pod("b", 30, 4, on="n-unknown")])
    assert cluster.used == {"default": {"T4": Amount(60, GIB), "": Amount(30, GIB)}}
    assert cluster.with_cards == ()


def test_a_pod_for_which_no_card_has_room_is_charged_and_named() -> None:
    (books,) = cluster_of([node("n1", 1)], [pod("a", 60, on="n1"), pod("b", 60, on="n1")]).with_cards
    assert [one.name for one in books.unplaceable] == ["b"]
    assert books.guessed(PodUid("uid-default-a"))
    assert books.ledger.booked(ONE).cores == 120


@pytest.mark.parametrize("containers", [1, 32])
def test_twice_as_many_pods_that_name_a_full_node_themselves_cost_twice_as_much(containers: int) -> None:
    """Anybody may bind pods by ``nodeName``; on a node whose kubelet is away none of them ends."""

    def calls(count: int) -> int:
        asked = [container(f"c{i}", 20 + i, 1 + i) for i in range(containers)]
        world = World([node("n1", 4)], [pod(f"p{i:03}", on="n1", containers=asked) for i in range(count)])
        return calls_of(world.cluster.snapshot) + calls_of(
            lambda: (world.create(pod("first", on="n1", created="2025-01-01T00:00:00Z")), world.nodes)
        )

    assert calls(80) < 2.2 * calls(40)


def test_a_pod_on_its_way_to_a_card_that_another_got_is_charged_where_room_is_left_for_it() -> None:
    """The agent has given one pod another card than was chosen, and said so; of the pod whose room that was it
    says so only once it comes. Counted on the full card alone, its other room would be promised twice.
    """
    first, second = uuid("n1", 0), uuid("n1", 1)
    here, runs = node("n1"), {ASSIGNED: "true"}
    moved = pod("moved", 60, 4, on="n1", annotations=says("moved", first) | runs)
    comes = pod("comes", 60, 4, on="n1", annotations=says("comes", first) | {ASSIGNED: "false"})
    assert by_kubectl([here], [moved, comes]) == by_the_extender([here], [moved, comes]) == {"n1": [40, 40]}
    both = [moved, pod("comes", 60, 4, on="n1", annotations=says("comes", first) | runs)]
    assert by_kubectl([here], both) == by_the_extender([here], both) == {"n1": [-20, 100]}, "as both say"

    world, new = World([here], [moved, comes]), pod("new", 60, 4)
    world.create(new)
    assert world.filter(new)["NodeNames"] == [], "the room on the second card is for the pod that comes"
    world.show(pod("comes", 60, 4, on="n1", annotations=says("comes", second) | runs))
    assert by_kubectl([here], [moved, comes]) == {"n1": [40, 40]}
    assert world.filter(new)["NodeNames"] == []
    world.delete(moved)
    assert world.filter(new)["NodeNames"] == ["n1"]


def test_what_an_annotation_claims_of_cards_that_are_not_there_is_not_heard() -> None:
    granted = {ASSIGNED: "true", **says("a", ONE, CardUuid("GPU-of-nobody"), cores=900, units=900)}
    (books,) = cluster_of([node("n1", 1)], [pod("a", 30, None, on="n1", annotations=granted)]).with_cards
    assert books.ledger.booked(ONE) == books.node.cards[0].card.capacity(UNIT), "the card whole, at most"


def test_a_closed_card_takes_nothing_and_the_judgement_says_so() -> None:
    (books,) = cluster_of([node("n1", 1, closed=[0])], []).with_cards
    verdict = books.judge(judged_request(parse_pod(pod("new", 10))))
    assert isinstance(verdict, Refusal)
    assert "cordoned" in verdict.line()


# Against the agent's own ledger.

ODD = st.sampled_from([{}, {CORE_LIMIT: "150"}, {PLACEMENT: "foo"}, {GPU_MODEL: ","}])
ASKED = st.sampled_from([(30, 4), (60, 20), (10, 1), (100, None), (200, None), (99, 40)])


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[Obj, dict[str, str], str]]:
    """Pods in the order of their coming, what is annotated once they run, and how each ends up."""
    told = []
    for n in range(draw(st.integers(0, 8))):
        core, memory = draw(ASKED)
        init = [container("first", 20, 2)] if core < 100 and draw(st.booleans()) else []
        obj = pod(f"p{n}", containers=[container("main", core, memory)], init=init)
        fate = draw(st.sampled_from(["runs", "runs", "runs", "ended", "deleted", "lingers"]))
        told.append((obj, draw(ODD), fate))
    return told


@given(stories())
@settings(max_examples=120)
def test_what_is_seen_from_outside_is_the_agents_ledger(story: list[tuple[Obj, dict[str, str], str]]) -> None:
    here = read_node(node("n1", 3))
    ledger = Ledger((s.card for s in here.cards), UNIT)
    shown, left = [], []
    for obj, odd, fate in story:
        one = parse_pod(bound(obj, "n1", {}))
        try:
            placement = place(judged_request(one), here.cards, here.topology, ledger)
        except (DoesNotFit, RequestInvalid):
            continue
        ledger.commit(allocations_of(one, placement))
        truth = allocation_annotations(one, "n1", placement, here.cards, 0.0, assigned=True)
        if fate == "lingers":
            left.append(one.uid)
        elif fate == "deleted":
            ledger.release(one.uid)
        elif fate == "ended":
            ledger.release(one.uid)
            shown.append({**bound(obj, "n1", {**truth, **odd}), "status": {"phase": "Succeeded"}})
        else:
            shown.append(bound(obj, "n1", {**truth, **odd}))
    nodes = [node("n1", 3, lingering=terminating_shares(ledger, left))]
    (books,) = cluster_of(nodes, shown).with_cards
    cards = [state.card.uuid for state in here.cards]
    assert [books.ledger.booked(card) for card in cards] == [ledger.booked(card) for card in cards]
    assert books.gone == set(left)


REWRITTEN = st.fixed_dictionaries(
    {},
    optional={
        CORE_LIMIT: st.sampled_from(["99", "5", "150", "-1", "half"]),
        PLACEMENT: st.sampled_from(["spread", "topology", "foo", ""]),
        GPU_MODEL: st.sampled_from(["Tesla-T4", "A100", ",", "x" * 200]),
        GPU_UUID: st.sampled_from([f"GPU-{'0' * 8}-0000-0000-0000-{'0' * 12}", "all of them", ","]),
    },
)


@given(st.lists(st.tuples(ASKED, REWRITTEN), max_size=8), st.none() | st.tuples(ASKED, REWRITTEN))
@settings(max_examples=150)
def test_the_agent_grants_a_bound_pod_what_the_extender_counts_whatever_was_annotated_since(
    bound_pods: list[tuple[Any, dict[str, str]]], by_hand: tuple[Any, dict[str, str]] | None
) -> None:
    here = read_node(node("n1", 3))
    chosen = Ledger((s.card for s in here.cards), UNIT)
    agent = Books(NodeCards.of("n1", UNIT, here.cards, here.topology), ())
    shown = []
    for n, ((core, memory), rewritten) in enumerate(bound_pods):
        obj = pod(f"p{n}", core, memory)
        one = parse_pod(bound(obj, "n1", {}))
        try:
            placement = place(judged_request(one), here.cards, here.topology, chosen)
        except DoesNotFit:
            continue
        chosen.commit(allocations_of(one, placement))
        written = allocation_annotations(one, "n1", placement, here.cards, 0.0, assigned=False)
        shown.append(bound(obj, "n1", {**written, **rewritten}))
        plan(agent, parse_pod(shown[-1]), free_choice=False)
    fits = True
    if by_hand is not None:  # past the scheduler: nobody chose its cards
        (core, memory), rewritten = by_hand
        shown.append(bound(pod("by-hand", core, memory), "n1", rewritten))
        try:
            plan(agent, parse_pod(shown[-1]), free_choice=True)
        except DoesNotFit:
            fits = False
    (books,) = cluster_of([node("n1", 3)], shown).with_cards
    assert (books.unplaceable == ()) == fits
    if fits:
        cards = [state.card.uuid for state in here.cards]
        assert [agent.ledger.booked(card) for card in cards] == [books.ledger.booked(card) for card in cards]


def test_the_unit_is_the_most_usual_one_and_what_is_no_count_is_none() -> None:
    assert usual_unit([]) == usual_unit([read_node(node("n1"))]) == UNIT
    assert [whole_number(value) for value in (None, "3", "-3", "2500m", "many")] == [0, 3, 0, 2, 0]


def test_an_init_container_that_has_ended_is_no_holder_of_its_own() -> None:
    here = pod("a", 60, on="n1", annotations=says("a", ONE))
    cluster = ClusterState(UNIT)
    cluster.replace(NODES, [node("n1")])
    cluster.replace(PODS, [here])
    (books,) = cluster.snapshot().nodes.values()
    assert [books.ended(holder) for holder in books.ledger] == [False]
