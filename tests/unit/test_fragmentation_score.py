"""The deployed choice among nodes: fed by the watch, deterministic, blind to names, ready before it is asked."""

import pytest

from admission.cluster.snapshot import NODES, PODS
from admission.extender.fragmentation_score import LeastFragmentation, shapes_of, stock_of
from admission.extender.node_rooms import MultiGpuCount, NodeRooms
from admission.extender.verbs import Extender
from gpu_manager.domain.contract import PLACEMENT
from gpu_manager.domain.resources import GIB
from gpu_manager.domain.score.request_mix import RequestShape, Stock
from tests.fakes.extender import UNIT, World, container, node, pod
from tests.seeds import generator


def at_once(job):
    job()


def with_cpu(obj, cpu):
    if obj["kind"] == "Node":
        obj["status"]["allocatable"] = {**obj["status"]["allocatable"], "cpu": cpu}
    else:
        obj["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    return obj


def world_of(nodes, pods=(), aside=at_once):
    world = World(nodes, pods)
    world.policy = LeastFragmentation(world.cluster, aside=aside)
    world.extender = Extender(world.cluster, world.quota, world.judge, world.policy, world.binder)
    return world


def best(world, obj, names=None):
    scores = world.prioritize(obj, names)
    assert max(scores.values()) == 10
    assert sum(score == 10 for score in scores.values()) == 1
    assert all(0 <= score <= 8 for score in scores.values() if score != 10)
    return max(scores, key=scores.get)


def test_a_fraction_fills_the_card_that_is_open_already():
    world = world_of([node("n1"), node("n2")], [pod("x", 60, 20, on="n2")])
    world.create(obj := pod("a", 40, 20))
    assert best(world, obj) == "n2"


def test_a_model_that_others_can_only_use_is_left_to_them():
    picky = [pod(f"t{i}", 100, None, annotations={"tencent.com/gpu-model": "A10"}) for i in range(10)]
    world = world_of([node("n1", model="A10"), node("n2", model="T4")], picky)
    world.create(obj := pod("a", 100, None))
    assert best(world, obj) == "n2"


def test_a_node_without_host_cpu_to_spare_is_the_one_to_use_up():
    """Its cards are of no use to anybody once the CPU is gone, so a pod that needs little goes there."""
    eaters = [with_cpu(pod(f"e{i}", 50, 10), "8") for i in range(20)]
    nodes = [with_cpu(node("n1"), "64"), with_cpu(node("n2"), "4")]
    world = world_of(nodes, eaters)
    world.create(obj := with_cpu(pod("a", 50, 10), "1"))
    assert best(world, obj) == "n2"


def test_pods_without_a_card_take_host_cpu_too():
    eaters = [with_cpu(pod(f"e{i}", 50, 10), "8") for i in range(20)]
    other = with_cpu(pod("other", None, None, on="n2", phase="Running"), "60")
    world = world_of([with_cpu(node("n1"), "64"), with_cpu(node("n2"), "64")], [*eaters, other])
    assert world.cluster.snapshot().nodes["n2"].cpu == 4000
    world.create(obj := with_cpu(pod("a", 50, 10), "1"))
    assert best(world, obj) == "n2"
    world.cluster.apply(PODS, "DELETED", other)
    assert world.cluster.snapshot().nodes["n2"].cpu == 64_000


def test_the_names_of_the_nodes_and_their_order_decide_nothing():
    chance = generator(5)
    held = [(f"h{i}", chance.choice([20, 30, 50, 70]), i % 6) for i in range(12)]
    chosen = []
    for names in ("abcdef", "fedcba", "cafebd"):
        world = world_of([node(name) for name in names], [pod(n, c, 8, on=names[at]) for n, c, at in held])
        world.create(obj := pod("new", 30, 8))
        chosen.append(names.index(best(world, obj, sorted(names))))
    view = [sorted(c for _, c, at in held if at == where) for where in chosen]
    assert view[0] == view[1] == view[2]


def test_what_was_remembered_is_what_a_fresh_one_finds():
    chance = generator(11)
    world = world_of([node(f"n{i}", cards=4) for i in range(6)])
    for i in range(40):
        world.create(obj := pod(f"p{i}", chance.choice([10, 25, 50, 80]), chance.choice([4, 8, 16])))
        fitting = world.filter(obj)["NodeNames"]
        if len(fitting) < 2:
            continue
        kept = world.prioritize(obj, fitting)
        scorer, old = world.policy.scorer, world.policy
        fresh = LeastFragmentation(world.cluster, aside=at_once)
        fresh._epoch = type(old._epoch)(scorer, NodeRooms())
        world.extender._choice._policy = fresh
        assert world.prioritize(obj, fitting) == kept
        world.extender._choice._policy = old
        world.bind(obj, max(kept, key=kept.get))


def test_only_nodes_that_changed_are_worked_out_again():
    world = world_of([node(f"n{i}") for i in range(50)], aside=lambda job: None)
    world.create(first := pod("a", 30, 8))
    world.prioritize(first)
    known = len(world.policy._epoch.known)
    assert known == 1  # fifty equal nodes are one
    world.filter(first)
    assert world.bind(first, "n7") == ""
    world.create(second := pod("b", 30, 8))
    world.prioritize(second)
    assert len(world.policy._epoch.known) == known + 1


def test_a_new_mix_is_made_beside_the_old_one_which_answers_so_many_questions_more():
    jobs = []
    world = world_of([node("n1"), node("n2")], aside=jobs.append)
    world.create(obj := pod("p0", 30, 8), *[pod(f"p{i}", 30, 8) for i in range(1, 100)])
    best(world, obj)
    before = world.policy.scorer
    world.create(*[pod(f"more{i}", 30, 8) for i in range(20)])
    best(world, obj)
    assert len(jobs) == 1
    jobs.pop()()
    asked = 0
    while world.policy.scorer is before:
        asked += 1
        best(world, obj)
    assert asked == 8, "7 % of 120 arrivals"
    assert jobs == []
    assert world.policy.scorer.mix.total == before.mix.total + 20


def test_a_mix_that_its_thread_has_not_begun_is_made_when_it_is_to_answer():
    world = world_of([node("n1"), node("n2")], aside=lambda job: None)
    for i in range(5):
        world.create(obj := pod(f"p{i}", 30, 8))
        best(world, obj)
    assert world.policy.scorer.mix.total >= 3


def nodes_chosen(late):
    """The answers for the same pods, with each new mix made ``late`` pods after it was due."""
    chance, jobs, chosen = generator(8), [], []
    world = world_of([node(f"n{i}", cards=4) for i in range(8)], aside=jobs.append)
    for i in range(60):
        world.create(obj := pod(f"p{i}", chance.choice([10, 20, 35, 50, 70]), chance.choice([4, 8])))
        fitting = world.filter(obj)["NodeNames"]
        if len(fitting) > 1:
            chosen.append(best(world, obj, fitting))
            world.bind(obj, chosen[-1])
        if jobs and i % (late + 1) == late:
            jobs.pop()()
    return chosen


def test_when_the_thread_is_ready_changes_no_answer():
    at_first = nodes_chosen(late=0)
    assert len(at_first) > 40
    assert nodes_chosen(late=2) == nodes_chosen(late=1000) == at_first


def test_a_model_that_came_up_since_is_scored_at_once():
    world = world_of([node("n1", model="T4"), node("n2", model="T4")], aside=lambda job: None)
    world.create(obj := pod("a", 30, 8))
    best(world, obj)
    world.cluster.apply(NODES, "ADDED", node("n3", model="H200"))
    best(world, obj)


def test_every_pod_counts_once_whether_it_finds_room_or_not():
    world = world_of([node("n1"), node("n2")])
    world.create(huge := pod("huge", 800, None), obj := pod("a", 30, 8))
    world.filter(huge)
    best(world, obj)
    best(world, obj)
    assert dict(world.policy.scorer.mix.counts) == {RequestShape(800): 1, RequestShape(30, 8): 1}


def test_spread_and_topology_keep_their_meaning():
    world = world_of(
        [node("near", 2, link="NV4"), node("far", 2, link="SYS"), node("busy", 2)],
        [pod("x", 30, 8, on="busy")],
    )
    apart = pod("a", 30, 8, annotations={PLACEMENT: "spread"})
    joined = pod("b", 200, None, annotations={PLACEMENT: "topology"})
    world.create(apart, joined)
    assert best(world, apart) != "busy"
    assert best(world, joined) == "near"


def test_a_pod_of_several_parts_counts_as_each_of_them():
    world = World()
    parts = [container("a", 30, 8), container("b", 200)]
    world.create(with_cpu(pod("p", containers=parts), "2"))
    (occupant,) = world.cluster.fresh()
    assert shapes_of(occupant, UNIT) == [RequestShape(30, 8, 2000), RequestShape(200, 0, 0)]
    assert world.cluster.fresh() == []


def test_the_stock_counts_every_card_by_model():
    nodes = [node("n1", 2, model=["T4", "A10"]), node("n2", 4, model="T4", unhealthy=[0])]
    views = World(nodes).cluster.snapshot().nodes.values()
    units = 16 * GIB // UNIT
    assert stock_of(views) == {"T4": Stock(5, units), "A10": Stock(1, units)}


def test_the_last_node_for_several_cards_is_left_to_those_who_need_it():
    """Two idle cards of one node are asked for often: a small pod goes where a card is idle alone."""
    askers = [pod(f"w{i}", 200, None) for i in range(20)]
    held = pod("h", 100, None, on="n2")
    world = world_of([node("n1", cards=2), node("n2", cards=2)], [*askers, held])
    world.create(obj := pod("a", 100, None))
    assert best(world, obj) == "n2"
    assert world.policy.prices()[0] > 0


def test_the_places_left_are_counted_up_and_down_as_if_counted_anew():
    chance = generator(3)
    askers = [pod(f"w{i}", cores, None) for i, cores in enumerate((200, 200, 400))]
    world = world_of([node(f"n{i}", cards=4) for i in range(5)], askers, aside=lambda job: None)
    world.create(obj := pod("first", 20, 8))
    best(world, obj)
    epoch, there = world.policy._epoch, []
    for i in range(40):
        if there and chance.random() < 0.4:
            world.cluster.apply(PODS, "DELETED", there.pop(chance.randrange(len(there))))
        elif i == 20:
            world.cluster.apply(NODES, "DELETED", node("n4", cards=4))
            there = [obj for obj in there if obj["spec"]["nodeName"] != "n4"]
        else:
            obj = pod(f"p{i}", chance.choice([20, 100]), 8, on=f"n{chance.randrange(4)}")
            world.cluster.apply(PODS, "ADDED", obj)
            there.append(obj)
        kept = epoch.tally.prices(world.cluster)
        assert kept == MultiGpuCount(epoch.scorer.places, NodeRooms()).prices(world.cluster)
    assert len(kept) == 3, "two shapes, and idle nodes of one model"


@pytest.mark.parametrize(
    ("node_created", "pods_created", "least", "most"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T09:{:02}:00Z", 0.85, 0.95),  # a stream that stays for an hour
        ("2026-01-01T09:00:00Z", "2026-01-01T09:{:02}:00Z", 0, 0.05),  # the cluster is no older than its pods
        ("", "2026-01-01T09:{:02}:00Z", 0, 0.05),
        ("0001-01-01T00:00:00", "2026-01-01T09:{:02}:00Z{{", 0, 0),
    ],
)
def test_an_extender_that_starts_anew_tells_by_their_ages_how_many_pods_have_left(
    node_created, pods_created, least, most
):
    there = node("n1", cards=8)
    there["metadata"]["creationTimestamp"] = node_created
    pods = [pod(f"p{i}", 10, 1, on="n1", created=pods_created.format(i)) for i in range(60)]
    world = world_of([there], pods)
    world.create(obj := pod("a", 10, 1))
    world.filter(obj)
    assert least <= world.policy.scorer.mix.turnover <= most


def test_pods_that_left_their_node_or_ended_there_count_as_gone_once():
    world = world_of([node("n1", cards=4)], aside=lambda job: None)
    pods = [pod(f"p{i}", 20, 8, on="n1") for i in range(3)]
    for obj in [*pods, pod("waits", 20, 8)]:
        world.cluster.apply(PODS, "ADDED", obj)
    ended = pod("p0", 20, 8, on="n1", phase="Succeeded")
    world.cluster.apply(PODS, "MODIFIED", ended)
    world.cluster.apply(PODS, "DELETED", ended)
    world.cluster.apply(PODS, "DELETED", pods[1])
    world.cluster.apply(PODS, "DELETED", pod("waits", 20, 8))
    assert [occupant.pod.name for occupant in world.cluster.gone()] == ["p0", "p1"]
    assert world.cluster.gone() == []
