"""The agent's books beside the ledger: facts that arrive late, cards that are away."""

from __future__ import annotations

from dataclasses import replace

from gpu_manager.domain.contract import PRIORITY
from gpu_manager.domain.kube.pod import ContainerKind, PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.services.allocation.books import Books, Grant
from gpu_manager.services.allocation.books_format import BooksEncoder, decode
from gpu_manager.services.allocation.planner import plan
from tests.fakes.node import container, pod
from tests.fakes.ports import cards
from tests.fakes.state import node_of

STATES = cards(2)


def grant(uid: str, card: int, cores: int, name: str = "") -> Grant:
    share = Share(STATES[card].card.uuid, Amount(cores, GIB))
    allocation = Allocation(PodUid(uid), "c", ContainerKind.APP, 0, (share,), "default" if name else "", name)
    return Grant(allocation, f"dir-{uid}", ids={"r": frozenset({f"id-{uid}"})})


def books(*grants: Grant) -> Books:
    return Books(node_of(STATES), grants)


def test_a_pod_that_is_seen_late_gets_its_name_even_on_a_card_with_more_than_it_has() -> None:
    """Facts of the kubelet may exceed a card; nothing that exists is lost for it."""
    held = books(grant("a", 0, 80), grant("b", 0, 60, "known"))
    late = parse_pod(pod("late", container("c", 80, 4), uid="a"))
    assert held.introduce(late)
    assert not held.introduce(late), "once"
    assert [a.pod_key for a in held.ledger] == ["default/known", "default/late"]
    assert held.ledger.booked(STATES[0].card.uuid).cores == 140
    assert held.owners(["id-a"]) == {"a"}


def test_what_is_planned_stays_planned_when_a_fact_is_stated() -> None:
    held = books(grant("a", 0, 30))
    plan = Allocation(PodUid("p"), "c", ContainerKind.APP, 0, (Share(STATES[1].card.uuid, Amount(10, GIB)),))
    held.plan((plan,))
    held.state(grant("a", 1, 30))
    assert {(a.pod, a.granted) for a in held.ledger} == {("p", False), ("a", True)}
    assert held.ledger.booked(STATES[0].card.uuid) == Amount(0, 0)
    assert held.ledger.booked(STATES[1].card.uuid) == Amount(40, 2 * GIB)


def test_ids_that_a_grant_has_no_more_are_nobodys() -> None:
    held = books(grant("a", 0, 30))
    held.put(replace(grant("a", 0, 30), ids={"r": frozenset({"other"})}))
    assert held.owners(["id-a"]) == frozenset()
    assert held.owners(["other"]) == {"a"}


def test_what_a_container_has_not_got_is_planned_again_even_on_a_card_with_more_than_it_has() -> None:
    held = books(grant("a", 0, 80), grant("b", 0, 60))
    held.retract((PodUid("a"), "c"))
    assert held.grants.keys() == {("b", "c")}
    assert {(a.pod, a.granted) for a in held.ledger} == {("a", False), ("b", True)}
    assert held.ledger.booked(STATES[0].card.uuid).cores == 140
    assert held.owners(["id-a"]) == frozenset()


def test_a_lost_card_is_known_while_somebody_holds_some_of_it() -> None:
    held = books(grant("a", 1, 30))
    held.refit(node_of(STATES[:1]))
    assert held.ledger.capacity(STATES[1].card.uuid).cores == 100
    assert len(decode(BooksEncoder().encode(held))[0]) == 1
    held.release(PodUid("a"))
    held.refit(node_of(STATES[:1]))
    assert held.ledger.capacity(STATES[1].card.uuid).cores == 0


def test_the_store_keeps_a_priority_and_reads_books_that_know_none() -> None:
    protected = grant("a", 0, 30, "known")
    protected = replace(protected, allocation=replace(protected.allocation, priority=Priority.PROTECTED))
    written = BooksEncoder().encode(books(protected, grant("b", 1, 30, "other")))
    grants, _ = decode(written)
    assert [g.allocation.priority for g in grants] == [Priority.PROTECTED, Priority.NORMAL]
    assert written.count(b'"priority"') == 1, "an agent of an earlier release reads every row"
    before, _ = decode(written.replace(b'"priority":"protected",', b""))
    assert [g.allocation.priority for g in before] == [Priority.NORMAL, Priority.NORMAL]


def test_a_pod_that_is_seen_late_gets_its_priority_too() -> None:
    held = books(grant("a", 0, 30))
    late = parse_pod(pod("late", container("c", 30, 4), uid="a", annotations={PRIORITY: "best-effort"}))
    held.introduce(late)
    assert [a.priority for a in held.ledger] == [Priority.BEST_EFFORT]


def test_a_plan_has_the_pods_priority() -> None:
    held = books()
    plan(
        held,
        parse_pod(pod("p", container("c", 30, 4), annotations={PRIORITY: "protected"})),
        free_choice=True,
    )
    assert [a.priority for a in held.ledger] == [Priority.PROTECTED]
