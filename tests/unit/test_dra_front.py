"""Which front a node has, and which side each card: what the settings say, once nothing is held otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CORE, DRA_DRIVER, MEMORY
from gpu_manager.domain.dra.sides import (
    ALL_CARDS,
    NO_CARDS,
    ClaimCards,
    Front,
    NodeFront,
    Side,
    front_in_force,
    parse_claim_cards,
    sides_of,
)
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from tests.fakes.claims import claim_grant
from tests.fakes.metrics import service_metrics
from tests.fakes.ports import cards

STATES = cards(4)
UUIDS = [state.card.uuid for state in STATES]
ANY = st.one_of(
    st.integers(0, 6).map(ClaimCards),
    st.just(ALL_CARDS),
    st.sets(st.integers(0, 3), min_size=1).map(lambda at: ClaimCards(uuids=frozenset(UUIDS[n] for n in at))),
)


def by_pod(index: int) -> Allocation:
    share = Share(UUIDS[index], Amount(30, GIB))
    return Allocation(PodUid(f"pod-{index}"), "c", ContainerKind.APP, 0, (share,), "ns", "train-0")


def by_claim(index: int) -> Allocation:
    return claim_grant(f"c{index}", STATES[index]).allocation


def ledger(*held: Allocation) -> Ledger:
    return Ledger([state.card for state in STATES], DEFAULT_UNIT, held)


def sides(text: str) -> dict[CardUuid, Side]:
    """``p`` plugin, ``d`` DRA, ``?`` none, card by card."""
    letters = {"p": Side.PLUGIN, "d": Side.DRA}
    return {uuid: letters[one] for uuid, one in zip(UUIDS, text, strict=False) if one in letters}


def text_of(found: Mapping[CardUuid, Side] | None) -> str:
    letters = {Side.PLUGIN: "p", Side.DRA: "d", None: "?"}
    return "" if found is None else "".join(letters[found.get(uuid)] for uuid in UUIDS)


def in_force(
    wanted: Front,
    *held: Allocation,
    claim_cards: ClaimCards = NO_CARDS,
    stored: str | None = None,
    by_claims: tuple[int, ...] = (),
) -> NodeFront:
    known = None if stored is None else sides(stored)
    return front_in_force(wanted, claim_cards, STATES, ledger(*held), known, [UUIDS[n] for n in by_claims])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("3", ClaimCards(3)),
        ("0", NO_CARDS),
        (" all ", ALL_CARDS),
        ("GPU-a, GPU-b", ClaimCards(uuids=frozenset(map(CardUuid, ("GPU-a", "GPU-b"))))),
    ],
)
def test_cards_for_claims_are_a_number_all_or_uuids(text: str, wanted: ClaimCards) -> None:
    assert parse_claim_cards(text) == wanted


@pytest.mark.parametrize("text", ["", "-1", "1.5", "9999999", "some", "all,GPU-a", "GPU-a,3", "٣"])
def test_anything_else_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(RequestInvalid, match="use a number of cards, all, or UUIDs"):
        parse_claim_cards(text)


@pytest.mark.parametrize(
    ("wanted", "stored", "found"),
    [
        (ClaimCards(2), "????", "ppdd"),
        (ClaimCards(2), "dppd", "dppd"),
        (ClaimCards(3), "dppd", "dpdd"),
        (ClaimCards(1), "dppd", "pppd"),
        (ClaimCards(2), "dpp?", "dppd"),
        (ClaimCards(1), "d???", "dppp"),
        (ClaimCards(9), "pppp", "dddd"),
        (NO_CARDS, "dddd", "pppp"),
        (ALL_CARDS, "pppp", "dddd"),
        (ClaimCards(uuids=frozenset(UUIDS[:2])), "pppd", "ddpp"),
    ],
)
def test_as_many_cards_go_by_claims_as_are_wanted_and_those_that_did_come_first(
    wanted: ClaimCards, stored: str, found: str
) -> None:
    assert text_of(sides_of(Front.SPLIT, STATES, wanted, sides(stored))) == found


def test_a_card_of_claims_that_has_left_the_node_is_not_made_up_for_by_one_of_pods() -> None:
    stored = sides("ppdd")
    assert text_of(sides_of(Front.SPLIT, STATES[:3], ClaimCards(2), stored)) == "ppd?"
    fresh = (*STATES[:3], replace(STATES[3], card=replace(STATES[3].card, uuid=CardUuid("GPU-new"))))
    assert sides_of(Front.SPLIT, fresh, ClaimCards(2), stored)[CardUuid("GPU-new")] is Side.DRA


def test_all_cards_of_a_node_that_is_not_split_are_on_its_side_but_those_in_mig_mode() -> None:
    states = (STATES[0], replace(STATES[1], card=replace(STATES[1].card, mig=True)))
    assert text_of(sides_of(Front.PLUGIN, states)) == "p???"
    assert text_of(sides_of(Front.DRA, states)) == "d???"
    assert text_of(sides_of(Front.SPLIT, states, ALL_CARDS)) == "d???"


@pytest.mark.parametrize("wanted", [Front.PLUGIN, Front.DRA])
@pytest.mark.parametrize("stored", [None, "ppdd"])
def test_an_idle_node_has_the_front_that_is_wanted(wanted: Front, stored: str | None) -> None:
    assert in_force(wanted, stored=stored) == (wanted, None, "")


def test_an_idle_node_is_split_as_is_wanted() -> None:
    assert in_force(Front.SPLIT, claim_cards=ClaimCards(1)) == (Front.SPLIT, sides("pppd"), "")
    assert in_force(Front.SPLIT, claim_cards=ClaimCards(3), stored="pppd").sides == sides("pddd")


@pytest.mark.parametrize(
    ("wanted", "held", "stored", "kept"),
    [
        (Front.DRA, by_pod(0), None, Front.PLUGIN),
        (Front.SPLIT, by_pod(0), None, Front.PLUGIN),
        (Front.PLUGIN, by_claim(0), None, Front.DRA),
        (Front.SPLIT, by_claim(0), None, Front.DRA),
        (Front.PLUGIN, by_pod(0), "ppdd", Front.SPLIT),
        (Front.DRA, by_claim(3), "ppdd", Front.SPLIT),
    ],
)
def test_what_is_held_keeps_the_front_that_gave_it(
    wanted: Front, held: Allocation, stored: str | None, kept: Front
) -> None:
    found = in_force(wanted, held, stored=stored, claim_cards=ClaimCards(2))
    assert found.front is kept
    assert text_of(found.sides) == (stored or "")
    assert f"keeps the front {kept.value} until nothing is held by it: 1 pods" in found.kept_because
    assert f"it changes to {wanted.value}" in found.kept_because
    assert "train-0" not in found.kept_because, "/readyz shows it to everyone"


@pytest.mark.parametrize(
    ("wanted", "held", "stored"),
    [
        (Front.PLUGIN, by_pod(0), None),
        (Front.DRA, by_claim(0), None),
        (Front.PLUGIN, by_pod(0), "pppp"),
        (Front.DRA, by_claim(0), "dddd"),
    ],
)
def test_what_came_by_the_wanted_front_keeps_no_other(wanted: Front, held: Allocation, stored: str) -> None:
    assert in_force(wanted, held, stored=stored) == (wanted, None, "")


def test_a_claim_that_looks_at_cards_keeps_the_driver_that_releases_it() -> None:
    look = claim_grant("watch", STATES[0], cores=0).allocation
    assert in_force(Front.PLUGIN, look, stored="pppp").front is Front.SPLIT
    assert in_force(Front.DRA, look, stored="dddd") == (Front.DRA, None, "")


def test_a_split_node_on_which_anything_is_held_keeps_every_card_where_it_is() -> None:
    found = in_force(Front.SPLIT, by_pod(0), claim_cards=ClaimCards(1), stored="ppdd")
    assert (found.front, text_of(found.sides)) == (Front.SPLIT, "ppdd")
    assert "1 of the node's 4 cards are to change" in found.kept_because
    assert in_force(Front.SPLIT, by_pod(0), claim_cards=ClaimCards(2), stored="ppdd").kept_because == ""


def test_a_card_that_is_new_on_a_split_node_has_its_side_at_once() -> None:
    found = in_force(Front.SPLIT, by_pod(0), claim_cards=ClaimCards(2), stored="ppd?")
    assert (text_of(found.sides), found.kept_because) == ("ppdd", "")
    kept = in_force(Front.PLUGIN, by_pod(0), stored="ppd?")
    assert (kept.front, text_of(kept.sides)) == (Front.SPLIT, "ppdp")


def test_a_node_whose_books_are_lost_is_split_as_pods_and_claims_have_its_cards() -> None:
    found = in_force(Front.SPLIT, by_pod(3), claim_cards=ClaimCards(2), by_claims=(0,))
    assert (found.front, text_of(found.sides), found.kept_because) == (Front.SPLIT, "dpdp", "")
    found = in_force(Front.SPLIT, claim_cards=ClaimCards(uuids=frozenset(UUIDS[1:2])), by_claims=(0,))
    assert text_of(found.sides) == "ddpp"
    assert "1 of the node's 4 cards are to change" in found.kept_because


@given(
    st.sampled_from(Front),
    ANY,
    st.one_of(st.none(), st.text("pd", min_size=4, max_size=4)),
    st.sets(st.integers(0, 3)),
    st.sets(st.integers(0, 3)),
)
def test_no_card_changes_while_anything_is_held_and_an_answer_stands(
    wanted: Front, claim_cards: ClaimCards, stored: str | None, pods: set[int], claims: set[int]
) -> None:
    if stored is None:
        claims = claims if not pods else set()
    else:
        pods = {n for n in pods if stored[n] == "p"}
        claims = {n for n in claims if stored[n] == "d"}
    held = [*map(by_pod, pods), *map(by_claim, claims)]
    found = in_force(wanted, *held, claim_cards=claim_cards, stored=stored)
    has = found.sides if found.sides is not None else sides_of(found.front, STATES)
    assert all(has[UUIDS[n]] is Side.PLUGIN for n in pods)
    assert all(has[UUIDS[n]] is Side.DRA for n in claims)
    if not held:
        assert (found.front, found.kept_because) == (wanted, "")
        assert dict(has) == dict(sides_of(wanted, STATES, claim_cards, sides(stored or "")))
    again = front_in_force(wanted, claim_cards, STATES, ledger(*held), found.sides)
    assert again == found, "a restart changes nothing"


@pytest.mark.parametrize(
    ("front", "names"),
    [
        (Front.PLUGIN, {CORE, MEMORY}),
        (Front.DRA, {DRA_DRIVER}),
        (Front.SPLIT, {CORE, MEMORY, DRA_DRIVER}),
    ],
)
def test_what_a_front_never_registers_is_not_missed(front: Front, names: set[str]) -> None:
    metrics = service_metrics()
    metrics.expect_registrations(front)
    samples = [s for family in metrics.registrations.collect() for s in family.samples]
    assert {s.labels["resource"]: s.value for s in samples} == dict.fromkeys(names, 0)
