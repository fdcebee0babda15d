"""Filter may offer only the best few nodes of equal cost: pods lie where they would lie without that."""

from __future__ import annotations

import json
from random import Random

import pytest

from tests.fakes.extender import World, answer, args, node, pod
from tests.seeds import seeds

_ASKS = ((10, 1), (30, 2), (60, 4), (100, None), (200, None))


def cluster(best_nodes: int, *, deployed: bool = True) -> World:
    nodes = [node(f"n{at:02d}", 4, model="A10" if at % 3 else "T4") for at in range(12)]
    return World(nodes, expecting=True, deployed=deployed, best_nodes=best_nodes)


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("deployed", [False, True])
def test_pods_lie_where_they_would_lie_if_all_nodes_were_offered(seed: int, deployed: bool) -> None:
    worlds = [cluster(most, deployed=deployed) for most in (0, 1, 3)]
    dice, offered = Random(seed), 0
    for at in range(60):
        core, memory = dice.choice(_ASKS)
        names = [f"n{n:02d}" for n in range(12)]
        dice.shuffle(names)
        lies = []
        for world, most in zip(worlds, (0, 1, 3), strict=True):
            world.create(asking := pod(f"p{at}", core, memory))
            whole = set(answer(world.extender.dry_run(args(asking, names)))["NodeNames"] or ())
            said = world.filter(asking, names)
            fitting = said["NodeNames"] or []
            assert whole.issuperset(fitting)
            assert fitting == [name for name in names if name in fitting], "in the order of the question"
            if most:
                assert len(fitting) <= most
                assert bool(fitting) == bool(whole)
                offered += len(fitting) > 1
            if most and len(whole) > 1:
                assert not said["FailedNodes"]
                assert not said["FailedAndUnresolvableNodes"]
            given = world.prioritize(asking, fitting) if len(fitting) > 1 else dict.fromkeys(fitting, 10)
            if most:
                assert sorted(given.values()) == [8] * (len(given) - 1) + [10] * bool(given), "of equal cost"
            where = max(given, key=given.__getitem__, default="")
            lies.append(where)
            if where:
                assert world.bind(asking, where) == ""
        assert len(set(lies)) == 1, (seed, at, lies)
    assert offered > 3, "several nodes of equal cost"


def test_a_pod_that_no_node_takes_gets_all_reasons() -> None:
    world = cluster(1)
    said = world.filter(pod("large", 800, None))
    assert said["NodeNames"] == []
    assert len(said["FailedNodes"]) + len(said["FailedAndUnresolvableNodes"]) == 12


def test_who_may_not_bind_and_who_sends_whole_nodes_is_offered_every_node() -> None:
    world = cluster(1)
    world.create(asking := pod("p", 30, 2))
    other = answer(world.extender.filter(args(asking, world.nodes), binds=False))
    assert len(other["NodeNames"]) == 12
    assert len(answer(world.extender.dry_run(args(asking, world.nodes)))["NodeNames"]) == 12
    items = [node(name, 4) for name in world.nodes]
    body = json.dumps({"Pod": asking, "Nodes": {"items": items}}).encode()
    assert len(answer(world.extender.filter(body))["Nodes"]["items"]) == 12


def test_the_only_node_that_is_offered_counts_as_taken_until_the_pod_is_bound() -> None:
    world = cluster(1)
    for name in ("first", "second"):
        world.create(asking := pod(name, 400, None))
        (where,) = world.filter(asking)["NodeNames"]
        assert world.cluster.expected_on(asking["metadata"]["uid"]) == where
    first, second = (
        world.cluster.expected_on(world.api.pods["default", name]["metadata"]["uid"])
        for name in ("first", "second")
    )
    assert first != second


def test_a_place_that_is_not_offered_again_is_given_up() -> None:
    world = cluster(1)
    world.create(asking := pod("p", 30, 2))
    uid = asking["metadata"]["uid"]
    (before,) = world.filter(asking)["NodeNames"]
    rest = [name for name in world.nodes if name != before]
    (after,) = world.filter(asking, rest)["NodeNames"]
    assert world.cluster.expected_on(uid) == after != before
