"""A dry run answers as filter would, and leaves no trace."""

import json
import random

import pytest

from bench.dry_run import differences
from tests.fakes.extender import World, answer, args, node, pod


def dry(world, obj, names=None):
    return answer(world.extender.dry_run(args(obj, world.nodes if names is None else names)))


def test_it_keeps_no_place_and_tells_nobody():
    world = World([node("n1")], expecting=True)
    waits = pod("waits", 100, None)
    world.create(waits)
    assert dry(world, waits)["NodeNames"] == ["n1"]
    assert world.cluster.snapshot().reserved == {}
    assert (world.counts, world.api.bindings) == ({}, [])
    assert "was never offered" in world.bind(waits, "n1")


def test_a_node_that_does_not_exist_is_judged_by_its_template():
    """What a cluster autoscaler shows: capacities, and no inventory."""
    world = World([node("n1", 1)], [pod("old", 60, 16, on="n1")])
    template = node("template-1", 2, inventory=False)
    asked = {"Pod": pod("p", 60, 16), "Nodes": {"items": [template]}, "NodeNames": None}
    found = answer(world.extender.dry_run(json.dumps(asked).encode()))
    assert [one["metadata"]["name"] for one in found["Nodes"]["items"]] == ["template-1"]
    assert dry(world, pod("p", 60, 16))["NodeNames"] == []


def test_a_pod_of_a_gang_is_judged_alone():
    marks = {
        "labels": {"kueue.x-k8s.io/pod-group-name": "k"},
        "annotations": {"kueue.x-k8s.io/pod-group-total-count": "9"},
    }
    world = World([node("n1")], expecting=True)
    member = pod("k-0", 100, None, **marks)
    world.create(member)
    assert world.filter(member)["NodeNames"] == []
    assert dry(world, member)["NodeNames"] == ["n1"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"Pod": 3}', b'{"Pod": {"spec": 1}}', b"\xff\xfe"])
def test_what_is_no_question_gets_an_error(body):
    assert answer(World([node("n1")]).extender.dry_run(body))["Error"]


def test_an_illegal_pod_fits_nowhere():
    found = dry(World([node("n1")]), pod("p", 150, None))
    assert found["NodeNames"] == []
    assert "150" in found["FailedAndUnresolvableNodes"]["n1"]


def test_before_the_first_lists_nobody_knows():
    world = World([node("n1")])
    world.cluster._synced.clear()  # as before the first list
    assert "not been listed yet" in dry(world, pod("p"), ["n1"])["Error"]


@pytest.mark.parametrize("seed", range(8))
def test_it_answers_as_filter_does(seed):
    assert differences(random.Random(seed), 40) == (0, 0)
