"""A split node, whole: cards by claims and by extended resources beside each other, and what changes them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.agent.composition import Agent
from gpu_manager.domain.contract import CORE, DRA_DRIVER, FRONT_LABEL, INVENTORY, MEMORY, decode_inventory
from gpu_manager.domain.dra.sides import ClaimCards, Front, Side
from sandbox.kubelet import StandInKubelet
from tests.fakes.dra_world import NODE, DraWorld
from tests.fakes.node import container
from tests.fakes.sandbox import short_directory
from tests.fakes.waiting import until


class SplitWorld(DraWorld):
    """``cards`` go by claims."""

    def __init__(self, directory: Path, number: int = 2) -> None:
        super().__init__(directory, front=Front.SPLIT)
        self.cards = ClaimCards(number)

    def config(self, **changed: Any) -> Any:
        return super().config(claim_cards=self.cards, **changed)

    def register(self) -> None:
        until(lambda: DRA_DRIVER in self.manager.find_drivers())

    def devices(self) -> int:
        return len(self.scheduler.devices(NODE))

    def restart(self, cards: ClaimCards) -> None:
        self.stop_agent()
        self.cards = cards
        self.start_agent()

    def admit(self, name: str, cores: int, units: int) -> Any:
        made = self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"nodeName": NODE, "containers": [container("c", cores, units)]},
            }
        )
        uid = made["metadata"]["uid"]
        until(lambda: any(f.pod.uid == uid for fs in self.agent._kube.pods.local().values() for f in fs))
        return self.kubelet.admit(made)


def healthy(kubelet: StandInKubelet) -> dict[str, int]:
    return dict(kubelet.allocatable())


@pytest.fixture
def world() -> Iterator[SplitWorld]:
    with short_directory() as directory, SplitWorld(directory) as running:
        until(lambda: running.devices() == 2)
        yield running


def test_pods_of_both_kinds_run_beside_each_other_and_never_on_one_card(world: SplitWorld) -> None:
    claimed = [world.run(world.pod(world.claim())) for _ in range(2)]
    assert world.admit("plain-0", 60, 16).admitted
    assert world.admit("plain-1", 60, 16).admitted
    assert not world.admit("plain-2", 60, 16).admitted
    ledger = world.agent.state.view.ledger
    by_claim = {card for one in ledger.claims for card in one.cards}
    by_pod = {card for one in ledger if one.claim is None for card in one.cards}
    assert len(by_claim) == len(by_pod) == 2
    assert not by_claim & by_pod
    assert {card for pod in claimed for card in world.limits(pod, "c0")} == by_claim
    node = until(
        lambda: (n := world.api.get("nodes", NODE)) and INVENTORY in n["metadata"]["annotations"] and n
    )
    inventory = decode_inventory(node["metadata"]["annotations"][INVENTORY])
    assert inventory is not None
    assert {state.card.uuid for state in inventory.cards if state.held == DRA_DRIVER} == by_claim
    assert node["metadata"]["labels"][FRONT_LABEL] == "split"
    until(lambda: all(world.agent.ready().values()))


def test_a_restarted_agent_keeps_every_card_where_it_is(world: SplitWorld) -> None:
    pod = world.run(world.pod(world.claim()))
    before = world.agent.state.view.sides
    world.restart(ClaimCards(2))
    assert world.agent.state.view.sides == before
    assert world.limits(pod, "c0")
    until(lambda: healthy(world.kubelet) == {CORE: 200, MEMORY: 116})


def test_cards_change_once_nothing_is_held_on_the_node(world: SplitWorld, restart: threading.Event) -> None:
    used = world.run(world.pod(world.claim()))
    before = world.agent.state.view.sides
    world.restart(ClaimCards(0))
    assert world.agent.state.view.sides == before
    assert "2 of the node's 4 cards are to change between extended resources and claims" in world.agent.why()
    assert not world.agent.ready()["front"]
    other = world.run(world.pod(world.claim()))
    assert world.limits(other, "c0"), "its containers may start meanwhile"
    world.end(used)
    assert not restart.is_set()
    world.end(other)
    until(restart.is_set)
    world.restart(ClaimCards(0))
    until(lambda: healthy(world.kubelet).get(CORE) == 400)
    until(lambda: world.devices() == 0)
    until(lambda: all(world.agent.ready().values()))


def test_a_node_keeps_its_split_until_it_is_drained(world: SplitWorld, restart: threading.Event) -> None:
    pod = world.run(world.pod(world.claim()))
    world.stop_agent()
    world.wanted, world.cards = Front.PLUGIN, ClaimCards(0)
    world.start_agent_with(injection="cdi")
    assert world.agent.fronts.in_force is Front.SPLIT
    assert (
        "keeps the front split until nothing is held by it: 1 pods and claims hold cards" in world.agent.why()
    )
    world.end(pod)
    until(restart.is_set)
    world.stop_agent()
    world.agent = Agent(world.config())
    world.agent.start()
    assert world.agent.fronts.in_force is Front.PLUGIN
    assert world.agent.state.view.sides is None


def test_a_split_node_that_lost_its_books_asks_which_cards_claims_have(world: SplitWorld) -> None:
    pod = world.run(world.pod(world.claim()))
    world.stop_agent()
    (card,) = world.limits(pod, "c0")
    shutil.rmtree(world.directory / "state")
    other = ClaimCards(uuids=frozenset(u for u in world.agent.state.view.sides or {} if u != card))
    world.cards = replace(other, uuids=frozenset(sorted(other.uuids)[:1]))
    world.start_agent()
    assert (world.agent.state.view.sides or {})[card] is Side.DRA
    assert "1 of the node's 4 cards are to change" in world.agent.why()


def test_while_nobody_says_which_cards_claims_have_no_card_is_given(
    world: SplitWorld, restart: threading.Event
) -> None:
    world.stop_agent()
    shutil.rmtree(world.directory / "state")
    world.api.faults.fail(1 << 30, 500, match="resourceclaims")
    world.start_agent()
    assert world.agent.state.view.sides == {}
    assert not world.agent.ready()["front"]
    assert healthy(world.kubelet).get(CORE, 0) == 0
    world.api.faults.clear()
    until(restart.is_set)
    world.restart(ClaimCards(2))
    assert world.devices() == 2
