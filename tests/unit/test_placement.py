"""Where a pod goes: the predecessor's worked examples, the policies, init containers, and what always holds."""

from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.errors import Bug, DoesNotFit
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.explain import Refusal
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.placement.place import SEARCHED, find, follow, judge, place
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from gpu_manager.domain.rules.request import (
    ContainerRequest,
    PlacementPolicy,
    PodRequest,
    Request,
    matches_model,
)
from tests.fakes.machines import SIX, tree

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
quick = settings(max_examples=150)


class Node:
    """A node on which pods are placed and booked by card index; memory counts units."""

    def __init__(self, topology=SIX, units=64, **states):
        units = units if isinstance(units, list) else [units] * topology.size
        self.topology = topology
        self.cards = [
            CardState(Card(i, CardUuid(f"GPU-{i}"), "Tesla V100-SXM2-32GB", units[i] * DEFAULT_UNIT))
            for i in range(topology.size)
        ]
        self.ledger = Ledger([state.card for state in self.cards], DEFAULT_UNIT)

    def place(self, request):
        placement = place(request, self.cards, self.topology, self.ledger)
        return {name: tuple(self.index(share.card) for share in shares) for name, shares in placement.items()}

    def index(self, uuid):
        return next(state.card.index for state in self.cards if state.card.uuid == uuid)

    def run(self, request):
        placement = place(request, self.cards, self.topology, self.ledger)
        self.ledger.commit(booked(request, placement))
        return [self.index(share.card) for shares in placement.values() for share in shares]

    def hold(self, *amounts):
        """Book (card, cores, units), each for a pod of its own."""
        for number, (card, cores, units) in enumerate(amounts):
            share = Share(self.cards[card].card.uuid, Amount(cores, units * DEFAULT_UNIT))
            self.ledger.commit([Allocation(PodUid(f"held-{number}"), "c", APP, 0, (share,))])
        return self


def booked(request, placement):
    return [Allocation(request.uid, c.name, c.kind, c.order, placement[c.name]) for c in request.containers]


def ask(name, cores, units=0, kind=APP, order=0):
    return ContainerRequest(name, kind, order, Request(cores, 0 if cores >= 100 else units * DEFAULT_UNIT))


def pod(*shapes, uid="p", **wishes):
    """Containers a, b, c, … from (cores, units) or (cores, units, kind)."""
    containers = tuple(ask("abcdefghijkl"[i], *shape, order=i) for i, shape in enumerate(shapes))
    return PodRequest(PodUid(uid), containers, **wishes)


def only(card, *cards):
    return {"a": (card, *cards)}


# -- the predecessor's worked examples ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "shape", "card"),
    [
        ([], (30, 10), 0),
        ([(1, 50, 10)], (30, 10), 1),
        ([(1, 50, 10)], (60, 10), 0),
        ([(1, 50, 10), (3, 70, 60)], (20, 4), 3),
        ([(1, 50, 10), (3, 70, 60)], (20, 8), 1),
        ([(1, 50, 10), (3, 70, 60)], (60, 8), 0),
    ],
)
def test_a_fraction_goes_where_it_fits_best(held, shape, card):
    assert Node().hold(*held).place(pod(shape)) == only(card)


def test_less_memory_left_decides_between_equal_cores():
    node = Node().hold((2, 50, 20), (3, 50, 30), (4, 50, 30))
    assert node.place(pod((10, 4))) == only(3)
    assert Node().hold((2, 50, 20), (3, 40, 50)).place(pod((10, 4))) == only(2), "cores come first"


def test_a_shared_card_never_serves_whole_card_requests():
    node = Node().hold((1, 50, 10))
    assert node.place(pod((100,))) == only(4)
    assert node.place(pod((200,))) == only(2, 3)


def test_the_predecessors_sequence():
    node = Node()
    assert node.run(pod((300,), uid="one")) == [0, 1, 2]
    assert node.run(pod((100,), (100,), uid="two")) == [3, 4]
    assert node.run(pod((100,), uid="three")) == [5]
    node.ledger.release(PodUid("two"))
    assert node.run(pod((50, 4), uid="four")) == [3]
    assert node.run(pod((60, 4), uid="five")) == [4]
    assert node.run(pod((50, 4), uid="six")) == [3]
    node.ledger.release(PodUid("five"))
    assert node.run(pod((100,), uid="seven")) == [4]


def test_a_whole_card_is_charged_with_all_its_memory():
    node = Node(units=[64, 32, 64, 64, 64, 64])
    placement = place(pod((600,)), node.cards, node.topology, node.ledger)
    assert [share.amount for share in placement["a"]] == [
        node.ledger.capacity(s.card.uuid) for s in node.cards
    ]


