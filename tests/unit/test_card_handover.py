"""A card of a split node on its way from one front to the other: nobody's, until nothing is on its way to it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CORE, DRA_DRIVER, MEMORY, NVIDIA
from gpu_manager.domain.dra.sides import NO_CARDS, SETTLE_SECONDS, ClaimCards, Side
from gpu_manager.domain.errors import DoesNotFit, NodeUnready
from gpu_manager.domain.kube.pod import ContainerKind, PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.services.allocation.books import Books, Grant
from gpu_manager.services.allocation.books_format import FORMAT, BooksEncoder, decode, decode_sides
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.claims.handover import ASK_SECONDS, CardHandover
from gpu_manager.services.claims.prepare import ClaimPreparer
from gpu_manager.services.claims.slices import ORDER_SECONDS, SlicePublisher
from tests.fakes.claims import FakeClaims, FakeSlices, claim_grant, claim_object, result
from tests.fakes.metrics import service_metrics
from tests.fakes.node import container, pod
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


class Status:
    """What the kubelet reports of the node: all that it was told, once :meth:`report` is called."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.shown: dict[str, int] | None = {CORE: 300, MEMORY: 3 * UNITS}

    def report(self) -> None:
        offer = self._node.state.offer
        self.shown = {resource: offer.healthy_ids(resource) for resource in (CORE, MEMORY)}

    def allocatable(self, resource: str) -> int | None:
        return None if self.shown is None else self.shown[resource]


class Node:
    """The hand-over over fakes. ``restart`` is a new agent that finds what the dead one left on the disk."""

    def __init__(self, wanted: ClaimCards = NO_CARDS, grants: tuple[Grant, ...] = ()) -> None:
        self.claims, self.slices, self.pods = FakeClaims(), FakeSlices(), FakePods()
        self.store, self.clock, self.metrics = FakeStore(), FakeClock(), service_metrics()
        self.wanted = wanted
        self.restart(Books(node_of(STATES), grants))

    def restart(self, books: Books | None = None) -> None:
        if books is None:
            grants, planned = decode(self.store.state or b"")
            books = Books(node_of(STATES), grants, decode_sides(self.store.state or b""))
            books.plan(planned)
        self.state = NodeState(books, self.store, self.metrics)
        self.status = Status(self)
        self.publisher = SlicePublisher(self.state, self.slices, self.clock, self.metrics, 1)
        self.handover = CardHandover(
            self.state,
            self.claims,
            self.slices,
            self.publisher,
            self.status,
            self.pods,
            self.clock,
            self.metrics,
            self.wanted,
        )
        self.preparer = ClaimPreparer(
            self.state,
            self.claims,
            self.pods,
            FakeTenants(),
            FakeInjector(),
            FakeProcesses(),
            self.metrics,
            evict=True,
        )
        for found in [one for named in self.pods.local().values() for one in named]:
            self.state.introduce(found.pod)
        self.state.set_sides({})
        self.handover.look()

    def pass_(self, seconds: float) -> None:
        """Second by second; slices are published as they change."""
        for _ in range(int(seconds)):
            self.clock.pass_(1)
            self.handover.look()
            self.publisher.look()

    @property
    def sides(self) -> str:
        letters = {Side.PLUGIN: "p", Side.DRA: "d", Side.TO_DRA: ">", Side.TO_PLUGIN: "<", None: "?"}
        return "".join(letters[(self.state.view.sides or {}).get(uuid)] for uuid in UUIDS)

    @property
    def published(self) -> list[str]:
        return [device.name for device in self.slices.told[-1]] if self.slices.told else []

    def healthy(self, card: int, resource: str = CORE) -> int:
        offer = self.state.offer
        ids = offer.node.ids.of_card[resource][UUIDS[card]]
        return len(set(ids) - offer.withdrawn.get(resource, frozenset()))

    def settle(self) -> None:
        self.status.report()
        self.pass_(SETTLE_SECONDS + 3)


