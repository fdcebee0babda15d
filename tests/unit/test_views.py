"""Explanations: counts that add up, a change that really helps, one line that a person understands."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.cluster.pod_view import pod_view
from admission.explain.explain_api import as_json, as_text, quota_text
from admission.explain.explanation import explain
from admission.explain.remedies import QUOTA_GROWS
from gpu_manager.domain.cluster.quota import NO_QUOTA
from gpu_manager.domain.contract import GPU_MODEL, MEMORY, PLACEMENT
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.placement.explain import LINE_LIMIT, explain_room
from tests.fakes.extender import UNIT, World, node, pod

quick = settings(max_examples=60)


def why(world, obj, **more):
    occupant = pod_view(parse_pod(obj), obj)
    return explain(occupant, world.cluster.snapshot(), world.quota.current, world.judge, **more)


def full(*amounts, names="n1"):
    return [pod(f"x{i}", core, units, on=names) for i, (core, units) in enumerate(amounts)]


def drafted(name, **more):
    """A pod as a manifest describes it: it does not exist yet."""
    return {**pod(name, **more), "status": {}}


def test_a_pod_that_fits_learns_where_it_would_lie():
    told = why(World([node("n1"), node("n2", cards=0)]), drafted("a"))
    assert told.line == "there is room now on 1 of 2 nodes: on n1 it would get 30 cores, 1 GiB of card 0"
    assert told.counts == {"fits": 1, "node": 1}
    assert told.change == ""


def test_a_pod_that_waits_says_why_in_one_line_and_the_smallest_change():
    world = World([node("n1"), node("n2", cards=1)], [*full((80, 4), (75, 4)), pod("y", 90, 4, on="n2")])
    told = why(world, pod("a", 30, 4))
    assert told.line.startswith(
        "waits: of 2 nodes, 2 have no room now. Smallest change: ask 25 cores, 1 GiB instead of"
    )
    assert told.nearest.containers[0].request.cores == 25


def test_the_table_has_a_line_for_each_card():
    world = World([node("n1")], full((80, 4), (90, 4)))
    text = as_text(why(world, pod("a", 30, 4)))
    assert "pod default/a asks 30 cores, 1 GiB" in text
    assert "  card 0 (GPU-n1-0): 30 cores asked, 20 free; 1 GiB asked, 15 GiB free" in text
    assert "n1: no room now" in text


def test_json_says_the_same_as_the_text():
    world = World([node("n1")], full((80, 4), (90, 4)))
    told = as_json(why(world, pod("a", 30, 4)))
    assert told["counts"] == {"room": 1}
    assert told["nodes"][0]["cards"][0]["free"] == {"cores": 20, "memory": 60 * UNIT}
    assert told["line"] == why(world, pod("a", 30, 4)).line


def test_a_wish_for_a_model_is_the_smallest_change_where_another_model_is_free():
    world = World([node("n1", model="Tesla-V100"), node("n2")], full((100, None), (100, None)))
    told = why(world, pod("a", annotations={GPU_MODEL: "V100"}))
    assert told.change.startswith(f'widen annotation {GPU_MODEL}, for example by "Tesla-T4"')


def test_where_nothing_of_its_own_helps_the_pods_in_the_way_are_named():
    world = World([node("n1", cards=1)], full((100, None)))
    told = why(world, pod("a", priority=5))
    assert told.change == "node n1 takes it once default/x0 has left"
    assert told.nodes[0].victims == ("default/x0",)
    assert "would have room without: default/x0" in as_text(told)


def test_pods_of_other_namespaces_are_counted_and_not_named():
    """Who asks may read the pods of one namespace, and an Event of its pod is read there too."""
    mine = [pod("mine", 40, 4, on="n1", namespace="default", priority=1)]
    hers = [pod(f"secret{i}", 30, 4, on="n1", namespace="hers") for i in range(2)]
    world = World([node("n1", cards=1)], mine + hers)
    told = why(world, pod("a", 100, None, priority=5))
    assert told.change == "node n1 takes it once default/mine, 2 pods of other namespaces have left"
    assert told.nodes[0].victims == ("default/mine", "2 pods of other namespaces")
    page = why(world, pod("a", 100, None, priority=5), everywhere=True)  # for who may read all
    assert page.change == "node n1 takes it once default/mine, hers/secret0, hers/secret1 have left"
    kept = [pod("hidden", 100, None, namespace="hers", priority=9, nominated="n1")]
    waits = why(World([node("n1", cards=1)], kept), pod("a"))
    assert "room is kept for 1 pod of another namespace. " in waits.nodes[0].line
    for text in (as_text(told), as_text(waits), str(as_json(told)), str(as_json(waits))):
        assert "secret" not in text
        assert "hidden" not in text
        assert "hers" not in text


def test_a_quota_that_is_in_the_way_is_told_with_what_is_left():
    world = World([node("n1")], [pod("x", 80, 4, on="n1")], quota={"default": {"quota": {"T4": 1}}})
    told = why(world, pod("a", 30, 4))
    assert told.counts == {"quota": 1}
    assert told.quota == ("1 card of T4, 0.8 used or being bound",)
    assert "ask 20 cores, 1 GiB instead of 30 cores, 1 GiB" in told.change
    used_up = why(
        World([node("n1")], [pod("x", 100, None, on="n1")], quota={"default": {"quota": {"T4": 1}}}), pod("a")
    )
    assert "let the quota grow" in used_up.change


def test_an_illegal_pod_is_told_the_rule():
    told = why(World([node("n1")]), pod("a", 150, None))
    assert told.line.startswith("never runs: cores are greater than 100")
    assert 'container "main": tencent.com/vcuda-core is 150' in told.line
    assert sum(told.counts.values()) == told.total == 1
    assert MEMORY not in told.line


def test_a_bound_pod_is_told_what_it_has():
    world = World([node("n1"), node("n2")])
    world.create(pod("a"))
    where = world.schedule(pod("a"))
    told = why(world, world.api.pods["default", "a"])
    assert told.line == f"bound to node {where}: 30 cores, 1 GiB of card 0"
    assert sum(told.counts.values()) == told.total == 2


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_running_pod_whose_annotation_was_spoilt_is_told_where_it_is_and_what_is_wrong(phase):
    spoilt = {PLACEMENT: "nonsense"}
    world = World([node("n1")], [pod("a", 30, 4, on="n1", annotations=spoilt, phase=phase)])
    told = why(world, world.api.pods["default", "a"])
    assert "never" not in told.line
    where = "bound to node n1: 30 cores, 1 GiB of card 0" if phase == "Running" else "ended on node n1"
    assert told.line.startswith(where)
    assert PLACEMENT in told.line
    assert sum(told.counts.values()) == told.total == 1


def test_a_pod_that_was_put_on_a_node_with_illegal_amounts_is_told_that_it_gets_nothing():
    world = World([node("n1")], [pod("a", 150, None, on="n1", phase="Running")])
    told = why(world, world.api.pods["default", "a"])
    assert told.line.startswith("bound to node n1, which grants it no part of a card. As it is now, no node")
    assert told.change


def test_one_node_is_told_of_as_one():
    one = why(World([node("n1", cards=1)], full((80, 4))), pod("a", 30, 4))
    assert one.line.startswith("waits: of 1 node, 1 has no room now")
    two = why(World([node("n1", cards=1), node("n2", cards=0)], full((80, 4))), pod("a", 30, 4))
    assert two.line.startswith("waits: of 2 nodes, 1 has no room now, 1 has no cards for it")
    assert why(World([node("n1")]), drafted("a")).line.startswith("there is room now: on n1")


def test_a_pod_that_waits_though_there_is_room_is_told_whose_turn_it_is():
    told = why(World([node("n1")]), pod("a"))
    assert told.line.startswith("waits, but not for cards: there is room now: on n1 it would get 30 cores")
    assert '. Its scheduler "gpu-scheduler" has not placed it yet: its Events say what else' in told.line
    longest = explain_room(1, 2, "n" * 253, "x" * 2000, "s" * 200)
    assert len(longest) <= LINE_LIMIT
    assert longest.endswith("no such scheduler runs")


def test_an_empty_cluster_and_a_pod_without_cards_are_told_too():
    assert why(World(), pod("a")).line == "waits: the cluster has no node with cards"
    assert "any node will do" in why(World([node("n1")]), pod("a", None, None)).line
    hami = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}}}
    strange = why(World([node("n1")]), pod("a", containers=[hami]))
    assert strange.line == (
        "asks for nvidia.com/gpumem, which none of our nodes offers: ask for tencent.com/vcuda-core and "
        "tencent.com/vcuda-memory"
    )
    assert strange.counts == {"never": 1}


def test_every_text_is_bounded():
    world = World([node(f"n{i:03}", cards=8) for i in range(250)], quota={"default": {"quota": {"T4": 0}}})
    told = why(world, pod("a"))
    assert len(told.nodes) == 200
    assert told.total == 250 == sum(told.counts.values())
    assert len(told.line) <= 900
    assert all(len(n.line) <= 900 for n in told.nodes)
    assert "and 50 more nodes, counted above" in as_text(told)


def test_text_of_foreign_origin_cannot_move_a_cursor():
    world = World([node("n1", model="T4\x1b[2J"[:2])], [pod("x", 90, 4, on="n1")])
    assert "\x1b" not in as_text(why(world, pod("a\x1b[2J", 30, 4)))


def test_quota_usage_as_rows_and_as_a_table():
    quota = {"a": {"quota": {"T4": 2}, "memory": {"T4": 4096}}, "*": {"quota": {"*": 1}}}
    world = World(
        [node("n1")],
        [pod("x", 30, 4, on="n1", namespace="a"), pod("y", 10, 4, on="n1", namespace="b")],
        quota=quota,
    )
    rows = world.quota.current.rows(world.cluster.snapshot().used)
    assert rows[0] == {
        "namespace": "a",
        "model": "T4",
        "cores": 200,
        "cores_used": 30,
        "memory": 4096 << 20,
        "memory_used": 4 * UNIT,
        "protected": None,
        "protected_used": 0,
    }
    assert [row["namespace"] for row in rows] == ["a", "b"]
    assert quota_text(world.quota.current, world.cluster.snapshot()).splitlines()[1:] == [
        "a          T4     2      0.3   4 GiB   1 GiB",
        "b          *      1      0.1   -       1 GiB",
    ]
    assert NO_QUOTA.rows(world.cluster.snapshot().used) == []


shapes = st.sampled_from([(10, 1), (30, 4), (70, 40), (100, None), (200, None), (400, None)])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["T4", "V100"]), st.booleans()), max_size=5),
    st.lists(st.tuples(st.integers(0, 4), shapes), max_size=8),
    shapes,
    st.sampled_from(
        [None, {"default": {"quota": {"T4": 1}}}, {"default": {"quota": {"*": 1}, "memory": {"V100": 2048}}}]
    ),
    st.sampled_from([{}, {GPU_MODEL: "V100"}]),
)
@quick
def test_counts_add_up_to_the_nodes_agree_with_filter_and_the_change_lets_the_pod_run(
    nodes, pods, shape, quota, notes
):
    built = [
        node(f"n{i}", cards, model=model, inventory=known) for i, (cards, model, known) in enumerate(nodes)
    ]
    placed = (
        [pod(f"p{i}", *held, on=f"n{at % max(1, len(nodes))}") for i, (at, held) in enumerate(pods)]
        if nodes
        else []
    )
    world = World(built, placed, quota=quota)
    obj = pod("new", *shape, annotations=notes)
    told = why(world, obj)
    assert sum(told.counts.values()) == told.total == len(world.nodes)
    assert told.counts.get("fits", 0) == len(world.filter(obj)["NodeNames"])
    if told.nearest is not None:
        snapshot = world.cluster.snapshot()
        grows = told.change.startswith(QUOTA_GROWS)
        mine = None if grows else world.quota.current.of("default")
        again = world.judge.ask(pod_view(parse_pod(obj)), told.nearest, snapshot, mine)
        judged = again.when_empty if "and wait for them" in told.change else again.on
        assert any(hasattr(judged(view), "positions") for view in snapshot.nodes.values()), told.change
