"""The cluster as the page shows it: cards, holders, who waits for what; bounded in size and in time."""

import json

from admission.explain.explanation import explain
from admission.explain.page import KEPT_SECONDS, MOST_NODES, MOST_WAITING, ClusterPage, graph
from tests.fakes.extender import UNIT, World, node, pod


class Clock:
    """``cost`` seconds pass with each look."""

    def __init__(self, cost=0.0):
        self.time, self.cost = 100.0, cost

    def monotonic(self):
        self.time += self.cost
        return self.time

    def now(self):
        return self.time


def page(world, clock):
    asked = []

    def told(occupant):
        asked.append(occupant.pod.key)
        return explain(occupant, world.cluster.snapshot(), world.quota.current, world.judge)

    return ClusterPage(world.cluster.snapshot, world.cluster.waiting, told, clock), asked


def data(shown):
    return json.loads(shown.data())


def test_every_card_is_shown_with_its_holders_and_every_pod_with_what_it_waits_for():
    world = World(
        [node("n1", cards=2), node("n2", cards=0)], [pod("a", 80, 4, on="n1"), pod("b", 70, 4, on="n1")]
    )
    world.create(pod("late", 50, 4))
    shown, _ = page(world, Clock())
    found = data(shown)
    (one,) = found["nodes"]
    assert one["node"] == "n1"
    holders = {
        h["pod"]: (c["index"], h["cores"], h["memory"], h["planned"])
        for c in one["cards"]
        for h in c["holders"]
    }
    assert {name: held[1:] for name, held in holders.items()} == {
        "a": (80, 4 * UNIT, False),
        "b": (70, 4 * UNIT, False),
    }
    assert sorted(c["cores_free"] for c in one["cards"]) == [20, 30]
    (waits,) = found["waiting"]
    assert waits["pod"] == "default/late"
    assert waits["asks"] == "50 cores, 1 GiB"
    assert waits["why"].startswith("waits: of 2 nodes, ")
    assert found["left_out"] == {"nodes": 0, "waiting": 0}


def test_usage_is_absent_and_a_pod_that_is_being_bound_is_planned():
    world = World([node("n1", cards=1)])
    waiting = pod("a", 30, 4)
    world.create(waiting)
    world.api.before = lambda: seen.append(graph(world.cluster.snapshot().nodes["n1"]))
    seen = []
    world.filter(waiting)
    assert world.bind(waiting, "n1") == ""
    seen.append(graph(world.cluster.snapshot().nodes["n1"]))
    (before,), (after,) = (found["cards"][0]["holders"] for found in seen)
    assert (before["planned"], after["planned"]) == (True, False)
    assert (after["core_used"], after["memory_used"]) == (None, None)


def test_whoever_asks_within_two_seconds_gets_the_same_picture():
    world, clock = World([node("n1")]), Clock()
    world.create(pod("late", 150, 4))
    shown, asked = page(world, clock)
    first = shown.data()
    world.create(pod("later", 30, 4))
    assert shown.data() is first
    assert len(asked) == 1
    clock.time += KEPT_SECONDS
    assert len(data(shown)["waiting"]) == 2


def test_reasons_that_take_long_come_one_after_the_other_and_never_hold_up_the_page():
    world, clock = World([node("n1")]), Clock(cost=1.0)
    for name in "abc":
        world.create(pod(name, 150, 4))
    shown, asked = page(world, clock)
    told = []
    for _ in range(3):
        told.append([row["why"] for row in data(shown)["waiting"]])
        clock.time += KEPT_SECONDS
    assert [sum(why == "being worked out" for why in whys) for whys in told] == [2, 1, 0]
    assert sorted(asked) == ["default/a", "default/b", "default/c"]


def test_a_large_cluster_is_shown_in_part_and_the_rest_is_counted():
    world = World([node(f"n{i:03}", cards=1) for i in range(MOST_NODES + 3)], [pod("a", 30, 4, on="n202")])
    for i in range(MOST_WAITING + 2):
        world.create(pod(f"p{i}", 150, 4))
    shown, _ = page(world, Clock(cost=1.0))
    found = data(shown)
    assert "n202" in {n["node"] for n in found["nodes"]}
    assert (len(found["nodes"]), len(found["waiting"])) == (MOST_NODES, MOST_WAITING)
    assert found["left_out"] == {"nodes": 3, "waiting": 2}