# -- policies ---------------------------------------------------------------------------------------------------


def test_spread_takes_the_emptiest_card():
    wishes = {"placement": PlacementPolicy.SPREAD}
    node = Node().hold((0, 10, 10))
    assert node.place(pod((30, 4), (30, 4), (30, 4), **wishes)) == {"a": (1,), "b": (2,), "c": (3,)}
    full = node.hold(*((card, 30, 8 + card) for card in range(1, 6)))
    assert full.place(pod((30, 4), **wishes)) == only(0)
    even = Node().hold(*((card, 30, 9 - card) for card in range(6)))
    assert even.place(pod((30, 4), **wishes)) == only(5), "of equal cores the one with most memory left"
    assert Node().place(pod((100,), **wishes)) == only(4)


def test_topology_keeps_a_pod_together():
    wishes = {"placement": PlacementPolicy.TOPOLOGY}
    # Best fit alone would send the second container to card 5, across the sockets.
    node = Node().hold((2, 40, 4), (5, 60, 4))
    assert node.place(pod((60, 4), (40, 4))) == {"a": (2,), "b": (5,)}
    assert node.place(pod((60, 4), (40, 4), **wishes)) == {"a": (2,), "b": (3,)}
    assert node.place(pod((30, 4), (30, 4), **wishes)) == {"a": (5,), "b": (4,)}
    assert node.place(pod((20, 4), (20, 4), **wishes)) == {"a": (5,), "b": (5,)}
    assert node.place(pod((60, 4), (100,), (200,), **wishes)) == {"a": (2,), "b": (3,), "c": (0, 1)}
    assert node.place(pod((100,), **wishes)) == only(4)


def test_a_pod_that_fits_is_placed_even_where_the_first_choice_would_block_it():
    # Spread puts the fraction on the idle card, where the whole one must go.
    node = Node(tree(2)).hold((0, 50, 4))
    assert node.place(pod((30, 4), (100,), placement=PlacementPolicy.SPREAD)) == {"a": (0,), "b": (1,)}
    # Best fit puts the 30 on card 0, and 60 then goes to card 1, where the 40 would have to be.
    node = Node(tree(2)).hold((0, 40, 4), (1, 30, 4))
    assert node.place(pod((30, 4), (60, 4), (40, 4))) == {"a": (1,), "b": (0,), "c": (1,)}
    with pytest.raises(DoesNotFit):
        node.place(pod((30, 4), (61, 4), (40, 4)))


# -- allow lists and closed cards -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "model", "matches"),
    [
        ("V100", "Tesla-V100-SXM2-32GB", True),
        ("V100", "Tesla V100-SXM2-32GB", True),
        ("v100-sxm2", "Tesla V100-SXM2-32GB", True),
        ("Tesla-V100-SXM2-32GB", "Tesla V100-SXM2-32GB", True),
        ("V10", "Tesla V100-SXM2-32GB", False),
        ("V100-32GB", "Tesla V100-SXM2-32GB", False),
        ("A10", "NVIDIA A100-SXM4-80GB", False),
        ("", "NVIDIA A10", False),
        (" - ", "NVIDIA A10", False),
        ("NVIDIA A10 G", "NVIDIA A10", False),
    ],
)
def test_a_model_matches_whole_or_by_whole_tokens(wanted, model, matches):
    assert matches_model(wanted, model) is matches


def test_allow_lists_hold_for_every_container():
    node = Node()
    assert node.place(pod((30, 4), (200,), uuids=frozenset({"GPU-3", "GPU-5", "GPU-1"}))) == {
        "a": (1,),
        "b": (3, 5),
    }
    assert node.place(pod((30, 4), models=("A100", "V100"))) == only(0)
    with pytest.raises(DoesNotFit, match="the pod allows A100"):
        node.place(pod((30, 4), models=("A100",)))


def test_both_allow_lists_must_admit_a_card():
    card = Node().cards[3].card
    assert pod((30, 4)).allows(card)
    assert pod((30, 4), models=("V100",), uuids=frozenset({"GPU-3"})).allows(card)
    assert not pod((30, 4), models=("A100",), uuids=frozenset({"GPU-3"})).allows(card)
    assert not pod((30, 4), models=("V100",), uuids=frozenset({"GPU-4"})).allows(card)


