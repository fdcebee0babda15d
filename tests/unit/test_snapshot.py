"""What the extender sees of the cluster: who is charged for what, whatever order events come in."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.cluster.snapshot import NODES, PODS, ClusterState
from gpu_manager.domain.contract import ALLOCATION, CORDON, Assignment, encode_assignment
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.placement.ledger import peak
from gpu_manager.domain.resources import GIB, ZERO, Amount
from tests.fakes.extender import UNIT, World, bound, container, node, pod, uuid

quick = settings(max_examples=60)


def says(where, uid, *cards, name="main", cores=30, units=4):
    """The allocation annotation."""
    shares = tuple((card, Amount(cores, units * UNIT)) for card in cards)
    return {ALLOCATION: encode_assignment(Assignment(where, uid, {name: shares}))}


def test_a_bound_pod_is_charged_on_the_card_that_its_annotation_names():
    world = World([node("n1")])
    world.create(pod("a", on="n1", annotations=says("n1", "uid-default-a", uuid("n1", 1))))
    assert world.booked("n1") == [(0, 0), (30, 4)]


def test_amounts_are_the_specs_when_the_annotation_says_less():
    world = World([node("n1")])
    world.create(pod("a", on="n1", annotations=says("n1", "uid-default-a", uuid("n1", 1), cores=1, units=1)))
    assert world.booked("n1") == [(0, 0), (30, 4)]


def test_amounts_are_the_annotations_when_it_says_more_but_never_more_than_the_card():
    world = World([node("n1", memory=4 * GIB)])
    world.create(
        pod("a", on="n1", annotations=says("n1", "uid-default-a", uuid("n1", 1), cores=900, units=900))
    )
    assert world.booked("n1") == [(0, 0), (100, 16)]


@pytest.mark.parametrize(
    "annotation",
    [
        says("n2", "uid-default-a", uuid("n1", 1)),
        says("n1", "uid-of-another", uuid("n1", 1)),
        says("n1", "uid-default-a", "GPU-of-nobody"),
        says("n1", "uid-default-a", uuid("n1", 1), uuid("n1", 0)),
        says("n1", "uid-default-a"),
        says("n1", "uid-default-a", uuid("n1", 1), name="other"),
        {ALLOCATION: "{"},
        {ALLOCATION: '{"v":2}'},
        {},
    ],
    ids=["node", "pod", "card", "two-cards", "no-card", "container", "torn", "version", "absent"],
)
def test_a_stale_or_foreign_annotation_is_as_none_the_pod_is_charged_where_the_node_would_put_it(annotation):
    world = World([node("n1")])
    world.create(pod("a", on="n1", annotations=annotation))
    assert world.booked("n1") == [(30, 4), (0, 0)]


def test_a_tenant_that_rewrites_its_own_annotation_frees_nothing():
    world = World([node("n1", cards=1)])
    world.create(
        pod("a", 100, None, on="n1", annotations=says("n1", "uid-default-a", uuid("n1", 0), cores=100))
    )
    lie = pod(
        "a", 100, None, on="n1", annotations=says("n1", "uid-default-a", uuid("n1", 0), cores=1, units=1)
    )
    world.show(lie)
    assert world.booked("n1") == [(100, 64)]
    assert world.filter(pod("b", 10, 1))["NodeNames"] == []


def test_whole_cards_are_charged_with_all_their_memory():
    world = World([node("n1", cards=3)])
    annotation = says("n1", "uid-default-a", uuid("n1", 2), uuid("n1", 0), cores=100, units=0)
    world.create(pod("a", 200, None, on="n1", annotations=annotation))
    assert world.booked("n1") == [(100, 64), (0, 0), (100, 64)]


def test_an_ordinary_init_container_is_charged_by_the_peak():
    world = World([node("n1")])
    two = pod("a", on="n1", containers=[container("main", 30, 8)], init=[container("fetch", 50, 4)])
    world.create(two)
    assert world.booked("n1") == [(50, 8), (0, 0)]


def test_terminal_pods_hold_nothing_and_deleted_ones_until_they_are_gone():
    world = World([node("n1")])
    world.create(pod("a", on="n1", phase="Running"), pod("b", on="n1", phase="Running"))
    assert world.booked("n1") == [(60, 8), (0, 0)]
    world.show(pod("a", on="n1", phase="Succeeded"))
    world.show(pod("b", on="n1", phase="Running", deleting=True))
    assert world.booked("n1") == [(30, 4), (0, 0)]
    world.delete(pod("b", on="n1", phase="Running", deleting=True))
    assert world.booked("n1") == [(0, 0), (0, 0)]


def test_a_pod_that_does_not_fit_where_it_lies_is_charged_all_the_same():
    world = World([node("n1", cards=1)])
    world.create(pod("a", 100, None, on="n1"), pod("b", 50, 4, on="n1"))
    assert world.booked("n1") == [(150, 68)]
    assert world.filter(pod("c", 1, 1))["NodeNames"] == []


def test_an_illegal_pod_holds_nothing_for_no_agent_grants_it_any():
    world = World([node("n1")])
    world.create(pod("a", 150, None, on="n1"))
    assert world.booked("n1") == [(0, 0), (0, 0)]


def test_a_nominated_pod_holds_its_place_against_pods_of_no_higher_priority():
    world = World([node("n1", cards=1)])
    world.create(pod("big", 80, 4, priority=5, nominated="n1"))
    assert world.filter(pod("low", 30, 4, priority=0))["NodeNames"] == []
    assert world.filter(pod("peer", 30, 4, priority=5))["NodeNames"] == []
    assert world.filter(pod("high", 30, 4, priority=6))["NodeNames"] == ["n1"]
    assert world.filter(pod("big", 80, 4, priority=5, nominated="n1"))["NodeNames"] == ["n1"]
    assert "big" in world.filter(pod("low", 30, 4))["FailedNodes"]["n1"]


def test_a_nominated_pod_keeps_the_place_that_its_victims_are_leaving():
    world = World([node("n1", cards=2)])
    world.create(
        pod(
            "victim",
            90,
            4,
            on="n1",
            annotations=says("n1", "uid-default-victim", uuid("n1", 0), cores=90),
            deleting=True,
        ),
        pod("stays", 50, 4, on="n1", annotations=says("n1", "uid-default-stays", uuid("n1", 1), cores=50)),
        pod("big", 60, 4, priority=5, nominated="n1"),
    )
    assert world.filter(pod("small", 10, 1))["NodeNames"] == ["n1"]  # beside the one that stays
    world.delete(pod("victim", 90, 4, on="n1"))
    assert world.filter(pod("thief", 50, 4))["NodeNames"] == ["n1"]
    assert (
        world.filter(pod("two", 50, 4, containers=[container("a", 50, 4), container("b", 50, 4)]))[
            "NodeNames"
        ]
        == []
    )


def test_a_nomination_that_cannot_come_true_holds_nothing():
    world = World([node("n1", cards=1)])
    world.create(pod("huge", 400, None, priority=9, nominated="n1"))
    assert world.filter(pod("a"))["NodeNames"] == ["n1"]


def test_cards_cordoned_on_the_node_itself_are_closed_before_its_agent_has_said_so():
    obj = node("n1", cards=2)
    obj["metadata"]["annotations"][CORDON] = f"{uuid('n1', 0)},{uuid('n1', 1)}"
    world = World([obj])
    assert world.filter(pod("a"))["NodeNames"] == []


def test_a_heartbeat_changes_nothing():
    world = World([node("n1")], [pod("a", on="n1")])
    before = world.cluster.snapshot()
    beat = node("n1")
    beat["status"]["conditions"] = [{"type": "Ready", "lastHeartbeatTime": "now"}]
    world.cluster.apply(NODES, "MODIFIED", beat)
    assert world.cluster.snapshot() is before


def test_only_the_node_on_which_something_changed_is_built_anew():
    world = World([node("n1"), node("n2")])
    before = world.cluster.snapshot().nodes
    world.create(pod("a", on="n1"))
    after = world.cluster.snapshot().nodes
    assert after["n2"] is before["n2"]
    assert after["n1"] is not before["n1"]


def test_a_snapshot_once_taken_never_changes():
    world = World([node("n1")])
    before = world.cluster.snapshot()
    world.create(pod("a", on="n1"))
    world.cluster.replace(NODES, [])
    assert before.nodes["n1"].ledger.booked(uuid("n1", 0)) == ZERO
    assert before.used == {}


def test_an_older_picture_of_a_bound_pod_does_not_unbind_it():
    world = World([node("n1")])
    world.create(pod("a", on="n1"))
    world.show(pod("a"))
    assert world.booked("n1") == [(30, 4), (0, 0)]


def test_a_full_list_replaces_everything():
    world = World([node("n1"), node("n2")], [pod("a", on="n1"), pod("b", on="n2")])
    world.cluster.replace(PODS, [pod("b", on="n2"), pod("c", on="n2")])
    world.cluster.replace(NODES, [node("n2")])
    assert world.nodes == ["n2"]
    assert world.booked("n2") == [(60, 8), (0, 0)]
    assert world.cluster.named("default", "a") is None


def test_a_node_that_comes_after_its_pods_finds_them_charged():
    world = World([], [pod("a", on="n1")])
    world.cluster.apply(NODES, "ADDED", node("n1"))
    assert world.booked("n1") == [(30, 4), (0, 0)]


def test_nothing_is_judged_before_the_first_lists_are_in():
    world = World([node("n1")])
    world.extender.cluster = ClusterState(UNIT)
    assert "not been listed" in world.filter(pod("a"), ["n1"])["Error"]


def test_objects_that_are_none_are_taken_for_absent():
    world = World([node("n1")])
    for obj in (
        {},
        {"metadata": None},
        {"metadata": {"uid": "x"}, "spec": {"containers": 3}},
        pod("a", "x", on="n1"),
    ):
        world.cluster.apply(PODS, "ADDED", obj)
        world.cluster.apply(NODES, "MODIFIED", {"metadata": {"name": "n9", "annotations": 5, "labels": []}})
    assert world.booked("n1") == [(0, 0), (0, 0)]


# What always holds.

NAMES = ("a", "b", "c", "d")


@st.composite
def pods(draw):
    name = draw(st.sampled_from(NAMES))
    core, memory = draw(st.sampled_from([(10, 1), (30, 4), (60, 20), (100, None), (200, None), (0, None)]))
    where = draw(st.sampled_from(["", "n1", "n2", "n3"]))
    uid = f"uid-{name}-{draw(st.integers(0, 1))}"
    annotations = {}
    if where and draw(st.booleans()):
        cards = [uuid(where, i) for i in draw(st.permutations(range(2)))][: max(1, (core or 0) // 100)]
        annotations = says(draw(st.sampled_from([where, "n1"])), uid, *cards, cores=core or 0)
    return pod(
        name,
        core,
        memory,
        uid=uid,
        namespace=draw(st.sampled_from(["x", "y"])),
        on=where,
        annotations=annotations,
        priority=draw(st.integers(0, 2)),
        nominated=draw(st.sampled_from(["", "n1", "n2"])),
        phase=draw(st.sampled_from(["Pending", "Running", "Succeeded"])),
        deleting=draw(st.booleans()),
    )


events = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), st.just(PODS), pods()),
        st.tuples(
            st.sampled_from(["ADDED", "DELETED"]),
            st.just(NODES),
            st.builds(node, st.sampled_from(["n1", "n2"]), st.just(2), model=st.sampled_from(["T4", "V100"])),
        ),
    ),
    max_size=25,
)


def books(cluster):
    snapshot = cluster.snapshot()
    return (
        {
            name: (
                view.problem,
                [view.ledger.booked(s.card.uuid) for s in view.node.cards],
                sorted(view.charges),
                [o.uid for o in view.nominated],
            )
            for name, view in snapshot.nodes.items()
        },
        snapshot.used,
    )


def is_older(obj, known):
    """True if ``known`` is bound and ``obj`` is not: a picture from before the binding, of a pod of ours."""
    asks = all(parse_pod(each).asks for each in (obj, known))
    return asks and bool(known["spec"].get("nodeName")) and not obj["spec"].get("nodeName")


@given(events)
@quick
def test_kept_up_event_by_event_it_is_what_a_fresh_list_gives(happened):
    kept, living, standing = ClusterState(UNIT), {}, {}
    for event, kind, obj in happened:
        kept.apply(kind, event, obj)
        kept.snapshot()
        shown = living if kind == PODS else standing
        key = obj["metadata"].get("uid") or obj["metadata"]["name"]
        if event == "DELETED":
            shown.pop(key, None)
        elif not (kind == PODS and key in living and is_older(obj, living[key])):
            shown[key] = obj
    fresh = ClusterState(UNIT)
    fresh.replace(NODES, list(standing.values()))
    fresh.replace(PODS, list(living.values()))
    # Of a node that was deleted under its pods a fresh list knows no cards; who watched still does.
    (nodes, used), (listed, listed_used) = books(kept), books(fresh)
    vanished = nodes.keys() - standing.keys()
    assert {n: b for n, b in nodes.items() if n in standing} == {
        n: b for n, b in listed.items() if n in standing
    }
    assert {n: (nodes[n][0], *nodes[n][2:]) for n in vanished} == {
        n: (b[0], *b[2:]) for n, b in listed.items() if n not in standing
    }
    assert vanished or used == listed_used


@given(events)
@quick
def test_used_quota_is_the_sum_over_bound_pods_after_every_event(happened):
    cluster = ClusterState(UNIT)
    for event, kind, obj in happened:
        cluster.apply(kind, event, obj)
        snapshot, total = cluster.snapshot(), {}
        for view in snapshot.nodes.values():
            for charge in view.charges.values():
                for card in {card for a in charge.allocations for card in a.cards}:
                    key = charge.pod.namespace, view.node.models[card]
                    total[key] = total.get(key, ZERO) + peak(charge.allocations, card)
        known = {(n, m): a for n, models in snapshot.used.items() for m, a in models.items()}
        assert {key: a for key, a in known.items() if key[1]} == total


def test_binding_what_was_reserved_changes_no_book():
    world = World([node("n1")], watching=False)
    world.create(pod("a"))
    world.filter(pod("a"))
    assert world.bind(pod("a"), "n1") == ""
    before = world.booked("n1")
    view = world.cluster.snapshot().nodes["n1"]
    name, where, annotations = world.api.bindings[0]
    world.show(bound(pod(name), where, annotations))
    assert world.booked("n1") == before == [(30, 4), (0, 0)]
    assert world.cluster.snapshot().nodes["n1"].ledger is view.ledger


def test_a_pod_that_had_ended_when_the_api_server_said_where_leaves_nothing_behind():
    world = World([node("n1")])
    ended = parse_pod(pod("a", 60, 4, on="n1", phase="Failed"))
    assert not world.cluster.learn(ended)
    assert world.cluster.release(ended.uid)
    assert world.cluster.snapshot().reserved == {}
    world.create(pod("b", 10, 1, on="n1"))
    assert world.booked("n1") == [(10, 1), (0, 0)]