def held(card: int, uid: str = "u", cores: int = 30, ids: dict[str, frozenset[str]] | None = None) -> Grant:
    share = Share(UUIDS[card], Amount(cores, GIB))
    allocation = Allocation(PodUid(uid), "c", ContainerKind.APP, 0, (share,), "ns", f"pod-{uid}")
    return Grant(allocation, f"dir-{uid}", 0, ids or {})


def test_a_card_comes_to_claims_once_the_node_shows_that_its_ids_are_gone() -> None:
    node = Node(ClaimCards(1))
    assert node.sides == "pp>"
    assert (node.healthy(2), node.healthy(2, MEMORY), node.healthy(1)) == (0, 0, 100)
    assert not node.state.node.cards[2].open
    node.pass_(30)
    assert (node.sides, node.published) == ("pp>", [])
    assert "shows 300 allocatable" in node.handover.waiting[UUIDS[2]]
    node.status.report()
    node.pass_(1)
    assert (node.sides, node.published) == ("ppd", NAMES[2:])
    assert node.handover.waiting == {}


def test_schedulers_are_given_time_to_hear_that_a_card_has_left() -> None:
    node = Node(ClaimCards(1))
    node.status.report()
    node.pass_(SETTLE_SECONDS - 1)
    assert node.sides == "pp>"
    assert node.handover.waiting[UUIDS[2]] == "schedulers act on copies that are seconds old"
    node.pass_(2)
    assert node.sides == "ppd"


def test_a_card_waits_for_pods_that_are_bound_to_it_and_not_admitted() -> None:
    node = Node(ClaimCards(1))
    bound = parse_pod(pod("late", container("c", 30, 4), on={"c": [(STATES[2], 30, GIB)]}))
    node.pods.bind(bound)
    node.state.introduce(bound)
    node.settle()
    assert node.sides == "pp>"
    assert "bound to the card" in node.handover.waiting[UUIDS[2]]
    node.pods.forget(bound.key)
    node.settle()
    assert node.sides == "ppd"


def test_a_planned_pod_keeps_its_card() -> None:
    node = Node()
    node.pods.bind(parse_pod(pod("soon", container("c", 30, 4), on={"c": [(STATES[2], 30, GIB)]})))
    node.wanted = ClaimCards(3)
    node.restart()
    assert node.sides == ">>p"


def test_a_card_goes_back_once_no_claim_of_the_cluster_names_it() -> None:
    node = Node(ClaimCards(1))
    node.settle()
    node.claims.add(claim_object("late", result(NAMES[2])))
    node.wanted = NO_CARDS
    node.restart()
    assert node.sides == "pp<"
    node.settle()
    assert (node.sides, node.published, node.healthy(2)) == ("pp<", [], 0)
    assert node.handover.waiting[UUIDS[2]] == "a claim is allocated on the card"
    node.claims.there.clear()
    node.pass_(ASK_SECONDS)
    assert (node.sides, node.healthy(2)) == ("ppp", 100)
    assert node.state.node.cards[2].open


def test_a_slice_that_cannot_be_written_keeps_the_card_from_the_plugin() -> None:
    node = Node(ClaimCards(1))
    node.settle()
    node.wanted = NO_CARDS
    node.restart()
    node.slices.error = "forbidden"
    node.settle()
    assert (node.sides, node.healthy(2)) == ("pp<", 0)
    assert node.handover.waiting[UUIDS[2]] == "the slice of the node still has the card"
    node.slices.error = ""
    node.settle()
    assert (node.sides, node.published) == ("ppp", [])


def test_the_api_server_is_not_asked_at_each_look() -> None:
    node = Node(ClaimCards(3))
    node.settle()
    node.wanted = NO_CARDS
    node.claims.add(claim_object("late", result(NAMES[0])))
    node.restart()
    node.settle()
    node.claims.away = True
    node.clock.pass_(ASK_SECONDS)
    with pytest.raises(NodeUnready):
        node.handover.look()
    node.handover.look()