def test_closed_cards_take_nothing():
    node = Node()
    node.cards[0] = CardState(node.cards[0].card, healthy=False)
    node.cards[1] = CardState(node.cards[1].card, cordoned=True)
    node.ledger.refit([s.card for s in node.cards if s.card.index != 2])
    assert node.place(pod((30, 4))) == only(3)
    with pytest.raises(DoesNotFit):
        node.place(pod((400,)))


def test_a_matrix_of_another_machine_is_our_own_bug():
    node = Node()
    with pytest.raises(Bug):
        place(pod((30, 4)), node.cards[:2], node.topology, node.ledger)


def test_a_pod_that_asks_for_nothing_gets_nothing():
    assert Node().place(PodRequest(PodUid("p"), (ask("a", 0),))) == {}


# -- init containers ------------------------------------------------------------------------------------------


def test_everything_after_an_ordinary_init_container_lies_where_it_lies():
    node = Node().hold((0, 60, 4))
    # Alone, the init container would go to card 0; the whole pod needs 80 cores at its peak.
    assert node.place(pod((30, 4, INIT), (40, 4), (40, 4))) == {"a": (1,), "b": (1,), "c": (1,)}
    assert node.place(pod((30, 4, INIT), (40, 4, SIDECAR))) == {"a": (0,), "b": (0,)}
    assert node.place(pod((100, 0, INIT), (40, 4), (60, 4))) == {"a": (1,), "b": (1,), "c": (1,)}
    with pytest.raises(DoesNotFit, match='containers "a", "b", "c" together'):
        node.place(pod((30, 4, INIT), (60, 4), (60, 4)))


def test_a_sidecar_before_the_first_ordinary_init_container_is_free():
    node = Node(tree(2)).hold((0, 60, 4), (1, 20, 4))
    assert node.place(pod((40, 4, SIDECAR), (60, 4, INIT), (70, 4))) == {"a": (0,), "b": (1,), "c": (1,)}
    with pytest.raises(DoesNotFit):
        node.place(pod((60, 4, INIT), (40, 4, SIDECAR), (70, 4)))


def test_equal_whole_cards_are_handed_on():
    node = Node()
    assert node.place(pod((200, 0, INIT), (200, 0, INIT), (200,))) == {"a": (0, 1), "b": (0, 1), "c": (0, 1)}
    assert node.place(pod((100, 0, INIT), (100,), (100,))) == {"a": (4,), "b": (4,), "c": (5,)}
    kept = node.place(pod((200, 0, INIT), (200, 0, SIDECAR), (200, 0, INIT), (200,)))
    assert kept == {"a": (0, 1), "b": (0, 1), "c": (2, 3), "d": (2, 3)}


@pytest.mark.parametrize(
    "shapes",
    [((200, 0, INIT), (100,)), ((200, 0, INIT), (30, 4)), ((30, 4, INIT), (200,))],
)
def test_ids_that_the_kubelet_would_mix_are_never_placed(shapes):
    with pytest.raises(DoesNotFit, match="must lie on one card"):
        Node().place(pod(*shapes))


# -- following the scheduler ----------------------------------------------------------------------------------


def named(**cards):
    return {name: [(CardUuid(f"GPU-{c}"), Amount(1, 1)) for c in where] for name, where in cards.items()}


def test_a_decision_that_holds_is_followed_with_the_requests_own_amounts():
    node = Node().hold((3, 70, 8))
    request = pod((30, 4), (200,), uid="q")
    placement = follow(request, named(a=[3], b=[5, 1], stranger=[0]), node.cards, node.ledger)
    assert placement["a"] == (Share(CardUuid("GPU-3"), Amount(30, 4 * DEFAULT_UNIT)),)
    assert [share.card for share in placement["b"]] == ["GPU-5", "GPU-1"]
    assert all(share.amount == Amount(100, 64 * DEFAULT_UNIT) for share in placement["b"])
    node.ledger.commit(booked(request, placement))


def test_an_app_container_follows_onto_the_whole_card_of_its_own_init_container():
    node = Node(tree(2))
    request = pod((100, 0, INIT), (100,))
    node.ledger.commit(booked(request, place(request, node.cards, node.topology, node.ledger))[:1])
    rest = PodRequest(request.uid, request.containers[1:])
    assert follow(rest, named(b=[0]), node.cards, node.ledger)["b"][0].whole


def test_a_cordoned_card_is_followed():
    node = Node()
    node.cards[2] = CardState(node.cards[2].card, cordoned=True)
    assert follow(pod((30, 4)), named(a=[2]), node.cards, node.ledger)["a"][0].card == "GPU-2"


