"""MIG instances in the admission service: filter, bind, quota, preemption, and an older reader beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from admission.cluster.pod_view import read_pod_view
from admission.extender.feasibility import FeasibilityJudge
from admission.quota.quota_book import QuotaBook
from admission.webhook.create_time_checks import create_time_checks
from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.cluster.node_json import node_json, node_text
from gpu_manager.domain.contract import (
    ALLOCATION,
    CORE_LIMIT,
    GPU_MODEL,
    GPU_UUID,
    INVENTORY,
    PRIORITY,
    Assignment,
    Inventory,
    decode_assignment,
    encode_assignment,
    encode_inventory,
)
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.resize.judgement import judge_room
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.topology import Link, Topology
from tests.fakes.extender import UNIT, World, node, pod
from tests.fakes.ports import FakeClock
from tests.unit.test_extender_preempt import ask
from tests.unit.test_mig import CARD, DIVIDED, MODEL, NODE, SLICE

Obj = dict[str, Any]
NAMED: Final = {GPU_MODEL: "1g.18gb"}


def machine(name: str, cards: Sequence[Any] = NODE, *, older: bool = False) -> Obj:
    """A node with these cards; ``older``: read by a release that knows no instances."""
    obj = node(name, cards=len(cards))
    links = Topology.uniform(len(cards), Link.parse("SYS"))
    text = encode_inventory(Inventory(UNIT, tuple(map(CardState, cards)), links))
    if older:
        data = json.loads(text)
        for card in data["cards"]:
            card.pop("instance", None)
        text = json.dumps(data)
    obj["metadata"]["annotations"][INVENTORY] = text
    return obj


def running(name: str, uuid: str, core: int, units: int = 4, **more: Any) -> Obj:
    uid = f"uid-default-{name}"
    said = Assignment("n1", PodUid(uid), {"main": ((CardUuid(uuid), Amount(core, units * UNIT)),)})
    notes = {ALLOCATION: encode_assignment(said), "tencent.com/gpu-assigned": "true"}
    notes |= more.pop("annotations", NAMED)
    return pod(name, core, units, on="n1", annotations=notes, phase="Running", uid=uid, **more)


def chosen(world: World, obj: Obj) -> list[str]:
    """The cards on which it is bound."""
    world.create(obj)
    assert world.schedule(obj) == "n1"
    name = obj["metadata"]["name"]
    (written,) = [p for p in world.api.pods.values() if p["metadata"]["name"] == name]
    said = decode_assignment(written["metadata"]["annotations"][ALLOCATION])
    assert said is not None
    return [uuid for uuid, _ in said.containers["main"]]


def test_who_names_a_profile_is_bound_to_an_instance_and_others_to_cards() -> None:
    world = World([machine("n1")])
    assert chosen(world, pod("part", 30, 8, annotations=NAMED)) == [SLICE]
    assert chosen(world, pod("beside", 30, 8, annotations=NAMED)) == [SLICE]
    assert chosen(world, pod("whole", 100, 0, annotations=NAMED)) == [NODE[3].uuid]
    assert chosen(world, pod("plain", 30, 8)) == [CARD.uuid]
    place = NODE[3].instance
    assert place is not None
    told = world.filter(pod("placed", 30, 8, annotations={GPU_UUID: place.name}))
    assert told["NodeNames"] == [], "that instance is taken whole"
    assert chosen(World([machine("n1")]), pod("placed", 30, 8, annotations={GPU_UUID: place.name})) == [
        NODE[3].uuid
    ]


def test_a_node_of_instances_alone_takes_nobody_who_names_none() -> None:
    world = World([machine("n1", [DIVIDED, *NODE[2:]])])
    for plain in (pod("a", 30, 8), pod("b", 100, 0), pod("c", 30, 8, annotations={GPU_MODEL: "H200"})):
        told = world.filter(plain)
        assert told["NodeNames"] == []
        (why,) = {**told["FailedNodes"], **told["FailedAndUnresolvableNodes"]}.values()
        assert ("given to pods that name its profile" in why) or ("the pod allows H200" in why)
    assert world.filter(pod("d", 30, 8, annotations=NAMED))["NodeNames"] == ["n1"]


def test_an_older_service_gives_no_instance_to_anybody() -> None:
    world = World([machine("n1", [DIVIDED, *NODE[2:]], older=True)])
    for obj in (pod("a", 30, 8, annotations={GPU_MODEL: "H200"}), pod("b", 100, 0)):
        told = world.filter(obj)
        assert told["NodeNames"] == []
        assert "in MIG mode: no share of the card itself, only of its instances (agent.migInstances)" in str(
            told
        )


def test_a_pod_that_no_instance_can_serve_is_told_at_creation() -> None:
    world = World([machine("n1")])
    checks = create_time_checks(world.cluster, QuotaBook(), FeasibilityJudge(), FakeClock())
    view = read_pod_view(pod("large", 30, 100, annotations=NAMED))
    assert view is not None
    (told,) = checks.warn(view.pod, judged_request(view.pod))
    assert f"the largest card has 18 GiB ({MODEL})" in told


@pytest.mark.parametrize(
    ("limits", "instance", "card"),
    [({"1g.18gb": 1}, True, False), ({"H200": 1}, False, True), ({"*": 1}, True, True)],
)
def test_quota_counts_an_instance_under_its_own_model(limits: Obj, instance: bool, card: bool) -> None:
    world = World([machine("n1")])
    world.limit({"default": {"quota": limits}})
    assert bool(world.filter(pod("a", 100, 0, annotations=NAMED))["NodeNames"]) is instance
    assert bool(world.filter(pod("b", 100, 0))["NodeNames"]) is card
    if instance:
        assert chosen(world, pod("c", 100, 0, annotations=NAMED)) == [SLICE]
        assert not world.filter(pod("d", 30, 8, annotations=NAMED))["NodeNames"]


def test_eviction_makes_room_in_an_instance() -> None:
    lying = [running("a", SLICE, 60), running("b", SLICE, 40, priority=9), running("c", NODE[3].uuid, 100)]
    world = World([machine("n1")], lying)
    assert ask(world, pod("big", 60, 8, annotations=NAMED, priority=5), {"n1": []}) == {"n1": (["a"], 0)}


def test_a_priority_and_a_ceiling_hold_inside_each_instance() -> None:
    best = {**NAMED, PRIORITY: "best-effort"}
    world = World([machine("n1")], [running("a", SLICE, 30, annotations=best)])
    protected = {**NAMED, PRIORITY: "protected", CORE_LIMIT: "80"}
    world.limit({"default": {"quota": {"*": 4}, "protected": {"1g.18gb": 1}}})
    assert chosen(world, pod("first", 30, 8, annotations=protected)) == [SLICE]
    assert not world.filter(pod("card", 30, 8, annotations={PRIORITY: "protected"}))["NodeNames"]


def test_a_share_of_an_instance_is_resized_within_the_instance() -> None:
    card = NODE[2]
    ledger = Ledger(NODE, UNIT)
    share = Share(card.uuid, Amount(30, 4 * GIB))
    allocation = Allocation(PodUid("p"), "c", ContainerKind.APP, 0, (share,))
    ledger.commit([allocation])
    states = {one.uuid: CardState(one) for one in NODE}
    assert judge_room(ledger, allocation, Amount(60, 18 * GIB), states) is None
    refused = judge_room(ledger, allocation, Amount(60, 19 * GIB), states)
    assert refused is not None
    assert refused.card == card.index


def test_graph_says_of_which_card_an_instance_is() -> None:
    states = tuple(map(CardState, (*NODE, replace(DIVIDED, index=2, uuid=CardUuid("GPU-other")))))
    links = Topology.uniform(len(states), Link.parse("SYS"))
    ledger = Ledger((state.card for state in states), UNIT)
    graph = node_json("n1", states, links, ledger, lambda *_: {})
    assert [card.get("parent") for card in graph["cards"]] == [None, None, DIVIDED.uuid, DIVIDED.uuid, None]
    first, _, instance, _, alone = node_text(graph).splitlines()[1:]
    assert first.endswith("no share of the card itself, divided into MIG instances: cards 100, 101")
    assert f"card 100 ({MODEL}, {SLICE}): 100 of 100 cores free, 18 GiB of 18 GiB free" in instance
    assert alone.endswith("no share of the card itself, in MIG mode: its instances are not given here")
