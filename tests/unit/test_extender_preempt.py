"""Preempt: exact for each card, as few victims as will do, by priority and disruption budget."""

import json
from datetime import UTC, datetime
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.domain.contract import (
    ALLOCATION,
    ASSIGNED,
    CORE,
    PREEMPTION_DELAY,
    PRIORITY,
    Assignment,
    encode_assignment,
)
from gpu_manager.domain.kube.evictions import read_budget, violating
from gpu_manager.domain.kube.pod import parse_pod
from gpu_manager.domain.resources import Amount
from tests.fakes.extender import UNIT, World, answer, container, node, pod, uuid
from tests.fakes.ports import FakeClock

quick = settings(max_examples=60)


def lying(name, card, core=50, units=4, *, where="n1", **more):
    """A running pod on a certain card."""
    uid = more.pop("uid", f"uid-default-{name}")
    said = Assignment(where, uid, {"main": ((uuid(where, card), Amount(core, (units or 0) * UNIT)),)})
    notes = {ALLOCATION: encode_assignment(said), ASSIGNED: "true"}
    return pod(name, core, units, on=where, annotations=notes, phase="Running", uid=uid, **more)


def budget(name, allowed, *, labels=None, expressions=None, disrupted=()):
    selector = {"matchLabels": labels or {}} | ({"matchExpressions": expressions} if expressions else {})
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": allowed, "disruptedPods": dict.fromkeys(disrupted, "now")},
    }


def ask(world, obj, nodes, *, form="meta"):
    """Node → (victims' names, violations). ``nodes``: node → the scheduler's own victims."""
    if form == "meta":
        given_nodes = {
            n: {"Pods": [{"UID": p["metadata"]["uid"]} for p in v], "NumPDBViolations": 0}
            for n, v in nodes.items()
        }
        question = {"Pod": obj, "NodeNameToVictims": None, "NodeNameToMetaVictims": given_nodes}
    else:
        given_nodes = {n: {"Pods": v, "NumPDBViolations": 0} for n, v in nodes.items()}
        question = {"Pod": obj, "NodeNameToVictims": given_nodes, "NodeNameToMetaVictims": None}
    said = answer(world.extender.preempt(json.dumps(question).encode()))
    return {
        name: (
            sorted(v["UID"].removeprefix("uid-default-") for v in entry["Pods"]),
            entry["NumPDBViolations"],
        )
        for name, entry in said["NodeNameToMetaVictims"].items()
    }


def test_an_empty_candidate_list_is_answered_with_victims_of_its_own():
    world = World([node("n1", cards=1)], [lying("a", 0, 60), lying("b", 0, 40)])
    assert ask(world, pod("big", 50, 4, priority=5), {"n1": []}) == {"n1": (["a"], 0)}


def test_victims_are_chosen_by_card_not_by_the_sum_of_the_node():
    """The node's sum would be met by c and d; no single card would."""
    world = World(
        [node("n1", cards=2)],
        [lying("a", 0, 60, priority=2), lying("b", 1, 50, priority=1), lying("c", 0, 30), lying("d", 1, 30)],
    )
    assert ask(world, pod("big", 80, 4, priority=5), {"n1": []}) == {"n1": (["b", "d"], 0)}


def test_nobody_of_equal_or_higher_priority_is_a_victim():
    world = World([node("n1", cards=1)], [lying("a", 0, 60, priority=5)])
    assert ask(world, pod("big", 80, 4, priority=5), {"n1": []}) == {}


def test_victims_that_the_api_forgot_at_once_are_not_followed_by_more_while_their_processes_end():
    """A pod without a grace period vanishes as one deleted by force does, and the scheduler asks again."""
    victim = lying("a", 0, 60)
    world = World([node("n1", cards=2, released=())], [victim, lying("b", 1, 60)])
    big = pod("big", 80, 4, priority=5, nominated="n1")
    world.create(big)
    world.delete(victim)
    assert world.filter(big)["NodeNames"] == []
    assert ask(world, big, {"n1": []}) == {}
    bigger = pod("bigger", 200, None, priority=5, nominated="n1")
    assert ask(world, bigger, {"n1": []}) == {}, "a is not there to be evicted, and its card is not free yet"
    world.cluster.apply("nodes", "MODIFIED", node("n1", cards=2, released=("uid-default-a",)))
    assert world.filter(big)["NodeNames"] == ["n1"]


