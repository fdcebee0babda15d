"""Admin access by a claim: it looks at cards, whoever has them, and holds nothing of them anywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.adapters.control_pages.limits_file import PagePolicy
from gpu_manager.adapters.control_pages.pages import FileControlPages
from gpu_manager.domain.cluster.node_json import node_json, node_text
from gpu_manager.domain.contract import DRA_DRIVER, EVENT_LIBRARY_MESSAGE
from gpu_manager.domain.dra.parameters import API_VERSION, KIND
from gpu_manager.domain.enforcement.evasion import (
    EVICTABLE,
    NEEDED,
    ContainerEvidence,
    ContainerProcess,
    EvasionReason,
    judge,
)
from gpu_manager.domain.enforcement.library_messages import LibraryMessage, LibraryMessageKind, sentence
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, MIB, ZERO
from gpu_manager.domain.topology import Topology
from gpu_manager.ports.cards import ProcessUse
from gpu_manager.servers import series
from gpu_manager.services.allocation.books import Books
from gpu_manager.services.allocation.books_format import BooksEncoder, decode
from gpu_manager.services.allocation.grant import limits_of
from gpu_manager.services.enforcement.library_messages import LibraryMessages
from gpu_manager.services.enforcement.usage_sample import ShareUse
from tests.fakes.claims import claim_grant, claim_object, result
from tests.fakes.metrics import service_metrics
from tests.fakes.ports import FakeClock, FakePods, cards
from tests.fakes.state import node_of, state_of
from tests.unit.test_claim_preparer import GPU0, GPU1, WHOLE, Node, user_of
from tests.unit.test_cluster_claims import claim as explained_claim
from tests.unit.test_cluster_claims import device, part
from tests.unit.test_evasion_detector import Rig, pod
from tests.unit.test_explained_claims import explained, held, waiting, world
from tests.unit.test_library_messages_told import Pages
from tests.unit.test_split_books import NAMES, UUIDS
from tests.unit.test_split_books import Node as SplitNode
from vcuda.page.limits import read_limits

STATES = cards(3)


def look(*states, uid: str = "watch", **more):
    return claim_grant(uid, *states, cores=0, **more)


@pytest.fixture
def node() -> Node:
    return Node()


# ---- what it is given


def test_it_books_nothing_and_its_pages_hold_nothing(node: Node) -> None:
    both = (result(GPU0, adminAccess=True), result(GPU1, adminAccess=True, shareID="s-2"))
    node.claims.add(claim_object("watch", *both))
    made = node.prepare("watch")
    assert [(d.device, len(d.cdi)) for d in made] == [(GPU0, 1), (GPU1, 1)]
    [name] = node.directories
    assert [(limit.memory, limit.cores, limit.ceiling) for limit in node.pages.limits[name]] == [
        (0, 0, 0)
    ] * 2
    assert [node.booked(card) for card in range(3)] == [0, 0, 0]
    node.restart()
    node.pages.limits.clear()
    node.preparer.restore()
    assert list(node.pages.limits) == [name]
    assert node.prepare("watch") == made
    node.unprepare("watch")
    assert (node.directories, node.pages.limits) == ([], {})


def test_it_may_look_at_a_card_that_is_full(node: Node) -> None:
    node.claims.add(claim_object("all", result(GPU0, **WHOLE)))
    node.prepare("all")
    node.claims.add(claim_object("watch", result(GPU0, adminAccess=True)))
    assert node.prepare("watch")
    assert node.booked(0) == 100


@pytest.mark.parametrize("closed", [{"cordoned": True}, {"healthy": False, "reason": "XID 79"}])
def test_it_may_look_at_a_card_that_is_closed(node: Node, closed) -> None:
    node.states = (replace(STATES[0], **closed), *STATES[1:])
    node.restart()
    node.claims.add(claim_object("watch", result(GPU0, adminAccess=True)))
    assert node.prepare("watch")


def test_a_card_that_is_not_there_cannot_be_looked_at(node: Node) -> None:
    node.claims.add(claim_object("watch", result("gpu-99", adminAccess=True)))
    with pytest.raises(RequestInvalid, match="has no such card"):
        node.prepare("watch")


def test_a_request_with_parts_of_some_cards_and_a_look_at_others_is_refused(node: Node) -> None:
    node.claims.add(claim_object("odd", result(GPU0, adminAccess=True), result(GPU1)))
    with pytest.raises(RequestInvalid, match='request "gpu" was allocated admin access to some of its cards'):
        node.prepare("odd")
    assert node.directories == []


def test_a_container_with_a_share_and_a_look_is_refused_by_both_names(node: Node) -> None:
    node.pods.bind(user_of({"name": "a"}))
    node.claims.add(claim_object("a", result(GPU0), result(GPU1, request="watch", adminAccess=True)))
    with pytest.raises(RequestInvalid, match=r"uses 2 requests of this driver \(a/gpu, a/watch\)"):
        node.prepare("a")


def test_containers_of_one_claim_may_have_a_share_and_a_look_each(node: Node) -> None:
    node.pods.bind(user_of({"name": "a", "request": "gpu"}))
    node.claims.add(claim_object("a", result(GPU0), result(GPU0, request="watch", adminAccess=True)))
    node.prepare("a")
    assert sorted(limit.memory for (limit,) in node.pages.limits.values()) == [0, 4 * GIB]
    assert node.booked(0) == 30


def test_parameters_give_it_no_ceiling(node: Node) -> None:
    claim = claim_object("watch", result(GPU0, adminAccess=True))
    opaque = {"driver": DRA_DRIVER, "parameters": {"apiVersion": API_VERSION, "kind": KIND, "coreLimit": 80}}
    claim["status"]["allocation"]["devices"]["config"] = [{"source": "FromClass", "opaque": opaque}]
    node.claims.add(claim)
    node.prepare("watch")
    [[limit]] = node.pages.limits.values()
    assert (limit.cores, limit.ceiling) == (0, 0)


@pytest.mark.parametrize(("reserve", "charged"), [(0, 1), (64 * MIB, 64 * MIB)])
def test_a_context_is_charged_at_least_a_byte_of_nothing(tmp_path: Path, reserve: int, charged: int) -> None:
    """And a page that is broken opens no way to compute, whatever the node's setting is."""
    pages = FileControlPages(tmp_path, PagePolicy(context_reserve=reserve, fail_open=True))
    grants = look(*STATES[:2], directory="a" * 32), claim_grant("c", STATES[0], directory="b" * 32)
    for grant in grants:
        pages.open(grant.directory, limits_of(grant))
    watching, sharing = (read_limits((tmp_path / g.directory / "limits").read_bytes()) for g in grants)
    assert [(c.memory_limit, c.core_limit, c.context_reserve) for c in watching.cards] == [
        (0, 0.0, charged)
    ] * 2
    assert (watching.fail_open, sharing.fail_open) == (False, True)
    assert [card.context_reserve for card in sharing.cards] == [reserve]


