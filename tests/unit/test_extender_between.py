"""What changes between filter and prioritize counts, whether few nodes are judged again or all."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from admission.cluster.snapshot import NODES
from admission.extender.ranking import scores
from admission.extender.wire import NodeNames
from gpu_manager.domain.contract import PLACEMENT
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.domain.resources import Amount
from tests.fakes.extender import UNIT, World, args, node, pod, uuid

_NAMES = [f"n{at}" for at in range(6)]
_EVENTS = ("comes", "leaves", "closes", "goes", "is new", "is awaited", "is mine", "is quota")
_changes = st.lists(
    st.tuples(st.sampled_from(_EVENTS), st.integers(0, 5), st.sampled_from([20, 60, 100])), max_size=5
)


def _world(quota: bool, spread: bool) -> tuple[World, dict]:
    limits = {"*": {"quota": {"T4": 1.6}}} if quota else None
    world = World([node(name, cards=2) for name in _NAMES], quota=limits, expecting=True)
    asking = pod("asks", 60, 4, annotations={PLACEMENT: "spread"} if spread else None)
    world.create(asking, *(pod(f"here-{at}", 30, 4, on=f"n{at}") for at in range(3)))
    return world, asking


def _change(world: World, event: str, at: int, core: int) -> None:
    name = f"n{at}"
    if event == "comes":
        world.create(pod(f"more-{at}-{core}", core, 4 if core < 100 else None, on=name))
    elif event == "leaves":
        world.delete(pod(f"here-{at}", 30, 4, on=name))
    elif event == "closes":
        world.cluster.apply(NODES, "MODIFIED", node(name, cards=2, closed=(0,)))
    elif event == "goes":
        world.cluster.apply(NODES, "DELETED", node(name))
    elif event == "is new":
        world.cluster.apply(NODES, "ADDED", node(f"new-{at}", cards=2))
    elif event == "is awaited":
        world.create(
            pod(f"preempts-{at}-{core}", core, 4 if core < 100 else None, nominated=name, priority=9)
        )
    elif event == "is mine":
        mine = {"main": (Share(uuid(name, 0), Amount(60, 4 * UNIT)),)}
        asks = world.cluster.pod("uid-default-asks")
        world.cluster.expect(asks, name, mine, world.clock.monotonic())
    else:
        world.limit({"*": {"quota": {"T4": core / 50}}})


@settings(max_examples=300)
@example(changes=[("comes", 5, 100)], quota=True, spread=False, names=_NAMES)
@example(changes=[("is mine", 2, 60), ("comes", 4, 60)], quota=False, spread=False, names=_NAMES)
@given(
    changes=_changes,
    quota=st.booleans(),
    spread=st.booleans(),
    names=st.lists(st.sampled_from(_NAMES), min_size=2, max_size=9),
)
def test_scores_are_those_of_the_nodes_as_they_are_whatever_filter_saw(changes, quota, spread, names):
    said = []
    for filtered_before in (True, False):
        world, asking = _world(quota, spread)
        if filtered_before:
            names_of = world.filter(asking, names)["NodeNames"]
        for event, at, core in changes:
            _change(world, event, at, core)
        reply = world.extender.prioritize(args(asking, names_of))
        said.append((reply.status, json.loads(reply.body)))
    assert said[0] == said[1]


_some = st.permutations(_NAMES).flatmap(lambda names: st.integers(2, 6).map(lambda most: names[:most]))


@settings(max_examples=200)
@given(
    rounds=st.lists(
        st.tuples(_changes, st.sampled_from([20, 60, 100]), st.just(_NAMES) | _some | st.just(["n1", "n1"])),
        min_size=1,
        max_size=5,
    ),
    quota=st.booleans(),
)
def test_pods_alike_are_told_of_the_nodes_as_they_are_whatever_was_said_of_the_last(rounds, quota):
    said = []
    for afresh in (False, True):
        world, _ = _world(quota, spread=False)
        said.append([])
        for at, (changes, core, names) in enumerate(rounds):
            for event, node_at, size in changes:
                _change(world, event, node_at, size)
            asking = pod(f"next-{at}", core, 4 if core < 100 else None)
            world.create(asking)
            if afresh:  # the last answer is about other nodes
                world.filter(pod("between", core, 4 if core < 100 else None), ["elsewhere"])
            found = world.filter(asking, names)
            said[-1].append((found, found["NodeNames"] and world.prioritize(asking, found["NodeNames"])))
    assert said[0] == said[1]


def test_only_nodes_that_changed_are_judged_again():
    looked = []

    class Names(dict):
        def get(self, name, default=None):
            looked.append(name)
            return super().get(name, default)

    world, asking = _world(quota=False, spread=False)
    fitting = world.filter(asking)["NodeNames"]
    world.create(pod("more", 60, 4, on="n1"), pod("most", 60, 4, on="n1"))
    snapshot = world.cluster.snapshot()
    object.__setattr__(snapshot, "nodes", Names(snapshot.nodes))
    given_scores = world.prioritize(asking, fitting)
    assert looked == [name for name, score in given_scores.items() if score == 10]
    assert given_scores["n1"] == 0
    assert 10 in given_scores.values()


@pytest.mark.parametrize("names", [["b", "a", "a"], ["a", "b", "a"], ["a", "a", "b"]])
def test_a_name_that_comes_twice_gets_one_ten_where_its_kind_is_best(names):
    kinds = [{"a": 1, "b": 2}[name] for name in names]
    given_scores = scores(NodeNames(names), np.array(kinds), {1: (0.0, 0), 2: (1.0, 0)}).tolist()
    assert given_scores.count(10) == 1
    assert given_scores.index(10) == names.index("a")
    twice = scores(NodeNames(["a", "a"]), np.array([2, 1]), {1: (0.0, 0), 2: (1.0, 0)})
    assert twice.tolist() == [0, 10]