def test_a_node_that_evicting_cannot_help_is_left_out():
    world = World([node("n1", cards=1), node("n2", cards=4)], [lying("a", 0, 60)])
    assert ask(world, pod("big", 400, None, priority=5), {"n1": [], "n2": [], "unknown": []}) == {}


def test_evicting_frees_quota_of_the_victims_namespace_alone():
    mine, theirs = lying("mine", 0, 100, None), lying("theirs", 1, 100, None, namespace="other")
    for victim, helps in ((theirs, False), (mine, True)):
        victim["spec"]["priority"], both = -1, [mine, theirs]
        world = World([node("n1", cards=2)], both, quota={"default": {"quota": {"T4": 1}}})
        found = ask(world, pod("big", 100, None), {"n1": []})
        assert bool(found) == helps
        victim["spec"]["priority"] = 0


def test_a_node_where_nobody_must_go_is_left_out_for_the_scheduler_takes_no_victims_for_a_fault():
    world = World([node("n1", cards=1)])
    assert ask(world, pod("a", priority=5), {"n1": []}) == {}


def test_the_scheduler_s_own_victims_stay_and_are_counted_in_both_forms():
    a, b = lying("a", 0, 60), lying("b", 1, 60)
    world = World([node("n1", cards=2)], [a, b])
    for form in ("meta", "full"):
        assert ask(world, pod("big", 50, 4, priority=5), {"n1": [a]}, form=form) == {"n1": (["a"], 0)}
        both = ask(world, pod("two", 200, None, priority=5), {"n1": [a]}, form=form)
        assert both == {"n1": (["a", "b"], 0)}


def test_a_budget_is_broken_only_where_nothing_else_helps_and_then_counted():
    pods = [
        lying("guarded", 0, 60, labels={"app": "db"}),
        lying("free", 1, 60, priority=3),
    ]
    world = World([node("n1", cards=2)], pods, budgets=[budget("db", 0, labels={"app": "db"})])
    assert ask(world, pod("big", 50, 4, priority=5), {"n1": []}) == {"n1": (["free"], 0)}
    assert ask(world, pod("two", 200, None, priority=5), {"n1": []}) == {"n1": (["free", "guarded"], 1)}


def test_the_scheduler_s_own_victims_use_up_a_budget_too():
    db = {"app": "db"}
    given, guarded = lying("given", 0, 60, labels=db), lying("guarded", 1, 60, labels=db)
    free = lying("free", 2, 60, priority=3)
    budgets = [budget("db", 1, labels=db)]
    big = pod("two", 200, None, priority=5)
    spared = World([node("n1", cards=3)], [given, guarded, free], budgets=budgets)
    assert ask(spared, big, {"n1": [given]}) == {"n1": (["free", "given"], 0)}
    broken = World([node("n1", cards=2)], [given, guarded], budgets=budgets)
    assert ask(broken, big, {"n1": [given]}) == {"n1": (["given", "guarded"], 1)}


def test_a_pod_that_is_going_anyway_is_the_first_victim():
    world = World(
        [node("n1", cards=2)], [lying("stays", 0, 60), lying("going", 1, 60, priority=3, deleting=True)]
    )
    assert ask(world, pod("big", 50, 4, priority=5), {"n1": []}) == {"n1": (["going"], 0)}


def test_a_pod_that_is_being_bound_is_nobody_s_victim():
    world = World([node("n1", cards=1)], watching=False)
    world.create(pod("a", 80, 4))
    world.filter(pod("a", 80, 4))
    assert world.bind(pod("a", 80, 4), "n1") == ""
    assert ask(world, pod("big", 80, 4, priority=5), {"n1": []}) == {}


