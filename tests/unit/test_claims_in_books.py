"""ResourceClaims in the node's one ledger, beside pods' containers."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from gpu_manager.domain.cluster.node_json import node_json, node_text
from gpu_manager.domain.contract import DRA_DRIVER, NVIDIA
from gpu_manager.domain.errors import DoesNotFit, NodeUnready
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import CORES_PER_CARD, GIB, ZERO, Amount
from gpu_manager.servers import series
from gpu_manager.services.allocation.books import Books, Grant
from gpu_manager.services.allocation.books_format import BooksEncoder, decode
from gpu_manager.services.enforcement.usage import ABSENT_SECONDS, EndedContainers
from tests.fakes.claims import claim_grant
from tests.fakes.ports import FakeClock, FakePods, FakeProcesses, FakeStore, cards
from tests.fakes.state import node_of, state_of
from tests.seeds import seeds

STATES = cards(2)
FIRST, SECOND = (state.card.uuid for state in STATES)


def container(uid: str, cores: int) -> Grant:
    share = Share(FIRST, Amount(cores, GIB))
    return Grant(Allocation(PodUid(uid), "c", ContainerKind.APP, 0, (share,), "default", uid), f"dir-{uid}")


def test_a_claim_and_a_container_share_a_card_in_one_sum() -> None:
    state = state_of(STATES, container("p", 60))
    state.prepare([claim_grant("a", STATES[0])])
    assert state.view.ledger.booked(FIRST) == Amount(90, 5 * GIB)
    with pytest.raises(DoesNotFit):
        state.prepare([claim_grant("b", STATES[0])])
    assert [a.claim.name for a in state.view.ledger.claims if a.claim] == ["a"]
    assert state.view.ledger.pods == ("p",)


def test_a_claim_is_booked_with_all_its_requests_or_with_none() -> None:
    state = state_of(STATES, container("p", 80))
    requests = [claim_grant("a", STATES[1], request="one"), claim_grant("a", STATES[0], request="two")]
    with pytest.raises(DoesNotFit):
        state.prepare(requests)
    assert state.view.ledger.idle(SECOND)
    assert not state.view.ledger.claims
    assert state.prepare(requests[:1]) == tuple(requests[:1])


def test_requests_of_one_claim_are_summed_whatever_containers_share_them() -> None:
    state = state_of(STATES)
    state.prepare([claim_grant("a", STATES[0], request=name) for name in ("one", "two")])
    assert state.view.ledger.booked(FIRST) == Amount(60, 8 * GIB)


def test_a_claim_is_booked_once_however_often_it_is_prepared() -> None:
    state = state_of(STATES)
    first = state.prepare([claim_grant("a", STATES[0], directory="first")])
    again = state.prepare([claim_grant("a", STATES[1], directory="second")])
    assert again == first
    assert state.view.ledger.idle(SECOND)


def test_a_disk_that_refuses_leaves_nothing_booked() -> None:
    store = FakeStore()
    state = state_of(STATES, store=store)
    store.broken = True
    with pytest.raises(NodeUnready):
        state.prepare([claim_grant("a", STATES[0])])
    assert state.view.ledger.idle(FIRST)
    assert not state.view.grants


def test_a_disk_that_refuses_a_second_call_leaves_what_the_first_booked() -> None:
    store = FakeStore()
    state = state_of(STATES, store=store)
    state.prepare([claim_grant("a", STATES[0])])
    store.broken = True
    with pytest.raises(NodeUnready):
        state.prepare([claim_grant("a", STATES[0], directory="other")])
    assert [g.directory for g in state.view.grants.values()] == ["a-gpu"]


def test_claims_survive_the_disk() -> None:
    held = (container("p", 20), claim_grant("a", *STATES), claim_grant("b", STATES[0], pods=("x", "y")))
    grants, planned = decode(BooksEncoder().encode(Books(node_of(STATES), held)))
    assert {g.key: g for g in grants} == {g.key: g for g in held}
    assert planned == ()


def test_books_without_claims_are_what_an_older_agent_reads_and_with_them_it_keeps_the_file() -> None:
    """An older agent reads format 1 alone; it would take a claim for a pod that is gone."""
    encoder, books = BooksEncoder(), Books(node_of(STATES), [container("p", 20)])
    assert json.loads(encoder.encode(books))["v"] == 1
    claim = claim_grant("a", STATES[1])
    books.put_claim([claim])
    assert json.loads(encoder.encode(books))["v"] == 2
    books.release(*claim.key)
    assert json.loads(encoder.encode(books))["v"] == 1


def test_the_pods_of_a_claim_come_and_go() -> None:
    state = state_of(STATES)
    state.prepare([claim_grant("a", STATES[0])])
    state.set_claim_pods(PodUid("claim-a"), ((PodUid("u1"), "one"), (PodUid("u2"), "two")))
    [allocation] = state.view.ledger.claims
    assert allocation.claim is not None
    assert [name for _, name in allocation.claim.pods] == ["one", "two"]
    assert state.view.grants[allocation.key].allocation == allocation


def test_what_a_claim_holds_has_not_ended_though_no_pod_has_its_uid() -> None:
    clock = FakeClock()
    ended = EndedContainers(FakePods(), FakeProcesses(), clock)
    held = {grant.key: grant for grant in (container("p", 10), claim_grant("a", STATES[0]))}
    ended.among(held)
    clock.pass_(ABSENT_SECONDS)
    assert ended.among(dict(held)) == {("p", "c")}


def test_the_graph_names_the_claim_and_its_pods() -> None:
    state = state_of(STATES, claim_grant("a", STATES[0], pods=("x", "y")))
    view = state.view
    shown = node_json("n1", view.node.cards, view.node.topology, view.ledger, lambda *_: {"planned": False})
    [holder] = shown["cards"][0]["holders"]
    assert (holder["claim"], holder["request"], holder["pods"]) == ("a", "gpu", ["x", "y"])
    assert holder["cores"] == 30
    holder["ended"] = False
    assert "ml/a a/gpu: 30 cores, 4 GiB" in node_text(shown)


def test_the_graph_says_who_gives_away_a_card_that_pods_get_no_shares_of() -> None:
    by_claims, whole = (
        replace(state, held=held) for state, held in zip(STATES, (DRA_DRIVER, NVIDIA), strict=True)
    )
    view = state_of((by_claims, whole), claim_grant("a", by_claims)).view
    more = {"planned": False, "ended": False}
    shown = node_json("n1", (by_claims, whole), view.node.topology, view.ledger, lambda *_: more)
    assert [card["held"] for card in shown["cards"]] == [DRA_DRIVER, NVIDIA]
    _, first, _, second = node_text(shown).splitlines()
    assert first.endswith("70 of 100 cores free, 12 GiB of 16 GiB free, given by ResourceClaims"), first
    assert second.endswith(
        "closed, 0 of 100 cores and 0 B of 16 GiB booked, given away whole as nvidia.com/gpu"
    )
    assert "held" not in node_json("n1", STATES, view.node.topology, view.ledger, lambda *_: more)["cards"][0]


def test_a_metric_names_each_pod_of_a_claim() -> None:
    view = state_of(STATES, claim_grant("a", STATES[0], pods=("x", "y")), container("p", 10)).view
    [info] = series.claims(series.View(view.node, view.grants))
    assert [sample.labels["pod"] for sample in info.samples] == ["x", "y"]
    assert {sample.labels["container"] for sample in info.samples} == {"a/gpu"}


@pytest.mark.parametrize("seed", seeds(8))
def test_no_order_of_claims_and_containers_books_more_than_a_card_has(seed: int) -> None:
    rng, store = Random(seed), FakeStore()
    state = state_of(STATES, store=store)
    for n in range(200):
        if rng.random() < 0.4 and (held := list(state.view.grants)):
            state.release([rng.choice(held)])
        else:
            some = rng.sample(STATES, rng.choice((1, 2)))
            asked = [
                claim_grant(f"c{n}", *some, cores=rng.randint(1, 100), request=f"r{k}")
                for k in range(rng.choice((1, 1, 2)))
            ]
            store.broken = rng.random() < 0.2
            before = state.view
            try:
                state.prepare(asked)
            except (DoesNotFit, NodeUnready):
                assert dict(state.view.grants) == dict(before.grants)
            store.broken = False
        ledger = state.view.ledger
        for uuid in (FIRST, SECOND):
            sums = sum((s.amount for a in ledger for s in a.shares if s.card == uuid), ZERO)
            assert ledger.booked(uuid) == sums
            assert sums.cores <= CORES_PER_CARD
