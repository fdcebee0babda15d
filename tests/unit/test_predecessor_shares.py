"""What the predecessor gave a container, from its checkpoint's record or from the pod's annotation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_manager.domain.contract import ASSIGNED, CORE, MEMORY, PREDICATE_INDEX
from gpu_manager.domain.kube.pod import ContainerKind, PodUid, parse_pod
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.resources import CORES_PER_CARD, GIB, MIB, Amount
from gpu_manager.ports.records import PredecessorPod
from gpu_manager.services.allocation.adopt import (
    is_predecessor_pod,
    recognised,
    shares_by_annotation,
    shares_by_record,
)
from gpu_manager.services.allocation.books import Grant
from tests.fakes.node import container, pod
from tests.fakes.ports import cards
from tests.fakes.state import node_of

STATES = cards(3)
NODE = node_of(STATES)
WHOLE = Amount(CORES_PER_CARD, 16 * GIB)
PART = Amount(30, 5 * GIB)


def ids(cores: int, memory: int = 0) -> dict[str, frozenset[str]]:
    """Of the predecessor's form: one id for each core, one for each 256 MiB, which says its size."""
    return {
        CORE: frozenset(f"{CORE}-{n}" for n in range(cores)),
        MEMORY: frozenset(f"{MEMORY}-{256 * MIB}-{n}" for n in range(memory)),
    }


def record(minors: tuple[int, ...], amount: Amount) -> PredecessorPod:
    return PredecessorPod(PodUid("u"), "c", minors, amount)


def uuid(card: int) -> str:
    return STATES[card].card.uuid


def test_its_ids_are_told_from_ours() -> None:
    assert is_predecessor_pod(ids(30, 20))
    assert not is_predecessor_pod({CORE: frozenset({"0a1b2c3d-c00"})})
    assert not is_predecessor_pod({})


def test_a_record_names_cards_by_their_device_node() -> None:
    assert shares_by_record(record((2,), PART), NODE) == (Share(STATES[2].card.uuid, PART),)
    assert shares_by_record(record((0, 1), Amount(200, 0)), NODE) == tuple(
        Share(STATES[n].card.uuid, WHOLE) for n in (0, 1)
    )


@pytest.mark.parametrize(("amount", "found"), [(PART, PART), (Amount(100, 0), WHOLE)])
def test_a_card_that_is_away_is_held_by_its_number_until_it_is_back(amount: Amount, found: Amount) -> None:
    away = shares_by_record(record((2,), amount), node_of(STATES[:2]))
    assert [share.card for share in away] == ["nvidia2"]
    held = Grant(Allocation(PodUid("u"), "c", ContainerKind.APP, 0, away), "")
    assert recognised(held, node_of(STATES[:2])) == held
    assert recognised(held, NODE).allocation.shares == (Share(STATES[2].card.uuid, found),)


def annotated(index: str, assigned: str = "true") -> dict[str, str]:
    return {f"{PREDICATE_INDEX}0": index, ASSIGNED: assigned}


@pytest.mark.parametrize(
    ("index", "cores", "expected"),
    [
        ("1", 30, [(1, PART)]),
        ("0,2", 200, [(0, WHOLE), (2, WHOLE)]),
        ("7", 30, []),  # no such card
        ("0,1", 30, []),  # a part lies on one card
        ("0", 200, []),  # two cards, one named
        ("x", 30, []),
        ("", 30, []),
    ],
)
def test_the_annotation_is_believed_where_it_fits_the_ids(
    index: str, cores: int, expected: list[tuple[int, Amount]]
) -> None:
    one = parse_pod(pod("one", container("c", cores, 20), annotations=annotated(index)))
    found = shares_by_annotation(one, "c", ids(cores, 20), NODE)
    assert [(share.card, share.amount) for share in found] == [(uuid(n), amount) for n, amount in expected]


def test_what_was_never_assigned_or_is_no_app_container_says_nothing() -> None:
    waits = parse_pod(pod("one", container("c", 30, 20), annotations=annotated("1", "false")))
    assert shares_by_annotation(waits, "c", ids(30, 20), NODE) == ()
    assert shares_by_annotation(None, "c", ids(30, 20), NODE) == ()
    made = parse_pod(pod("one", container("c", 30, 20), annotations=annotated("1")))
    assert shares_by_annotation(made, "other", ids(30, 20), NODE) == ()


def test_a_card_whose_driver_tells_no_number_goes_by_its_index() -> None:
    silent = [replace(s, card=replace(s.card, minor=None)) for s in STATES]
    assert shares_by_record(record((1,), PART), node_of(silent)) == (Share(STATES[1].card.uuid, PART),)
