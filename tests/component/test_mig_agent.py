"""MIG instances through the whole agent: given to who names them, kept through changed layouts and settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.adapters.simulated_control import write_control
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import (
    ALLOCATION,
    CORE,
    GPU_MODEL,
    GPU_UUID,
    INVENTORY,
    MIG_LABEL,
    Assignment,
    decode_inventory,
    encode_assignment,
)
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from tests.component.test_agent import NODE, World, series
from tests.fakes.node import container, pod
from tests.fakes.waiting import until

CORES_OF_ALL = 1200  # eleven instances, and the card that is not divided


class MigWorld(World):
    """A node of two divided H200 and a whole one; ``on``: instances are given."""

    def __init__(self, directory: Path, *, on: bool = True) -> None:
        super().__init__(directory, "mig-h200", mig_instances=on, reclaim_seconds=0.5)

    def again(self, *, on: bool) -> None:
        self.agent.stop()
        self.settings["mig_instances"] = on
        self.start()

    def lay_out(self, **cards: list[list[Any]]) -> None:
        self.order(**{key: {"instances": layout} for key, layout in cards.items()})

    def order(self, **cards: dict[str, Any]) -> None:
        orders = {key.removeprefix("card"): order for key, order in cards.items()}
        write_control(self.directory / "control.yaml", orders)
        self.agent.health.look()

    def label(self, value: str | None) -> None:
        self.api.patch("nodes", NODE, {"metadata": {"labels": {MIG_LABEL: value}}})

    def card(self, uuid: str) -> dict[str, Any]:
        cards = json.loads(self.get("/graph", "application/json"))["cards"]
        return next((card for card in cards if card["uuid"] == uuid), {})

    def named(self, model: str) -> list[str]:
        return [s.card.uuid for s in self.agent.state.node.cards if s.card.model.endswith(model)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MigWorld]:
    with MigWorld(tmp_path) as running:
        yield running


def slice_of(name: str, cores: int = 30, units: int = 8, **annotations: str) -> dict[str, Any]:
    written = annotations or {GPU_MODEL: "1g.18gb"}
    return pod(name, container("c", cores, units), annotations=written)


def test_a_pod_gets_the_instance_that_it_names_and_another_pod_a_card(world: MigWorld) -> None:
    until(lambda: world.kubelet.allocatable()[CORE] == CORES_OF_ALL)
    part = world.run(slice_of("part"))
    assert part.admitted, part.message
    beside = world.run(slice_of("beside", 60, 40))
    ones = world.named("1g.18gb")
    assert {world.limits_card(part), world.limits_card(beside)} == {ones[0]}
    assert part.containers["c"].envs["VCUDA_CARDS"] == ones[0]
    (whole,) = world.named("3g.71gb")
    assert world.run(slice_of("whole", 100, 0, **{GPU_MODEL: "3g.71gb"})).containers["c"].envs[
        "VCUDA_CARDS"
    ] == (whole)
    plain = world.run(pod("plain", container("c", 30, 8)))
    assert world.limits_card(plain) == world.named("NVIDIA-H200")[-1]
    refused = world.run(pod("large", container("c", 100, 0)))
    assert not refused.admitted
    place = world.agent.state.node.card(ones[3]).card.instance
    by_place = world.run(slice_of("by-place", **{GPU_UUID: place.name}))
    assert world.limits_card(by_place) == ones[3]


def test_inventory_metrics_and_graph_show_instances(world: MigWorld) -> None:
    world.run(slice_of("part"))
    world.agent.running.usage.sample()
    (uuid, *_) = world.named("1g.18gb")
    text = world.get("/metrics")
    place = {"profile": "1g.18gb", "gi": "7", "ci": "0", "card": "100", "uuid": uuid}
    assert series(text, "vcuda_mig_instance_info", **place) == [1]
    assert series(text, "vcuda_card_cores_booked_ratio", uuid=uuid) == [0.3]
    assert series(text, "vcuda_card_utilization_ratio", uuid=uuid) == []
    assert series(text, "vcuda_card_power_watts", uuid=uuid) == []
    assert len(series(text, "vcuda_card_power_watts")) == 3
    assert len(series(text, "vcuda_container_core_usage_ratio", uuid=uuid)) == 1

    def published() -> Any:
        node = world.api.get("nodes", NODE)
        return decode_inventory(node["metadata"].get("annotations", {}).get(INVENTORY)) if node else None

    until(lambda: published() is not None and len(published().cards) == 14)
    assert [s.card.instance is not None for s in published().cards] == [False] * 3 + [True] * 11
    assert world.card(uuid)["holders"][0]["pod"] == "part"


def test_a_layout_that_changes_under_pods_loses_nothing_and_is_named(world: MigWorld) -> None:
    ones = world.named("1g.18gb")
    result = world.run(slice_of("held", **{GPU_UUID: ones[1]}))
    assert result.admitted, result.message
    world.lay_out(card0=[["1g.18gb", "18432Mi", 7], ["1g.35gb", "35840Mi", 8]])
    until(lambda: not world.card(ones[1]).get("healthy", True))
    gone = world.card(ones[1])
    assert "MIG layout or mode of its card has changed" in gone["reason"]
    assert gone["holders"][0]["pod"] == "held"
    (next_there,) = world.named("1g.35gb")
    assert f"pods still hold {ones[1]}" in world.card(next_there)["reason"], "its device nodes open this one"
    assert world.card(ones[0])["open"]
    until(lambda: any(e["reason"] == "VcudaMigChanged" for e in world.api.list("events")))
    (event,) = (e for e in world.api.list("events") if e["reason"] == "VcudaMigChanged")
    assert "default/held hold a part: end these pods" in event["message"]
    until(lambda: world.kubelet.allocatable()[CORE] == CORES_OF_ALL - 6 * 100)
    assert not world.card(ones[5]), "what nobody held leaves no trace"

    world.lay_out()
    until(lambda: world.card(ones[1])["open"])
    assert world.card(ones[1])["holders"][0]["pod"] == "held"


def test_turning_instances_off_waits_for_the_pods_that_hold_some(world: MigWorld) -> None:
    ones = world.named("1g.18gb")
    world.run(slice_of("held"))
    world.again(on=False)
    why = world.agent.why()
    assert "MIG instances stay listed though they are turned off: default/held still hold some" in why
    assert not world.agent.ready()["cards"]
    assert why in world.card(ones[1])["reason"]
    assert world.card(ones[0])["holders"][0]["pod"] == "held"
    uid = next(p["metadata"]["uid"] for p in world.api.list("pods") if p["metadata"]["name"] == "held")
    world.api.delete("pods", "held", grace=0)
    world.kubelet.delete(uid, force=True)
    world.kubelet.reap(uid)
    until(lambda: world.named("1g.18gb") == [])
    assert world.agent.ready()["cards"]


def test_the_nodes_label_counts_before_the_setting(tmp_path: Path) -> None:
    with MigWorld(tmp_path, on=False) as world:
        assert world.named("1g.18gb") == []
        world.label("true")
        until(lambda: len(world.named("1g.18gb")) == 9)
        world.label("false")
        until(lambda: world.named("1g.18gb") == [])


def test_the_schedulers_choice_of_an_instance_is_followed(world: MigWorld) -> None:
    """As the extender writes it; the lists that it applied may be gone."""
    ones = world.named("1g.18gb")
    obj = pod("bound", container("c", 30, 8))
    made = world.api.create({**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "uid"}})
    chosen = {"c": ((CardUuid(ones[4]), Amount(30, 8 * DEFAULT_UNIT)),)}
    said = encode_assignment(Assignment(NODE, made["metadata"]["uid"], chosen))
    world.api.patch("pods", "bound", {"metadata": {"annotations": {ALLOCATION: said}}})
    until(lambda: any(a.pod_name == "bound" for a in world.agent.state.view.ledger))
    bound = world.api.get("pods", "bound")
    assert bound is not None
    result = world.kubelet.admit(bound)
    assert result.admitted, result.message
    assert world.limits_card(result) == ones[4]


def test_a_mode_that_changes_under_pods_loses_nothing_and_is_named(world: MigWorld) -> None:
    (first, *_), whole = world.named("1g.18gb"), world.named("NVIDIA-H200")[-1]
    for name, card in (("sliced", {GPU_UUID: first}), ("plain", {GPU_UUID: whole})):
        result = world.run(slice_of(name, **card))
        assert result.admitted, result.message
    world.order(card0={"mig": False}, card2={"mig": True, "instances": [["1g.18gb", "18432Mi", 7]]})
    until(lambda: world.card(whole)["mig"] and not world.card(first)["healthy"])
    parent = world.named("NVIDIA-H200")[0]
    until(lambda: f"pods still hold {first}" in world.card(parent)["reason"])
    assert not world.card(parent)["mig"]
    assert world.card(first)["holders"][0]["pod"] == "sliced"
    assert world.card(whole)["holders"][0]["pod"] == "plain"

    def named() -> str:
        return " ".join(e["message"] for e in world.api.list("events") if e["reason"] == "VcudaMigChanged")

    until(lambda: "card 2 is in MIG mode now, of which default/plain hold a part" in named())
    assert "default/sliced hold a part" in named()
    refused = world.run(pod("next", container("c", 100, 0)))
    assert not refused.admitted, "no card is whole and free"