def test_a_quota_that_only_others_victims_would_not_cure_is_no_cure():
    world = World([node("n1", cards=1)], [lying("a", 0, 60)], quota={"x": {"quota": {"T4": 0}}})
    assert ask(world, pod("big", 80, 4, priority=5, namespace="x"), {"n1": []}) == {}


def test_evicting_one_s_own_gives_back_its_quota():
    world = World([node("n1", cards=1)], [lying("a", 0, 60)], quota={"default": {"quota": {"T4": 1}}})
    assert ask(world, pod("big", 80, 4, priority=5), {"n1": []}) == {"n1": (["a"], 0)}


def test_a_pod_of_no_cards_keeps_the_scheduler_s_choice():
    a = lying("a", 0, 60)
    world = World([node("n1", cards=1)], [a])
    assert ask(world, pod("cpu", None, None, priority=5), {"n1": [a]}) == {"n1": (["a"], 0)}


def test_selectors_are_kubernetes_own():
    labelled = parse_pod(pod("a", labels={"app": "db", "tier": "x"}))
    plain = parse_pod(pod("b"))

    def chosen(**more):
        found = read_budget(budget("b", 0, **more))
        return [found.selects(labelled), found.selects(plain)]

    assert chosen() == [True, True]
    assert chosen(labels={"app": "db"}) == [True, False]
    assert chosen(expressions=[{"key": "app", "operator": "In", "values": ["web", "db"]}]) == [True, False]
    assert chosen(expressions=[{"key": "app", "operator": "NotIn", "values": ["db"]}]) == [False, True]
    assert chosen(expressions=[{"key": "tier", "operator": "Exists"}]) == [True, False]
    assert chosen(expressions=[{"key": "tier", "operator": "DoesNotExist"}]) == [False, True]
    none = budget("b", 0)
    del none["spec"]["selector"]
    assert not read_budget(none).selects(labelled)


def test_budgets_are_used_up_in_the_order_of_leaving():
    pods = [parse_pod(pod(name)) for name in "abc"]
    assert violating(pods, [read_budget(budget("b", 2))]) == {"uid-default-c"}
    assert violating(pods, [read_budget(budget("b", 0, disrupted=["a"]))]) == {
        "uid-default-b",
        "uid-default-c",
    }


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([10, 30, 50, 100]), st.integers(0, 3)), max_size=8),
    st.sampled_from([30, 60, 100, 200]),
)
@quick
def test_the_pod_fits_without_the_victims_and_needs_every_one_of_them(held, core):
    pods = [
        lying(f"p{i}", card, cores, 4 if cores < 100 else None or 0, priority=p)
        for i, (card, cores, p) in enumerate(held)
    ]
    world = World([node("n1", cards=3)], pods)
    big = pod("big", core, 4 if core < 100 else None, priority=2)
    said = ask(world, big, {"n1": []})
    fits = bool(world.filter(big)["NodeNames"])
    if not said:
        low = [p for p in pods if p["spec"]["priority"] < 2]
        for obj in low:
            world.delete(obj)
        assert fits or not world.filter(big)["NodeNames"]
        return
    assert not fits
    victims = [p for p in pods if p["metadata"]["name"] in said["n1"][0]]
    assert all(p["spec"]["priority"] < 2 for p in victims)
    for obj in victims:
        world.delete(obj)
    assert world.filter(big)["NodeNames"] == ["n1"]
    for obj in victims:  # each is needed
        world.create(obj)
        assert world.filter(big)["NodeNames"] == []
        world.delete(obj)


def test_several_containers_are_placed_together():
    world = World([node("n1", cards=2)], [lying("a", 0, 60), lying("b", 1, 60)])
    two = pod("two", priority=5, containers=[container("x", 60, 4), container("y", 60, 4)])
    assert ask(world, two, {"n1": []}) == {"n1": (["a", "b"], 0)}