# ---- it holds nothing


@given(st.lists(st.integers(1, 33), max_size=3), st.lists(st.sampled_from(range(3)), min_size=1, max_size=5))
def test_no_figure_of_a_ledger_knows_it(held: list[int], looks: list[int]) -> None:
    parts = [claim_grant(f"c{n}", STATES[n], cores=cores).allocation for n, cores in enumerate(held)]
    watching = [look(STATES[card], uid=f"w{n}").allocation for n, card in enumerate(looks)]
    facts = [state.card for state in STATES]
    without, with_looks = (Ledger(facts, DEFAULT_UNIT, (*parts, *more)) for more in ((), watching))
    for state in STATES:
        uuid = state.card.uuid
        assert with_looks.room(uuid) == without.room(uuid)
        assert with_looks.holders(uuid) == without.holders(uuid)
        assert with_looks.priorities(uuid) == without.priorities(uuid)
    assert len(with_looks.claims) == len(held) + len(looks), "but it is known, to be released"
    with_looks.commit(claim_grant(f"more{n}", STATES[n], cores=99 - c).allocation for n, c in enumerate(held))


def test_protected_pods_are_not_kept_from_its_card() -> None:
    kept = replace(claim_grant("p", STATES[0]).allocation, priority=Priority.PROTECTED)
    ledger = Ledger([STATES[0].card], DEFAULT_UNIT, (kept, look(STATES[0]).allocation))
    assert ledger.priorities(STATES[0].card.uuid) == {Priority.PROTECTED}


def test_only_claims_look() -> None:
    assert look(STATES[0]).allocation.is_admin
    assert not claim_grant("c", STATES[0]).allocation.is_admin
    assert not replace(look(STATES[0]).allocation, claim=None).is_admin


def test_it_is_kept_with_the_books() -> None:
    books = Books(node_of(STATES), (look(STATES[0], STATES[1]),))
    [grant], planned = decode(BooksEncoder().encode(books))
    assert (grant.allocation.is_admin, planned) == (True, ())
    assert [limit.memory for limit in limits_of(grant)] == [0, 0]


def test_cards_that_pods_have_may_be_looked_at() -> None:
    """By a claim of an older slice: it takes nothing from them."""
    node = SplitNode("ppd")
    node.claims.add(claim_object("late", result(NAMES[1], adminAccess=True)))
    assert node.preparer.prepare("ml", "claim-late", "late")


# ---- who computes all the same


def test_any_process_of_it_on_the_card_is_an_evader() -> None:
    facts = ContainerEvidence((), held=True, limited=True, admin=True, claimed_memory=0, claimed_busy=0.0)
    assert judge(facts) == {EvasionReason.ADMIN: ""}
    small = replace(facts, processes=(ContainerProcess(7, 300 * MIB, registered=True),))
    assert judge(small) == {
        EvasionReason.ADMIN: "process 7 uses 300 MiB of a card that its claim may only look at: admin access "
        "computes nothing, and the library refuses every context"
    }
    assert judge(replace(facts, processes=None)) == {}
    assert EvasionReason.ADMIN in EVICTABLE


