"""Equal parts of several cards in one container: what may be asked for, what it means, which cards it gets."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.shapes import best_of_all, cases
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement import library_messages as messages
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid
from gpu_manager.domain.kube.pod import Pod, PodUid, parse_pod
from gpu_manager.domain.kube.several_cards import read_parts
from gpu_manager.domain.placement.explain import explain_shares
from gpu_manager.domain.placement.place import find, follow, judge, place
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from gpu_manager.domain.rules.legal_values import check_pod, warn_pod
from gpu_manager.domain.rules.pod_annotations import has_fractions_alone, nearest_totals
from gpu_manager.domain.rules.pod_request import bound_request, judged_request
from gpu_manager.domain.rules.request import ContainerRequest, PlacementPolicy, PodRequest, Request
from gpu_manager.domain.topology import Link, NumaPolicy, Topology
from gpu_manager.domain.whatif.defragmentation import defragment
from gpu_manager.domain.whatif.simulation import SimPod, simulate
from tests.fakes.machines import tree
from tests.fakes.written import broken, container, pod_of
from tests.unit.test_placement import APP, INIT, Node, booked, pod
from tests.unit.test_simulation import lying
from tests.unit.test_simulation import node as sim_node
from tests.unit.test_simulation import pod as sim_pod


def two(core: Any, memory: Any = 40, cards: str = "2", **more: Any) -> Pod:
    return pod_of(container("train", core, memory, **more), vcuda_cards=cards)


def said(of: Pod, rule: str) -> str:
    return next(v.message for v in (*check_pod(of), *warn_pod(of)) if v.rule.id == rule)


# What may be asked for.


@pytest.mark.parametrize("core", [2, 60, 100, 150, 198])
def test_totals_in_equal_parts_are_legal(core: int) -> None:
    legal = two(core)
    assert check_pod(legal) == warn_pod(legal) == ()
    (asked,) = judged_request(legal).containers
    assert asked.request == Request(core, 40 * DEFAULT_UNIT, 2)
    assert asked.request.amount == Amount(core // 2, 5 * GIB)
    assert (asked.request.cards, asked.request.width) == (0, 2)


def test_a_hundred_is_half_of_each_of_two_cards_and_a_whole_card_without_the_annotation() -> None:
    (halves,) = judged_request(two(100)).containers
    assert str(halves.request) == "100 cores, 10 GiB in equal parts of 2 cards"
    (whole,) = judged_request(pod_of(container("train", 100, 40))).containers
    assert whole.request == Request(100, 0)
    (one,) = judged_request(two(100, cards="1")).containers
    assert one.request == Request(100, 0), "one card is what no annotation means"


@pytest.mark.parametrize(
    ("core", "memory", "cards", "rule", "sentence"),
    [
        (
            99, 40, "2", "cards-cores",
            "is 99 on 2 cards (annotation tencent.com/vcuda-cards): it is the total of equal parts of 1 to 99: use 98 or 100",
        ),
        (198, 41, "2", "cards-memory", "use 40 or 42"),
        (200, 40, "2", "cards-cores", "use 198, or no annotation for whole cards"),
        (1, 40, "3", "cards-cores", "use 3"),
        (-4, 40, "2", "cards-cores", "use 2"),
        ("0.5", 40, "2", "cards-cores", "use 2"),
        (
            100, 41, "2", "cards-memory",
            "is 41 on 2 cards (annotation tencent.com/vcuda-cards): it is the total of equal parts of whole units of 256 MiB: use 40 or 42",
        ),
        (100, None, "2", "cards-memory", "use 2"),
        (100, "1E", "2", "cards-memory", "use 34359738366"),
        (100, 40, "two", "cards-malformed", 'is "two", not a number of cards from 1 to 16: write a number such'),
        (100, 40, "17", "cards-malformed", 'is "17", not a number of cards from 1 to 16'),
        (100, 40, "0", "cards-malformed", 'is "0", not a number'),
        (100, 40, "", "cards-malformed", 'is "", not a number'),
        (100, 40, "eval=2", "cards-malformed", 'no container "eval" of the pod asks for tencent.com/vcuda-core'),
        (100, 40, "train=2,train=4", "cards-malformed", 'names container "train" twice'),
        (100, 40, "train=x", "cards-malformed", 'is "x", not a number of cards'),
        (100, 40, "train=" + " " * 20_000 + "2", "cards-malformed", "20007 characters long"),
    ],
)  # fmt: skip
def test_what_no_node_could_divide_is_refused_with_a_sentence(
    core: Any, memory: Any, cards: str, rule: str, sentence: str
) -> None:
    assert rule in broken(two(core, memory, cards))
    assert sentence in said(two(core, memory, cards), rule)


@given(st.integers(-50, 3000).map(lambda n: Fraction(n, 7)), st.integers(2, 16), st.integers(1, 30))
def test_the_nearest_totals_are_those_on_either_side(total: Fraction, parts: int, least: int) -> None:
    legal = [part * parts for part in range(least, 100)]
    near = nearest_totals(total, parts, least, 99)
    assert set(near) <= set(legal)
    assert near[0] == min(legal, key=lambda one: (abs(one - total), one))
    assert (total in legal) is (total in near)


def test_each_container_has_the_number_that_names_it() -> None:
    asked = judged_request(
        pod_of(container("train", 100, 40), container("web", 10, 4), container("log"), vcuda_cards="train=4")
    )
    assert [(c.name, c.request.parts) for c in asked.containers] == [("train", 4), ("web", 1)]
    both = judged_request(
        pod_of(container("train", 100, 40), container("web", 10, 4), container("log"), vcuda_cards="2")
    )
    assert [(c.name, c.request.parts) for c in both.containers] == [("train", 2), ("web", 2)]


def test_beside_whole_cards_of_another_name_it_is_refused() -> None:
    with_gpus = two(100, 40, resources={"limits": {"tencent.com/vcuda-core": "100", "nvidia.com/gpu": "2"}})
    assert broken(two(100, 40)) == []
    assert "names-mixed" in broken(
        pod_of(container("train", 100, 40), {"name": "x", "resources": {"limits": {"nvidia.com/gpu": "2"}}},
               vcuda_cards="train=2")
    )  # fmt: skip
    assert "names-mixed" in broken(with_gpus)
    alone = pod_of({"name": "x", "resources": {"limits": {"nvidia.com/gpu": "2"}}}, vcuda_cards="2")
    assert check_pod(alone) == ()
    assert "it has no effect" in said(alone, "cards-without-share")


def test_beside_a_claim_it_is_refused() -> None:
    spec = {"name": "train", "resources": {
        "limits": {"tencent.com/vcuda-core": "100", "tencent.com/vcuda-memory": "40"},
        "claims": [{"name": "gpu"}]}}  # fmt: skip
    written = parse_pod(
        {
            "metadata": {"name": "p", "annotations": {"tencent.com/vcuda-cards": "2"}},
            "spec": {"containers": [spec], "resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]},
        }
    )
    assert broken(written) == ["cards-beside-claim"]
    assert 'it uses ResourceClaim "mine" too' in said(written, "cards-beside-claim")


def test_beside_an_ordinary_init_container_with_cores_it_is_refused() -> None:
    init = container("load", 10, 4)
    written = pod_of(container("train", 100, 40), init=(init,), vcuda_cards="train=2")
    assert broken(written) == ["cards-init-container"]
    assert 'whose container "train" has parts of 2 cards' in said(written, "cards-init-container")
    sidecar = pod_of(
        container("train", 100, 40), init=({**init, "restartPolicy": "Always"},), vcuda_cards="train=2"
    )
    assert broken(sidecar) == []


def test_privilege_is_refused_and_a_ceiling_and_a_priority_are_judged_by_the_part_of_a_card() -> None:
    assert broken(two(150, securityContext={"privileged": True})) == ["privileged-fraction"]
    for ceiling, wrong in (("74", ["ceiling-out-of-range"]), ("75", [])):
        assert broken(pod_of(container("train", 150, 40), vcuda_cards="2", vcuda_core_limit=ceiling)) == wrong
    protected = pod_of(container("train", 100, 40), vcuda_cards="2", vcuda_priority="protected")
    assert check_pod(protected) == ()
    assert has_fractions_alone(protected)


def test_requests_that_differ_are_still_told() -> None:
    unequal = two(100, 40, resources={"requests": {"tencent.com/vcuda-core": "50"}})
    assert broken(unequal) == ["requests-differ"]


def test_a_bound_pod_keeps_its_parts_whatever_else_was_written_into_its_annotations() -> None:
    spoiled = pod_of(container("train", 150, 40), vcuda_cards="2", placement="nowhere")
    assert bound_request(spoiled).containers[0].request == Request(150, 10 * GIB, 2)
    with pytest.raises(RequestInvalid, match="multiple of 100"):
        bound_request(pod_of(container("train", 150, 40)))


def test_a_reduced_request_stays_divisible() -> None:
    assert Request(100, 10 * GIB, 3).reduced(50, 5 * GIB, DEFAULT_UNIT) == Request(48, 18 * DEFAULT_UNIT, 3)


@given(st.text(max_size=40), st.lists(st.text(max_size=5), max_size=3))
def test_any_text_is_read_or_refused(text: str, names: list[str]) -> None:
    try:
        parts = read_parts(text, names)
    except RequestInvalid as error:
        assert str(error)  # noqa: PT017  # that it says something
    else:
        assert set(parts) <= set(names)
        assert all(1 <= number <= 16 for number in parts.values())


# Which cards it gets.


def parts_of(count: int, cores: int, units: int, **wishes: Any) -> PodRequest:
    request = Request(cores * count, units * count * DEFAULT_UNIT, count)
    return PodRequest(PodUid("p"), (ContainerRequest("a", APP, 0, request),), **wishes)


def test_the_chosen_set_is_the_best_of_all_sets() -> None:
    for case in cases(300, seed=7):
        assert case.chosen() == best_of_all(case), case


def test_parts_lie_on_different_cards_and_open_as_few_idle_ones_as_they_can() -> None:
    node = Node(tree(4, (2, "NV4"))).hold((0, 50, 8), (3, 30, 8))
    assert node.place(parts_of(2, 50, 8)) == {"a": (0, 3)}, "both are used, though badly linked"
    assert node.place(parts_of(3, 50, 8)) == {"a": (0, 1, 3)}, "one more, the better linked"
    assert node.place(parts_of(2, 60, 8)) == {"a": (2, 3)}, "card 0 has no room, and card 2 is linked to 3"


def test_spread_turns_the_first_round_and_topology_puts_links_first() -> None:
    node = Node(tree(4, (2, "NV4"))).hold((0, 50, 8), (3, 30, 8))
    assert node.place(parts_of(2, 50, 8, placement=PlacementPolicy.SPREAD)) == {"a": (1, 2)}
    assert node.place(parts_of(2, 50, 8, placement=PlacementPolicy.TOPOLOGY)) == {"a": (0, 1)}


def test_parts_without_room_are_told_of_beside_a_fraction_that_has_it() -> None:
    node = Node(tree(2, (1, "NV4"))).hold((0, 50, 8))
    fraction = ContainerRequest("b", APP, 1, Request(40, 8 * DEFAULT_UNIT))
    asked = replace(parts_of(2, 60, 8), containers=(*parts_of(2, 60, 8).containers, fraction))
    with pytest.raises(DoesNotFit, match='container "a": 60 cores, 2 GiB of each of 2 cards asked'):
        node.place(asked)


def test_topology_keeps_parts_on_the_cards_that_the_pod_uses() -> None:
    both = PodRequest(
        PodUid("p"),
        (
            ContainerRequest("a", APP, 0, Request(10, 4 * DEFAULT_UNIT)),
            ContainerRequest("b", APP, 1, Request(40, 8 * DEFAULT_UNIT, 2)),
        ),
        placement=PlacementPolicy.TOPOLOGY,
    )
    node = Node(tree(4, (2, "NV4"))).hold((3, 50, 4))
    assert node.place(both) == {"a": (3,), "b": (2, 3)}


def test_a_protected_pod_avoids_cards_with_normal_tenants() -> None:
    node = Node(tree(4, (2, "NV4"))).hold((0, 20, 4), (1, 20, 4))
    assert node.place(parts_of(2, 20, 4, priority=Priority.PROTECTED)) == {"a": (2, 3)}
    assert node.place(parts_of(3, 20, 4, priority=Priority.PROTECTED)) == {"a": (0, 2, 3)}


def test_on_more_cards_than_sets_can_be_listed_they_are_chosen_one_by_one() -> None:
    node = Node(tree(20, (4, "NV4"))).hold((5, 50, 8), (6, 20, 8), (12, 20, 8))
    assert node.place(parts_of(2, 50, 8)) == {"a": (5, 6)}
    assert node.place(parts_of(4, 50, 8)) == {"a": (4, 5, 6, 12)}
    assert node.place(parts_of(2, 20, 8, placement=PlacementPolicy.SPREAD))["a"] == (0, 1)


def test_what_does_not_fit_says_how_many_cards_have_room_and_what_would() -> None:
    node = Node(tree(3)).hold((0, 70, 8), (1, 40, 8), (2, 70, 8))
    with pytest.raises(DoesNotFit) as refused:
        place(parts_of(2, 50, 8), node.cards, node.topology, node.ledger)
    assert str(refused.value) == (
        'container "a": 50 cores, 2 GiB of each of 2 cards asked, 1 of 3 have room for that: cards 0, 2: '
        "50 cores asked, 30 free; 2 GiB asked, 14 GiB free | card 1: 50 cores asked, 60 free; 2 GiB asked, 14 GiB free. "
        'Would fit now: 30 cores, 2 GiB of each of cards 0, 2 for "a"'
    )


def test_more_cards_than_the_node_has_is_refused_by_their_number() -> None:
    node = Node(tree(2))
    with pytest.raises(
        DoesNotFit, match=r"50 cores, 2 GiB of each of 4 cards asked, 2 of 2 have room for that"
    ):
        place(parts_of(4, 50, 8), node.cards, node.topology, node.ledger)


def test_wide_parts_are_laid_out_before_the_exact_search() -> None:
    """Best fit puts the small one on the fullest card, and the parts then lack a second card."""
    asked = PodRequest(
        PodUid("p"),
        (
            ContainerRequest("a", APP, 0, Request(40, 4 * DEFAULT_UNIT)),
            ContainerRequest("b", APP, 1, Request(100, 8 * DEFAULT_UNIT, 2)),
        ),
    )
    node = Node(tree(3)).hold((0, 50, 4), (1, 50, 4), (2, 60, 4))
    assert node.place(asked) == {"a": (2,), "b": (0, 1)}
    tight = Node(tree(3)).hold((0, 45, 4), (1, 45, 4), (2, 55, 4))
    assert tight.place(asked) == {"a": (2,), "b": (0, 1)}


def test_the_schedulers_cards_are_followed_if_they_are_two() -> None:
    node = Node(tree(4)).hold((0, 50, 8))
    asked = parts_of(2, 50, 8)
    named = {"a": [(node.cards[at].card.uuid, Amount(50, 2 * GIB)) for at in (3, 1)]}
    shares = follow(asked, named, node.cards, node.ledger)["a"]
    assert [(s.card, s.amount) for s in shares] == named["a"]
    assert explain_shares(shares, node.cards) == "50 cores, 2 GiB of each of cards 3, 1"
    with pytest.raises(DoesNotFit, match="named 1 cards, 2 expected"):
        follow(asked, {"a": named["a"][:1]}, node.cards, node.ledger)
    twice = {"a": [named["a"][0]] * 2}
    with pytest.raises(DoesNotFit, match="named 1 cards, 2 expected"):
        follow(asked, twice, node.cards, node.ledger)


def test_a_pod_with_an_init_container_that_hands_ids_on_is_placed_nowhere() -> None:
    """Its rule refuses it; a pod that passed by that is not placed either."""
    asked = PodRequest(
        PodUid("p"),
        (
            ContainerRequest("a", INIT, 0, Request(10, DEFAULT_UNIT)),
            ContainerRequest("b", APP, 1, Request(40, 8 * DEFAULT_UNIT, 2)),
        ),
    )
    node = Node(tree(4))
    assert find(asked, node.cards, node.topology, node.ledger) is None
    assert "fits nowhere" in str(judge(asked, node.cards, node.topology, node.ledger))


def test_under_a_numa_policy_the_parts_lie_where_the_kubelet_takes_ids_if_there_is_room() -> None:
    node = Node(tree(4, (2, "PIX")))
    node.topology = Topology(node.topology.links, NumaPolicy.SINGLE)
    node.cards = [replace(s, card=replace(s.card, numa=at // 2)) for at, s in enumerate(node.cards)]
    node.hold((0, 10, 4), (2, 10, 4), (3, 10, 4))
    assert node.place(parts_of(2, 20, 4)) == {"a": (0, 1)}, "node 0 has the ids, and the kubelet takes those"


@settings(max_examples=100)
@given(st.data())
def test_what_is_placed_always_commits_and_never_one_card_twice(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 6))
    node = Node(Topology.uniform(size, Link.parse("SYS")))
    for number in range(data.draw(st.integers(1, 8))):
        count = data.draw(st.integers(1, size))
        asked = parts_of(count, data.draw(st.integers(1, 99)), data.draw(st.integers(1, 64)))
        asked = PodRequest(PodUid(f"p{number}"), asked.containers)
        found = find(asked, node.cards, node.topology, node.ledger)
        if found is None:
            room = [
                s
                for s in node.cards
                if asked.containers[0].request.amount.fits_in(node.ledger.free(s.card.uuid))
            ]
            assert len(room) < count
            continue
        cards = [share.card for share in found["a"]]
        assert len(set(cards)) == count
        node.ledger.commit(booked(asked, found))
        assert all(
            min(free.cores, free.memory) >= 0 for s in node.cards if (free := node.ledger.free(s.card.uuid))
        )


def test_without_the_annotation_nothing_changes() -> None:
    node = Node(tree(4, (2, "NV4"))).hold((0, 50, 8))
    assert node.place(pod((30, 8), (200,))) == {"a": (0,), "b": (2, 3)}


# What if.


def wide(name: str, count: int, cores: int, units: int) -> SimPod:
    asked = ContainerRequest("main", APP, 0, Request(cores * count, units * count * DEFAULT_UNIT, count))
    return SimPod(PodUid(name), f"default/{name}", PodRequest(PodUid(name), (asked,)))


def test_moves_make_room_for_parts_of_several_cards() -> None:
    small, other = sim_pod("small", 30, 4), sim_pod("other", 60, 4)
    here = lying(lying(sim_node("n1", 2), small, 0), other, 1)
    plan = defragment([here, sim_node("n2", 1)], wide("both", 2, 50, 4), [])
    assert [(move.pod, move.source_cards, move.target) for move in plan.moves] == [
        ("default/other", (1,), "n2")
    ]
    assert plan.placement is not None
    assert plan.placement.cards == (0, 1)
    nowhere = simulate([here], [wide("both", 2, 50, 4)])
    assert not nowhere.placements


def test_a_simulated_node_of_an_older_agent_takes_none() -> None:
    old = replace(sim_node("n1", 2), features=frozenset())
    assert old.takes(wide("both", 2, 50, 4)) is None
    assert old.bars(wide("both", 2, 50, 4)) == "its agent gives no parts of several cards"
    assert old.takes(sim_pod("small", 60, 4)) is not None
    assert sim_node("n1", 2).takes(wide("both", 2, 50, 4)) is not None


def test_the_most_that_an_allocation_message_advises_is_the_total() -> None:
    note = messages.LibraryMessage(
        1, 0.0, messages.LibraryMessageKind.MEMORY_REFUSED, 7, CardUuid("a"), GIB, 3 * GIB, 3 * GIB
    )
    assert "what would help: tencent.com/vcuda-memory: 16 (4 GiB)" in messages.sentence(
        note, "card 0", 8 * GIB, DEFAULT_UNIT
    )
    both = messages.sentence(note, "card 0", 8 * GIB, DEFAULT_UNIT, 2)
    assert "what would help: tencent.com/vcuda-memory: 32 (8 GiB on 2 cards)" in both
