"""What deleted pods still hold is told whole, counted once, and named where it stands in the way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from admission.cluster.snapshot import NODES, PODS
from admission.console.cluster_page import graph
from gpu_manager.adapters.kube.reading import cluster_of
from gpu_manager.domain.card import Card, CardUuid
from gpu_manager.domain.cluster.node_books import MOST, terminating_allocations, terminating_shares
from gpu_manager.domain.cluster.node_json import node_text
from gpu_manager.domain.contract import ALLOCATION, Assignment, TerminatingShare, encode_assignment
from gpu_manager.domain.kube.pod import ContainerKind, PodUid, parse_pod
from gpu_manager.domain.placement.explain import Refusal
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.resources import GIB, MIB, ZERO, Amount
from gpu_manager.domain.rules.pod_request import judged_request
from tests.fakes.extender import UNIT, World, node, pod, uuid

CARDS = tuple(Card(i, CardUuid(f"GPU-{i}"), "T4", 16 * GIB) for i in range(4))
holdings = st.lists(
    st.tuples(st.integers(0, 300), st.sampled_from(CARDS), st.integers(1, 99), st.integers(1, 64)),
    max_size=2 * MOST,
)


def held(uid: str, card: CardUuid, cores: int, memory: int, name: str = "c") -> Allocation:
    return Allocation(PodUid(uid), name, ContainerKind.APP, 0, (Share(card, Amount(cores, memory * MIB)),))


@given(holdings)
def test_however_many_linger_all_they_hold_of_each_card_is_told_in_bounds(
    rows: list[tuple[int, Card, int, int]],
) -> None:
    ledger = Ledger(
        CARDS, MIB, [held(f"u{pod}", card.uuid, cores, mib, card.uuid) for pod, card, cores, mib in rows]
    )
    told = terminating_shares(ledger, ledger.pods)
    assert len(told) <= MOST
    again = Ledger(CARDS, MIB, terminating_allocations(told))
    assert [again.booked(c.uuid) for c in CARDS] == [ledger.booked(c.uuid) for c in CARDS]


@given(holdings, st.sets(st.integers(0, 300)))
def test_a_pod_that_is_still_seen_is_left_to_its_own_charge(
    rows: list[tuple[int, Card, int, int]], seen: set[int]
) -> None:
    left = [
        TerminatingShare(f"u{pod}", card.uuid, Amount(cores, mib * MIB)) for pod, card, cores, mib in rows
    ]
    known = {PodUid(f"u{pod}") for pod in seen}
    facts = terminating_allocations(left, known)
    assert not known & {fact.pod for fact in facts}
    total = sum((share.amount for fact in facts for share in fact.shares), ZERO)
    assert total == sum((one.amount for one in left if PodUid(one.pod) not in known), ZERO)


def says(name: str, card: CardUuid, cores: int) -> dict[str, str]:
    shares = ((card, Amount(cores, 4 * UNIT)),)
    return {ALLOCATION: encode_assignment(Assignment("n1", f"uid-default-{name}", {"main": shares}))}


def test_the_extender_charges_a_pod_once_from_its_life_through_its_deletion_to_its_last_process() -> None:
    card = uuid("n1", 0)
    left = (TerminatingShare("uid-default-a", card, Amount(60, 4 * UNIT)),)
    world = World([node("n1")])
    here = pod("a", 60, on="n1", annotations=says("a", card, 60))
    world.create(here)
    assert world.booked("n1") == [(60, 4), (0, 0)]
    world.cluster.apply(NODES, "MODIFIED", node("n1", lingering=left))
    assert world.booked("n1") == [(60, 4), (0, 0)], "the inventory came first: one charge, not two"
    world.cluster.apply(PODS, "DELETED", here)
    assert world.booked("n1") == [(60, 4), (0, 0)], "gone from the API, not from the card"
    world.create(pod("b", 60, on="n1", annotations=says("b", uuid("n1", 1), 60)))
    assert world.booked("n1") == [(60, 4), (60, 4)]
    world.cluster.apply(NODES, "MODIFIED", node("n1"))
    assert world.booked("n1") == [(0, 0), (60, 4)]


def test_a_pod_whose_card_nobody_says_is_not_guessed_onto_what_lingers() -> None:
    left = (TerminatingShare("uid-gone", uuid("n1", 0), Amount(60, 4 * UNIT)),)
    world = World([node("n1", lingering=left)])
    world.create(pod("a", 60, on="n1"))
    assert world.booked("n1") == [(60, 4), (60, 4)]


def test_filter_leaves_out_a_node_whose_card_still_runs_a_deleted_pod_and_says_why() -> None:
    left = (TerminatingShare("uid-gone", uuid("n1", 0), Amount(60, 4 * UNIT)),)
    world = World([node("n1", 1, lingering=left), node("n2", 1)])
    one = pod("a", 60)
    world.create(one)
    answer = world.filter(one)
    assert answer["NodeNames"] == ["n2"]
    failed = {**answer["FailedNodes"], **(answer.get("FailedAndUnresolvableNodes") or {})}
    assert "60 cores, 1 GiB held by a pod that is gone and whose processes still run" in failed["n1"]


def test_the_picture_of_a_node_names_who_is_gone_and_runs() -> None:
    card = uuid("n1", 0)
    left = (
        TerminatingShare("uid-gone", card, Amount(60, 4 * UNIT)),
        TerminatingShare("", card, Amount(1, UNIT)),
    )
    world = World([node("n1", 1, lingering=left)])
    world.create(pod("a", 10, on="n1", annotations=says("a", card, 10)))
    picture = graph(world.cluster.snapshot().nodes["n1"])
    assert [h["gone"] for h in picture["cards"][0]["holders"]] == [None, "", "uid-gone"]
    assert "gone, its processes still run (pod uid-gone): 60 cores, 1 GiB" in node_text(picture)


def test_people_see_what_a_deleted_pod_still_holds() -> None:
    card = uuid("n1", 0)
    nodes = [node("n1", 1, lingering=(TerminatingShare("uid-gone", card, Amount(60, GIB)),))]
    (books,) = cluster_of(nodes, []).with_cards
    assert books.gone == {"uid-gone"}
    verdict = books.judge(judged_request(parse_pod(pod("a", 60))))
    assert isinstance(verdict, Refusal)
    assert "held by a pod that is gone and whose processes still run" in verdict.line()
    (seen,) = cluster_of(nodes, [pod("gone", 60, uid="uid-gone", on="n1")]).with_cards
    assert not seen.gone
    assert seen.ledger.booked(card).cores == 60


def test_beyond_so_many_pods_the_rest_is_told_by_card_alone() -> None:
    rows = [held(f"u{n:03}", CARDS[n % 2].uuid, 1, 1) for n in range(MOST + 50)]
    ledger = Ledger(CARDS, MIB, rows)
    told = terminating_shares(ledger, ledger.pods)
    assert len(told) == MOST
    assert [one.pod for one in told[-2:]] == ["", ""]
    assert sum((one.amount for one in told), ZERO) == Amount(MOST + 50, (MOST + 50) * MIB)
