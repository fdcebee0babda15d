"""What if: nothing is over-committed in a forecast, a plan works when it is carried out, and none is smaller."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.defrag import Budget, defragment
from gpu_manager.domain.ledger import Ledger
from gpu_manager.domain.plan import Resident, Site, best_fit, drain, nodes_needed, simulate
from gpu_manager.domain.pod import ContainerKind, PodUid
from gpu_manager.domain.request import ContainerRequest, PodRequest, Request
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.domain.topology import SELF, Link, Topology

UNITS = 64
quick = settings(deadline=None, max_examples=100, derandomize=True)


def node(name, cards=2):
    links = tuple(tuple(SELF if i == j else Link.parse("PIX") for j in range(cards)) for i in range(cards))
    states = tuple(
        CardState(Card(i, CardUuid(f"GPU-{name}-{i}"), "A100", UNITS * DEFAULT_UNIT)) for i in range(cards)
    )
    return Site(name, states, Topology(links), Ledger((s.card for s in states), DEFAULT_UNIT))


def pod(name, cores, units=1, **more):
    memory = 0 if cores >= 100 else units * DEFAULT_UNIT
    asked = ContainerRequest("main", ContainerKind.APP, 0, Request(cores, memory))
    return Resident(PodUid(name), f"default/{name}", PodRequest(PodUid(name), (asked,)), **more)


def lying(site, resident, *cards):
    """The node with the pod on these very cards."""
    others = [s.card.uuid for s in site.cards if s.card.index not in cards]
    closed = tuple(CardState(s.card, cordoned=s.card.uuid in others) for s in site.cards)
    placement = Site(site.name, closed, site.topology, site.ledger).find(resident.request)
    return site if placement is None else site.with_pod(resident, placement)


def sound(sites):
    for site in sites:
        for state in site.cards:
            free = site.ledger.free(state.card.uuid)
            assert free.cores >= 0
            assert free.memory >= 0


def test_pods_are_seated_in_the_order_they_would_arrive_and_the_rest_hear_why():
    forecast = simulate([node("n1", 1)], [pod("a", 60), pod("b", 60), pod("c", 30)])
    assert [(s.pod, s.node, s.cards) for s in forecast.seats] == [
        ("default/a", "n1", (0,)),
        ("default/c", "n1", (0,)),
    ]
    assert list(forecast.refused) == ["default/b"]
    assert '"n1" has most free' in forecast.refused["default/b"]
    assert "60 cores" in forecast.refused["default/b"]


def test_asking_changes_nothing():
    site = node("n1")
    simulate([site], [pod("a", 60)])
    defragment([site], pod("b", 200))
    assert len(site.ledger) == 0
    assert not site.residents


def test_how_many_nodes_of_a_kind_a_list_of_pods_takes():
    pods = [pod(f"f{i}", 30, 10) for i in range(12)] + [pod(f"w{i}", 400) for i in range(2)]
    forecast = nodes_needed([], pods, node("kind", 8))
    assert forecast.added == 2  # twelve at three a card: four cards; with two times four: twelve cards
    assert not forecast.refused
    sound(forecast.sites)


def test_what_no_node_of_the_kind_can_ever_hold_adds_none():
    forecast = nodes_needed([], [pod("huge", 900)], node("kind", 8))
    assert forecast.added == 0
    assert "9 whole cards" in forecast.refused["default/huge"]


def test_a_drained_node_names_the_pods_that_find_no_other_place():
    n1 = lying(lying(node("n1", 1), pod("a", 50, priority=5), 0), pod("b", 50), 0)
    n2 = lying(node("n2", 1), pod("c", 40), 0)
    forecast = drain([n1, n2], "n1")
    assert [s.pod for s in forecast.seats] == ["default/a"]  # the more important one first
    assert list(forecast.refused) == ["default/b"]


def broken():
    """Two cards half full each, where a whole card is wanted."""
    return lying(lying(node("n1"), pod("small", 30), 0), pod("large", 50), 1)


def test_the_least_amount_moves_so_that_a_whole_card_is_free():
    plan = defragment([broken()], pod("train", 100))
    assert plan.seat is not None
    assert plan.seat.cards == (0,)
    assert [(m.pod, m.source_cards, m.target, m.target_cards) for m in plan.moves] == [
        ("default/small", (0,), "n1", (1,))
    ]
    assert plan.proven


def test_what_fits_as_it_is_moves_nobody():
    plan = defragment([broken()], pod("more", 70))
    assert plan.seat is not None
    assert plan.moves == ()


@pytest.mark.parametrize("reason", ["movable", "priority", "budget"])
def test_a_pod_that_must_stay_is_not_moved(reason):
    stay = {"movable": {"movable": False}, "priority": {"priority": 10}, "budget": {}}[reason]
    site = lying(lying(node("n1"), pod("small", 30, **stay), 0), pod("large", 50), 1)
    budgets = [Budget("b", 0, frozenset({PodUid("small")}))] if reason == "budget" else []
    plan = defragment([site], pod("train", 100), budgets)
    assert [m.pod for m in plan.moves] == ["default/large"]


def test_a_budget_bounds_how_many_of_its_pods_move_at_once():
    site = node("n1", 3)
    for i in range(3):
        site = lying(site, pod(f"p{i}", 20), i)
    names = frozenset(PodUid(f"p{i}") for i in range(3))
    two_cards = pod("two", 200)
    assert len(defragment([site], two_cards, [Budget("b", 2, names)]).moves) == 2
    refused = defragment([site], two_cards, [Budget("b", 1, names)])
    assert refused.seat is None
    assert "of the 3 pods that may move" in refused.reason


sites_drawn = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(1, 99), st.integers(1, UNITS)),
    min_size=1,
    max_size=6,
)


def drawn(parts):
    sites = [node("n0"), node("n1")]
    for i, (where, card, cores, units) in enumerate(parts):
        sites[where] = lying(sites[where], pod(f"p{i}", cores, units), card)
    return sites


@quick
@given(sites_drawn, st.sampled_from([40, 80, 100, 200]))
def test_a_plan_works_when_carried_out_and_no_smaller_one_does(parts, cores):
    sites = drawn(parts)
    asked = pod("asked", cores, 8)
    plan = defragment(sites, asked)
    sound(sites)
    possible = [
        size
        for size in range(7)
        for site in sites
        for gone in combinations(site.residents.values(), size)
        if carried_out(sites, site, gone, asked)
    ]
    if plan.seat is None:
        assert not possible
        return
    assert len(plan.moves) == min(possible)
    assert plan.proven
    sound(plan.after)
    names = {r.name for site in plan.after for r in site.residents.values()}
    assert names == {r.name for site in sites for r in site.residents.values()} | {asked.name}


def carried_out(sites, site, gone, asked):
    """The same question by hand: end these, seat the pod, seat them again one after the other."""
    room = site.without(r.uid for r in gone)
    placement = room.find(asked.request)
    if placement is None:
        return False
    now = [room.with_pod(asked, placement) if s is site else s for s in sites]
    back = sorted(gone, key=lambda r: (-sum(c.request.cores for c in r.request.containers), r.name))
    return not simulate(now, back, best_fit).refused


@quick
@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, UNITS)), max_size=12))
def test_a_forecast_never_overcommits_and_loses_no_pod(wanted):
    pods = [pod(f"p{i}", cores, units) for i, (cores, units) in enumerate(wanted)]
    forecast = simulate([node("n0"), node("n1", 1)], pods)
    sound(forecast.sites)
    assert {s.pod for s in forecast.seats} | set(forecast.refused) == {p.name for p in pods}
    more = nodes_needed([node("n0")], pods, node("kind"))
    assert not more.refused
    sound(more.sites)