@pytest.mark.parametrize(
    ("shapes", "assignment", "reason"),
    [
        (((30, 4),), named(), "0 cards, 1 expected"),
        (((30, 4),), named(a=[0, 1]), "2 cards, 1 expected"),
        (((200,),), named(a=[1, 1]), "1 cards, 2 expected"),
        (((30, 4),), named(a=[9]), "not on this node"),
        (((30, 4),), named(a=[4]), r"card 4 \(GPU-4\): unhealthy \(XID 79\)"),
        (((30, 4),), named(a=[3]), "30 cores, 1 GiB asked, 20 cores, 14 GiB free"),
        (((100,),), named(a=[3]), "a whole card is asked, 20 cores, 14 GiB free"),
        (((50, 4), (60, 4)), named(a=[0], b=[0]), "60 cores, 1 GiB asked, 50 cores, 15 GiB free"),
        (((100,), (100,)), named(a=[0], b=[0]), "a whole card is asked"),
        (((30, 4, INIT), (30, 4)), named(a=[0], b=[1]), "different cards"),
        (((60, 4, INIT), (60, 4), (60, 4)), named(a=[0], b=[0], c=[0]), "120 cores, 2 GiB asked"),
        (((200, 0, INIT), (30, 4)), named(a=[0, 1], b=[0]), "must lie on one card"),
    ],
)
def test_a_decision_that_does_not_hold_says_why(shapes, assignment, reason):
    node = Node().hold((3, 80, 8))
    node.cards[4] = CardState(node.cards[4].card, healthy=False, reason="XID 79")
    with pytest.raises(DoesNotFit, match=reason):
        follow(pod(*shapes), assignment, node.cards, node.ledger)


def test_a_pod_does_not_stand_in_its_own_way():
    node = Node(tree(1))
    request = pod((60, 40), (30, 20))
    node.run(request)
    assert node.place(request) == {"a": (0,), "b": (0,)}
    again = PodRequest(request.uid, request.containers[:1])
    assert node.place(again) == only(0)
    bigger = PodRequest(request.uid, (ask("a", 80, 40),))
    with pytest.raises(DoesNotFit, match="70 free"):
        node.place(bigger)


# -- what always holds ----------------------------------------------------------------------------------------

shapes = st.one_of(
    st.tuples(st.integers(1, 99), st.integers(1, 64)), st.tuples(st.sampled_from([100, 200, 300]), st.just(0))
)
kinds = st.sampled_from(ContainerKind)
policies = st.sampled_from(PlacementPolicy)


@st.composite
def requests(draw, uid="p", most=4, kinds=kinds):
    drawn = draw(st.lists(st.tuples(shapes, kinds), min_size=1, max_size=most))
    # Kubernetes lists init containers before the apps.
    drawn.sort(key=lambda entry: entry[1] is APP)
    return pod(*((*shape, kind) for shape, kind in drawn), uid=uid, placement=draw(policies))


@st.composite
def nodes(draw, most=4):
    size = draw(st.integers(1, most))
    node = Node(
        tree(size, (2, "NV2")), units=draw(st.lists(st.sampled_from([32, 64]), min_size=size, max_size=size))
    )
    for number, (card, cores, units) in enumerate(
        draw(
            st.lists(st.tuples(st.integers(0, size - 1), st.integers(1, 100), st.integers(1, 32)), max_size=4)
        )
    ):
        if Amount(cores, units * DEFAULT_UNIT).fits_in(node.ledger.free(CardUuid(f"GPU-{card}"))):
            share = Share(CardUuid(f"GPU-{card}"), Amount(cores, units * DEFAULT_UNIT))
            node.ledger.commit([Allocation(PodUid(f"held-{number}"), "c", APP, 0, (share,))])
    return node


@quick
@given(nodes(), st.lists(requests(), max_size=8), st.randoms(use_true_random=False))
def test_what_is_placed_always_commits_and_nothing_is_over_committed(node, pods, random):
    for number, request in enumerate(pods):
        renamed = PodRequest(PodUid(f"pod-{number}"), request.containers, request.placement)
        verdict = judge(renamed, node.cards, node.topology, node.ledger)
        assert judge(renamed, node.cards, node.topology, node.ledger) == verdict
        if isinstance(verdict, Refusal):
            assert find(renamed, node.cards, node.topology, node.ledger) is None
        else:
            before = {s.card.uuid: node.ledger.free(s.card.uuid) for s in node.cards}
            node.ledger.commit(booked(renamed, verdict))
            assert all(Amount(0, 0).fits_in(node.ledger.free(s.card.uuid)) for s in node.cards)
            if random.random() < 0.4:
                node.ledger.release(renamed.uid)
                assert before == {s.card.uuid: node.ledger.free(s.card.uuid) for s in node.cards}


