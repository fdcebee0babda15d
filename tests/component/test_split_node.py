"""A split node, whole: cards by claims and by extended resources beside each other, handed over while idle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.agent.composition import Agent
from gpu_manager.domain.contract import CORE, DRA_DRIVER, FRONT_LABEL, INVENTORY, MEMORY, decode_inventory
from gpu_manager.domain.dra.sides import ClaimCards, Front
from sandbox.kubelet import StandInKubelet
from tests.fakes.dra_world import NODE, DraWorld
from tests.fakes.node import container
from tests.fakes.sandbox import short_directory
from tests.fakes.waiting import until


class SplitWorld(DraWorld):
    """``cards`` go by claims. What the kubelet has of our devices is reported as the node's allocatable."""

    def __init__(self, directory: Path, number: int = 2) -> None:
        super().__init__(directory, front=Front.SPLIT)
        self.cards = ClaimCards(number)

    def config(self, **changed: Any) -> Any:
        return super().config(claim_cards=self.cards, settle_seconds=1.0, **changed)

    def register(self) -> None:
        until(lambda: DRA_DRIVER in self.manager.find_drivers())

    def report(self) -> dict[str, int]:
        """As the kubelet's node status."""
        shown = healthy(self.kubelet)
        body = {"status": {"allocatable": {resource: str(count) for resource, count in shown.items()}}}
        self.api.patch("nodes", NODE, body, subresource="status")
        return shown

    def devices(self) -> int:
        self.report()
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
    assert all(until(world.agent.ready).values()), world.agent.why()


def test_a_restarted_agent_keeps_every_card_where_it_is(world: SplitWorld) -> None:
    pod = world.run(world.pod(world.claim()))
    before = world.agent.state.view.sides
    world.restart(ClaimCards(2))
    assert world.agent.state.view.sides == before
    assert world.limits(pod, "c0")
    until(lambda: healthy(world.kubelet) == {CORE: 200, MEMORY: 116})


def test_cards_go_back_and_a_late_claim_keeps_its_card_till_its_end(world: SplitWorld) -> None:
    """Its pod has no controller: nobody would make it again."""
    late, used = world.pod(world.claim()), world.pod(world.claim())
    bound = world.run(used)
    stale = world.schedule(late)
    world.restart(ClaimCards(0))
    world.manager.prepare(stale)
    assert world.limits(stale, "c0")
    assert world.report().get(CORE) == 200
    world.end(stale)
    until(lambda: world.report().get(CORE) == 300)
    assert len(world.scheduler.devices(NODE)) == 1, "a card that is held stays"
    world.end(bound)
    until(lambda: world.report().get(CORE) == 400)
    assert world.scheduler.devices(NODE) == []


def test_a_node_that_is_split_no_more_changes_card_by_card(world: SplitWorld) -> None:
    pod = world.run(world.pod(world.claim()))
    world.stop_agent()
    world.wanted, world.cards = Front.PLUGIN, ClaimCards(0)
    world.start_agent_with(injection="cdi")
    assert world.agent.fronts.in_force is Front.SPLIT
    assert "stays split until 2 of its 4 cards have changed to plugin" in world.agent.why()
    until(lambda: world.report().get(CORE) == 300)
    world.end(pod)
    until(lambda: world.report().get(CORE) == 400)
    world.stop_agent()
    world.agent = Agent(world.config())
    world.agent.start()
    assert world.agent.fronts.in_force is Front.PLUGIN
    assert world.agent.state.view.sides is None
