"""Filter and prioritize: pure answers over the snapshot, in kube-scheduler's own words, and bounded."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.cluster.snapshot import NODES
from admission.extender.feasibility import FeasibilityJudge
from admission.extender.refusal_lines import FULL_LINES, LATE
from admission.extender.verbs import JUDGE_SECONDS
from gpu_manager.domain.contract import ALLOCATION, GPU_MODEL, GPU_UUID, PLACEMENT, decode_assignment
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.placement.place import follow
from gpu_manager.domain.resources import GIB, MIB, Amount
from gpu_manager.domain.rules.pod_request import judged_request
from tests.fakes.extender import UNIT, World, answer, args, bound, container, node, pod, uuid
from tests.fakes.ports import FakeClock

quick = settings(max_examples=50)


def failed(world, obj, name="n1"):
    said = world.filter(obj)
    return said["FailedNodes"].get(name) or said["FailedAndUnresolvableNodes"].get(name, "")


def test_a_pod_that_asks_for_nothing_of_ours_passes_everywhere_unchanged():
    world = World([node("n1")])
    assert world.filter(pod("a", None, None), ["n1", "unknown"])["NodeNames"] == ["n1", "unknown"]


def test_a_refusal_tells_the_arithmetic_and_what_would_fit():
    world = World([node("n1")], [pod("x", 80, 40, on="n1"), pod("y", 90, 60, on="n1")])
    text = failed(world, pod("a", 30, 8))
    assert "no card has room for 30 cores, 2 GiB" in text
    assert "30 cores asked, 20 free" in text
    assert "Would fit now: 20 cores, 2 GiB of card 0" in text


def test_an_illegal_pod_is_refused_for_good_with_the_rule_s_own_text():
    world = World([node("n1")])
    said = world.filter(pod("a", 150, None))
    assert said["NodeNames"] == []
    assert "use 1 to 100" in said["FailedAndUnresolvableNodes"]["n1"]


@pytest.mark.parametrize(
    ("obj", "text"),
    [
        (node("n1", inventory=False), "no GPU device"),
        (node("n1", cards=0), "no GPU device"),
        (node("n1", unit=128 * MIB), "its memory unit is 128 MiB, that of this cluster is 256 MiB"),
        (node("n1", closed=[0, 1]), "cordoned"),
        (node("n1", unhealthy=[0, 1]), "unhealthy"),
        (node("n1", memory=512 * MIB), "even on the empty node"),
    ],
)
def test_what_no_preemption_can_change_is_said_to_be_unresolvable(obj, text):
    world = World([obj, *(node(f"o{i}", memory=512 * MIB) for i in range(FULL_LINES))])
    said = world.filter(pod("a"), [*(f"o{i}" for i in range(FULL_LINES)), "n1"])
    if text in ("cordoned", "unhealthy"):
        said = World([obj]).filter(pod("a"))
    assert text in said["FailedAndUnresolvableNodes"]["n1"]
    assert "n1" not in said["FailedNodes"]


def test_a_node_whose_agent_refused_this_amount_is_left_out_for_this_amount_alone():
    world = World([node("n1", refused=[Amount(30, 4 * UNIT)])])
    assert "refused this amount" in world.filter(pod("a", 30, 4))["FailedNodes"]["n1"]
    assert world.filter(pod("b", 31, 4))["NodeNames"] == ["n1"]


def test_allow_lists_by_model_and_by_card():
    world = World([node("n1", model=["Tesla-T4", "Tesla-V100-SXM2-32GB"]), node("n2")])
    assert world.filter(pod("a", annotations={GPU_MODEL: "V100"}))["NodeNames"] == ["n1"]
    one = pod("b", annotations={GPU_UUID: "GPU-00000000-0000-0000-0000-000000000000"})
    assert world.filter(one)["NodeNames"] == []
    assert "the pod allows V100" in failed(world, pod("a", annotations={GPU_MODEL: "V100"}), "n2")


def test_cards_of_different_size_on_a_node_are_each_judged_by_their_own():
    obj = node("n1", model=["small", "large"])
    inventory = json.loads(obj["metadata"]["annotations"]["tencent.com/vcuda-inventory"])
    inventory["cards"][0]["memory"] = GIB
    obj["metadata"]["annotations"]["tencent.com/vcuda-inventory"] = json.dumps(inventory)
    world = World([obj])
    pods = [pod(f"p{i}", 10, 16) for i in range(5)]
    for each in pods:
        world.create(each)
        world.schedule(each)
    assert world.booked("n1") == [(0, 0), (40, 64)]


def test_full_node_lists_are_answered_in_kind():
    world = World([node("n1"), node("n2", cards=1)], [pod("x", 90, 4, on="n2")])
    listed = {
        "kind": "NodeList",
        "apiVersion": "v1",
        "metadata": {},
        "items": [node("n1"), node("n2", cards=1)],
    }
    said = answer(
        world.extender.filter(json.dumps({"Pod": pod("a"), "Nodes": listed, "NodeNames": None}).encode())
    )
    assert said["NodeNames"] is None
    assert [item["metadata"]["name"] for item in said["Nodes"]["items"]] == ["n1"]
    assert said["Nodes"]["kind"] == "NodeList"
    assert list(said["FailedNodes"]) == ["n2"]


def test_nodes_that_do_not_exist_yet_are_judged_by_their_capacity_or_their_inventory():
    world = World([node("n1", cards=1)], [pod("x", 90, 4, on="n1")])
    template, copied, plain = (
        node("new-1", cards=4, inventory=False),
        node("new-2", cards=4),
        node("new-3", 0),
    )
    listed = {"items": [node("n1", cards=1), template, copied, plain]}
    body = json.dumps({"Pod": pod("a", 400, None), "Nodes": listed}).encode()
    names = [item["metadata"]["name"] for item in answer(world.extender.filter(body))["Nodes"]["items"]]
    assert names == ["new-1", "new-2"]


def test_names_are_read_in_any_case_as_go_reads_them():
    world = World([node("n1")])
    for keys in (("Pod", "NodeNames"), ("pod", "nodenames"), ("POD", "nodeNames")):
        body = json.dumps({keys[0]: pod("a"), keys[1]: ["n1"]}).encode()
        assert answer(world.extender.filter(body))["NodeNames"] == ["n1"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"Pod": 3}',
        b'{"Pod": {}, "NodeNames": [1], "NodeNameToMetaVictims": [1]}',
        b"\xff",
        b"[" * 9999,
    ],
)
def test_what_is_no_question_gets_an_error_never_a_crash(body):
    world = World([node("n1")])
    assert answer(world.extender.filter(body))["Error"]
    assert world.extender.prioritize(body).status == 400
    assert world.extender.preempt(body).status == 400
    assert answer(world.extender.bind(body))["Error"]


def test_exactly_one_node_gets_ten_and_the_others_eight_at_most():
    world = World([node(f"n{i}") for i in range(5)], [pod("x", 40, 4, on="n3"), pod("y", 20, 4, on="n1")])
    assert world.prioritize(pod("a")) == {"n0": 0, "n1": 4, "n2": 0, "n3": 10, "n4": 0}
    assert list(world.prioritize(pod("b", 100, None)).values()).count(10) == 1


def test_among_nodes_alike_the_name_alone_decides():
    assert World([node("b"), node("a")]).prioritize(pod("x"), ["b", "a"]) == {"a": 10, "b": 8}


def test_what_filter_found_holds_for_prioritize_until_something_changes():
    world = World([node("n1"), node("n2"), node("n3")], [pod("x", 40, 4, on="n2")])
    world.create(obj := pod("a", 100, None))
    fitting = world.filter(obj)["NodeNames"]
    assert fitting == ["n1", "n2", "n3"]
    at_once = world.prioritize(obj, fitting)
    assert at_once["n2"] == 10
    world.filter(other := pod("b", 100, None))
    assert world.prioritize(obj, fitting) == at_once, "another pod's answer is not taken"
    world.filter(obj)
    assert world.prioritize(obj, ["n3", "n1"]) == {"n3": 8, "n1": 10}, "nor that for other nodes"
    world.filter(obj)
    world.create(pod("y", 100, None, on="n2"))
    assert world.prioritize(obj, fitting)["n2"] == 0, "nor one from before a change"
    assert world.prioritize(other, fitting)["n2"] == 0


def test_a_pod_that_fits_nowhere_gets_no_ten():
    world = World([node("n1")])
    assert world.prioritize(pod("a", 400, None)) == {"n1": 0}
    assert world.prioritize(pod("a", None, None)) == {"n1": 0}


def test_spread_goes_where_most_is_free_and_topology_where_cards_are_joined_best():
    world = World([node("busy"), node("idle"), node("joined", link="NV12")], [pod("x", 40, 4, on="busy")])
    spread = world.prioritize(pod("a", annotations={PLACEMENT: "spread"}), ["busy", "idle"])
    assert spread == {"busy": 0, "idle": 10}
    joined = world.prioritize(pod("b", 200, None, annotations={PLACEMENT: "topology"}), ["idle", "joined"])
    assert joined["joined"] == 10


def test_one_answer_is_bounded_however_many_nodes_fail():
    world = World(
        [node(f"n{i:04}", cards=1) for i in range(300)],
        [pod(f"x{i}", 1 + i % 99, 1, on=f"n{i:04}") for i in range(300)],
    )
    said = world.filter(pod("a", 100, None, namespace="x"))
    texts = list(said["FailedNodes"].values())
    assert len(texts) == 300
    assert len(set(texts)) <= FULL_LINES + 1
    assert all(len(text) <= 900 for text in texts)


def test_one_refusal_is_told_card_by_card_where_another_node_takes_the_pod():
    nodes = [node(f"n{i}", cards=1) for i in range(4)]
    full = [pod(f"x{i}", 80, 4, on=f"n{i}") for i in range(3)]
    taken, refused = World(nodes, full), World(nodes[:3], full)
    for world, told in ((taken, 1), (refused, 3)):
        texts = world.filter(pod("a", 50, 4))["FailedNodes"].values()
        assert sum("card 0" in text for text in texts) == told


def test_what_is_told_of_a_refusal_is_about_this_pod_and_the_node_as_it_is():
    world = World([node("n1", cards=1), node("n2", cards=1)], [pod("x", 80, 4, on="n1")])

    def told(name):
        return world.filter(pod("a", containers=[container(name, 50, 4)]))["FailedNodes"]["n1"]

    assert "20 free" in told("left")
    assert told("left") == told("left")
    assert '"right"' in told("right")
    assert '"left"' in told("left")
    world.create(pod("y", 10, 4, on="n1"))
    assert "10 free" in told("left")


def test_the_snapshot_is_asked_once_for_all_nodes_alike():
    world = World([node(f"n{i:03}") for i in range(100)])
    world.filter(pod("a"))
    shape = next(iter(world.judge._shapes.values()))
    assert len(shape.said) == 1


# What always holds.

shapes = st.sampled_from([(10, 1), (30, 4), (30, 40), (60, 20), (100, None), (200, None), (300, None)])


@st.composite
def clusters(draw):
    nodes = [
        node(
            f"n{i}",
            draw(st.integers(1, 3)),
            model=draw(st.sampled_from(["T4", "V100"])),
            closed=draw(st.sampled_from([(), (0,)])),
        )
        for i in range(draw(st.integers(1, 4)))
    ]
    pods = [
        pod(f"p{i}", *draw(shapes), on=draw(st.sampled_from([f"n{j}" for j in range(len(nodes))])))
        for i in range(draw(st.integers(0, 6)))
    ]
    return nodes, pods


@given(clusters(), st.lists(shapes, min_size=1, max_size=4), st.randoms(use_true_random=False))
@quick
def test_answers_are_a_pure_function_of_nodes_and_pods(cluster, asked, random):
    nodes, pods = cluster
    one = World(nodes, pods)
    other = World(random.sample(nodes, len(nodes)), [])
    for obj in random.sample(pods, len(pods)):
        other.create(obj)
    for shape in asked:  # what was asked before makes no difference either
        other.filter(pod("before", *shape))
    for i, shape in enumerate(asked):
        new = pod(f"new-{i}", *shape)
        names = one.nodes
        assert one.filter(new, names) == other.filter(new, names)
        assert one.prioritize(new, names) == other.prioritize(new, names)
        assert one.filter(new, names) == one.filter(new, names)


@given(clusters(), st.lists(shapes, min_size=1, max_size=8))
@quick
def test_what_filter_accepts_bind_binds_and_the_agent_s_domain_places(cluster, asked):
    nodes, pods = cluster
    world = World(nodes, pods)
    overfull = set(world.over_committed())
    for i, shape in enumerate(asked):
        new = pod(f"new-{i}", *shape)
        world.create(new)
        fitting = world.filter(new)["NodeNames"]
        given_scores = world.prioritize(new, fitting)
        assert sorted(given_scores.values(), reverse=True)[:1] == [10] * bool(fitting)
        for name in fitting:
            view = world.cluster.snapshot().nodes[name]
            before = view.ledger.copy()
            if given_scores[name] != 10:
                continue
            assert world.bind(new, name) == ""
            stamped = decode_assignment(world.api.bindings[-1][2][ALLOCATION])
            request = judged_request(parse_pod(new), UNIT)
            follow(request, stamped.containers, view.node.cards, before)  # raises if the agent could not
    assert set(world.over_committed()) == overfull


@given(clusters(), shapes)
@quick
def test_every_node_is_accepted_or_refused_with_a_reason(cluster, shape):
    nodes, pods = cluster
    world = World(nodes, pods)
    said = world.filter(pod("new", *shape))
    refused = {**said["FailedNodes"], **said["FailedAndUnresolvableNodes"]}
    assert sorted([*said["NodeNames"], *refused]) == world.nodes
    assert all(refused.values())


def test_a_node_that_has_gone_from_the_snapshot_is_not_offered():
    world = World([node("n1")])
    world.cluster.apply(NODES, "DELETED", node("n1"))
    assert "not known here" in world.filter(pod("a"), ["n1"])["FailedNodes"]["n1"]


def test_a_pod_bound_elsewhere_meanwhile_is_charged_there_in_the_next_answer():
    world = World([node("n1", cards=1)])
    assert world.filter(pod("b", 80, 4))["NodeNames"] == ["n1"]
    world.create(bound(pod("a", 80, 4), "n1", {}))
    assert world.filter(pod("b", 80, 4))["NodeNames"] == []


def test_several_containers_are_told_by_name():
    world = World([node("n1", cards=1)])
    two = pod("a", containers=[container("train", 60, 4), container("serve", 60, 4)])
    assert '"serve"' in failed(world, two)
    assert answer(world.extender.filter(args(two, ["n1"])))["NodeNames"] == []


def test_uuid_of_the_fake_is_what_the_inventory_says():
    view = World([node("n1")]).cluster.snapshot().nodes["n1"]
    assert [state.card.uuid for state in view.node.cards] == [uuid("n1", 0), uuid("n1", 1)]


def test_what_is_remembered_is_bounded_and_makes_no_difference():
    nodes = [node(f"n{i}", 1 + i % 3) for i in range(4)]
    forgetful = FeasibilityJudge(most_shapes=3, most_answers=4)
    world, other = World(nodes, judge=forgetful), World(nodes)
    for core in (10, 20, 30, 40, 10, 20):
        assert world.filter(pod("a", core, 4)) == other.filter(pod("a", core, 4))
        assert len(forgetful._shapes) <= 3


def test_answers_for_pods_of_many_containers_are_forgotten_sooner():
    """An answer says where each container would lie: anybody may create pods of a hundred."""
    judge = FeasibilityJudge(most_answers=1000)
    world = World([node(f"n{i}", cards=2, memory=(16 + i) * GIB) for i in range(20)], judge=judge)
    for i in range(30):
        held = [container(f"c{j}", 1, 1 + (i == j)) for j in range(60)]
        world.filter(pod("many", containers=held))
    kept = sum(len(shape.found) * len(shape.request.containers) for shape in judge._shapes.values())
    assert kept <= 8 * (1000 + 20 * 8)
    assert judge._shapes


class WearyClock(FakeClock):
    """Time goes on a little whenever it is asked for."""

    step = 0.0

    def monotonic(self) -> float:
        self.time += self.step
        return self.time


def test_a_question_that_takes_too_long_is_answered_by_what_was_judged_in_time():
    clock = WearyClock()
    names = [f"n{i}" for i in range(6)]
    nodes = [node(name, cards=1, memory=(16 + i) * GIB) for i, name in enumerate(names)]
    world = World(nodes, expecting=True, clock=clock)
    clock.step = JUDGE_SECONDS / 2.5  # two nodes a question
    two = pod("a", containers=[container("train", 60, 4), container("serve", 20, 4)])
    said = world.filter(two)
    assert len(said["NodeNames"]) == 2
    assert set(said["FailedNodes"].values()) == {LATE}
    assert len(said["FailedNodes"]) == 4
    assert len(world.filter(two)["NodeNames"]) > 2  # what was judged is remembered
    clock.step = 0.0
    assert len(world.filter(two)["NodeNames"]) == 6


def test_where_no_node_was_found_in_time_the_pod_is_tried_again_at_once():
    clock = WearyClock()
    nodes = [node(f"n{i}", cards=1, memory=(16 + i) * GIB) for i in range(4)]
    full = [bound(pod(f"p{i}", 100), f"n{i}", {}) for i in range(4)]
    world = World(nodes, full, expecting=True, clock=clock)
    two = pod("a", containers=[container("train", 60, 4), container("serve", 20, 4)])
    clock.step = JUDGE_SECONDS / 2.5
    assert world.filter(two)["Error"] == LATE
    clock.step = 0.0
    assert world.filter(two)["Error"] == ""
    assert set(world.filter(two)["FailedNodes"]) == {f"n{i}" for i in range(4)}


def test_a_pod_of_one_container_is_judged_on_every_node_however_long_it_takes():
    clock = WearyClock()
    clock.step = JUDGE_SECONDS
    world = World(
        [node(f"n{i}", cards=1, memory=(16 + i) * GIB) for i in range(6)], expecting=True, clock=clock
    )
    assert len(world.filter(pod("a", 30, 4))["NodeNames"]) == 6
