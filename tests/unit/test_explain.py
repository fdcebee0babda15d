"""Refusals and successes in words: the arithmetic is right, every card is named, and the advice holds."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.errors import DoesNotFit
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.explain import (
    LINE_LIMIT,
    CardView,
    Refusal,
    closed_because,
    explain_placement,
    explain_shares,
    explanation_lines,
    nearest_request,
)
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.placement.place import judge, place
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from gpu_manager.domain.rules.request import ContainerRequest, PlacementPolicy, PodRequest, Request
from gpu_manager.domain.topology import Link, Topology

INIT, APP = ContainerKind.INIT, ContainerKind.APP


class Node:
    def __init__(self, *held, size=4, gib=16):
        """``held``: (card, cores, GiB), each for a pod of its own."""
        cards = [Card(i, CardUuid(f"GPU-{i}"), "Tesla T4", gib * GIB) for i in range(size)]
        self.states = [CardState(card) for card in cards]
        self.topology = Topology.uniform(size, Link.parse("SYS"))
        self.ledger = Ledger(cards, DEFAULT_UNIT)
        for number, (card, cores, amount) in enumerate(held):
            share = Share(cards[card].uuid, Amount(cores, amount * GIB))
            self.ledger.commit([Allocation(PodUid(f"held-{number}"), "c", APP, 0, (share,))])

    def set(self, index, **changes):
        card = self.states[index].card
        mig = changes.pop("mig", False)
        self.states[index] = CardState(Card(index, card.uuid, card.model, card.memory, mig=mig), **changes)
        return self

    def judge(self, request):
        return judge(request, self.states, self.topology, self.ledger)


def pod(*amounts, kinds=(), **wishes):
    """Containers a, b, … from (cores, GiB)."""
    containers = tuple(
        ContainerRequest(
            "abcdef"[i],
            kinds[i] if kinds else APP,
            i,
            Request(cores, 0 if cores >= 100 else gib * GIB),
        )
        for i, (cores, gib) in enumerate(amounts)
    )
    return PodRequest(PodUid("p"), containers, **wishes)


def reasons(refusal):
    return {view.index: reason for view, reason in refusal.cards}


def test_a_card_without_memory_of_its_own_is_for_whole_requests_alone():
    node = Node(size=2, gib=0)
    refusal = node.judge(pod((30, 5)))
    text = "no memory of its own to share: it is given whole, ask for 100 cores"
    assert reasons(refusal) == {0: text, 1: text}
    assert refusal.nearest is None
    assert node.judge(pod((200, 0)))["a"]


def test_a_fraction_is_refused_card_by_card_with_the_nearest_that_fits():
    node = Node((0, 100, 16), (1, 80, 1), (2, 50, 14), (3, 75, 2))
    refusal = node.judge(pod((30, 5)))
    assert refusal.text().splitlines() == [
        'container "a": no card has room for 30 cores, 5 GiB',
        "  card 0 (GPU-0): 30 cores asked, 0 free; 5 GiB asked, 0 B free",
        "  card 1 (GPU-1): 30 cores asked, 20 free; 5 GiB asked, 15 GiB free",
        "  card 2 (GPU-2): 30 cores asked, 50 free; 5 GiB asked, 2 GiB free",
        "  card 3 (GPU-3): 30 cores asked, 25 free; 5 GiB asked, 14 GiB free",
        'Would fit now: 25 cores, 5 GiB of card 3 for "a"',
    ]
    assert refusal.nearest == pod((25, 5))


def test_the_error_carries_the_same_in_one_line():
    node = Node((0, 100, 16), (1, 80, 1), size=2)
    with pytest.raises(DoesNotFit) as caught:
        place(pod((30, 5)), node.states, node.topology, node.ledger)
    assert str(caught.value) == (
        'container "a": no card has room for 30 cores, 5 GiB:'
        " card 0: 30 cores asked, 0 free; 5 GiB asked, 0 B free"
        " | card 1: 30 cores asked, 20 free; 5 GiB asked, 15 GiB free."
        ' Would fit now: 20 cores, 5 GiB of card 1 for "a"'
    )
    assert str(node.judge(pod((30, 5)))) == str(caught.value)


def test_whole_cards_are_counted():
    node = Node((0, 30, 2), (2, 10, 1))
    refusal = node.judge(pod((300, 0)))
    assert refusal.headline == 'container "a": 3 whole cards asked, 2 of 4 idle and open'
    assert reasons(refusal) == {
        0: "not idle, 70 cores, 14 GiB free",
        1: "idle",
        2: "not idle, 90 cores, 15 GiB free",
        3: "idle",
    }
    assert refusal.advice == 'Would fit now: whole cards 1, 3 for "a"'


def test_where_no_card_is_idle_the_largest_fraction_is_named():
    refusal = Node((0, 30, 2), (1, 10, 1), size=2).judge(pod((100, 0)))
    assert refusal.headline == 'container "a": 1 whole card asked, 0 of 2 idle and open'
    assert refusal.advice == 'Would fit now: 90 cores, 15 GiB of card 1 for "a"'


def test_a_closed_card_says_what_closed_it():
    node = Node(size=6).set(0, healthy=False, reason="XID 79:\nfallen off\x1b[31m the bus")
    node.set(1, healthy=False).set(2, cordoned=True).set(3, mig=True)
    node.ledger.refit([s.card for s in node.states[:4]])
    refusal = node.judge(pod((30, 5), uuids=frozenset({"GPU-4"})))
    assert reasons(refusal)[0].startswith("unhealthy (XID 79:")
    assert reasons(refusal)[0].isprintable()
    assert [reasons(refusal)[i] for i in (1, 2, 3, 4, 5)] == [
        "unhealthy",
        "cordoned",
        "in MIG mode: no share of the card itself, only of its instances (agent.migInstances)",
        "not in the books of this node",
        "not in the books of this node",
    ]
    assert refusal.advice == "No card of this node is open to this pod"
    assert refusal.nearest is None


def test_an_allow_list_says_what_it_allows():
    node = Node(size=2)
    refusal = node.judge(pod((30, 5), models=("A100", "H100")))
    assert reasons(refusal)[0] == "model Tesla T4, the pod allows A100, H100"
    refusal = node.judge(pod((200, 0), uuids=frozenset({"GPU-1"})))
    assert reasons(refusal) == {0: "not among the cards that the pod allows", 1: "idle"}
    assert refusal.advice == 'Would fit now: whole card 1 for "a"'


def test_cards_with_the_same_reason_stand_together_in_the_line():
    line = Node((0, 30, 2), (1, 10, 1), (3, 30, 2)).judge(pod((300, 0))).line()
    assert "cards 0, 3: not idle, 70 cores, 14 GiB free | card 1: not idle, 90" in line


def test_a_later_container_is_explained_beside_the_earlier_ones():
    refusal = Node(size=1).judge(pod((60, 5), (50, 5)))
    assert refusal.headline == 'container "b": no card has room for 50 cores, 5 GiB'
    assert reasons(refusal)[0] == "50 cores asked, 40 free; 5 GiB asked, 11 GiB free"
    assert refusal.nearest == pod((60, 5), (40, 5))


def test_containers_that_must_lie_together_are_explained_at_their_peak():
    refusal = Node((0, 10, 1), size=1).judge(pod((30, 5), (60, 5), (50, 5), kinds=(INIT, APP, APP)))
    assert refusal.headline == 'containers "a", "b", "c" together: no card has room for 110 cores, 10 GiB'
    assert refusal.advice == "The most that is free is 90 cores, 15 GiB, on card 0"
    assert refusal.nearest is None


def test_a_shape_that_fits_nowhere_says_so():
    refusal = Node(size=2).judge(pod((200, 0), (30, 5), kinds=(INIT, APP)))
    assert refusal.headline.startswith(
        'the pod asks "a" 2 whole cards, "b" 30 cores, 5 GiB: this fits nowhere'
    )
    assert reasons(refusal) == {0: "100 cores, 16 GiB free", 1: "100 cores, 16 GiB free"}
    assert refusal.nearest is None


def test_a_full_node_has_nothing_to_offer():
    assert Node((0, 100, 16), size=1).judge(pod((30, 5))).advice == "Nothing is free here for this pod now"
    # Cores alone are no legal request: there is no memory left for them.
    assert Node((0, 10, 16), size=1).judge(pod((100, 0))).advice == "Nothing is free here for this pod now"


def test_a_node_without_cards_says_so():
    node = Node(size=0)
    refusal = node.judge(pod((30, 5)))
    assert "the node has no card" in refusal.line()
    assert refusal.cards == ()


def test_books_that_a_fact_broke_show_nothing_free_and_no_negative_number():
    node = Node(size=1)
    facts = [
        Allocation(PodUid(f"q{i}"), "c", APP, 0, (Share(CardUuid("GPU-0"), Amount(80, 10 * GIB)),))
        for i in (1, 2)
    ]
    node.ledger = Ledger([node.states[0].card], DEFAULT_UNIT, facts)
    assert reasons(node.judge(pod((30, 5)))) == {0: "30 cores asked, 0 free; 5 GiB asked, 0 B free"}
    assert reasons(node.judge(pod((100, 0)))) == {0: "not idle, 0 cores, 0 B free"}


def test_a_line_is_bounded_and_keeps_the_advice():
    node = Node(*((i, 71 + i % 29, 1 + i % 7) for i in range(64)), size=64)
    refusal = node.judge(pod((30, 5)))
    line = refusal.line()
    assert len(line) <= LINE_LIMIT
    assert "more reasons. Would fit now: 29 cores, 5 GiB of card 58" in line
    assert len(refusal.line(80)) == 80
    assert len(refusal.text().splitlines()) == 66


def test_hostile_names_stay_on_one_bounded_line():
    name = "x\n\x1b[31m" + "y" * 5000
    request = PodRequest(PodUid("p"), (ContainerRequest(name, APP, 0, Request(30, 5 * GIB)),), models=(name,))
    refusal = Node(size=1).judge(request)
    for line in (refusal.line(), *refusal.text().splitlines()):
        assert len(line) <= LINE_LIMIT
        assert line.isprintable()


def test_success_is_said_in_one_sentence():
    node = Node()
    one = place(pod((30, 5)), node.states, node.topology, node.ledger)
    assert explain_placement(one, node.states) == "30 cores, 5 GiB of card 0"
    two = place(pod((30, 5), (200, 0), (100, 0)), node.states, node.topology, node.ledger)
    assert (
        explain_placement(two, node.states)
        == "a: 30 cores, 5 GiB of card 0; b: whole cards 1, 2; c: whole card 3"
    )
    assert explain_shares((), node.states) == "nothing"
    gone = Share(CardUuid("GPU-gone"), Amount(30, GIB))
    assert explain_shares((gone,), node.states) == "30 cores, 1 GiB of card GPU-gone"


amounts = st.one_of(
    st.tuples(st.integers(1, 99), st.integers(1, 16)), st.tuples(st.sampled_from([100, 200, 400]), st.just(0))
)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(1, 9)),
        max_size=4,
        unique_by=lambda h: h[0],
    ),
    st.lists(amounts, min_size=1, max_size=3),
    st.sampled_from(PlacementPolicy),
    st.sets(st.integers(0, 3)),
)
def test_every_card_is_explained_and_the_nearest_thing_really_fits(held, asked, policy, cordoned):
    node = Node(*held)
    for index in cordoned:
        node.set(index, cordoned=True)
    request = pod(*asked, placement=policy)
    verdict = node.judge(request)
    if not isinstance(verdict, Refusal):
        return
    assert [view.index for view, _ in verdict.cards] == [0, 1, 2, 3]
    assert len(verdict.line()) <= LINE_LIMIT
    if verdict.nearest is None:
        assert verdict.advice.startswith(("Nothing", "No card", "The most"))
        return
    less = verdict.nearest.containers
    assert [c.name for c in less] == [c.name for c in request.containers]
    for before, after in zip(request.containers, less, strict=True):
        assert after.request.cores <= before.request.cores
        assert after.request.cards or (
            1 <= after.request.cores <= 99 and after.request.memory >= DEFAULT_UNIT
        )
    assert not isinstance(node.judge(verdict.nearest), Refusal)
    if len(asked) == 1 and not request.containers[0].request.cards:
        # The nearest: with one core or one unit more of what was cut, it does not fit.
        more = less[0].request
        for cores, memory in ((1, 0), (0, DEFAULT_UNIT)):
            grown = Request(more.cores + cores, more.memory + memory)
            within = grown.cores <= request.containers[0].request.cores
            if within and grown.memory <= request.containers[0].request.memory:
                assert isinstance(node.judge(request.asking("a", grown)), Refusal)


def test_the_nearest_request_never_asks_for_more() -> None:
    views = [CardView(i, CardUuid(f"GPU-{i}"), Amount(100, 16 * GIB), idle=True, closed="") for i in range(3)]
    for cards, nearest in ((1, 100), (2, 200), (5, 300)):
        assert nearest_request(Request(cards * 100, 0), views, DEFAULT_UNIT) == Request(nearest, 0)


def test_a_card_that_is_given_away_whole_says_under_which_name():
    state = CardState(Card(0, CardUuid("GPU-0"), "T4", 16 * GIB), held="nvidia.com/gpu")
    request = PodRequest(PodUid("u"), (), models=("T4",))
    assert closed_because(state, request) == "given away whole as nvidia.com/gpu"
    by_claims = replace(state, held=DRA_DRIVER)
    assert closed_because(by_claims, request) == "given by ResourceClaims alone"


def test_a_card_that_is_given_whole_alone_is_closed_to_fractions_with_the_reason():
    node = Node(size=2)
    node.states = [
        CardState(replace(s.card, whole_only="compute mode X lets one process use it")) for s in node.states
    ]
    refusal = node.judge(pod((30, 4)))
    assert "given whole alone, ask for 100 cores: compute mode X lets one process use it" in refusal.line()
    assert not isinstance(node.judge(pod((200, 0))), Refusal)


def test_what_processes_of_no_pod_hold_is_said_where_memory_is_short():
    node = Node(size=1)
    card = replace(node.states[0].card, outside=13 * GIB)
    node.states = [CardState(card)]
    node.ledger = Ledger([card], DEFAULT_UNIT)
    assert "4 GiB asked, 3 GiB free (13 GiB held by processes of no pod)" in node.judge(pod((30, 4))).line()


def test_many_cards_of_one_reason_have_one_line() -> None:
    cards = [{"index": 100 + at, "uuid": f"MIG-{at}", "reason": "a MIG instance"} for at in range(7)]
    cards.insert(2, {"index": 0, "uuid": "GPU-0", "reason": "not idle"})

    def lines(cards: list[dict[str, object]]) -> list[str]:
        node = {"node": "n1", "outcome": "room", "cards": cards}
        return explanation_lines({"pod": "a/p", "line": "waits", "nodes": [node]}, 8, "")[3:]

    assert lines(cards) == [
        "  cards 100, 101, 102, 103, 104, 105, 106: a MIG instance",
        "  card 0 (GPU-0): not idle",
    ]
    assert lines(cards[:3])[0] == "  card 100 (MIG-0): a MIG instance"
