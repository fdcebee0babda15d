"""Simulated cards: profiles, stable names, orders by method and by file, and errors that name what is wrong."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.adapters import profiles
from gpu_manager.adapters.simulated import SimulatedCards
from gpu_manager.adapters.simulated_control import read_control, write_control
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.ids import prefixes
from gpu_manager.ports.cards import CardSensors, CardUse, ProcessUse

TOPOLOGIES = Path(__file__).parents[2].parent / "shared/data/topologies"
ONE = "cards:\n- {model: T4, memory: 15Gi}\ntopology: |2\n       GPU0\n  GPU0  X\n"


def figures(uses: Sequence[CardUse]) -> list[tuple[CardUuid, int | None, float | None]]:
    """Memory and load of each card, without its sensors."""
    return [(use.uuid, use.memory_used, use.utilisation) for use in uses]


@pytest.mark.parametrize("name", profiles.names())
def test_every_shipped_profile_is_a_whole_node(name):
    cards = SimulatedCards.named(name)
    states = cards.list()
    assert cards.topology().size == len(states) > 0
    assert [s.card.index for s in states] == list(range(len(states)))
    assert len({s.card.uuid for s in states}) == len(states)
    for state in states:
        assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", state.card.uuid)
        assert state.healthy
        assert " " not in state.card.model
        assert state.card.memory > state.card.reserved > 0
    assert all(len(prefix) == 8 for prefix in prefixes(s.card.uuid for s in states).values())


def test_the_profiles_the_product_promises_are_there():
    assert set(profiles.names()) >= {"a100x8", "h200x8", "dgx1-v100", "t4x4", "mixed", "one"}
    assert str(SimulatedCards.named("a100x8").topology().link(0, 7)) == "NV12"
    assert str(SimulatedCards.named("h200x8").topology().link(0, 7)) == "NV18"
    assert str(SimulatedCards.named("dgx1-v100").topology().link(0, 3)) == "NV2"
    assert [s.card.numa for s in SimulatedCards.named("t4x4").list()] == [0, 0, 1, 1]
    mixed = SimulatedCards.named("mixed").list()
    assert [s.card.mig for s in mixed] == [False, False, False, False, True]
    assert len({s.card.model for s in mixed}) == 3
    assert len(SimulatedCards.named("one").list()) == 1


@given(st.sampled_from(profiles.names()), st.text("ab1-", max_size=8))
def test_uuids_depend_on_profile_index_and_node_alone(name, node):
    first = [s.card.uuid for s in SimulatedCards.named(name, node=node).list()]
    assert first == [s.card.uuid for s in SimulatedCards.named(name, node=node).list()]
    others = [s.card.uuid for s in SimulatedCards.named(name, node=node + "x").list()]
    assert not set(first) & set(others)


def test_any_recorded_matrix_makes_a_node():
    if not TOPOLOGIES.is_dir():
        pytest.skip("the recorded topologies (../shared/data/topologies) are not on this machine")
    sizes = {}
    for path in sorted(TOPOLOGIES.glob("*.txt")):
        cards = SimulatedCards.from_topology(path)
        assert cards.topology().size == len(cards.list())
        sizes[path.stem] = len(cards.list())
        assert [s.card.uuid for s in SimulatedCards.named(str(path)).list()] == [
            s.card.uuid for s in cards.list()
        ]
    assert sizes["dgx-a100-nv12"] == 8
    assert sizes["single-gtx1070ti"] == 1


def test_a_matrix_file_gives_numa_nodes_and_the_asked_model(tmp_path):
    path = tmp_path / "two.txt"
    path.write_text(
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t0-3\t0\nGPU1\tPHB\t X \t4-7\t1\n"
    )
    states = SimulatedCards.from_topology(path, model="Tesla-P40").list()
    assert [(s.card.model, s.card.numa) for s in states] == [("Tesla-P40", 0), ("Tesla-P40", 1)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cards: [", ["p.yaml", "no YAML"]),
        ("- 1", ["p.yaml", "no mapping"]),
        (ONE.replace("15Gi", "2026-99-99"), ["no YAML", "month"]),
        (ONE + "colour: red\n", ["colour", "about, cards, topology"]),
        (ONE.replace("15Gi", "much"), ["cards[0].memory", "much"]),
        (ONE.replace("15Gi", "0.0001"), ["cards[0].memory", "whole number of bytes"]),
        (ONE.replace("15Gi", "true"), ["cards[0].memory", "true"]),
        (ONE.replace("15Gi", "15Gi, reserved: 20Gi"), ["cards[0].reserved", "20Gi"]),
        (ONE.replace("15Gi", "15Gi, reserved: -1"), ["cards[0].reserved", "-1"]),
        (ONE.replace("15Gi", "-15Gi"), ["cards[0].reserved", "not below"]),
        (ONE.replace("15Gi", "15Gi, count: 2"), ["cards: 2", "1 GPUs"]),
        (ONE.replace("15Gi", "15Gi, count: 0"), ["cards[0].count", "0"]),
        (ONE.replace("15Gi", "15Gi, count: 99999999999"), ["cards[0].count"]),
        (ONE.replace("15Gi", "15Gi, numa: left"), ["cards[0].numa", "left"]),
        (ONE.replace("15Gi", "15Gi, mig: maybe"), ["cards[0].mig", "maybe"]),
        (ONE.replace("model: T4", "model: 4"), ["cards[0].model", "4"]),
        (ONE.replace("model: T4, ", ""), ["cards[0].model"]),
        (ONE.replace("- {model: T4, memory: 15Gi}", "- T4"), ["cards[0]", "T4"]),
        ("cards: []\n" + ONE.partition("\n")[2].partition("\n")[2], ["cards", "at least one"]),
        ("cards:\n- {model: T4, memory: 15Gi}\n", ["topology"]),
        (ONE.replace("GPU0  X", "GPU0  Q"), ["topology", "Q"]),
        (ONE.replace("|2", "|"), ["no YAML", "topology: |2"]),
    ],
)
def test_a_malformed_profile_is_refused_by_file_key_and_value(tmp_path, text, words):
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(RequestInvalid) as refused:
        SimulatedCards.named(str(path))
    for word in ["p.yaml", *words]:
        assert word in str(refused.value)


def test_an_unknown_profile_is_refused_with_the_shipped_names(tmp_path):
    for name in ("nope", str(tmp_path / "nope.yaml"), str(tmp_path)):
        with pytest.raises(RequestInvalid) as refused:
            SimulatedCards.named(name)
        assert all(shipped in str(refused.value) for shipped in profiles.names())
        assert name in str(refused.value)


def test_a_huge_profile_is_not_read(tmp_path):
    path = tmp_path / "big.yaml"
    path.write_text("#" * (1 << 20) + ONE)
    with pytest.raises(RequestInvalid, match="1 MiB"):
        SimulatedCards.named(str(path))


@given(st.text(max_size=200))
def test_no_profile_text_makes_a_foreign_error(text):
    for source in (text, ONE.replace("T4", text), ONE.replace("15Gi", text), ONE.replace("X", text)):
        with contextlib.suppress(RequestInvalid):
            assert profiles.parse(source, "p", "p.yaml").cards


def test_load_is_summed_a_card_and_listed_a_process():
    cards = SimulatedCards.named("t4x4")
    uuid = cards.list()[1].card.uuid
    cards.set_load(uuid, 7, memory=5, utilisation=60)
    cards.set_load(uuid, 8, memory=6, utilisation=70)
    cards.set_load(uuid, 7, memory=4, utilisation=50)
    uses, processes = cards.usage()
    assert figures(uses)[1] == (uuid, 10, 100.0)
    assert figures(uses)[0] == (uses[0].uuid, 0, 0.0)
    assert set(processes) == {ProcessUse(uuid, 7, 4, 50), ProcessUse(uuid, 8, 6, 70)}
    cards.set_load(uuid, 7)
    assert [p.pid for p in cards.usage()[1]] == [8]


def test_a_failed_card_is_listed_unhealthy_and_tells_no_figures():
    cards = SimulatedCards.named("t4x4")
    uuid = cards.list()[2].card.uuid
    cards.fail(uuid, "GPU is lost")
    assert [s.healthy for s in cards.list()] == [True, True, False, True]
    assert cards.list()[2].reason == "GPU is lost"
    assert uuid not in {u.uuid for u in cards.usage()[0]}
    cards.set_health(uuid, True)
    assert cards.list()[2].healthy


def test_a_card_is_closed_with_a_reason_and_opened():
    cards = SimulatedCards.named("one")
    (state,) = cards.list()
    cards.set_health(state.card.uuid, False, "XID 48")
    assert (cards.list()[0].healthy, cards.list()[0].reason) == (False, "XID 48")
    cards.set_health(state.card.uuid, True)
    assert cards.list()[0] == state


def test_a_removed_card_leaves_list_usage_and_topology_and_comes_back_the_same():
    cards = SimulatedCards.named("dgx1-v100")
    before = cards.list()
    uuid = before[1].card.uuid
    cards.remove(uuid)
    assert [s.card.index for s in cards.list()] == [0, 2, 3, 4, 5, 6, 7]
    assert len(cards.usage()[0]) == 7
    assert str(cards.topology().link(0, 1)) == "NV1"  # now cards 0 and 2
    assert str(cards.topology().link(0, 2)) == "NV2"  # now cards 0 and 3
    assert cards.add(uuid) == uuid
    assert cards.list() == before


def test_a_new_card_is_like_the_last_and_joined_by_nothing_better_than_sys():
    cards = SimulatedCards.named("t4x4")
    uuid = cards.add()
    state = cards.list()[-1]
    assert (state.card.uuid, state.card.index, state.card.model) == (uuid, 4, "Tesla-T4")
    assert [str(cards.topology().link(4, i)) for i in range(5)] == ["SYS"] * 4 + ["X"]


def test_an_order_for_an_unknown_card_names_the_cards():
    cards = SimulatedCards.named("one")
    with pytest.raises(RequestInvalid, match=cards.list()[0].card.uuid):
        cards.remove(CardUuid("GPU-none"))


def test_the_driver_can_be_taken_away_and_brought_back():
    cards = SimulatedCards.named("one")
    cards.set_driver("could not load the NVML library: by order")
    for call in (cards.list, cards.usage, cards.topology):
        with pytest.raises(NodeUnready, match="could not load the NVML library"):
            call()
    cards.set_driver()
    assert len(cards.list()) == 1


def test_another_program_orders_through_the_control_file(tmp_path):
    control = tmp_path / "control.yaml"
    cards = SimulatedCards.named("t4x4", control=control)
    states = cards.list()
    assert read_control(control) == {}
    write_control(
        control,
        {
            "0": {"load": [{"pid": 7, "memory": "5Gi", "utilisation": 30}]},
            states[1].card.uuid: {"healthy": False, "reason": "XID 79"},
            "2": {"removed": True},
            "3": {"error": "lost"},
        },
    )
    assert [(s.card.index, s.healthy, s.reason) for s in cards.list()] == [
        (0, True, ""),
        (1, False, "XID 79"),
        (3, False, "lost"),
    ]
    uses, processes = cards.usage()
    assert figures(uses) == [(states[0].card.uuid, 5 << 30, 30.0), (states[1].card.uuid, 0, 0.0)]
    assert [p.pid for p in processes] == [7]
    orders = read_control(control)
    del orders["2"]
    write_control(control, orders, driver="away")
    with pytest.raises(NodeUnready, match="away"):
        cards.list()
    control.unlink()
    assert cards.list() == states


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "cards: 2026-99-99",
        "- 1",
        "colour: red",
        "cards: 5",
        "cards: {9: {}}",
        "cards: {0: 5}",
        "cards: {0: {colour: red}}",
        "cards: {0: {healthy: 3}}",
        "cards: {0: {xids: [79]}}",
        "cards: {0: {xids: {79: often}}}",
        "cards: {0: {load: [5]}}",
        "cards: {0: {load: [{pid: -1}]}}",
        "cards: {0: {load: [{pid: 1, memory: much}]}}",
        "cards: {0: {load: [{pid: 1, utilisation: 300}]}}",
        "cards: {0: {load: [{pid: 1, size: 3}]}}",
        "\x00",
    ],
)
def test_a_malformed_control_file_changes_nothing(tmp_path, text):
    control = tmp_path / "control.yaml"
    cards = SimulatedCards.named("t4x4", control=control)
    write_control(control, {"1": {"healthy": False}})
    before = cards.list()
    assert not before[1].healthy
    control.write_text(text)
    assert cards.list() == before


def test_a_control_file_that_cannot_be_written_is_said():
    with pytest.raises(NodeUnready, match="cannot write the control file /nonexistent/x"):
        write_control(Path("/nonexistent/x"), {})


def test_sensors_follow_the_load_and_are_read_every_ten_seconds() -> None:
    now = [100.0]
    cards = SimulatedCards.named("t4x4", monotonic=lambda: now[0])
    uuid = cards.list()[0].card.uuid

    def after(seconds: float) -> CardSensors:
        now[0] += seconds
        return next(use.sensors for use in cards.usage()[0] if use.uuid == uuid)

    assert after(0) == CardSensors(temperature=30.0, power=10.0, energy=0.0)
    cards.set_load(uuid, 7, 1 << 30, 50.0)
    assert after(5).power == 10.0, "the last reading is five seconds old"
    assert after(5) == CardSensors(temperature=52.5, power=40.0, energy=5 * 10 + 5 * 40)
    cards.set_load(uuid, 7)
    assert after(10).energy == 250 + 10 * 40


@pytest.mark.parametrize("watts", ["7", "[70, 10]", "[1]", "[-1, 5]", "[ten, 20]"])
def test_a_profile_with_odd_watts_is_refused(watts: str) -> None:
    text = f"cards: [{{model: Tesla T4, memory: 15360Mi, watts: {watts}}}]\ntopology: |2\n      GPU0\n    GPU0 X\n"
    with pytest.raises(RequestInvalid, match=r"cards\[0\].watts|cards: 0.watts|watts"):
        profiles.parse(text, "odd", "odd.yaml")
