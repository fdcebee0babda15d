"""The data of the cluster's console: cards, holders, who waits for what; bounded in size and in time."""

import gzip
import json

from admission.cluster.node_view import AWAY
from admission.console.agents_usage import AgentAnswer
from admission.console.cluster_page import (
    KEPT_SECONDS,
    MOST_NODES,
    MOST_SCOPES,
    MOST_WAITING,
    ClusterPage,
    PageSources,
    graph,
)
from admission.explain.explanation import explain
from gpu_manager.domain.cluster.usage_json import UsedShare
from gpu_manager.domain.contract import DRA_DRIVER, RESIZE
from tests.fakes.extender import UNIT, World, node, pod
from tests.unit.test_cluster_claims import claim, held, show
from tests.unit.test_cluster_claims import world as claims_world


class Clock:
    """``cost`` seconds pass with each look."""

    def __init__(self, cost=0.0):
        self.time, self.cost = 100.0, cost

    def monotonic(self):
        self.time += self.cost
        return self.time

    def now(self):
        return self.time


def page(world, clock, usage=dict, stale=float):
    asked = []

    def told(occupant, everywhere):
        asked.append(occupant.pod.key)
        snapshot = world.cluster.snapshot()
        return explain(occupant, snapshot, world.quota.current, world.judge, everywhere=everywhere)

    sources = PageSources(
        world.cluster.snapshot, world.cluster.waiting, told, lambda: world.quota.current, usage, (), stale
    )
    return ClusterPage(sources, clock), asked


def data(shown, *asked):
    return json.loads(shown.data(*asked))


def test_the_figures_are_as_old_as_the_last_word_of_an_api_server_that_is_silent():
    world, silent = World([node("n1", cards=2)], []), [0.0]
    shown, _ = page(world, Clock(cost=3.0), stale=lambda: silent[0])
    assert data(shown)["age"] == 0.0
    silent[0] = 41.26
    assert data(shown)["age"] == 41.3


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
    world = World([node(f"n{i:04}", cards=1) for i in range(MOST_NODES + 3)], [pod("a", 30, 4, on="n1002")])
    for i in range(MOST_WAITING + 2):
        world.create(pod(f"p{i}", 150, 4))
    shown, _ = page(world, Clock(cost=1.0))
    found = data(shown)
    assert "n1002" in {n["node"] for n in found["nodes"]}
    assert (len(found["nodes"]), len(found["waiting"])) == (MOST_NODES, MOST_WAITING)
    assert found["left_out"] == {"nodes": 3, "waiting": 2}


def test_a_console_that_was_answered_before_gets_what_changed_since():
    world, clock = World([node("n1"), node("n2"), node("n3")]), Clock()
    shown, _ = page(world, clock)
    first = data(shown)
    assert (first["full"], [n["node"] for n in first["nodes"]]) == (True, ["n1", "n2", "n3"])
    clock.time += KEPT_SECONDS
    world.create(pod("a", 30, 4, on="n2"))
    world.cluster.apply("nodes", "DELETED", node("n3"))
    second = data(shown, "", first["generation"])
    assert (second["full"], [n["node"] for n in second["nodes"]], second["gone"]) == (False, ["n2"], ["n3"])
    assert [n["node"] for n in data(shown, "", second["generation"])["nodes"]] == []
    for strange in ("", "x-1", first["generation"].replace("-", "+"), f"{first['generation']}9999999999999"):
        assert data(shown, "", strange)["full"], strange


def test_an_answer_can_be_compressed():
    shown, _ = page(World([node("n1")]), Clock())
    assert gzip.decompress(shown.data(zipped=True)) == shown.data()


def test_who_may_see_one_namespace_sees_its_pods_quota_and_waiting_pods_alone():
    quota = {"default": {"quota": {"T4": 9}}, "other": {"quota": {"T4": 1}}}
    bound = [pod("mine", 30, 4, on="n1"), pod("theirs", 40, 4, on="n1", namespace="other")]
    world = World([node("n1", cards=1)], bound, quota=quota)
    world.create(pod("late", 80, 4))
    world.create(pod("secret", 80, 4, namespace="other"))
    shown, _ = page(world, Clock())
    text = shown.data("default").decode()
    found = json.loads(text)
    (card,) = found["nodes"][0]["cards"]
    assert card["cores_free"] == 30, "sums are of all pods"
    named = {h["pod"]: h.get("hidden", False) for h in card["holders"]}
    assert named == {"mine": False, "": True}
    assert [row["pod"] for row in found["waiting"]] == ["default/late"]
    assert {row["namespace"] for row in found["quota"]} == {"default"}
    for word in ("theirs", "secret", "other/"):
        assert word not in text
    everywhere = data(shown)
    assert {row["namespace"] for row in everywhere["quota"]} == {"default", "other"}
    assert len(everywhere["waiting"]) == 2


def test_a_holder_whose_size_is_to_change_tells_how_far_that_is():
    asks = {RESIZE: json.dumps({"v": 1, "containers": {"main": {"cores": 50}}})}
    world = World(
        [node("n1", cards=1)], [pod("a", 30, 4, on="n1", annotations=asks), pod("b", 10, 4, on="n1")]
    )
    found = {h["pod"]: h["resize"] for h in data(page(world, Clock())[0])["nodes"][0]["cards"][0]["holders"]}
    assert found["b"] is None
    assert (found["a"]["stage"], found["a"]["wanted"]["cores"], found["a"]["spec"]["cores"]) == (
        "asked",
        50,
        30,
    )