@quick
@given(nodes(), requests())
def test_what_is_placed_is_also_followed(node, request):
    verdict = judge(request, node.cards, node.topology, node.ledger)
    assume(not isinstance(verdict, Refusal))
    for c in request.containers:
        assert [s.whole for s in verdict[c.name]] == [c.request.cards > 0] * (c.request.cards or 1)
    assignment = {name: [(s.card, s.amount) for s in shares] for name, shares in verdict.items()}
    assert follow(request, assignment, node.cards, node.ledger) == verdict


@settings(max_examples=120)
@given(nodes(most=3), requests(most=3))
def test_what_could_fit_fits(node, request):
    """Every assignment of cards to containers is tried; if one can be followed, the pod is placed."""
    sets = {0: [(c,) for c in range(len(node.cards))]}
    for count in (1, 2, 3):
        sets[count] = [s for s in product(range(len(node.cards)), repeat=count) if list(s) == sorted(set(s))]

    def holds(choice):
        where = {c.name: cards for c, cards in zip(request.containers, choice, strict=True)}
        try:
            follow(request, named(**where), node.cards, node.ledger)
        except DoesNotFit:
            return False
        return True

    possible = any(map(holds, product(*(sets[c.request.cards] for c in request.containers))))
    assert possible is (find(request, node.cards, node.topology, node.ledger) is not None)


def one_by_one(request, node):
    """The policy's rule, container by container over whole ledgers; None where one of them finds no room."""
    books, placed = node.ledger.copy(), {}
    for c in request.containers:
        left = {
            at: books.free(state.card.uuid) - c.request.amount
            for at, state in enumerate(node.cards)
            if c.request.amount.fits_in(books.free(state.card.uuid))
        }
        if not left:
            return None
        sign = -1 if request.placement is PlacementPolicy.SPREAD else 1
        at = min(left, key=lambda at: (sign * left[at].cores, sign * left[at].memory, at))
        share = Share(node.cards[at].card.uuid, c.request.amount)
        books.commit([Allocation(request.uid, c.name, c.kind, c.order, (share,))])
        placed[c.name] = (share,)
    return placed


@settings(max_examples=300)
@given(
    nodes(),
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=6),
    st.sampled_from([PlacementPolicy.BINPACK, PlacementPolicy.SPREAD]),
)
def test_equal_containers_together_lie_as_one_by_one(node, runs, placement):
    shapes = [(cores, units) for cores, units, count in runs for _ in range(count)][:12]
    request = pod(*shapes, placement=placement)
    reference = one_by_one(request, node)
    found = find(request, node.cards, node.topology, node.ledger)
    if reference is not None or len(shapes) > SEARCHED:
        assert found == reference
    verdict = judge(request, node.cards, node.topology, node.ledger)
    assert found == (None if isinstance(verdict, Refusal) else verdict)


@settings(max_examples=200)
@given(nodes(), requests(most=8))
def test_a_node_is_refused_by_its_sums_only_where_nothing_fits(node, request):
    verdict = judge(request, node.cards, node.topology, node.ledger)
    found = find(request, node.cards, node.topology, node.ledger)
    assert found == (None if isinstance(verdict, Refusal) else verdict)


def test_more_fractions_than_are_searched_are_placed_one_after_the_other():
    many = [(10, 1)] * (SEARCHED + 1)
    assert len(Node(tree(1)).place(pod(*many))) == SEARCHED + 1
    # One after the other leaves no room for the 94: a few are turned round, more than that are refused.
    node = Node(tree(2)).hold((0, 9, 1), (1, 5, 1))
    assert node.place(pod((10, 1), (85, 1), (81, 1))) == {"a": (0,), "b": (1,), "c": (0,)}
    spread = PlacementPolicy.SPREAD
    assert node.place(pod((1, 1), (1, 1), (94, 1), placement=spread)) == {"a": (0,), "b": (1,), "c": (1,)}
    with pytest.raises(DoesNotFit, match="no card has room for 94 cores"):
        node.place(pod(*[(1, 1)] * SEARCHED, (94, 1), placement=spread))


def test_a_refusal_names_no_container_by_an_empty_name():
    """Allocate without a preference says which ids, and not for whom."""
    unnamed = PodRequest(PodUid("p"), (ask("", 200),))
    with pytest.raises(DoesNotFit, match=r"^a container whose name the kubelet has not told yet: 2 whole"):
        Node(tree(1)).place(unnamed)
