"""Which of the two fronts a node has: the wanted one, once nothing is held by the other."""

from __future__ import annotations

import pytest

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import CORE, DRA_DRIVER, MEMORY
from gpu_manager.domain.dra.sides import Front, Side, front_in_force, sides_of_front
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.resources import GIB, MIB, Amount
from tests.fakes.claims import claim_grant
from tests.fakes.metrics import service_metrics

CARD = CardState(Card(0, CardUuid("GPU-0"), "T4", 16 * GIB))
BY_CLAIM = claim_grant("c", CARD).allocation
BY_POD = Allocation(
    PodUid("u"), "c", ContainerKind.APP, 0, (Share(CARD.card.uuid, Amount(30, GIB)),), "ns", "train-0"
)


def ledger(*held: Allocation) -> Ledger:
    return Ledger([CARD.card], 256 * MIB, held)


@pytest.mark.parametrize("wanted", [Front.PLUGIN, Front.DRA])
def test_an_idle_node_has_the_front_that_is_wanted(wanted: Front) -> None:
    assert front_in_force(wanted, ledger()) == (wanted, "")


def test_what_pods_hold_keeps_the_front_that_gave_it() -> None:
    assert front_in_force(Front.PLUGIN, ledger(BY_POD)) == (Front.PLUGIN, "")
    kept, why = front_in_force(Front.DRA, ledger(BY_POD))
    assert kept is Front.PLUGIN
    assert "keeps the front plugin" in why
    assert "it changes to dra" in why
    assert BY_POD.pod_name not in why, "/readyz shows it to everyone"
    assert front_in_force(Front.DRA, ledger(BY_CLAIM)) == (Front.DRA, "")


def test_a_split_node_has_its_front_at_once_and_leaves_it_card_by_card() -> None:
    both = {CARD.card.uuid: Side.DRA, CardUuid("GPU-1"): Side.PLUGIN}
    assert front_in_force(Front.SPLIT, ledger(BY_CLAIM)) == (Front.SPLIT, "")
    assert front_in_force(Front.SPLIT, ledger(BY_CLAIM), both) == (Front.SPLIT, "")
    for wanted in (Front.PLUGIN, Front.DRA):
        front, why = front_in_force(wanted, ledger(), both)
        assert front is Front.SPLIT
        assert f"until 1 of its 2 cards have changed to {wanted.value}" in why
    assert front_in_force(Front.DRA, ledger(), dict.fromkeys(both, Side.DRA)) == (Front.DRA, "")
    assert front_in_force(Front.PLUGIN, ledger(), dict.fromkeys(both, Side.PLUGIN)) == (Front.PLUGIN, "")


def test_a_node_that_leaves_claims_is_split_until_no_card_may_be_given_by_them() -> None:
    """Claims that hold cards, or that Kubernetes may still give: what is known by its side decides alone."""
    for held, in_claims in ((BY_CLAIM, False), (None, True)):
        front, why = front_in_force(Front.PLUGIN, ledger(*([held] if held else [])), in_claims=in_claims)
        assert front is Front.SPLIT
        assert f"of which {1 if held else 0} hold cards" in why
        assert BY_CLAIM.pod_name not in why, "/readyz shows it to everyone"
    some = {CARD.card.uuid: Side.PLUGIN}
    assert front_in_force(Front.PLUGIN, ledger(), some, in_claims=True)[0] is Front.SPLIT
    assert front_in_force(Front.PLUGIN, ledger(), some) == (Front.PLUGIN, "")


def test_all_cards_of_a_node_that_is_not_split_are_on_its_side_but_those_in_mig_mode() -> None:
    mig = CardState(Card(1, CardUuid("GPU-1"), "A100", 40 * GIB, mig=True))
    assert sides_of_front(Front.PLUGIN, [CARD, mig]) == {CARD.card.uuid: Side.PLUGIN}
    assert sides_of_front(Front.DRA, [CARD, mig]) == {CARD.card.uuid: Side.DRA}


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