@pytest.mark.parametrize("seconds", range(0, 20, 2))
def test_an_agent_that_is_killed_goes_on_where_it_was(seconds: int) -> None:
    node = Node(ClaimCards(1))
    node.status.report()
    node.pass_(seconds)
    before = node.sides
    node.restart()
    assert node.sides == before
    node.settle()
    assert node.sides == "ppd"


def test_cards_of_a_node_that_was_not_split_stay_with_who_may_still_give_them() -> None:
    node = Node()
    assert node.sides == "ppp"
    node.state.unsplit()
    node.claims.add(claim_object("c", result(NAMES[1])))
    node.slices.told = []
    node.wanted = ClaimCards(3)
    node.restart(Books(node_of(STATES), (held(0),)))
    assert node.sides == "pd>", "held by a pod; allocated to a claim; idle, and wanted for claims"


def test_while_the_api_server_is_away_an_unknown_card_is_nobodys() -> None:
    node = Node()
    node.claims.away = True
    node.slices.error = "away"
    with pytest.raises(NodeUnready):
        node.restart(Books(node_of(STATES), (held(0), claim_grant("c", STATES[1]))))
    assert node.sides == "pd?"
    assert [state.open for state in node.state.node.cards] == [True, False, False]
    with pytest.raises(DoesNotFit, match="not given by ResourceClaims"):
        node.state.prepare((claim_grant("d", STATES[2]),))
    node.claims.away, node.slices.error = False, ""
    node.handover.look()
    assert node.sides == "pdp"


def test_the_books_take_a_card_for_one_side_alone() -> None:
    books = Books(node_of(STATES), (), dict(zip(UUIDS, (Side.PLUGIN, Side.DRA, Side.TO_DRA), strict=True)))
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
    with pytest.raises(DoesNotFit, match="card 0 is held by ns/pod-u"):
        books.check_movable({UUIDS[0]: Side.TO_DRA})
    books.put(replace(held(0), ceiling=80))


def test_sides_are_kept_with_the_books_and_an_older_agent_reads_the_others() -> None:
    unsplit = Books(node_of(STATES), (held(0),))
    assert json.loads(BooksEncoder().encode(unsplit))["v"] == FORMAT
    assert decode_sides(BooksEncoder().encode(unsplit)) is None
    known = {UUIDS[0]: Side.PLUGIN, UUIDS[1]: Side.TO_PLUGIN}
    split = BooksEncoder().encode(Books(node_of(STATES), (held(0),), known))
    assert decode_sides(split) == known
    assert json.loads(split)["v"] > FORMAT, "an agent of before would offer all cards to pods"
    for broken in (b"[]", b'{"sides":3}', b'{"sides":{"GPU-0":"nowhere"}}', b"{"):
        with pytest.raises(NodeUnready):
            decode_sides(broken)


def test_a_step_that_cannot_be_stored_is_not_taken() -> None:
    node = Node()
    node.wanted = ClaimCards(1)
    node.restart()
    node.status.report()
    node.store.broken = True
    with pytest.raises(NodeUnready):
        node.pass_(SETTLE_SECONDS + 3)
    assert (node.sides, node.published) == ("pp>", [])
    node.store.broken = False
    node.settle()
    assert node.sides == "ppd"


def test_ids_that_containers_hold_stay_healthy_and_others_stand_in_for_them() -> None:
    of_card = node_of(STATES).ids.of_card
    tokens = {CORE: frozenset(of_card[CORE][UUIDS[2]][:30]), MEMORY: frozenset(of_card[MEMORY][UUIDS[2]][:4])}
    node = Node(ClaimCards(uuids=frozenset(UUIDS[2:])), (held(0, ids=tokens),))
    assert node.sides == "pp>"
    assert not tokens[CORE] & node.state.offer.withdrawn[CORE]
    for resource, units in ((CORE, 100), (MEMORY, UNITS)):
        assert node.state.offer.healthy_ids(resource) == 2 * units