def test_of_two_cards_the_one_with_fewer_victims_yields_though_the_other_s_began_later():
    many = [lying(f"a{i}", 0, 20, created=f"2026-02-0{i + 1}T00:00:00Z") for i in range(4)]
    one = lying("b", 1, 60, created="2026-01-01T00:00:00Z")
    world = World([node("n1", cards=2)], [*many, one, lying("kept", 1, 20, priority=9)])
    assert ask(world, pod("big", 80, 4, priority=5), {"n1": []}) == {"n1": (["b"], 0)}


def test_a_pod_of_several_cards_counts_once_and_cards_are_emptied_where_fewest_lie():
    crowd = [lying(f"c{i}", i // 5, 20) for i in range(10)]
    pair = pod("pair", 200, None, on="n1", phase="Running", annotations={
        ALLOCATION: encode_assignment(
            Assignment("n1", "uid-default-pair", {"main": tuple((uuid("n1", c), Amount(100, 0)) for c in (2, 3))})
        )
    })  # fmt: skip
    world = World([node("n1", cards=4)], [*crowd, pair])
    assert ask(world, pod("big", 200, None, priority=5), {"n1": []}) == {"n1": (["pair"], 0)}


def test_of_ways_with_as_many_victims_the_one_that_takes_least_of_the_cards():
    train = pod("train", 200, None, on="n1", phase="Running", created="2026-02-01T00:00:00Z", annotations={
        ALLOCATION: encode_assignment(
            Assignment("n1", "uid-default-train", {"main": tuple((uuid("n1", c), Amount(100, 0)) for c in (0, 1))})
        )
    })  # fmt: skip
    small = [lying(f"s{i}", 2, 20, created="2026-01-01T00:00:00Z") for i in range(3)]
    world = World([node("n1", cards=3)], [train, *small])
    found = ask(world, pod("urgent", 50, 4, priority=5), {"n1": []})
    ((victim,), broken) = found["n1"]
    assert (victim in ("s0", "s1", "s2"), broken) == (True, 0)


def test_a_lower_highest_priority_is_worth_more_victims_and_a_budget_more_than_either():
    pods = [
        lying("high", 0, 90, priority=3),
        *(lying(f"low{i}", 1, 45, priority=1) for i in range(2)),
        lying("guarded", 2, 90, labels={"app": "db"}),
    ]
    world = World([node("n1", cards=3)], pods, budgets=[budget("db", 0, labels={"app": "db"})])
    assert ask(world, pod("big", 80, 4, priority=5), {"n1": []}) == {"n1": (["low0", "low1"], 0)}


def harm(pods, budgets):
    """By hand what kube-scheduler prefers, fewest budgets, the lowest highest priority, fewest victims; then least."""
    ordered = sorted(pods, key=lambda p: (-p["spec"]["priority"], p["metadata"]["uid"]))
    broken = violating([parse_pod(p) for p in ordered], [read_budget(b) for b in budgets])
    cores = sum(parse_pod(p).containers[0].wants(CORE) for p in pods)
    return len(broken), max(p["spec"]["priority"] for p in pods), len(pods), cores


held_pods = st.tuples(
    st.integers(0, 2), st.sampled_from([20, 40, 50, 100]), st.sampled_from([1, 20, 40]),
    st.integers(0, 3), st.booleans(),
)  # fmt: skip
asks = st.sampled_from([[(30, 4)], [(60, 30)], [(90, 60)], [(100, None)], [(200, None)], [(60, 4), (60, 30)],
                        [(100, None), (50, 4)]])  # fmt: skip


@given(st.lists(held_pods, min_size=1, max_size=7), asks, st.integers(0, 2))
@settings(quick, max_examples=150)
def test_no_other_way_to_make_room_harms_less(held, amounts, allowed):
    """Against every set of pods there is."""
    pods, used = [], {}
    for i, (card, cores, asked, priority, guarded) in enumerate(held):
        units = 64 if cores == 100 else asked
        before = used.get(card, (0, 0))
        used[card] = before[0] + cores, before[1] + units
        if used[card][0] <= 100 and used[card][1] <= 64:
            more = {"labels": {"app": "db"} if guarded else {}, "priority": priority}
            pods.append(lying(f"p{i}", card, cores, None if cores == 100 else units, **more))
        else:
            used[card] = before
    budgets = [budget("db", allowed, labels={"app": "db"})]
    big = pod("big", priority=2, containers=[container(f"c{i}", *a) for i, a in enumerate(amounts)])

    def fits_without(gone):
        kept = [p for p in pods if p not in gone]
        return bool(World([node("n1", cards=3)], kept).filter(big)["NodeNames"])

    said = ask(World([node("n1", cards=3)], pods, budgets=budgets), big, {"n1": []})
    low = [p for p in pods if p["spec"]["priority"] < 2]
    ways = [w for size in range(len(low) + 1) for w in combinations(low, size) if fits_without(w)]
    if not ways or not ways[0]:
        assert said == {}
        return
    victims = [p for p in pods if p["metadata"]["name"] in said["n1"][0]]
    assert fits_without(victims)
    assert harm(victims, budgets) == min(harm(w, budgets) for w in ways)
    assert said["n1"][1] == harm(victims, budgets)[0]


def test_a_crowded_node_is_searched_in_bounded_time_and_the_same_way_each_time():
    pods = [lying(f"p{i}", i % 8, 4 + i % 5, 1, priority=i % 3) for i in range(120)]
    big = pod("big", 100, None, priority=5)
    said = [ask(World([node("n1", cards=8)], order), big, {"n1": []}) for order in (pods, pods[::-1])]
    assert said[0] == said[1]
    assert len(said[0]["n1"][0]) == 15


def test_a_priority_inside_the_card_evicts_nobody():
    """Of two pods of one PriorityClass neither makes way for the other; of a lower one the victim is as before."""
    right = {"default": {"protected": {"*": 9}}}
    asks = {PRIORITY: "protected"}
    best_effort = lying("a", 0, 60, priority=5)
    best_effort["metadata"]["annotations"][PRIORITY] = "best-effort"
    world = World([node("n1", cards=1)], [best_effort], quota=right)
    assert ask(world, pod("big", 80, 4, priority=5, annotations=asks), {"n1": []}) == {}
    protected = lying("b", 0, 60, priority=1)
    protected["metadata"]["annotations"][PRIORITY] = "protected"
    world = World([node("n1", cards=1)], [protected], quota=right)
    assert ask(world, pod("big", 80, 4, priority=5), {"n1": []}) == {"n1": (["b"], 0)}


def test_a_pod_with_a_delay_evicts_nobody_until_it_has_waited_that_long_and_is_then_tried_again():
    """An autoscaler has the time to add a node, as KAI's delay gives it."""
    clock = FakeClock()
    world = World([node("n1", cards=1)], [lying("a", 0, 60)], expecting=True, clock=clock)
    began = datetime.fromtimestamp(clock.now(), UTC).isoformat()
    big = pod("big", 50, 4, priority=5, annotations={PREEMPTION_DELAY: "90s"}, created=began)
    world.create(big)
    asks = parse_pod(big)
    view = world.cluster.pod(asks.uid)
    turn = world.cluster.snapshot().turn
    clock.pass_(89)
    assert ask(world, big, {"n1": []}) == {}
    assert not world.extender.has_room(view, turn)
    clock.pass_(1)
    assert world.extender.has_room(view, turn)
    assert ask(world, big, {"n1": []}) == {"n1": (["a"], 0)}
    assert not world.extender.has_room(view, turn)


@pytest.mark.parametrize("written", ["", "5", "-5m", "5d", "1e3s", "٣s", "9" * 6 + "s"])
def test_a_pod_whose_delay_cannot_be_read_evicts_nobody(written):
    world = World([node("n1", cards=1)], [lying("a", 0, 60)], expecting=True)
    big = pod("big", 50, 4, priority=5, annotations={PREEMPTION_DELAY: written})
    said = world.extender.preempt(
        json.dumps({"Pod": big, "NodeNameToMetaVictims": {"n1": {"Pods": []}}}).encode()
    )
    assert said.status == 400
    assert "such as 90s or 5m" in said.body.decode()
