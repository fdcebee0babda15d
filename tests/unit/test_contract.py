"""What is written under the contract's names reads back as it was, and nothing else reads as anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager import ui
from gpu_manager.domain import contract
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.cluster.node_json import node_json, node_text
from gpu_manager.domain.contract import (
    MODEL_LABEL,
    MODEL_LABEL_GAIA,
    Assignment,
    Inventory,
    TerminatingShare,
    decode_assignment,
    decode_inventory,
    decode_uuids,
    encode_assignment,
    encode_inventory,
    encode_uuids,
    model_labels,
)
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.resources import GIB, MIB, ZERO, Amount
from gpu_manager.domain.topology import Link, LinkKind, Topology

counts = st.integers(0, (1 << 63) - 1)
amounts = st.builds(Amount, counts, counts)
names = st.text(st.characters(exclude_categories=("C", "Z")), max_size=20)
uuids = st.uuids().map(lambda u: CardUuid(f"GPU-{u}"))
shares = st.lists(st.tuples(uuids, amounts), max_size=3).map(tuple)
assignments = st.builds(Assignment, names, names, st.dictionaries(names, shares, max_size=4))
links = st.sampled_from(
    [
        *(Link.parse(x) for x in ("NV1", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS")),
        *(Link(LinkKind.NVLINK, 2, path) for path in (LinkKind.PIX, LinkKind.SYS)),
    ]
)


@st.composite
def topologies(draw: st.DrawFn, size: int) -> Topology:
    rows = [[Link(LinkKind.SELF)] * size for _ in range(size)]
    for i in range(size):
        for j in range(i):
            rows[i][j] = rows[j][i] = draw(links)
    return Topology(tuple(map(tuple, rows)))


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    unit = draw(st.sampled_from([256 * MIB, GIB, 1]))
    cards = draw(st.lists(uuids, max_size=5, unique=True))
    return Inventory(
        unit=unit,
        cards=tuple(
            CardState(
                Card(
                    index=draw(st.integers(0, 64)),
                    uuid=uuid,
                    model=draw(names),
                    memory=draw(counts) // unit * unit,
                    numa=draw(st.none() | st.integers(0, 8)),
                    mig=draw(st.booleans()),
                ),
                healthy=draw(st.booleans()),
                cordoned=draw(st.booleans()),
            )
            for uuid in cards
        ),
        topology=draw(topologies(len(cards))),
        refused=tuple(draw(st.lists(amounts, max_size=2))),
        lingering=tuple(
            TerminatingShare(draw(st.just("") | names), card, draw(amounts))
            for card in draw(st.lists(st.sampled_from(cards), max_size=3) if cards else st.just([]))
        ),
        released=draw(st.none() | st.lists(names, max_size=3).map(tuple)),
        features=draw(st.frozensets(names, max_size=3)),
    )


@given(assignments)
def test_an_assignment_reads_back(assignment: Assignment) -> None:
    assert decode_assignment(encode_assignment(assignment)) == assignment


@given(inventories())
def test_an_inventory_reads_back(inventory: Inventory) -> None:
    assert decode_inventory(encode_inventory(inventory)) == inventory


@given(st.frozensets(uuids, max_size=5))
def test_a_list_of_cards_reads_back(cards: frozenset[CardUuid]) -> None:
    assert decode_uuids(encode_uuids(cards)) == cards


def test_an_inventory_publishes_what_can_be_booked_not_what_is_reserved() -> None:
    card = Card(0, CardUuid("GPU-a"), "T4", memory=15 * GIB + 7, reserved=300 * MIB)
    inventory = Inventory(256 * MIB, (CardState(card, reason="x"),), Topology.uniform(1, Link(LinkKind.SYS)))
    read = decode_inventory(encode_inventory(inventory))
    assert read is not None
    assert read.cards[0].card.capacity(read.unit) == card.capacity(256 * MIB)


def test_a_card_in_mig_mode_can_be_booked_for_nothing() -> None:
    assert Card(0, CardUuid("GPU-a"), "A100", memory=GIB, mig=True).capacity(MIB) == ZERO
    assert not CardState(Card(0, CardUuid("GPU-a"), "A100", memory=GIB, mig=True)).open
    assert Card(0, CardUuid("GPU-a"), "A100", memory=GIB, reserved=2 * GIB).capacity(MIB) == Amount(100, 0)


def test_why_a_card_is_closed_travels_with_the_inventory_in_bounds() -> None:
    cards = tuple(
        CardState(Card(n, CardUuid(f"GPU-{n}"), "T4", GIB), healthy=not reason, reason=reason)
        for n, reason in enumerate(("", "XID 79: fallen off the bus", "x" * 1000))
    )
    read = decode_inventory(encode_inventory(Inventory(MIB, cards, Topology.uniform(3, Link(LinkKind.SYS)))))
    assert read is not None
    assert [s.reason for s in read.cards] == ["", "XID 79: fallen off the bus", "x" * 160]


def test_a_closed_card_is_not_said_to_be_free() -> None:
    closed = CardState(Card(0, CardUuid("GPU-a"), "T4", 4 * GIB), healthy=False, reason="XID 79")
    ledger = Ledger((closed.card,), MIB)
    graph = node_json("n", (closed,), Topology.uniform(1, Link(LinkKind.SYS)), ledger, lambda *_: {})
    text = node_text(graph)
    assert "closed, 0 of 100 cores and 0 B of 4 GiB booked, unhealthy: XID 79" in text
    assert "free" not in text


def test_what_lingers_on_a_card_that_the_node_does_not_list_is_not_heard() -> None:
    card = CardState(Card(0, CardUuid("GPU-a"), "T4", GIB))
    left = tuple(TerminatingShare("u", CardUuid(uuid), Amount(30, MIB)) for uuid in ("GPU-a", "GPU-b"))
    inventory = Inventory(MIB, (card,), Topology.uniform(1, Link(LinkKind.SYS)), lingering=left)
    read = decode_inventory(encode_inventory(inventory))
    assert read is not None
    assert read.lingering == left[:1]


def test_a_node_on_which_nothing_lingers_does_not_speak_of_it() -> None:
    assert "lingering" not in encode_inventory(Inventory(MIB, (), Topology(())))


ASSIGNMENT = {
    "v": 1,
    "node": "n",
    "pod": "u",
    "containers": {"c": [{"uuid": "GPU-a", "cores": 30, "memory": 5}]},
}
INVENTORY = {
    "v": 1,
    "unit": 4,
    "cards": [{"i": 0, "uuid": "GPU-a", "model": "T4", "memory": 8}],
    "links": [["X"]],
    "unknown": "fields are ignored",
}  # fmt: skip


def replaced(document: dict[str, Any], path: tuple[Any, ...], value: object) -> str:
    copy = json.loads(json.dumps(document))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(copy)


def test_the_base_documents_are_read() -> None:
    assert decode_assignment(json.dumps(ASSIGNMENT)) == Assignment(
        "n", "u", {"c": ((CardUuid("GPU-a"), Amount(30, 5)),)}
    )
    inventory = decode_inventory(json.dumps(INVENTORY))
    assert inventory is not None
    assert inventory.cards == (CardState(Card(0, CardUuid("GPU-a"), "T4", 8)),)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("v",), 2), (("v",), True), (("v",), "1"), (("v",), 1.0),
        (("node",), 5), (("pod",), None), (("node",), "a\nb"), (("pod",), "\ud800"),
        (("containers",), []), (("containers",), None), (("containers",), {"c": {}}), (("containers",), {"c": "GPU"}),
        (("containers",), {"c": ["GPU-a"]}), (("containers",), {"c\x1b": []}),
        (("containers", "c", 0, "uuid"), ""), (("containers", "c", 0, "uuid"), 7), (("containers", "c", 0, "uuid"), []),
        (("containers", "c", 0, "cores"), -1), (("containers", "c", 0, "cores"), 1.5),
        (("containers", "c", 0, "cores"), True), (("containers", "c", 0, "memory"), 1 << 63),
        (("containers", "c", 0), {}),
    ],
)  # fmt: skip
def test_a_malformed_assignment_is_absent(path: tuple[Any, ...], value: object) -> None:
    assert decode_assignment(replaced(ASSIGNMENT, path, value)) is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("v",), 0), (("unit",), 0), (("unit",), "4"), (("unit",), None),
        (("cards",), {}), (("cards",), "x"), (("cards",), [5]), (("cards",), []),
        (("cards",), [INVENTORY["cards"][0]] * 2),
        (("cards", 0, "i"), -1), (("cards", 0, "uuid"), None), (("cards", 0, "model"), "T4\x00"),
        (("cards", 0, "numa"), "0"), (("cards", 0, "healthy"), "false"), (("cards", 0, "mig"), 0),
        (("links",), [["PIX"]]), (("links",), [["X", "X"]]), (("links",), [["GPU"]]), (("links",), [[1]]), (("links",), ["X"]),
        (("paths",), [["PIX"]]), (("paths",), [["", ""]]), (("paths",), {"a": 1}), (("paths",), [[None]]),
        (("paths",), [[""], [""]]),
        (("refused",), {}), (("refused",), [{"cores": 1}]), (("refused",), [1]),
        (("lingering",), {}), (("lingering",), [{"uuid": "GPU-a", "cores": 1}]), (("lingering",), [1]),
        (("lingering",), [{"pod": 7, "uuid": "GPU-a", "cores": 1, "memory": 1}]),
    ],
)  # fmt: skip
def test_a_malformed_inventory_is_absent(path: tuple[Any, ...], value: object) -> None:
    assert decode_inventory(replaced(INVENTORY, path, value)) is None


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "[]", "null", "5", "[" * 100_000, '{"a":' * 100_000, '{"v":' + "9" * 5000 + "}", '{"v":NaN}', "\x00",
     json.dumps(ASSIGNMENT) + " " * (1 << 20)],
    ids=range(12),
)  # fmt: skip
def test_hostile_text_is_absent(text: str | None) -> None:
    assert decode_assignment(text) is None
    assert decode_inventory(text) is None


def test_a_mark_reads_back_without_what_moves_a_cursor_and_cut() -> None:
    text = contract.encode_eviction_mark(contract.EvictionMark("u", "its\x1b[2J card" + "x" * 500, 5.7))
    mark = contract.decode_eviction_mark(text)
    assert mark is not None
    assert (mark.uid, mark.at, mark.reason[:14], len(mark.reason)) == ("u", 5, "its\\x1b[2J card"[:14], 400)


@pytest.mark.parametrize(
    ("path", "value"),
    [(("v",), 2), (("uid",), 5), (("uid",), "a\nb"), (("reason",), None), (("reason",), "\x1b[2J"), (("at",), -1),
     (("at",), 1.5), (("at",), "now"), (("at",), True), (("at",), 1 << 63)],
)  # fmt: skip
def test_a_malformed_mark_is_absent(path: tuple[Any, ...], value: object) -> None:
    document = {"v": 1, "uid": "u", "reason": "why", "at": 5}
    assert contract.decode_eviction_mark(json.dumps(document)) is not None
    assert contract.decode_eviction_mark(json.dumps({**document, "more": "x" * 8192})) is None
    assert contract.decode_eviction_mark(replaced(document, path, value)) is None


@given(st.text())
def test_no_text_breaks_a_decoder(text: str) -> None:
    decode_assignment(text)
    contract.decode_eviction_mark(text)
    decode_inventory(text)
    assert all(uuid.isprintable() and "," not in uuid for uuid in decode_uuids(text))


def test_an_absent_list_of_cards_is_empty() -> None:
    assert decode_uuids(None) == frozenset()
    assert decode_uuids(" , ,GPU-a,\x1b[2J") == {"GPU-a"}


def test_every_name_of_ours_is_in_our_domain_and_said_once() -> None:
    keys = [
        v
        for k, v in vars(contract).items()
        if k.isupper() and isinstance(v, str) and v.startswith("tencent.com/")
    ]
    assert len(keys) > 10
    assert {k for k in keys if keys.count(k) > 1} <= {contract.CORE, contract.MEMORY, contract.GPU_MODEL}


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"v": 1, "unit": true}', '{"v": 1, "unit": -1}'])
def test_an_inventory_that_cannot_be_read_is_none(text: str) -> None:
    assert contract.decode_inventory(text) is None


@pytest.mark.parametrize(
    ("models", "label"),
    [
        (("Tesla T4", "Tesla T4"), "Tesla-T4"),
        (("Tesla T4", "NVIDIA A100"), None),
        (("///",), None),
        (("x" * 100,), "x" * 63),
    ],
)
def test_the_label_is_the_model_where_all_cards_are_alike_and_is_removed_where_not(
    models: tuple[str, ...], label: str | None
) -> None:
    states = [CardState(Card(i, CardUuid(f"GPU-{i}"), model, 1 << 34)) for i, model in enumerate(models)]
    assert model_labels(states) == {MODEL_LABEL: label, MODEL_LABEL_GAIA: label}
    assert model_labels(()) == {}, "nothing is said before the cards have been listed"


def test_the_console_knows_the_driver_of_claims_by_the_contracts_name() -> None:
    scripts = {path.name: path.read_text("utf-8") for path in Path(ui.__file__).parent.glob("*.js")}
    assert f'const CLAIMS = "{contract.DRA_DRIVER}";' in scripts["model.js"]
    assert [name for name, text in scripts.items() if contract.DRA_DRIVER in text] == ["model.js"], "once"
