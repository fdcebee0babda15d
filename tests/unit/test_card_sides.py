"""Which cards of a split node go by claims, and which of them change sides now."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.dra.sides import (
    ALL_CARDS,
    NO_CARDS,
    ClaimCards,
    Side,
    cards_to_move,
    has_left,
    parse_claim_cards,
    side_by_evidence,
)
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB, Amount
from tests.fakes.claims import claim_grant
from tests.fakes.ports import cards

STATES = cards(4)
UUIDS = [state.card.uuid for state in STATES]


def by_pod(card: CardState) -> Allocation:
    share = Share(card.card.uuid, Amount(30, GIB))
    return Allocation(PodUid(f"pod-{card.card.index}"), "c", ContainerKind.APP, 0, (share,), "ns", "p")


def ledger(*held: Allocation) -> Ledger:
    return Ledger([state.card for state in STATES], DEFAULT_UNIT, held)


def sides(text: str) -> dict[CardUuid, Side]:
    """``p`` plugin, ``d`` DRA, ``>`` on its way to DRA, ``<`` on its way to the plugin."""
    letters = {"p": Side.PLUGIN, "d": Side.DRA, ">": Side.TO_DRA, "<": Side.TO_PLUGIN}
    return {uuid: letters[letter] for uuid, letter in zip(UUIDS, text, strict=False)}


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
    ("now", "wanted", "moves"),
    [
        ("pppp", ClaimCards(2), {3: Side.TO_DRA, 2: Side.TO_DRA}),
        ("ppp>", ClaimCards(2), {2: Side.TO_DRA}),
        ("ppdd", ClaimCards(2), {}),
        ("pddd", ClaimCards(1), {1: Side.TO_PLUGIN, 2: Side.TO_PLUGIN}),
        ("p<dd", ClaimCards(1), {2: Side.TO_PLUGIN}),
        ("pppp", ALL_CARDS, dict.fromkeys(range(4), Side.TO_DRA)),
        ("dd>p", NO_CARDS, {0: Side.TO_PLUGIN, 1: Side.TO_PLUGIN}),
        ("pdpd", ClaimCards(uuids=frozenset(UUIDS[:2])), {0: Side.TO_DRA, 3: Side.TO_PLUGIN}),
    ],
)
def test_so_many_cards_leave_as_are_wanted(now: str, wanted: ClaimCards, moves: dict[int, Side]) -> None:
    found = cards_to_move(STATES, sides(now), ledger(), wanted)
    assert found == {UUIDS[index]: side for index, side in moves.items()}


def test_a_card_of_which_anything_is_held_stays() -> None:
    held = ledger(by_pod(STATES[3]), claim_grant("c", STATES[1]).allocation)
    assert cards_to_move(STATES, sides("pdpp"), held, ClaimCards(3)) == {
        UUIDS[2]: Side.TO_DRA,
        UUIDS[0]: Side.TO_DRA,
    }
    assert cards_to_move(STATES, sides("pdpp"), held, NO_CARDS) == {}


def test_cards_whose_ids_others_hold_and_closed_ones_go_last() -> None:
    assert cards_to_move(STATES, sides("pppp"), ledger(), ClaimCards(1), {UUIDS[3]: 2}) == {
        UUIDS[2]: Side.TO_DRA
    }
    shut = (*STATES[:3], replace(STATES[3], healthy=False))
    assert cards_to_move(shut, sides("pppp"), ledger(), ClaimCards(1)) == {UUIDS[2]: Side.TO_DRA}


def test_cards_in_mig_mode_missing_ones_and_ones_without_a_side_stay() -> None:
    strange = (
        replace(STATES[0], card=replace(STATES[0].card, mig=True)),
        replace(STATES[1], missing=True),
        STATES[2],
        STATES[3],
    )
    assert cards_to_move(strange, sides("ppp"), ledger(), ALL_CARDS) == {UUIDS[2]: Side.TO_DRA}


@given(
    st.text("pd<>", min_size=4, max_size=4),
    st.sets(st.integers(0, 3)),
    st.one_of(
        st.integers(0, 6).map(ClaimCards),
        st.just(ALL_CARDS),
        st.sets(st.integers(0, 3), min_size=1).map(
            lambda at: ClaimCards(uuids=frozenset(UUIDS[n] for n in at))
        ),
    ),
)
def test_only_idle_cards_leave_and_the_number_is_never_passed(
    now: str, busy: set[int], wanted: ClaimCards
) -> None:
    before = sides(now)
    held = ledger(*(by_pod(STATES[n]) for n in busy))
    moves = cards_to_move(STATES, before, held, wanted)
    for uuid, side in moves.items():
        assert UUIDS.index(uuid) not in busy
        assert (before[uuid], side) in {(Side.PLUGIN, Side.TO_DRA), (Side.DRA, Side.TO_PLUGIN)}
    after = {**before, **moves}
    claims = [uuid for uuid, side in after.items() if side in (Side.DRA, Side.TO_DRA)]
    was = [uuid for uuid, side in before.items() if side in (Side.DRA, Side.TO_DRA)]
    if not wanted.uuids:
        number = 4 if wanted.number is None else wanted.number
        assert len(claims) <= max(number, len(was))
        assert len(claims) >= min(number, len(was))
    assert cards_to_move(STATES, after, held, wanted).keys().isdisjoint(moves)


def test_a_card_without_a_stored_side_has_that_of_who_holds_it() -> None:
    held = ledger(by_pod(STATES[0]), claim_grant("c", STATES[1]).allocation)
    assert side_by_evidence(UUIDS[0], held, None) is Side.PLUGIN
    assert side_by_evidence(UUIDS[1], held, None) is Side.DRA
    assert side_by_evidence(UUIDS[2], held, None) is None, "claims may be allocated on it"
    assert side_by_evidence(UUIDS[2], held, {UUIDS[2]}) is Side.DRA
    assert side_by_evidence(UUIDS[3], held, {UUIDS[2]}) is Side.PLUGIN


def test_a_node_has_left_the_split_when_all_its_cards_are_on_one_side() -> None:
    assert has_left(sides("pppp"), NO_CARDS)
    assert not has_left(sides("ppp<"), NO_CARDS)
    assert has_left(sides("dddd"), ALL_CARDS)
    assert not has_left(sides("dddd"), NO_CARDS)
