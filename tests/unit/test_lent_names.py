"""NVIDIA's name for whole cards: what rules say of it, what the scheduler is told, what a node makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_manager.domain.contract import CORE, MEMORY, NVIDIA, Inventory, decode_inventory, encode_inventory
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.placement.place import place
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.domain.rules.legal_values import Rule, check_pod
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.topology import Link, LinkKind, Topology
from tests.fakes.node import container, pod
from tests.fakes.ports import cards


def gpus(name: str, count: object, **more: int) -> dict[str, object]:
    return {"name": name, "resources": {"limits": {NVIDIA: count, **more}}}


def written(*containers: dict[str, object]) -> Pod:
    return parse_pod(pod("p", *containers))


@pytest.mark.parametrize(
    "containers",
    [
        (gpus("a", 1), container("b", 30, 8)),
        (gpus("a", 1), container("b", 100, 0)),
        (gpus("a", "1", **{CORE: 100}),),
        (gpus("a", 2, **{MEMORY: 8, CORE: 30}),),
    ],
)
def test_a_pod_that_asks_under_both_names_is_refused_with_the_cure(
    containers: tuple[dict[str, object], ...],
) -> None:
    one = written(*containers)
    for judged in (one, one.with_lent_cards()):
        (found,) = [v for v in check_pod(judged) if v.rule is Rule.NAMES_MIXED]
        assert found.container == "a"
        assert f"a whole card is {CORE} 100" in found.refusal
        with pytest.raises(RequestInvalid, match="use one name"):
            judged_request(judged)


@pytest.mark.parametrize("containers", [(gpus("a", 1),), (gpus("a", 0), container("b", 30, 8))])
def test_a_pod_under_one_name_is_legal(containers: tuple[dict[str, object], ...]) -> None:
    assert check_pod(written(*containers)) == ()


def test_only_where_cards_are_lent_does_such_a_pod_ask_for_any() -> None:
    one = written(gpus("a", 2), gpus("b", "1"))
    assert not one.asks
    assert [c.wants(NVIDIA) for c in one.containers] == [0, 0], "another plugin may serve it"
    here = one.with_lent_cards()
    assert [(c.wants(NVIDIA), c.wants(CORE), c.wants(MEMORY)) for c in here.containers] == [
        (2, 0, 0),
        (1, 0, 0),
    ]
    assert [c.request.cards for c in judged_request(here).containers] == [2, 1]
    plain = written(container("c", 30, 8))
    assert plain.with_lent_cards() is plain
    assert [p.lent for p in (one, here, plain)] == [False, True, False]
    assert not written(gpus("a", 1), container("b", 30, 8)).with_lent_cards().lent, "it asks under both names"


@pytest.mark.parametrize("value", ["many", {}, [], True])
def test_what_cannot_be_read_under_another_vendors_name_is_left_to_its_judges(value: object) -> None:
    assert not written(gpus("a", value)).with_lent_cards().asks


def test_a_lent_card_is_told_to_the_scheduler_which_places_nothing_there() -> None:
    states = tuple(replace(s, held=NVIDIA) if s.card.index != 2 else s for s in cards(3))
    topology = Topology.uniform(3, Link(LinkKind.SYS))
    told = decode_inventory(encode_inventory(Inventory(DEFAULT_UNIT, states, topology)))
    assert told is not None
    assert [s.held for s in told.cards] == [NVIDIA, NVIDIA, ""]
    ledger = Ledger((s.card for s in told.cards), told.unit)
    request = judged_request(written(container("c", 60, 8)))
    (share,) = place(request, told.cards, topology, ledger)["c"]
    assert share.card == states[2].card.uuid
    with pytest.raises(DoesNotFit, match=f"given away whole as {NVIDIA}"):
        place(judged_request(written(container("c", 200, 0))), told.cards, topology, ledger)


def test_an_inventory_of_a_node_that_lends_nothing_is_as_it_was() -> None:
    text = encode_inventory(Inventory(DEFAULT_UNIT, cards(1), Topology.uniform(1, Link(LinkKind.SYS))))
    assert '"held"' not in text