def test_pods_that_wait_are_grouped_by_what_stands_in_the_way_with_the_change_that_helps():
    world = World([node("n1", cards=1)], [pod("a", 80, 4, on="n1")])
    for name, cores in (("room", 50), ("never", 200), ("fits", 10)):
        world.create(pod(name, cores, 4 if cores < 100 else None))
    shown, _ = page(world, Clock())
    rows = {row["pod"].partition("/")[2]: row for row in data(shown)["waiting"]}
    assert {name: row["group"] for name, row in rows.items()} == {
        "room": "room",
        "never": "never",
        "fits": "fits",
    }
    assert rows["room"]["change"]
    assert all("created" in row and row["priority"] == 0 for row in rows.values())


def test_many_namespaces_and_nodes_that_come_and_go_are_not_remembered_without_bound():
    world, clock = World([node("n1")]), Clock()
    shown, _ = page(world, clock)
    first = data(shown, "ns-0")
    for i in range(1, MOST_SCOPES + 1):
        data(shown, f"ns-{i}")
    assert data(shown, "ns-0", first["generation"])["full"], "its state was dropped and is made anew"
    gone = data(shown)["generation"]
    for i in range(MOST_NODES + 1):
        world.cluster.apply("nodes", "ADDED", node(f"m{i:04}", cards=1))
    clock.time += KEPT_SECONDS
    data(shown)
    for i in range(MOST_NODES + 1):
        world.cluster.apply("nodes", "DELETED", node(f"m{i:04}", cards=1))
    clock.time += KEPT_SECONDS
    data(shown)
    for i in range(MOST_NODES + 1):
        world.cluster.apply("nodes", "ADDED", node(f"k{i:04}", cards=1))
    clock.time += KEPT_SECONDS
    data(shown)
    for i in range(MOST_NODES + 1):
        world.cluster.apply("nodes", "DELETED", node(f"k{i:04}", cards=1))
    clock.time += KEPT_SECONDS
    assert data(shown, "", gone)["full"]


def test_usage_is_what_the_agents_say_and_blank_for_agents_that_are_silent_and_other_namespaces():
    bound = [
        pod("mine", 30, 4, on="n1"),
        pod("theirs", 40, 4, on="n1", namespace="other"),
        pod("b", 9, 4, on="n2"),
    ]
    world, clock, said = World([node("n1", cards=1), node("n2", cards=1)], bound), Clock(), {}
    shown, _ = page(world, clock, lambda: said)
    view = world.cluster.snapshot().nodes["n1"]
    first = data(shown)
    assert first["silent"] == ["n1", "n2"]
    usage = {(a.pod, a.container, a.cards[0]): UsedShare(12.5, 7) for a in view.ledger}
    said["n1"] = AgentAnswer(clock.time - 3, usage)
    clock.time += KEPT_SECONDS
    found = data(shown, "", first["generation"])
    assert (found["usage_age"], found["silent"]) == (5.0, ["n2"])
    assert [n["node"] for n in found["nodes"]] == ["n1"], "n2 did not change"
    used = {h["pod"]: (h["core_used"], h["memory_used"]) for h in found["nodes"][0]["cards"][0]["holders"]}
    assert used == {"mine": (0.125, 7), "theirs": (0.125, 7)}
    scoped = next(n for n in data(shown, "default")["nodes"] if n["node"] == "n1")
    used = {h["pod"]: (h["core_used"], h["memory_used"]) for h in scoped["cards"][0]["holders"]}
    assert used == {"mine": (0.125, 7), "": (None, None)}
    clock.time += KEPT_SECONDS
    assert data(shown, "", found["generation"])["nodes"] == [], "equal figures are not sent again"


def test_what_a_claim_holds_is_its_pods_and_not_a_pod_that_is_gone():
    cluster = claims_world(node("n1", claimed=[0, 1]))
    show(cluster, claim("shared", held("n1", 1), pods=("a", "b")))
    first, second = graph(cluster.cluster.snapshot().nodes["n1"])["cards"]
    (holder,) = second["holders"]
    assert (holder["claim"], holder["pods"], holder["gone"]) == ("shared", ["a", "b"], None)
    assert [(c["held"], c["reason"], c["open"]) for c in (first, second)] == [(DRA_DRIVER, "", False)] * 2
    (hidden,) = graph(cluster.cluster.snapshot().nodes["n1"], "other")["cards"][1]["holders"]
    assert (hidden["hidden"], hidden["claim"], hidden["pods"], hidden["gone"]) == (True, "", [], None)


def test_cards_of_a_node_that_takes_no_pods_are_not_open_and_say_why():
    world = World([node("n1", cards=2, serving=False), node("n2", cards=1)], [pod("a", 30, 4, on="n1")])
    away, well = (graph(world.cluster.snapshot().nodes[name])["cards"] for name in ("n1", "n2"))
    assert [(c["open"], c["reason"]) for c in away] == [(False, AWAY)] * 2
    assert [(c["open"], c["reason"]) for c in well] == [(True, "")]
