"""The score of a placement: the same from whatever side one comes, and true to what it says it counts."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.domain.score.fragmentation import (
    ALONE,
    BAG,
    BAGS,
    SPREAD,
    Fragmentation,
    _draw,
    _lengths,
    fractions_alone,
)
from gpu_manager.domain.score.multi_gpu_slots import MultiGpuSlots, _more_than
from gpu_manager.domain.score.request_mix import (
    GROWTH,
    REMEMBERED,
    Arrivals,
    FreeShape,
    Mix,
    RequestShape,
    Stock,
)
from gpu_manager.domain.score.scorer import Scorer, in_all, prices

UNITS = 40
STOCK = {"A": Stock(80, UNITS), "B": Stock(20, UNITS)}
fractions = st.builds(
    RequestShape,
    st.integers(1, 99),
    st.integers(1, UNITS),
    st.integers(0, 20_000),
    st.sampled_from([(), ("A",), ("A", "B")]),
)
wholes = st.builds(RequestShape, st.sampled_from([100, 200, 400]), st.just(0), st.integers(0, 40_000))
hosts = st.builds(RequestShape, st.just(0), st.just(0), st.integers(1, 20_000))
shapes = st.one_of(fractions, wholes, hosts)
mixes = st.dictionaries(shapes, st.integers(1, 500), min_size=1, max_size=12)
cards = st.one_of(st.just((100, UNITS)), st.tuples(st.integers(0, 99), st.integers(0, UNITS)))


@st.composite
def rooms(draw, models=("A", "B")):
    free = draw(st.lists(cards, min_size=1, max_size=8))
    cpu = draw(st.one_of(st.none(), st.integers(0, 96_000)))
    return FreeShape(draw(st.sampled_from(models)), UNITS, cpu, tuple(sorted(free)))


def mix_of(counts: dict[RequestShape, int], number: int = 0) -> Mix:
    return Mix(tuple(sorted(counts.items())), sum(counts.values()), number)


def ways(shape: RequestShape, room: FreeShape) -> list[FreeShape]:
    if (room.cpu is not None and room.cpu < shape.cpu) or not shape.allows(room.model):
        return []
    if shape.cards:
        return [room.less(shape)] if room.free.count((100, UNITS)) >= shape.cards else []
    if not shape.cores:
        return [room.less(shape)]
    return [room.less(shape, c) for c in set(room.free) if c[0] >= shape.cores and c[1] >= shape.memory]


def value(room: FreeShape, weight: float) -> float:
    return sum((1 - weight) * c + weight * 100 * m / UNITS for c, m in room.free if c)


@settings(max_examples=60)
@given(mixes, st.lists(rooms(), min_size=1, max_size=12))
def test_a_value_does_not_depend_on_what_else_is_asked_or_was_asked_before(counts, asked):
    at_once = Fragmentation(mix_of(counts), STOCK).of(asked)
    one_by_one = Fragmentation(mix_of(counts), STOCK)
    assert [one_by_one.of([room])[0] for room in asked] == at_once
    assert one_by_one.of(list(reversed(asked))) == list(reversed(at_once))


@settings(max_examples=60)
@given(mixes, rooms())
def test_the_waste_is_never_below_nothing_nor_above_what_is_free(counts, room):
    mix = mix_of(counts)
    weight = round(mix.memory_weight(STOCK) * 256) / 256
    idle = value(room, weight)
    (rolled,) = Fragmentation(mix, STOCK, (0.0, 1.0)).of([room])
    (filled,) = Fragmentation(mix, STOCK, (1.0, 0.0)).of([room])
    assert -1e-6 <= rolled <= idle + 0.1
    assert filled + 1e-3 >= -1e-6
    assert filled <= idle + 0.1


def offered(room: FreeShape, bag: list[RequestShape]) -> tuple[tuple[int, int], ...]:
    """The roll-out in the plainest words: each request to the card with the least cores, then memory, left."""
    free, cpu = list(room.free), room.cpu if room.cpu is not None else 1 << 30
    for shape in bag:
        able = [c for c in free if c[0] >= shape.cores and c[1] >= shape.memory]
        if not able or cpu < shape.cpu or not shape.allows(room.model):
            continue
        card = min(able)
        free.remove(card)
        free.append((card[0] - shape.cores, card[1] - shape.memory))
        cpu -= shape.cpu
    return tuple(free)


@settings(max_examples=60)
@given(mixes, rooms())
def test_the_roll_out_is_what_offering_each_bag_by_hand_leaves(counts, room):
    mix = mix_of(counts)
    singles = [(shape, n) for shape, n in mix.counts if 0 < shape.cores <= 100]
    near = fractions_alone(mix, sum(each.cards for each in STOCK.values()))
    lengths = _lengths(BAG * (ALONE[0] / BAG) ** near, SPREAD * (ALONE[1] / SPREAD) ** near, BAGS)
    drawn = _draw([n for _, n in singles], mix.number, lengths)
    weight = round(mix.memory_weight(STOCK) * 256) / 256
    left = []
    for bag in drawn.T:
        shapes_drawn = [singles[at][0] for at in bag if at < len(singles)]
        left.append(value(room._replace(free=offered(room, shapes_drawn)), weight))
    (found,) = Fragmentation(mix, STOCK, (0.0, 1.0)).of([room])
    assert abs(found - sum(left) / BAGS) < 0.05


@settings(max_examples=60)
@given(mixes, rooms())
def test_the_fill_up_is_what_copies_of_each_shape_alone_leave(counts, room):
    mix = mix_of(counts)
    weight = round(mix.memory_weight(STOCK) * 256) / 256
    asking = [(shape, n) for shape, n in mix.counts if shape.cores]
    spread = sum(n * max(1, s.cards) for s, n in asking)
    share = sum(n for _, n in asking) / mix.total
    expected = 0.0
    for shape, n in asking:
        if shape.cards > 1:
            continue  # these are the places' part
        copies = 0
        left = room
        shape = shape._replace(cpu=max(1, shape.cpu))  # noqa: PLW2901  # a node without host CPU holds none
        while after := ways(shape, left):
            left, copies = min(after), copies + 1
        size = (
            shape.cores if shape.cards else (1 - weight) * shape.cores + weight * 100 * shape.memory / UNITS
        )
        expected += share * n / spread * (value(room, weight) - copies * size)
    (found,) = Fragmentation(mix, STOCK, (1.0, 0.0), alone=(*ALONE[:2], 1.0)).of([room])
    assert abs(found - expected) < 0.05


@settings(max_examples=40)
@given(mixes, shapes, st.lists(rooms(), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_changes_no_choice(counts, shape, nodes, chance):
    scorer = Scorer(mix_of(counts), STOCK)
    moves = [((room,), (after,)) for room in nodes for after in ways(shape, room)]
    if not moves:
        return
    shuffled = list(moves)
    chance.shuffle(shuffled)
    again = Scorer(mix_of(counts), STOCK)
    assert min(scorer.costs(moves)) == min(again.costs(shuffled))


@settings(max_examples=40)
@given(mixes, st.lists(rooms(), min_size=2, max_size=8), st.lists(shapes, max_size=6))
def test_scoring_only_what_changed_is_scoring_all_from_scratch(counts, nodes, coming):
    kept = Scorer(mix_of(counts), STOCK)
    for shape in coming:
        moves = [((room,), (after,)) for room in nodes for after in ways(shape, room)]
        if not moves:
            continue
        costs = kept.costs(moves)
        assert costs == Scorer(mix_of(counts), STOCK).costs(moves)
        before, after = moves[costs.index(min(costs))]
        nodes[nodes.index(before[0])] = after[0]


def test_bags_are_drawn_alike_from_the_same_arrivals_and_differ_between_refreshes():
    counts = [5, 3, 2]
    lengths = _lengths(BAG, SPREAD, BAGS)
    assert (_draw(counts, 4, lengths) == _draw(counts, 4, lengths)).all()
    assert (_draw(counts, 4, lengths) != _draw(counts, 5, lengths)).any()


@pytest.mark.parametrize(("middle", "spread"), [(BAG, SPREAD), ALONE[:2]])
def test_a_bag_is_a_fair_sample_of_the_mix(middle, spread):
    drawn = _draw([60, 30, 10], 0, _lengths(middle, spread, BAGS))
    lengths = (drawn < 3).sum(0)
    assert middle / spread <= lengths.min() < middle < lengths.max() <= middle * spread
    for bag, length in zip(drawn.T, lengths, strict=True):
        assert abs((bag == 0).sum() - 0.6 * length) <= 1


def test_bags_and_fill_up_follow_the_fractions_part_of_the_demand():
    half, whole = RequestShape(50), RequestShape(100)

    def near(counts, cards, turnover=0.0):
        return fractions_alone(replace(mix_of(counts), turnover=turnover), cards)

    assert near({half: 200, whole: 100}, 100) == 0, "half of the demand"
    assert near({half: 140, whole: 30}, 100) == pytest.approx((0.7 - 0.5) / 0.4), (
        "all cards have been asked for"
    )
    assert (
        near({half: 200}, 100) == near({half: 180}, 100) == near({half: 180, RequestShape(200): 5}, 100) == 1
    )
    assert near({half: 110}, 100) == pytest.approx((0.55 - 0.5) / 0.4)
    assert (
        near({half: 80}, 100)
        == near({}, 100)
        == near({half: 5}, 0)
        == near({RequestShape(0, cpu=1): 9}, 1)
        == 0
    )
    assert near({half: 200}, 100, turnover=0.6) == 0, "what has left asks for nothing"
    room, stock, counts = (
        FreeShape("M", 16, None, ((30, 16), (40, 16))),
        {"M": Stock(100, 16)},
        mix_of({half: 110}),
    )
    (filled,) = Fragmentation(counts, stock, (0.4, 0.0), alone=(20, 2, 0.1)).of([room])
    assert filled == pytest.approx(0.4 * (1 - 0.9 * 0.125) * 70), (
        "an eighth of the way to a tenth; nothing fits, all is idle"
    )


def test_a_card_that_many_may_only_use_costs_more_than_one_that_any_may():
    mix = mix_of({RequestShape(50, 1, 0, ("B",)): 50, RequestShape(50, 1): 50})
    price = prices(mix, STOCK)
    assert price["B"] > 1 > price["A"]
    assert abs(sum(price[m] * STOCK[m].cards for m in STOCK) - 100) < 1e-9
    assert prices(mix_of({RequestShape(50, 1): 1}), STOCK) == {"A": 1.0, "B": 1.0}


def test_memory_decides_a_price_only_among_the_models_that_a_request_names():
    stock = {"A": Stock(60, 16), "B": Stock(20, 32), "C": Stock(20, 32)}
    large, small, whole = RequestShape(50, 22), RequestShape(20, 2), RequestShape(100)
    unnamed = {large: 50, small: 30, whole: 20}
    assert prices(mix_of(unnamed), stock) == {"A": 1.0, "B": 1.0, "C": 1.0}
    by_names = [{**unnamed, large._replace(models=models): 30} for models in (("A", "B"), ("B",))]
    either, only = (prices(mix_of(counts), stock) for counts in by_names)
    assert either == only, "of the two that it names only one has the memory"
    assert either["B"] > 1 > either["A"] == either["C"]
    none = {**unnamed, large._replace(models=("A",)): 30}
    assert prices(mix_of(none), stock) == {"A": 1.0, "B": 1.0, "C": 1.0}, "it fits on none that it names"


def test_a_request_for_more_memory_than_a_card_has_is_no_demand_on_it():
    stock = {"A": Stock(60, 16), "B": Stock(40, 32)}
    for parts in ((1.0, 0.0), (0.0, 1.0)):
        with_large, without = (
            Fragmentation(mix_of(counts), stock, parts)
            for counts in ({RequestShape(50, 22): 1}, {RequestShape(50, 22, 0, ("none",)): 1})
        )
        a, b = (FreeShape(model, stock[model].memory, None, ((100, stock[model].memory),)) for model in stock)
        assert with_large.of([a]) == without.of([a]), "all of it stays idle"
        assert with_large.of([b]) < without.of([b])


def test_a_request_goes_where_it_fills_what_is_open_rather_than_to_an_empty_card():
    scorer = Scorer(mix_of({RequestShape(50, 20, 1000): 60, RequestShape(100, 0, 1000): 40}), STOCK)
    half = FreeShape("A", UNITS, 64_000, ((50, 20), (100, UNITS)))
    empty = FreeShape("A", UNITS, 64_000, ((100, UNITS), (100, UNITS)))
    shape = RequestShape(50, 20, 1000)
    costs = scorer.costs(
        [((half,), (half.less(shape, (50, 20)),)), ((empty,), (empty.less(shape, (100, UNITS)),))]
    )
    assert costs[0] < costs[1]


def _breaking_costs(arrivals, turnover):
    """Of two idle nodes, 16 and 128 host CPUs: what it costs that a fraction breaks each."""
    mix = replace(mix_of({RequestShape(50, 20): arrivals}), turnover=turnover)
    scorer = Scorer(mix, STOCK, cpu_left=0.0)
    shape = RequestShape(50, 20)
    idle = [FreeShape("A", UNITS, cpu, ((100, UNITS),)) for cpu in (16_000, 128_000)]
    return [cost[0] for cost in scorer.costs([((r,), (r.less(shape, r.free[0]),)) for r in idle])]


@pytest.mark.parametrize(("arrivals", "turnover"), [(1, 0.0), (100, 0.0), (100, 1.0), (20_000, 0.9)])
def test_the_idle_node_with_the_least_host_cpu_is_broken_first_also_before_any_pod_has_left(
    arrivals, turnover
):
    small, large = _breaking_costs(arrivals, turnover)
    assert small < large


def test_host_cpu_of_idle_nodes_counts_for_nothing_where_many_came_and_nobody_left():
    small, large = _breaking_costs(30_000, 0.0)
    assert large - small == pytest.approx(0, abs=0.02)


def test_memory_that_is_scarcer_than_cores_decides():
    """Much memory, few cores: what is left of the memory is what the next request needs."""
    scorer = Scorer(mix_of({RequestShape(10, 20): 100}), STOCK)
    tight = FreeShape("A", UNITS, None, ((90, 20),))
    loose = FreeShape("A", UNITS, None, ((90, 30),))
    shape = RequestShape(10, 20)
    filled, broken = scorer.costs([((r,), (r.less(shape, r.free[0]),)) for r in (tight, loose)])
    assert filled < broken


def test_cards_without_host_cpu_are_worth_nothing_to_come():
    mix = mix_of({RequestShape(50, 10, 8000): 1})
    starved, fed = (FreeShape("A", UNITS, cpu, ((100, UNITS),)) for cpu in (4000, 64_000))
    lost, kept = Fragmentation(mix, STOCK).of([starved, fed])
    assert lost > kept


@settings(max_examples=60)
@given(mixes, rooms())
def test_a_node_holds_as_many_of_a_request_for_several_cards_as_fit_one_after_the_other(counts, room):
    several = [shape for shape, _ in mix_of(counts).counts if shape.cards > 1]
    held = []
    for shape in several:
        left, copies = room, 0
        while after := ways(shape, left):
            left, copies = after[0], copies + 1
            if copies > len(room.free):
                break  # asks for no host CPU and no card of this size is left
        held.append(copies)
    slots = MultiGpuSlots(mix_of(counts), STOCK)
    assert slots.of((room,))[: len(held)] == tuple(held)
    idle = sum(card == (100, room.memory) for card in room.free)
    of_idle_nodes = slots.of((room,))[len(held) : len(held) + len(STOCK)]
    assert sum(of_idle_nodes) == (idle if idle == len(room.free) else 0)


@settings(max_examples=60)
@given(st.floats(0.001, 29), st.integers(0, 60))
def test_the_chance_to_be_missed_is_that_as_many_come(expected, places):
    fewer = sum(math.exp(-expected + k * math.log(expected) - math.lgamma(k + 1)) for k in range(places))
    assert _more_than(expected, places) == pytest.approx(1 - fewer, abs=1e-5)


@pytest.mark.parametrize("expected", [29.999, 30.001, 31.0])
def test_the_curve_goes_on_where_counting_ends(expected):
    for places in range(10, 60):
        assert _more_than(expected, places) == pytest.approx(_more_than(30, places), abs=0.15)
    chances = [_more_than(expected, places) for places in range(100)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] == pytest.approx(1, abs=1e-6)
    assert chances[-1] == pytest.approx(0, abs=1e-6)


def test_the_last_places_are_dear_and_plenty_of_them_cheap():
    """Eight cards together are asked for now and then; a small pod may break an empty node or a broken one."""
    eight, small = RequestShape(800, 0, 8000), RequestShape(50, 1, 1000)
    scorer = Scorer(mix_of({eight: 5, small: 95}), STOCK)
    empty = FreeShape("A", UNITS, 64_000, ((100, UNITS),) * 8)
    move = (empty,), (empty.less(small, (100, UNITS)),)
    (cost,) = scorer.costs([move])
    loss = scorer.places.lost(*move)
    assert loss == ((0, 1), (1, 8))
    free = 20 * empty.cores
    assert in_all(cost, (), ()) == cost, "where no slot is lost no price counts"
    few, many = (in_all(cost, loss, scorer.places.prices(free, [left, 8, 0, 0, 0]))[0] for left in (2, 400))
    assert few > many + 400
    assert many == pytest.approx(cost[0] + scorer.places.prices(free, [400, 8, 0, 0, 0])[0], abs=0.01)
    broken = empty.less(small, (100, UNITS))
    assert scorer.places.lost((broken,), (broken.less(small, (100, UNITS)),)) == ()


@pytest.mark.parametrize("others", [{}, {100: 5}, {100: 50}, {200: 2, 800: 5}])
def test_an_idle_node_is_dear_in_every_mix_while_nodes_in_use_have_idle_cards_to_spare(others):
    small = RequestShape(30, 1, 1000)
    idle = FreeShape("A", UNITS, 64_000, ((100, UNITS),) * 8)
    used = idle.less(small, (100, UNITS))
    mix = mix_of({small: 100, **{RequestShape(cores): n for cores, n in others.items()}})
    slots = MultiGpuSlots(mix, {"A": Stock(80, UNITS)})
    breaks = slots.lost((idle,), (used,))
    kinds = len(slots) - 2
    assert breaks[-1] == (kinds, 8)
    assert [at for at, _ in slots.lost((used,), (used.less(small, (100, UNITS)),))] <= list(range(kinds))
    free, places = 8000, [80 // shape.cards for shape in slots._shapes]
    dear = slots.prices(free, [*places, 72, 7])[kinds]
    assert dear * 8 == 800, "the cores of the node: more than any waste"
    assert slots.prices(free, [*places, 80, 0])[kinds] == 0, "no card to spare: a node has to be opened"


def test_idle_cards_are_to_spare_by_model_by_host_cpu_and_from_a_hundredth_of_the_cards_on():
    mix = mix_of(
        {RequestShape(30, 1, 4000): 3, RequestShape(100, 0, 8000): 1, RequestShape(800, 0, 64_000): 9}
    )
    slots = MultiGpuSlots(mix, {"A": Stock(1000, UNITS), "B": Stock(80, UNITS)})

    def node(model, cpu):
        return (FreeShape(model, UNITS, cpu, ((70, UNITS), *((100, UNITS),) * 7)),)

    assert slots.of(node("A", None))[1:] == (0, 0, 7, 0)
    assert slots.of(node("B", 64_000))[1:] == (0, 0, 0, 7)
    assert slots.of(node("B", 12_000))[1:] == (0, 0, 0, 2), "a request for up to a card takes 5 CPUs"
    assert slots.of((FreeShape("C", UNITS, None, ((100, UNITS),) * 8),)) == (1, 0, 0, 0, 0)
    of_a, of_b = (slots.prices(0, [0, 0, 0, *spare])[1:] for spare in ((9, 1), (10, 0)))
    assert of_a == [0, 100]
    assert of_b == [100, 0]


def test_the_mix_is_drawn_anew_with_each_early_arrival_and_then_every_so_often():
    arrivals = Arrivals()
    refreshed = 0
    for _ in range(1000):
        arrivals.add(RequestShape(50, 1))
        if arrivals.due:
            arrivals.mix()
            refreshed += 1
    assert 30 <= refreshed <= 60
    assert not arrivals.due
    assert GROWTH > 1


def test_old_habits_fade():
    arrivals = Arrivals()
    for _ in range(REMEMBERED):
        arrivals.add(RequestShape(10, 1))
    assert len(arrivals) <= REMEMBERED // 2
    for _ in range(REMEMBERED // 2):
        arrivals.add(RequestShape(20, 1))
    counts = dict(arrivals.mix().counts)
    assert counts[RequestShape(20, 1)] >= counts[RequestShape(10, 1)]


def test_the_agent_never_loads_the_score_nor_numpy():
    program = (
        "import sys, gpu_manager.agent.composition, gpu_manager.cli.run;"
        "print([m for m in sys.modules if m == 'numpy' or m.startswith('gpu_manager.domain.score')])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_departures_count_against_arrivals_in_the_mix() -> None:
    arrivals = Arrivals()
    for _ in range(10):
        arrivals.add(RequestShape(50, 20))
    alive = arrivals.mix().turnover
    arrivals.leave(5)
    assert arrivals.mix().turnover > alive


def turnover_of(created, since=0.0):
    arrivals = Arrivals()
    for _ in created:
        arrivals.add(RequestShape(50, 20))
    arrivals.began(created, since)
    return arrivals.mix().turnover


def test_who_left_before_the_count_began_is_told_by_the_ages_of_those_that_stayed():
    steady = [float(at) for at in range(200)]
    assert turnover_of(steady) == pytest.approx(0, abs=0.02), "an even row of ages: nobody left"
    hour = [7 * 3600 + 18.0 * at for at in range(200)]
    assert turnover_of(hour) == pytest.approx(7 / 8, abs=0.01), (
        "a steady stream that stays for an hour of eight"
    )
    assert turnover_of([1e6] * 200) == pytest.approx(0.95, abs=0.01)
    assert turnover_of([0.0] * 200 + [1e6] * 5) == 0, "most have been there from the beginning"
    assert turnover_of([5.0] * 20, since=5.0) == turnover_of([5.0], since=7.0) == turnover_of([]) == 0


def test_what_is_counted_overtakes_the_estimate():
    arrivals = Arrivals()
    for _ in range(100):
        arrivals.add(RequestShape(50, 20))
    arrivals.began([1e6] * 100, 0.0)
    estimated = arrivals.copy().mix().turnover
    for _ in range(REMEMBERED * 2):
        arrivals.add(RequestShape(50, 20))
    assert arrivals.mix().turnover < estimated / 10


def test_where_pods_leave_again_a_request_goes_to_the_card_that_is_fuller_after_it():
    arrivals = Arrivals()
    shape = RequestShape(10, 20)
    for _ in range(10):
        arrivals.add(shape)
        arrivals.leave()
    scorer = Scorer(arrivals.mix(), STOCK)
    rooms = [FreeShape("A", UNITS, None, ((cores, UNITS),)) for cores in (20, 90)]
    full, empty = scorer.costs([((room,), (room.less(shape, room.free[0]),)) for room in rooms])
    assert full < empty
    assert len(scorer.waste) == 4
