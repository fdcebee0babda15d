"""Several whole cards under the kubelet's NUMA policies: what is placed is what the kubelet admits."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import pytest

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import Inventory, decode_inventory, encode_inventory
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.card_sets import MOST_NODES, admitted_set, aligned, most_together
from gpu_manager.domain.placement.explain import Refusal
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.placement.place import find, judge
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest, Request
from gpu_manager.domain.topology import Link, NumaPolicy, Topology
from sandbox.kubelet.topology import affinity, hints
from tests.fakes.machines import tree
from tests.seeds import seeds


def cards_on(*nodes: int | None) -> tuple[CardState, ...]:
    return tuple(
        CardState(Card(at, CardUuid(f"GPU-{at}"), "A100", 40 * GIB, numa=node))
        for at, node in enumerate(nodes)
    )


def under(policy: NumaPolicy, topology: Topology) -> Topology:
    return replace(topology, numa_policy=policy)


def kubelet_admits(
    policy: NumaPolicy, cards: tuple[CardState, ...], free: frozenset[int], count: int
) -> bool:
    """One device a card, as the stand-in kubelet judges it."""
    everything = {str(at): frozenset({state.card.numa or 0}) for at, state in enumerate(cards)}
    proposals = [hints(everything, [str(at) for at in free], (), count)]
    nodes = {state.card.numa or 0 for state in cards}
    return len(free) >= count and affinity(policy, nodes, proposals)[1]


@pytest.mark.parametrize("policy", NumaPolicy)
def test_a_set_is_found_wherever_the_kubelet_admits_one_and_it_admits_that_set(policy: NumaPolicy) -> None:
    found = refused = 0
    for seed in seeds(150):
        dice = random.Random(seed)
        size = dice.randint(1, 8)
        cards = cards_on(*(dice.randint(0, dice.choice((1, 1, 3))) for _ in range(size)))
        topology = under(policy, tree(size, (2, "NV4"), (4, "PIX")))
        free = frozenset(dice.sample(range(size), dice.randint(0, size)))
        for count in range(1, size + 1):
            chosen = admitted_set(topology, cards, free, count)
            assert (chosen is not None) is kubelet_admits(policy, cards, free, count)
            if chosen is None:
                refused += count <= len(free)
                continue
            found += 1
            assert kubelet_admits(policy, cards, frozenset(chosen), count)
            better = (s for s in combinations(sorted(free), count) if topology.sum(s) > topology.sum(chosen))
            assert not any(kubelet_admits(policy, cards, frozenset(s), count) for s in better)
    assert found > 200
    assert bool(refused) is policy.strict


def test_cards_without_numa_nodes_and_machines_with_many_are_not_bound_by_a_policy() -> None:
    for nodes in ((None,) * 4, tuple(range(MOST_NODES + 1))):
        topology = under(NumaPolicy.SINGLE, tree(len(nodes), (2, "NV4")))
        assert admitted_set(topology, cards_on(*nodes), frozenset({0, 3}), 2) == (0, 3)


def pod(*cores: int) -> PodRequest:
    asks = [
        ContainerRequest(f"c{at}", ContainerKind.APP, at, Request(count, 0 if count >= 100 else GIB))
        for at, count in enumerate(cores)
    ]
    return PodRequest(PodUid("u"), tuple(asks))


def books(cards: tuple[CardState, ...], *busy: int) -> Ledger:
    ledger = Ledger((state.card for state in cards), DEFAULT_UNIT)
    for at in busy:
        share = Share(cards[at].card.uuid, Amount(50, GIB))
        ledger.commit([Allocation(PodUid(f"busy-{at}"), "main", ContainerKind.APP, 0, (share,))])
    return ledger


def test_a_pod_that_the_kubelet_would_fail_is_refused_with_the_reason_and_what_would_fit() -> None:
    cards, two_sockets = cards_on(0, 0, 1, 1), tree(4, (2, "NV4"))
    ledger = books(cards, 1, 3)
    assert find(pod(200), cards, two_sockets, ledger) is not None
    refusal = judge(pod(200), cards, under(NumaPolicy.RESTRICTED, two_sockets), ledger)
    assert isinstance(refusal, Refusal)
    assert refusal.line().startswith(
        'container "c0": 2 whole cards asked, 2 of 4 idle and open, but not on NUMA nodes that the kubelet\'s'
        " policy restricted lets it have together: "
    )
    assert 'Would fit now: whole card 0 for "c0"' in refusal.line()
    short = judge(pod(300), cards, under(NumaPolicy.RESTRICTED, two_sockets), ledger)
    assert isinstance(short, Refusal)
    assert "NUMA" not in short.line()


def test_more_cards_than_a_numa_node_has_are_refused_with_the_most_that_one_container_may_have() -> None:
    cards, two_sockets = cards_on(0, 0, 0, 1), tree(4, (2, "NV4"))
    most = {policy: most_together(under(policy, two_sockets), cards) for policy in NumaPolicy}
    assert most == {**dict.fromkeys(NumaPolicy, 4), NumaPolicy.SINGLE: 3}
    closed = (replace(cards[0], cordoned=True), *cards[1:])
    assert most_together(under(NumaPolicy.SINGLE, two_sockets), closed) == 2
    assert most_together(under(NumaPolicy.SINGLE, two_sockets), cards_on(None, 0, 0, 1)) == 4
    refusal = judge(pod(400), cards, under(NumaPolicy.SINGLE, two_sockets), books(cards))
    assert isinstance(refusal, Refusal)
    assert refusal.line().startswith(
        'container "c0": 4 whole cards asked, 4 of 4 idle and open; the kubelet\'s NUMA policy single-numa-node'
        " lets it have 3 here at most: "
    )


def test_each_container_is_aligned_by_itself_and_the_search_for_another_way_ends_without_one() -> None:
    cards, two_sockets = cards_on(0, 0, 1, 1), under(NumaPolicy.SINGLE, tree(4, (2, "NV4")))
    both = find(pod(200, 200), cards, two_sockets, books(cards))
    assert both is not None
    assert [{share.card for share in shares} for shares in both.values()] == [
        {"GPU-0", "GPU-1"},
        {"GPU-2", "GPU-3"},
    ]
    assert find(pod(200, 30), cards, two_sockets, books(cards, 1, 3)) is None
    assert find(pod(300), cards, under(NumaPolicy.RESTRICTED, two_sockets), books(cards)) is not None
    assert find(pod(300), cards, two_sockets, books(cards)) is None


def test_the_policy_is_published_and_one_that_is_not_known_asks_for_nothing() -> None:
    links = Topology.uniform(2, Link.parse("SYS"))
    for policy in NumaPolicy:
        text = encode_inventory(Inventory(DEFAULT_UNIT, cards_on(0, 1), under(policy, links)))
        assert ("numaPolicy" in text) is (policy is not NumaPolicy.NONE)
        read = decode_inventory(text)
        assert read is not None
        assert read.topology.numa_policy is policy
        if policy is NumaPolicy.SINGLE:
            for odd in ('"quad"', "7", "null", '["none"]'):
                newer = decode_inventory(text.replace('"single-numa-node"', odd))
                assert newer is not None
                assert newer.topology.numa_policy is NumaPolicy.NONE


# --- where the kubelet's ids will be ------------------------------------------------------------------


def kubelet_aligns(
    policy: NumaPolicy, cards: tuple[CardState, ...], left: list[tuple[int, int]], asked: tuple[int, int]
) -> frozenset[int] | None:
    """NUMA nodes of a container that asks for ids of two resources, as the stand-in kubelet judges it."""
    proposals = []
    for at, size in enumerate(asked):
        if size:
            everything = {
                f"{card}-{n}": frozenset({state.card.numa or 0})
                for card, state in enumerate(cards)
                for n in range((100, 160)[at])
            }
            free = [f"{card}-{n}" for card in range(len(cards)) for n in range(left[card][at])]
            proposals.append(hints(everything, free, (), size))
    return affinity(policy, {state.card.numa or 0 for state in cards}, proposals)[0]


@pytest.mark.parametrize("policy", [NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED])
def test_the_kubelet_aligns_to_the_cards_that_are_foreseen(policy: NumaPolicy) -> None:
    foreseen = 0
    for seed in seeds(120):
        dice = random.Random(seed)
        cards = cards_on(*(dice.choice((0, 1, 3, 5)) for _ in range(dice.randint(2, 8))))
        topology = under(policy, tree(len(cards), (2, "NV4")))
        left = [
            dice.choice(((100, 160), (0, 160), (dice.randint(0, 99), dice.randint(0, 99)))) for _ in cards
        ]
        asked = dice.choice(((dice.randint(1, 99), dice.randint(1, 80)), (100, 0), (200, 0)))
        found = aligned(topology, cards, left.__getitem__, *asked)
        if found is None:
            continue
        foreseen += 1
        assert {cards[at].card.numa for at in found} == kubelet_aligns(policy, cards, left, asked), seed
    assert foreseen > 60


@pytest.mark.parametrize("policy", NumaPolicy)
def test_a_fraction_lies_where_the_kubelets_ids_will_be(policy: NumaPolicy) -> None:
    """Cards 0 and 1 are of node 3: binpack alone would take the fuller one, card 0."""
    cards = cards_on(3, 3, 1, 1)
    held = Allocation(PodUid("x"), "c", ContainerKind.APP, 0, (Share(cards[0].card.uuid, Amount(50, GIB)),))
    ledger = Ledger([state.card for state in cards], DEFAULT_UNIT, [held])
    placed = find(pod(30), cards, under(policy, tree(4, (2, "NV4"))), ledger)
    assert placed is not None
    [share] = placed["c0"]
    assert share.card == cards[0 if policy is NumaPolicy.NONE else 2].card.uuid


def test_a_fraction_without_room_where_its_ids_will_be_lies_elsewhere() -> None:
    """Node 1 has 80 ids, 40 on each card: the kubelet sees room for 60, and no card has it."""
    cards = cards_on(3, 3, 1, 1)
    held = [
        Allocation(
            PodUid(f"x{at}"), "c", ContainerKind.APP, 0, (Share(cards[at].card.uuid, Amount(60, GIB)),)
        )
        for at in (2, 3)
    ]
    ledger = Ledger([state.card for state in cards], DEFAULT_UNIT, held)
    placed = find(pod(60), cards, under(NumaPolicy.BEST_EFFORT, tree(4, (2, "NV4"))), ledger)
    assert placed is not None
    assert placed["c0"][0].card == cards[0].card.uuid
    assert find(pod(100), cards, under(NumaPolicy.SINGLE, tree(4, (2, "NV4"))), ledger) is not None


def test_whole_cards_lie_where_the_kubelets_ids_will_be() -> None:
    cards = cards_on(3, 3, 1, 1)
    ledger = Ledger([state.card for state in cards], DEFAULT_UNIT, [])
    for count, policy in ((1, NumaPolicy.BEST_EFFORT), (2, NumaPolicy.SINGLE)):
        placed = find(pod(100 * count), cards, under(policy, tree(4, (2, "NV4"))), ledger)
        assert placed is not None
        assert {share.card for share in placed["c0"]} <= {cards[2].card.uuid, cards[3].card.uuid}
