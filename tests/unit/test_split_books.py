"""The books of a split node: each card is given by claims or by extended resources, and by nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CORE, DRA_DRIVER, MEMORY, NVIDIA
from gpu_manager.domain.dra.sides import Side
from gpu_manager.domain.errors import DoesNotFit, NodeUnready
from gpu_manager.domain.kube.pod import ContainerKind, PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.services.allocation.books import Books, Grant
from gpu_manager.services.allocation.books_format import FORMAT, BooksEncoder, decode_sides
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.claims.prepare import ClaimPreparer
from gpu_manager.services.claims.upkeep import SlicePublisher
from tests.fakes.claims import FakeClaims, FakeSlices, claim_grant, claim_object, result
from tests.fakes.metrics import service_metrics
from tests.fakes.node import pod
from tests.fakes.ports import (
    FakeClock,
    FakeInjector,
    FakePods,
    FakeProcesses,
    FakeStore,
    FakeTenants,
    cards,
)
from tests.fakes.state import node_of

STATES = cards(3)
UUIDS = [state.card.uuid for state in STATES]
NAMES = ["gpu-00000000", "gpu-00000001", "gpu-00000002"]
UNITS = 64  # of one card


def sides(letters: str) -> Mapping[CardUuid, Side]:
    """``p`` given by extended resources, ``d`` by claims, card by card."""
    return dict(zip(UUIDS, ({"p": Side.PLUGIN, "d": Side.DRA}[one] for one in letters), strict=False))


class Node:
    """A split node over fakes."""

    def __init__(self, letters: str, grants: tuple[Grant, ...] = ()) -> None:
        self.claims, self.slices, self.pods, self.store = FakeClaims(), FakeSlices(), FakePods(), FakeStore()
        metrics = service_metrics()
        self.state = NodeState(Books(node_of(STATES), grants), self.store, metrics)
        self.state.set_sides(sides(letters))
        self.publisher = SlicePublisher(self.state, self.slices, FakeClock(), metrics, 1)
        self.preparer = ClaimPreparer(
            self.state, self.claims, self.pods, FakeTenants(), FakeInjector(), FakeProcesses(), metrics
        )

    def healthy(self, card: int, resource: str = CORE) -> int:
        offer = self.state.offer
        ids = offer.node.ids.of_card[resource][UUIDS[card]]
        return len(set(ids) - offer.withdrawn.get(resource, frozenset()))


def held(card: int, uid: str = "u", cores: int = 30, ids: dict[str, frozenset[str]] | None = None) -> Grant:
    share = Share(UUIDS[card], Amount(cores, GIB))
    allocation = Allocation(PodUid(uid), "c", ContainerKind.APP, 0, (share,), "ns", f"pod-{uid}")
    return Grant(allocation, f"dir-{uid}", 0, ids or {})


def test_a_card_of_claims_is_published_and_none_of_its_ids_is_offered() -> None:
    node = Node("ppd")
    node.publisher.look()
    assert [device.name for device in node.slices.told[-1]] == NAMES[2:]
    assert [device.taints for device in node.slices.told[-1]] == [()]
    assert (node.healthy(2), node.healthy(2, MEMORY), node.healthy(1)) == (0, 0, 100)


def test_pods_and_other_names_of_the_card_see_it_held_by_claims() -> None:
    node = Node("ppd")
    states = {state.card.uuid: state for state in node.state.node.cards}
    assert states[UUIDS[2]].held == DRA_DRIVER
    assert not node.state.offer.healthy(NVIDIA, states[UUIDS[2]])
    node.state.set_sides(None)
    assert all(state.open for state in node.state.node.cards)


def test_a_card_without_a_side_is_nobodys() -> None:
    node = Node("pd")
    assert [state.open for state in node.state.node.cards] == [True, False, False]
    with pytest.raises(DoesNotFit, match="not given by ResourceClaims"):
        node.state.prepare((claim_grant("d", STATES[2]),))


def test_the_books_take_a_card_for_one_side_alone() -> None:
    books = Books(node_of(STATES), (), sides("pd"))
    books.put(held(0))
    books.put_claim((claim_grant("c", STATES[1]),))
    for card in (1, 2):
        with pytest.raises(DoesNotFit, match=f"card {card} is not given by extended resources"):
            books.put(held(card, "v"))
        with pytest.raises(DoesNotFit):
            books.plan((held(card, "v").allocation,))
    for card in (0, 2):
        with pytest.raises(DoesNotFit, match=f"card {card} is not given by ResourceClaims"):
            books.put_claim((claim_grant("d", STATES[card]),))
    books.put(replace(held(0), ceiling=80))


def test_sides_are_kept_with_the_books_and_an_older_agent_reads_the_others() -> None:
    unsplit = Books(node_of(STATES), (held(0),))
    assert json.loads(BooksEncoder().encode(unsplit))["v"] == FORMAT
    assert decode_sides(BooksEncoder().encode(unsplit)) is None
    split = BooksEncoder().encode(Books(node_of(STATES), (held(0),), sides("pd")))
    assert decode_sides(split) == sides("pd")
    assert json.loads(split)["v"] > FORMAT, "an agent of before would offer all cards to pods"
    for broken in (b"[]", b'{"sides":3}', b'{"sides":{"GPU-0":"nowhere"}}', b'{"sides":{"GPU-0":[]}}', b"{"):
        with pytest.raises(NodeUnready):
            decode_sides(broken)


def test_a_card_that_an_older_agent_was_handing_over_is_with_who_had_it() -> None:
    """The other side was never told of the card, and what the former gave may be on its way still."""
    stored = json.dumps({"sides": {UUIDS[0]: "to-dra", UUIDS[1]: "to-plugin", UUIDS[2]: "dra"}})
    assert decode_sides(stored.encode()) == sides("pdd")


def test_sides_that_cannot_be_stored_do_not_count() -> None:
    node = Node("ppd")
    node.store.broken = True
    with pytest.raises(NodeUnready):
        node.state.set_sides(sides("ddd"))
    assert node.state.view.sides == sides("ppd")
    assert node.healthy(0) == 100


def test_ids_that_containers_hold_stay_healthy_and_others_stand_in_for_them() -> None:
    of_card = node_of(STATES).ids.of_card
    tokens = {CORE: frozenset(of_card[CORE][UUIDS[2]][:30]), MEMORY: frozenset(of_card[MEMORY][UUIDS[2]][:4])}
    node = Node("ppd", (held(0, ids=tokens),))
    assert not tokens[CORE] & node.state.offer.withdrawn[CORE]
    for resource, units in ((CORE, 100), (MEMORY, UNITS)):
        assert sum(node.healthy(card, resource) for card in range(3)) == 2 * units


def test_a_claim_of_a_card_that_pods_have_is_refused_and_its_pod_is_told_what_to_do() -> None:
    node = Node("ppd")
    node.pods.bind(parse_pod(pod("late", uid="uid-late", controlled=True)))
    node.claims.add(claim_object("late", result(NAMES[1]), namespace="default", pods=("late",)))
    with pytest.raises(DoesNotFit, match=r"card 1, which is given by extended resources .* delete the pod"):
        node.preparer.prepare("default", "claim-late", "late")
    assert node.state.view.ledger.claims == ()
    assert node.pods.events[0][1] == "VcudaRefused"
