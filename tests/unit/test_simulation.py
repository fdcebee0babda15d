"""What if: nothing is over-committed in a forecast, a plan works when it is carried out, and none is smaller."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.defrag import false_proofs
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.kube.constraints import (
    HostResources,
    NodeConstraints,
    PodConstraints,
    host_of_node,
    host_of_pod,
)
from gpu_manager.domain.kube.evictions import read_budget
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.ledger import Ledger, Share
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest, Request
from gpu_manager.domain.topology import SELF, Link, Topology
from gpu_manager.domain.whatif.defragmentation import DisruptionAllowance, defragment
from gpu_manager.domain.whatif.simulation import SimNode, SimPod, drain, nodes_needed, simulate, why_not

UNITS = 64
quick = settings(max_examples=100)


def node(name, cards=2):
    links = tuple(tuple(SELF if i == j else Link.parse("PIX") for j in range(cards)) for i in range(cards))
    states = tuple(
        CardState(Card(i, CardUuid(f"GPU-{name}-{i}"), "A100", UNITS * DEFAULT_UNIT)) for i in range(cards)
    )
    return SimNode(name, states, Topology(links), Ledger((s.card for s in states), DEFAULT_UNIT))


def pod(name, cores, units=1, **more):
    memory = 0 if cores >= 100 else units * DEFAULT_UNIT
    asked = ContainerRequest("main", ContainerKind.APP, 0, Request(cores, memory))
    return SimPod(PodUid(name), f"default/{name}", PodRequest(PodUid(name), (asked,)), **more)


def parts(name, *cores, **more):
    """A pod of several containers."""
    asked = tuple(
        ContainerRequest(f"c{i}", ContainerKind.APP, i, Request(each, 0 if each >= 100 else 8 * DEFAULT_UNIT))
        for i, each in enumerate(cores)
    )
    return SimPod(PodUid(name), f"default/{name}", PodRequest(PodUid(name), asked), **more)


def shut(here):
    return replace(here, constraints=NodeConstraints(here.name, cordoned=True))


def lying(here, running, *cards):
    """The node with the pod on these very cards."""
    others = [s.card.uuid for s in here.cards if s.card.index not in cards]
    closed = tuple(CardState(s.card, cordoned=s.card.uuid in others) for s in here.cards)
    placement = SimNode(here.name, closed, here.topology, here.ledger).find(running.request)
    return here if placement is None else here.with_pod(running, placement)


def sound(nodes):
    for here in nodes:
        for state in here.cards:
            free = here.ledger.free(state.card.uuid)
            assert free.cores >= 0
            assert free.memory >= 0


def test_pods_are_seated_in_the_order_they_would_arrive_and_the_rest_hear_why():
    forecast = simulate([node("n1", 1)], [pod("a", 60), pod("b", 60), pod("c", 30)])
    assert [(s.pod, s.node, s.cards) for s in forecast.placements] == [
        ("default/a", "n1", (0,)),
        ("default/c", "n1", (0,)),
    ]
    assert list(forecast.refused) == ["default/b"]
    assert '"n1" has most free' in forecast.refused["default/b"]
    assert "60 cores" in forecast.refused["default/b"]


def test_asking_changes_nothing():
    here = node("n1")
    simulate([here], [pod("a", 60)])
    defragment([here], pod("b", 200))
    assert len(here.ledger) == 0
    assert not here.pods


def test_how_many_nodes_of_a_kind_a_list_of_pods_takes():
    pods = [pod(f"f{i}", 30, 10) for i in range(12)] + [pod(f"w{i}", 400) for i in range(2)]
    forecast = nodes_needed([], pods, node("kind", 8))
    assert forecast.added == 2  # twelve at three a card: four cards; with two times four: twelve cards
    assert not forecast.refused
    sound(forecast.nodes)


def test_what_no_node_of_the_kind_can_ever_hold_adds_none():
    forecast = nodes_needed([], [pod("huge", 900)], node("kind", 8))
    assert forecast.added == 0
    assert "9 whole cards" in forecast.refused["default/huge"]


def test_a_drained_node_names_the_pods_that_find_no_other_place():
    n1 = lying(lying(node("n1", 1), pod("a", 50, priority=5), 0), pod("b", 50), 0)
    n2 = lying(node("n2", 1), pod("c", 40), 0)
    forecast = drain([n1, n2], "n1")
    assert [s.pod for s in forecast.placements] == ["default/a"]  # the more important one first
    assert list(forecast.refused) == ["default/b"]


def broken():
    """Two cards half full each, where a whole card is wanted."""
    return lying(lying(node("n1"), pod("small", 30), 0), pod("large", 50), 1)


def test_the_least_amount_moves_so_that_a_whole_card_is_free():
    plan = defragment([broken()], pod("train", 100))
    assert plan.placement is not None
    assert plan.placement.cards == (0,)
    assert [(m.pod, m.source_cards, m.target, m.target_cards) for m in plan.moves] == [
        ("default/small", (0,), "n1", (1,))
    ]
    assert plan.proven


def test_what_fits_as_it_is_moves_nobody():
    plan = defragment([broken()], pod("more", 70))
    assert plan.placement is not None
    assert plan.moves == ()


@pytest.mark.parametrize("reason", ["movable", "priority", "budget"])
def test_a_pod_that_must_stay_is_not_moved(reason):
    stay = {
        "movable": {"stays": "no controller would make it anew"},
        "priority": {"priority": 10},
        "budget": {},
    }[reason]
    here = lying(lying(node("n1"), pod("small", 30, **stay), 0), pod("large", 50), 1)
    budgets = [DisruptionAllowance("b", 0, frozenset({PodUid("small")}))] if reason == "budget" else []
    plan = defragment([here], pod("train", 100), budgets)
    assert [m.pod for m in plan.moves] == ["default/large"]


def test_a_budget_bounds_how_many_of_its_pods_move_at_once():
    here = node("n1", 3)
    for i in range(3):
        here = lying(here, pod(f"p{i}", 20), i)
    names = frozenset(PodUid(f"p{i}") for i in range(3))
    two_cards = pod("two", 200)
    assert len(defragment([here], two_cards, [DisruptionAllowance("b", 2, names)]).moves) == 2
    refused = defragment([here], two_cards, [DisruptionAllowance("b", 1, names)])
    assert refused.placement is None
    assert "of the 3 pods that may move" in refused.reason


def test_a_node_that_the_pod_may_not_go_to_is_passed_over_and_named():
    pools = [replace(node(name), constraints=NodeConstraints(name, {"pool": name})) for name in ("a", "b")]
    chosen = pod("p", 30, constraints=PodConstraints(selector=(("pool", "In", frozenset({"b"})),)))
    assert [s.node for s in simulate(pools, [chosen]).placements] == ["b"]
    refused = simulate([pools[0], shut(pools[1]), shut(node("c"))], [chosen]).refused["default/p"]
    assert refused == (
        'no node takes it: "b" is cordoned (and 1 more node); "a" lacks what the pod selects: "pool=b"'
    )
    full = lying(pools[1], pod("whole", 200), 0, 1)
    refused = simulate([pools[0], full], [chosen]).refused["default/p"]
    assert refused.startswith('no room on the only node that it may go to; "b" has most free: ')
    assert refused.endswith('; not asked: "a" lacks what the pod selects: "pool=b"')


def test_the_node_that_says_why_is_one_of_the_model_that_the_pod_asks_for():
    other = node("other", 8)
    other = replace(other, cards=tuple(replace(s, card=replace(s.card, model="T4")) for s in other.cards))
    full = lying(node("mine", 1), pod("x", 90), 0)
    asked = pod("p", 30)
    asked = replace(asked, request=replace(asked.request, models=("A100",)))
    assert '"mine" has most free' in simulate([other, full], [asked]).refused["default/p"]
    reason = defragment([other], asked).reason
    assert reason.startswith(
        "no node could hold it even if all its pods were gone: no room on the only node;"
    )
    assert "model T4, the pod allows A100" in reason


def test_cards_without_host_cpu_or_memory_are_no_room():
    small = replace(node("n1"), host=HostResources(cpu=4000, memory=8 << 30, pods=110))
    asks = HostResources(cpu=1500, memory=1 << 30, pods=1)
    forecast = simulate([small], [pod(f"p{i}", 10, host=asks) for i in range(3)])
    assert [s.pod for s in forecast.placements] == ["default/p0", "default/p1"]
    assert forecast.nodes[0].host == HostResources(cpu=1000, memory=6 << 30, pods=108)
    assert forecast.nodes[0].without([PodUid("p0")]).host.cpu == 2500
    lacks = 'no node takes it: "n1" has less host CPU free than the 1.5 that the pod asks for'
    assert forecast.refused == {"default/p2": lacks}
    greedy = pod("greedy", 10, host=HostResources(memory=9 << 30, pods=1))
    assert "less host memory free than the 9 GiB" in simulate([small], [greedy]).refused["default/greedy"]
    full = replace(small, host=HostResources(cpu=1, pods=0))
    assert '"n1" holds as many pods as it may' in simulate([full], [pod("one", 10)]).refused["default/one"]


def test_a_pod_moves_for_another_that_lacks_only_host_cpu():
    crowded = replace(node("n1"), host=HostResources(cpu=4000, pods=110))
    for i, cpu in enumerate((500, 3000)):
        crowded = lying(crowded, pod(f"p{i}", 20, host=HostResources(cpu=cpu, pods=1)), i)
    other = replace(node("n2"), host=HostResources(cpu=3000, pods=110))
    plan = defragment([crowded, other], pod("asked", 30, host=HostResources(cpu=3500, pods=1)))
    assert [(m.pod, m.target) for m in plan.moves] == [("default/p1", "n2")]
    assert all(here.host.cpu >= 0 for here in plan.after)


def test_nodes_of_a_kind_that_bars_the_pod_are_not_added():
    kind = replace(
        node("kind"), constraints=NodeConstraints("kind", taints=(("dedicated", "ml", "NoSchedule"),))
    )
    forecast = nodes_needed([], [pod("p", 30)], kind)
    assert forecast.added == 0
    assert 'it has the taint "dedicated=ml:NoSchedule"' in forecast.refused["default/p"]
    tolerant = pod("q", 30, constraints=PodConstraints(tolerations=(("dedicated", "Exists", "", ""),)))
    assert nodes_needed([], [tolerant], kind).added == 1


def test_no_more_nodes_are_added_than_asked_for():
    forecast = nodes_needed([], [pod(f"p{i}", 200) for i in range(3)], node("kind"), most=2)
    assert forecast.added == 2
    assert forecast.refused == {"default/p2": "2 nodes were added, and there is still no room"}


def test_who_ends_with_a_drained_node_and_who_would_be_lost():
    here = lying(node("n1"), pod("daemon", 30, stays="its DaemonSet", tied=True), 0)
    here = lying(lying(here, pod("bare", 30, stays="no controller would make it anew"), 0), pod("web", 30), 1)
    forecast = drain([here, node("n2")], "n1")
    assert [s.pod for s in forecast.placements] == ["default/web"]
    assert forecast.ended == {"default/daemon": "its DaemonSet"}
    assert forecast.refused == {"default/bare": "no controller would make it anew: it would be gone for good"}


def test_nobody_is_moved_to_a_node_that_would_not_take_it():
    first = replace(node("n1", 1), constraints=NodeConstraints("n1"))
    nodes = [lying(first, pod("small", 30), 0), shut(node("n2", 1))]
    asked = pod("train", 100)
    refused = defragment(nodes, asked)
    assert refused.placement is None
    assert (
        "no set of at most 6 of the 1 pods that may move makes room on one node that it may" in refused.reason
    )
    assert [
        m.target for m in defragment([nodes[0], node("n2", 1)], pod("t", 100, constraints=ON_N1)).moves
    ] == ["n2"]
    assert defragment([shut(node("n1"))], asked).reason == 'no node takes it: "n1" is cordoned'


ON_N2 = PodConstraints(affinity=(((), (("metadata.name", "In", frozenset({"n2"})),)),))
ON_N1 = PodConstraints(affinity=(((), (("metadata.name", "In", frozenset({"n1"})),)),))


def test_a_card_full_of_small_pods_is_not_looked_at_for_ever():
    """Six of its pods would have to go, those with much memory: one set in a million, of pods none alike."""
    here = node("n1", 1)
    for i in range(32):
        large = i < 6
        request = Request(3, (6 if large else 1) * DEFAULT_UNIT)
        uid = PodUid(f"{'z' if large else 'a'}{i:02d}")
        asked = PodRequest(uid, (ContainerRequest(f"c{i}", ContainerKind.APP, 0, request),))
        here = lying(here, SimPod(uid, f"default/{uid}", asked), 0)
    other = lying(node("n2", 1), pod("x", 60, 40), 0)
    plan = defragment([here, other], pod("asked", 20, 38), most_looked=1000)
    assert plan.placement is None
    assert not plan.proven
    assert plan.reason.endswith("; not every set was tried")


def test_pods_alike_whose_parts_lie_otherwise_do_not_stand_for_one_another():
    here = node("n1")
    for name, (first, second) in (("a", (0, 1)), ("b", (1, 0))):
        running = parts(name, 10, 40)
        shares = {
            container.name: (Share(here.cards[at].card.uuid, container.request.amount),)
            for container, at in zip(running.request.containers, (first, second), strict=True)
        }
        here = here.with_pod(running, shares)
    here = lying(here, pod("stays", 40, stays="because"), 1)
    # 50 are held of card 0, 90 of card 1: only without b's 40 have 80 room, on card 0.
    held = [pod(name, 40, stays="because") for name in ("p", "q")]
    other = lying(lying(node("n2"), held[0], 0), held[1], 1)
    plan = defragment([here, other], pod("asked", 85))
    assert [m.pod for m in plan.moves] == ["default/b"]


def test_a_pod_of_several_parts_is_made_room_for_as_a_whole():
    here = node("n1", 3)
    for i, cores in enumerate((60, 70, 80)):
        here = lying(here, pod(f"p{i}", cores), i)
    plan = defragment([here, node("n2", 1)], parts("both", 100, 35))
    assert plan.placement is not None
    assert [m.pod for m in plan.moves] == ["default/p1"]  # p0 leaves 40 of its card free for the smaller part
    sound(plan.after)


def test_a_plan_among_hundreds_of_pods_takes_few_looks():
    """Two of eight cards on each of forty nodes that hold 24 pods each: pairs of cards are tried, not sets of pods."""
    nodes = []
    for n in range(40):
        here = node(f"n{n:02d}", 8)
        for card in range(8):
            for i in range(3):
                here = lying(here, pod(f"p{n:02d}-{card}-{i}", 25 + (n + card + i) % 3), card)
        nodes.append(here)
    plan = defragment([*nodes, node("spare", 1)], pod("two", 200), most_tried=50)
    assert plan.placement is None
    assert plan.reason == "none of the first 50 sets of pods makes room on one node; not every set was tried"
    assert not plan.proven
    plan = defragment([*nodes, node("spare", 2)], pod("two", 200), most_tried=50)
    assert plan.moves == ()
    one = defragment([*nodes, lying(node("spare", 2), pod("x", 20), 0)], pod("two", 200), most_tried=50)
    assert [m.pod for m in one.moves] == ["default/x"]


def test_a_pod_that_two_budgets_cover_stays_for_the_api_server_evicts_none():
    budgets = [DisruptionAllowance(f"team/{name}", 5, frozenset({PodUid("small")})) for name in ("a", "b")]
    assert [m.pod for m in defragment([broken()], pod("train", 100), budgets).moves] == ["default/large"]


def test_where_too_little_is_free_in_all_the_sum_is_the_reason():
    reason = defragment([broken()], pod("train", 200)).reason
    assert reason == "120 cores are free in the whole cluster, 200 are asked: no move makes more of them"


sites_drawn = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(1, 99), st.integers(1, UNITS)),
    min_size=1,
    max_size=6,
)


def drawn(parts):
    nodes = [node("n0"), node("n1")]
    for i, (where, card, cores, units) in enumerate(parts):
        nodes[where] = lying(nodes[where], pod(f"p{i}", cores, units), card)
    return nodes


@quick
@given(sites_drawn, st.sampled_from([40, 80, 100, 200]))
def test_a_plan_works_when_carried_out_and_no_smaller_one_does(parts, cores):
    nodes = drawn(parts)
    asked = pod("asked", cores, 8)
    plan = defragment(nodes, asked)
    sound(nodes)
    possible = [
        size
        for size in range(7)
        for here in nodes
        for gone in combinations(here.pods.values(), size)
        if carried_out(nodes, here, gone, asked)
    ]
    if plan.placement is None:
        assert not possible
        return
    assert len(plan.moves) == min(possible)
    assert plan.proven
    sound(plan.after)
    names = {r.name for here in plan.after for r in here.pods.values()}
    assert names == {r.name for here in nodes for r in here.pods.values()} | {asked.name}


@quick
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 2), st.sampled_from([20, 50]), st.integers(0, 2)),
        max_size=7,
    ),
    st.sampled_from([(80,), (100,), (200,), (60, 60), (100, 60)]),
    st.lists(st.tuples(st.sets(st.integers(0, 6)), st.integers(0, 2)), max_size=2),
)
def test_no_smaller_plan_keeps_budgets_and_priorities_either(parts_of, cores, promised):
    nodes = [node("n0", 3), node("n1", 2)]
    for i, (where, card, each, priority) in enumerate(parts_of):
        at = card % len(nodes[where].cards)
        nodes[where] = lying(nodes[where], pod(f"p{i}", each, priority=priority), at)
    asked = parts("asked", *cores, priority=1)
    budgets = [
        DisruptionAllowance(f"b{i}", allowed, frozenset(PodUid(f"p{j}") for j in of))
        for i, (of, allowed) in enumerate(promised)
    ]
    plan = defragment(nodes, asked, budgets)
    possible = [
        size
        for size in range(7)
        for here in nodes
        for gone in combinations(here.pods.values(), size)
        if all(r.priority <= 1 and sum(r.uid in b.pods for b in budgets) <= 1 for r in gone)
        and all(sum(r.uid in b.pods for r in gone) <= b.allowed for b in budgets)
        and carried_out(nodes, here, gone, asked)
    ]
    assert (len(plan.moves) if plan.placement else None) == min(possible, default=None)


def carried_out(nodes, here, gone, asked):
    """The same question by hand: end these, place the pod, place them again one after the other."""
    room = here.without(r.uid for r in gone)
    placement = room.find(asked.request)
    if placement is None:
        return False
    now = [room.with_pod(asked, placement) if s is here else s for s in nodes]
    back = sorted(gone, key=lambda r: (-sum(c.request.cores for c in r.request.containers), r.name))
    return not simulate(now, back).refused


@quick
@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, UNITS)), max_size=12))
def test_a_forecast_never_overcommits_and_loses_no_pod(wanted):
    pods = [pod(f"p{i}", cores, units) for i, (cores, units) in enumerate(wanted)]
    forecast = simulate([node("n0"), node("n1", 1)], pods)
    sound(forecast.nodes)
    assert {s.pod for s in forecast.placements} | set(forecast.refused) == {p.name for p in pods}
    more = nodes_needed([node("n0")], pods, node("kind"))
    assert not more.refused
    sound(more.nodes)


def test_without_nodes_the_reason_is_that_there_are_none():
    assert why_not([], pod("a", 30)) == "no node publishes cards"
    assert "no node publishes cards" in str(defragment([], pod("a", 30), [], 3))


def test_the_pods_of_the_only_node_have_nowhere_to_go():
    alone = simulate([node("n1")], [pod("a", 30)]).nodes[0]
    assert drain([alone], "n1").refused == {"default/a": "no other node publishes cards"}


def test_what_a_node_and_a_pod_say_of_the_host_is_read():
    asked = {"spec": {"containers": [{"resources": {"requests": {"cpu": "1500m", "memory": "1Ki"}}}]}}
    assert host_of_pod(asked) == HostResources(1500, 1024, 1)
    offered = host_of_node({"status": {"allocatable": {"cpu": "2", "pods": "110"}}})
    assert (offered.cpu, offered.pods) == (2000, 110)
    assert offered.memory > 1 << 50


def test_an_object_without_a_name_is_no_budget():
    assert read_budget({"metadata": {"name": "a"}, "spec": {}}) is None


def on_one_card(name, *pods):
    """A node of one card with these pods on it."""
    here = replace(node(name, 1), constraints=NodeConstraints(name))
    for each in pods:
        here = lying(here, each, 0)
    return here


def test_where_the_best_place_of_one_leaves_another_without_the_next_is_taken():
    nodes = [
        on_one_card("n1", pod("a", 50), pod("b", 40, constraints=ON_N2)),
        on_one_card("n2", pod("c", 50, stays="none makes it anew")),
        on_one_card("n3", pod("d", 40, stays="none makes it anew")),
    ]
    plan = defragment(nodes, pod("train", 100))
    assert {m.pod: m.target for m in plan.moves} == {"default/a": "n3", "default/b": "n2"}
    assert plan.proven
    sound(plan.after)
    hurried = defragment(nodes, pod("train", 100), most_steps=0)
    assert hurried.placement is None
    assert not hurried.proven


def test_a_smaller_set_that_others_elsewhere_stand_in_the_way_of_is_no_proof():
    """The pod of n1 could go to n2, if that of n2 went to n3: two moves. On one node it takes three."""
    nodes = [
        on_one_card("n1", pod("a", 60)),
        on_one_card("n2", pod("keeps-2", 30, stays="it stays"), pod("b", 30)),
        on_one_card("n3", pod("keeps-3", 70, stays="it stays")),
        on_one_card("n4", pod("x", 20), pod("y", 20), pod("z", 20)),
    ]
    plan = defragment(nodes, pod("train", 100))
    assert len(plan.moves) == 3
    assert not plan.proven


def test_no_proof_is_false():
    false, proven, found = false_proofs(range(60))
    assert false == []
    assert proven > 30, "the answer still says so where it is so"
    assert found > 30
