"""One judgement: what the extender's filter accepts and its bind decides, the agent grants, card by card.

The extender is the real one over a cluster on paper; the agent's allocator and device plugin are the real
ones on the kubelet stand-in, which admits in an order of its own.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.contract import (
    ALLOCATION,
    CARDS,
    INVENTORY,
    MULTI_CARD,
    NVIDIA,
    Inventory,
    decode_assignment,
    encode_inventory,
)
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.domain.topology import Link, Topology
from tests.fakes.extender import World, bound, container, node, pod
from tests.fakes.node import NODE, NodeRig
from tests.fakes.ports import cards
from tests.seeds import seeds

STEPS = 40
FRACTIONS = ((10, 4), (20, 8), (30, 20), (50, 32), (70, 40), (99, 1))


def asked(dice: random.Random, name: str) -> dict[str, Any]:
    """A fraction, several, whole cards, a sidecar, an init container on one card, parts of several cards."""
    kind = dice.randrange(8)
    one, two = dice.choice(FRACTIONS), dice.choice(FRACTIONS)
    uid = f"{dice.getrandbits(128):032x}"
    if kind == 0:
        return pod(name, 100 * dice.choice((1, 1, 2)), None, uid=uid)
    if kind == 1:
        return pod(name, uid=uid, containers=[container("a", *one), container("b", *two)])
    if kind == 2:
        first = container("first", 40, 16)
        return pod(name, uid=uid, containers=[container("main", 40, 16)], init=[first])
    if kind == 3:
        beside = container("beside", 10, 4, restartPolicy="Always")
        return pod(name, uid=uid, containers=[container("main", *one)], init=[beside])
    if kind > 5:
        parts = dice.choice((2, 2, 3, 4))
        return pod(name, one[0] * parts, one[1] * parts, uid=uid, annotations={CARDS: str(parts)})
    return pod(name, *one, uid=uid)


@pytest.mark.parametrize("seed", seeds(4))
def test_what_filter_accepts_the_agent_grants_on_the_same_cards(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    topology = Topology.uniform(8, Link.parse("NV12"))
    with NodeRig(tmp_path, topology=topology, seed=seed) as rig:
        here = node(NODE)
        here["metadata"]["annotations"][INVENTORY] = encode_inventory(
            Inventory(DEFAULT_UNIT, rig.states, topology, features=frozenset({MULTI_CARD}))
        )
        world = World([here])
        waiting: list[dict[str, Any]] = []
        running: list[dict[str, Any]] = []
        granted = refused = 0
        for step in range(STEPS):
            new = asked(dice, f"pod-{step}")
            world.create(new)
            if not world.filter(new)["NodeNames"]:
                refused += 1
                world.delete(new)
            else:
                assert world.bind(new, NODE) == ""
                waiting.append(world.api.pods["default", new["metadata"]["name"]])
            if dice.random() < 0.3 and running:
                gone = running.pop(dice.randrange(len(running)))
                rig.delete(gone)
                world.delete(gone)
            if dice.random() < 0.5 or step == STEPS - 1:  # the kubelet takes what has come, in its own order
                for bound in waiting:
                    rig.pods.bind(rig.parsed(bound))
                dice.shuffle(waiting)
                for bound in waiting:
                    result = rig.kubelet.admit(bound)
                    assert result.admitted, (step, bound["metadata"]["name"], result.message)
                    said = decode_assignment(bound["metadata"]["annotations"][ALLOCATION])
                    assert said is not None
                    index = {s.card.uuid: s.card.index for s in rig.states}
                    for name, shares in said.containers.items():
                        assert set(rig.cards_of(bound, name)) == {index[uuid] for uuid, _ in shares}, (
                            step,
                            name,
                        )
                    granted += 1
                running += waiting
                waiting = []
            assert world.over_committed() == []
        assert granted >= 10
        assert refused >= 3


def test_cards_given_under_nvidias_name_are_booked_where_the_agent_gave_them(tmp_path: Path) -> None:
    """Before its annotation the extender knows how many, after it which; quota counts them from the first on."""
    gpus = {"name": "main", "image": "image", "resources": {"limits": {NVIDIA: "2"}}}
    with NodeRig(tmp_path, cards(4), lending=True) as rig:
        here = node(NODE)
        told = Inventory(DEFAULT_UNIT, rig.states, rig.topology)
        here["metadata"]["annotations"][INVENTORY] = encode_inventory(told)
        here["status"]["capacity"] = {name: str(count) for name, count in rig.kubelet.capacity().items()}
        world = World([here])
        old = pod("old", containers=[gpus], on=NODE)
        world.create(old)

        def used() -> list[int]:
            return [a.cores for a in world.cluster.snapshot().used["default"].values()]

        assert used() == [200]
        assert rig.admit(pod("unseen", on=NODE)).admitted  # its card is no more for the other
        assert rig.admit(old).admitted
        rig.start(old)
        world.show(bound(old, NODE, rig.pods.annotations[old["metadata"]["uid"]]))
        assert used() == [200]
        held = {i for i, (cores, _) in enumerate(world.booked(NODE)) if cores}
        assert held == set(rig.cards_of(old, "main")) != {0, 1}