def test_its_pods_are_told_of_the_evader_by_claim_and_request() -> None:
    rig = Rig(evict=True)
    made = look(STATES[0], pods=("one", "two"))
    for name in ("one", "two"):
        rig.pods.bind(pod(name))
    rig.grants[made.key] = made
    rig.uses[made.key] = ShareUse(made.key, made.allocation.shares[0], "active", memory=0, core=0.0)
    uuid = STATES[0].card.uuid
    for _ in range(NEEDED[EvasionReason.ADMIN]):
        rig.sample = replace(
            rig.sample,
            at=rig.sample.at + 1,
            grants=dict(rig.grants),
            cards={uuid: rig.sample.cards.get(uuid)},
            shares=tuple(rig.uses.values()),
            processes={(made.key, uuid): [ProcessUse(uuid, 1007, GIB // 2, 0.0)]},
        )
        rig.watchdog.look()
    assert {e.reason for e in rig.watchdog.evaders} == {EvasionReason.ADMIN}
    told = dict(rig.events())
    assert told.keys() == {"team/one", "team/two"}
    assert told["team/two"].startswith('request "gpu" of claim "watch" on card 0: process 1007 uses 512 MiB')
    assert len(rig.pods.evicted) == 2


def test_a_refused_context_says_what_admin_access_is() -> None:
    note = LibraryMessage(1, 0.0, LibraryMessageKind.MEMORY_REFUSED, 9, UUIDS[0], 64 * MIB, 0, 0)
    assert sentence(note, "card 0", 16 * GIB, DEFAULT_UNIT) == (
        "process 9 was refused a context or memory on card 0: its claim has admin access, which looks at cards "
        "and computes nothing; ask for a part of a card, by a request without adminAccess"
    )


def test_the_pods_of_a_claim_are_told_what_its_library_notes() -> None:
    made, pods, pages, clock = look(STATES[0], pods=("one", "two")), FakePods(), Pages(), FakeClock()
    for name in ("one", "two"):
        pods.bind(pod(name))
    pages.held[made.directory] = (
        LibraryMessage(1, clock.monotonic(), LibraryMessageKind.MEMORY_REFUSED, 9, UUIDS[0], MIB, 0, 0),
    )
    LibraryMessages(state_of(STATES, made), pods, pages, clock, service_metrics()).look()
    told = [(key, text) for key, reason, text in pods.events if reason == EVENT_LIBRARY_MESSAGE]
    assert [key for key, _ in told] == ["team/one", "team/two"]
    assert told[0][1].startswith('request "gpu" of claim "watch": process 9 was refused a context')


# ---- what people see


def test_metrics_say_how_it_is_held_and_no_figure_of_it() -> None:
    held = look(STATES[0]), claim_grant("c", STATES[0])
    view = state_of(STATES, *held).view
    shown = series.View(view.node, view.grants)
    states = {}
    for family in series.containers(shown):
        if family.name == "vcuda_container_enforcement":
            states = {one.labels["container"]: one.labels["state"] for one in family.samples}
        else:
            assert {one.labels["container"] for one in family.samples} <= {"c/gpu"}
    assert states == {"watch/gpu": "admin", "c/gpu": "active"}
    names = {one.labels["container_name"] for family in series.legacy(shown) for one in family.samples}
    assert names == {"c/gpu"}
    assert [[held.container for held in one] for one in shown.by_pod()] == [["c/gpu"]]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"allocationMode": "All"}, "5 cores, 256 MiB of every card"),
        ({}, "5 cores, 256 MiB of one card"),
    ],
)
def test_explain_says_what_kubernetes_wants_for_a_look(shape, words) -> None:
    asks = {**part(5, "256Mi"), "adminAccess": True, **shape}
    made = world(
        *(explained_claim(f"h{n}", held("n1", n, 99)) for n in range(2)), explained_claim("w", asks=asks)
    )
    text = f"admin access, for which Kubernetes wants as much free, and takes nothing: {words}"
    assert text in explained(made, waiting("w")).line
    free = world(explained_claim("w", asks=asks))
    assert "it would get a look at card 0" in explained(free, waiting("w")).line


def test_explain_says_what_a_claim_looks_at() -> None:
    seen = [
        {**result(device("n1", n), pool=where), "adminAccess": True} for where, n in (("n1", 0), ("n1", 1))
    ]
    made = world(explained_claim("w", *seen), explained_claim("x", {**seen[0], "pool": "gone"}))
    assert explained(made, waiting("w", on="n1")).line == (
        "bound to node n1: claim w looks at card 0, 1 on n1 by admin access, which holds nothing"
    )
    assert "claim x looks at card not known here on gone" in explained(made, waiting("x")).line


def test_a_node_says_who_looks() -> None:
    ledger = Ledger([STATES[0].card], DEFAULT_UNIT, (look(STATES[0]).allocation,))
    shown = node_json(
        "n1", STATES[:1], Topology(()), ledger, lambda _held, _card: {"planned": False, "ended": False}
    )
    [holder] = shown["cards"][0]["holders"]
    assert (holder["admin"], holder["cores"], holder["memory"]) == (True, 0, 0)
    assert "|---ml/train-0 watch/gpu: looks at the card (admin access)" in node_text(shown)
    assert ledger.booked(STATES[0].card.uuid) == ZERO