def test_a_claim_of_a_card_that_has_left_is_refused_by_name_and_its_pod_is_deleted() -> None:
    node = Node()
    obj = pod("late", uid="uid-late", controlled=True)
    node.pods.bind(parse_pod(obj))
    node.claims.add(claim_object("late", result(NAMES[1]), namespace="default", pods=("late",)))
    for _ in range(2):
        with pytest.raises(
            DoesNotFit, match=r"was allocated card 1, which has gone over .* its pod is deleted"
        ):
            node.preparer.prepare("default", "claim-late", "late")
    assert node.pods.evicted == [PodUid("uid-late")], "once"
    assert node.state.view.ledger.claims == ()
    assert node.pods.events[0][1] == "VcudaRefused"


def test_a_pod_that_nobody_would_make_again_is_not_deleted() -> None:
    node = Node()
    node.pods.bind(parse_pod(pod("bare", uid="uid-bare")))
    node.claims.add(claim_object("late", result(NAMES[1]), namespace="default", pods=("bare",)))
    with pytest.raises(DoesNotFit, match="delete the pod, to have it placed anew"):
        node.preparer.prepare("default", "claim-late", "late")
    assert node.pods.evicted == []


@pytest.mark.parametrize("controlled", [False, True])
def test_a_card_on_its_way_to_pods_comes_back_for_a_pod_that_nobody_makes_again(controlled: bool) -> None:
    """It would wait for the claim as long as the pod exists; of a pod with a controller it is freed."""
    node = Node(ClaimCards(1))
    node.settle()
    node.pods.bind(parse_pod(pod("late", uid="uid-late", controlled=controlled)))
    node.claims.add(claim_object("late", result(NAMES[2]), namespace="default", pods=("late",)))
    node.wanted = NO_CARDS
    node.restart()
    node.settle()
    assert node.sides == "pp<"
    if controlled:
        with pytest.raises(DoesNotFit, match="its pod is deleted"):
            node.preparer.prepare("default", "claim-late", "late")
        assert node.sides == "pp<"
        return
    assert node.preparer.prepare("default", "claim-late", "late")
    assert (node.sides, node.pods.evicted, node.healthy(2)) == ("ppd", [], 0)
    node.settle()
    assert node.sides == "ppd", "what it holds keeps it"
    node.claims.there.clear()
    node.preparer.unprepare("default", "claim-late", "late")
    node.settle()
    assert node.sides == "ppp"


def test_a_card_that_has_reached_pods_does_not_come_back_for_a_late_claim() -> None:
    node = Node()
    with pytest.raises(DoesNotFit, match="card 1 has taken another step meanwhile"):
        node.state.set_sides({UUIDS[1]: Side.DRA}, still=Side.TO_PLUGIN)
    assert node.sides == "ppp"


def test_a_claim_of_a_card_on_its_way_to_claims_waits() -> None:
    node = Node(ClaimCards(1))
    node.claims.add(claim_object("early", result(NAMES[2])))
    with pytest.raises(DoesNotFit, match="card 2, which is on its way to claims"):
        node.preparer.prepare("ml", "claim-early", "early")
    node.settle()
    assert node.preparer.prepare("ml", "claim-early", "early")
    assert node.state.view.ledger.booked(CardUuid(UUIDS[2])).cores == 30


def test_pods_and_other_names_of_the_card_see_it_held_by_claims() -> None:
    node = Node(ClaimCards(1))
    node.settle()
    states = {state.card.uuid: state for state in node.state.node.cards}
    assert states[UUIDS[2]].held == DRA_DRIVER
    assert not node.state.offer.healthy(NVIDIA, states[UUIDS[2]])
    node.clock.pass_(ORDER_SECONDS)
    assert [device.taints for device in node.slices.told[-1]] == [()]
    node.state.unsplit()
    assert all(state.open for state in node.state.node.cards)
