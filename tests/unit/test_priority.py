"""Priorities inside a card: what is read of a pod, and which cards suit it; without priorities nothing differs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import PRIORITY
from gpu_manager.domain.kube.pod import ContainerKind, PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.placement.place import PodPlacer, find, follow, place
from gpu_manager.domain.priority import Priority, unprotected_beside
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from gpu_manager.domain.rules.legal_values import check_pod, priority_of, warn_pod
from gpu_manager.domain.rules.pod_request import booked_request, judged_request
from gpu_manager.domain.rules.request import ContainerRequest, PlacementPolicy, PodRequest, Request
from gpu_manager.services.allocation.books import Books
from gpu_manager.services.allocation.planner import plan
from tests.fakes.machines import SIX
from tests.fakes.node import container as bound_container
from tests.fakes.node import pod as bound_pod
from tests.fakes.state import node_of
from tests.fakes.written import container, pod_of

PROTECTED, NORMAL, BEST_EFFORT = Priority
APP = ContainerKind.APP
CARDS = tuple(CardState(Card(i, CardUuid(f"GPU-{i}"), "T4", 16 * GIB)) for i in range(6))


def ask(priority: Priority, *cores: int, uid: str = "new", policy: str = "binpack") -> PodRequest:
    asked = tuple(ContainerRequest(f"c{i}", APP, i, Request(c, DEFAULT_UNIT)) for i, c in enumerate(cores))
    return PodRequest(PodUid(uid), asked, PlacementPolicy(policy), priority=priority)


def books(*held: tuple[int, int, Priority]) -> Ledger:
    """A ledger with (card, cores, priority), each of a pod of its own."""
    return Ledger((s.card for s in CARDS), DEFAULT_UNIT, (
        Allocation(PodUid(f"p{n}"), "c", APP, 0, (Share(CardUuid(f"GPU-{card}"), Amount(cores, GIB)),), priority=of)
        for n, (card, cores, of) in enumerate(held)
    ))  # fmt: skip


def card_of(request: PodRequest, ledger: Ledger, name: str = "c0") -> int:
    ((share,),) = [shares for each, shares in place(request, CARDS, SIX, ledger).items() if each == name]
    return int(share.card.removeprefix("GPU-"))


@pytest.mark.parametrize("priority", Priority)
def test_a_pods_priority_is_read_and_is_its_requests(priority: Priority) -> None:
    pod = pod_of(container("a", 30, 1), vcuda_priority=priority.value)
    assert priority_of(pod) is judged_request(pod).priority is priority


@pytest.mark.parametrize("text", ["best_effort", "", "high", "PROTECTED"])
def test_a_running_pod_with_an_odd_priority_is_normal(text: str) -> None:
    booked = booked_request(pod_of(container("a", 30, 1), vcuda_priority=text))
    assert booked is not None
    assert booked.priority is NORMAL


def test_another_annotation_that_turned_illegal_takes_no_pod_its_priority() -> None:
    booked = booked_request(pod_of(container("a", 30, 1), vcuda_priority="protected", placement="odd"))
    assert booked is not None
    assert booked.priority is PROTECTED


@pytest.mark.parametrize(("text", "cores", "faults"), [
    ("protected", 100, 1), ("best-effort", 200, 1), ("normal", 100, 0), ("protected", 99, 0),
])  # fmt: skip
def test_whole_cards_have_no_priority(text: str, cores: int, faults: int) -> None:
    pod = pod_of(container("a", cores, 1 if cores < 100 else None), vcuda_priority=text)
    found = check_pod(pod)
    assert len(found) == faults
    for fault in found:
        assert fault.message == (
            f'annotation {PRIORITY} is {text}, but container "a" asks for whole cards, which have no other tenant: '
            "remove the annotation, or ask for parts of cards"
        )
        assert priority_of(pod) is NORMAL, "one that runs all the same is a normal tenant"


def test_a_pod_without_a_share_is_warned_that_its_claim_says_the_priority() -> None:
    (warned,) = warn_pod(pod_of(container("a"), vcuda_priority="protected"))
    assert warned.message == (
        f'annotation {PRIORITY} is "protected", but no container asks for tencent.com/vcuda-core: '
        "a share by a ResourceClaim has the priority that the claim's parameters say"
    )
    assert warn_pod(pod_of(container("a"), vcuda_priority="normal")) == ()
    assert warn_pod(pod_of(container("a", 30, 1), vcuda_priority="protected")) == ()


@pytest.mark.parametrize(
    ("asked", "held", "card"),
    [
        # A protected tenant avoids normal ones, then protected ones, and lies beside best-effort ones.
        (PROTECTED, [(0, 50, NORMAL)], 1),
        (PROTECTED, [(0, 50, BEST_EFFORT)], 0),
        (PROTECTED, [(0, 50, PROTECTED), (1, 50, BEST_EFFORT)], 1),
        (PROTECTED, [(n, 50, NORMAL) for n in range(5)] + [(5, 10, PROTECTED)], 5),
        (PROTECTED, [(n, 50, NORMAL) for n in range(6)], 0),
        # A normal one leaves a protected one alone while there is another card.
        (NORMAL, [(0, 50, PROTECTED)], 1),
        (NORMAL, [(0, 50, BEST_EFFORT)], 0),
        (NORMAL, [(n, 50, PROTECTED) for n in range(6)], 0),
        # Best-effort ones fill up beside protected ones.
        (BEST_EFFORT, [(0, 60, NORMAL), (4, 10, PROTECTED)], 4),
        (BEST_EFFORT, [(0, 50, NORMAL)], 0),
        (BEST_EFFORT, [(0, 60, BEST_EFFORT), (1, 50, BEST_EFFORT), (1, 10, PROTECTED)], 1),
    ],
)
def test_the_card_that_suits_a_priority_is_taken(
    asked: Priority, held: list[tuple[int, int, Priority]], card: int
) -> None:
    assert card_of(ask(asked, 30), books(*held)) == card


def test_spread_takes_the_emptiest_of_the_cards_that_suit() -> None:
    held = books(
        (0, 10, PROTECTED),
        (1, 20, NORMAL),
        (2, 30, NORMAL),
        (3, 40, PROTECTED),
        (4, 9, PROTECTED),
        (5, 8, PROTECTED),
    )
    assert card_of(ask(NORMAL, 5, policy="spread"), held) == 1


def test_topology_keeps_a_pod_together_before_it_minds_neighbours() -> None:
    held = books((0, 40, NORMAL))
    placed = place(ask(PROTECTED, 10, 10, policy="topology"), CARDS, SIX, held)
    assert len({share.card for shares in placed.values() for share in shares}) == 1


def test_no_priority_keeps_a_pod_from_the_only_room() -> None:
    held = [(n, 90, NORMAL) for n in range(5)] + [(5, 60, PROTECTED)]
    assert card_of(ask(NORMAL, 40), books(*held)) == 5
    assert card_of(ask(PROTECTED, 10), books(*held)) == 5
    assert find(ask(PROTECTED, 41), CARDS, SIX, books(*held)) is None


def test_a_pods_own_containers_are_no_neighbours_of_it() -> None:
    first = ask(PROTECTED, 30, 30)
    ledger = books()
    share = Share(CardUuid("GPU-2"), Amount(30, DEFAULT_UNIT))
    ledger.commit([Allocation(first.uid, "c0", APP, 0, (share,), priority=PROTECTED)])
    rest = replace(first, containers=first.containers[1:])
    assert card_of(rest, ledger, "c1") == 2


def test_the_scheduler_is_followed_whatever_the_neighbours_are() -> None:
    named = {"c0": [(CardUuid("GPU-0"), Amount(0, 0))]}
    assert follow(ask(PROTECTED, 10), named, CARDS, books((0, 50, NORMAL)))["c0"][0].card == "GPU-0"


def test_a_ledger_knows_whether_any_priority_is_in_play() -> None:
    ledger = books((0, 10, PROTECTED), (0, 10, BEST_EFFORT), (1, 10, NORMAL))
    assert ledger.prioritised
    assert ledger.room(CardUuid("GPU-0")).priorities == {PROTECTED, BEST_EFFORT}
    assert ledger.priorities(CardUuid("GPU-0"), PodUid("p0")) == {BEST_EFFORT}
    assert ledger.copy().prioritised
    ledger.release(PodUid("p0"))
    ledger.release(PodUid("p1"))
    assert not ledger.prioritised
    assert [ledger.priorities(s.card.uuid) for s in CARDS[:3]] == [frozenset(), {NORMAL}, frozenset()]


held = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40), st.sampled_from(Priority)), max_size=10)
sizes = st.lists(st.integers(1, 99), min_size=1, max_size=3)
policies = st.sampled_from([policy.value for policy in PlacementPolicy])


@given(held, sizes, policies, st.sampled_from(Priority))
def test_priorities_choose_among_cards_and_never_whether_a_pod_fits(
    there: list[tuple[int, int, Priority]], cores: list[int], policy: str, priority: Priority
) -> None:
    plain = find(
        ask(NORMAL, *cores, policy=policy), CARDS, SIX, books(*((c, n, NORMAL) for c, n, _ in there))
    )
    request = ask(priority, *cores, policy=policy)
    found = find(request, CARDS, SIX, books(*there))
    assert (found is None) == (plain is None)
    if found is not None:  # what a scheduler found, the agent accepts, and finds itself
        named = {name: [(s.card, s.amount) for s in shares] for name, shares in found.items()}
        assert follow(request, named, CARDS, books(*there)) == found
        assert place(request, CARDS, SIX, books(*there)) == found
        trial = PodPlacer(request).trial(CARDS, SIX, books(*there))
        assert trial is not None
        assert trial.shares == found


@given(held, sizes, policies)
def test_where_no_pod_has_a_priority_every_answer_is_as_before(
    there: list[tuple[int, int, Priority]], cores: list[int], policy: str
) -> None:
    """A best-effort pod meets no protected one, so that it is placed by the policy alone: as a normal one is."""
    plain = books(*((c, n, NORMAL) for c, n, _ in there))
    best_effort = books(*((c, n, BEST_EFFORT) for c, n, _ in there))
    answers = [find(ask(p, *cores, policy=policy), CARDS, SIX, ledger) for p, ledger in (
        (NORMAL, plain), (BEST_EFFORT, plain), (BEST_EFFORT, best_effort), (NORMAL, best_effort),
    )]  # fmt: skip
    assert answers[1:] == answers[:1] * 3


@pytest.mark.parametrize("priority", Priority)
def test_beside_nobody_every_card_suits(priority: Priority) -> None:
    assert unprotected_beside(priority, ()) == 0


def test_every_container_has_its_pods_priority() -> None:
    there = parse_pod(bound_pod(
        "p", bound_container("app", 30, 4), init=(bound_container("i", 20, 4), bound_container("s", 10, 4, sidecar=True)),
        annotations={PRIORITY: "protected"},
    ))  # fmt: skip
    node = Books(node_of(CARDS[:1]))
    plan(node, there, free_choice=True)
    assert {a.container: a.priority for a in node.ledger} == dict.fromkeys(("i", "s", "app"), PROTECTED)
