"""Which cards are taken together: the best-joined set and the card that breaks least, against brute force."""

import statistics
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.placement.topology import random_machine
from gpu_manager.domain.placement.card_sets import PREPARED, best_set, fragment, grown_set
from gpu_manager.domain.topology import SELF, Link, LinkKind, Topology, parse_topology
from tests.fakes.machines import EIGHT, SIX, nvswitch, over_pcie, topologies_with_free, tree
from tests.seeds import generator

quick = settings(max_examples=100)
CUBE_MESH = """
        GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7
GPU0     X    NV1   NV1   NV2   NV2   SYS   SYS   SYS
GPU1    NV1    X    NV2   NV1   SYS   NV2   SYS   SYS
GPU2    NV1   NV2    X    NV2   SYS   SYS   NV1   SYS
GPU3    NV2   NV1   NV2    X    SYS   SYS   SYS   NV1
GPU4    NV2   SYS   SYS   SYS    X    NV1   NV1   NV2
GPU5    SYS   NV2   SYS   SYS   NV1    X    NV2   NV1
GPU6    SYS   SYS   NV1   SYS   NV1   NV2    X    NV2
GPU7    SYS   SYS   SYS   NV1   NV2   NV1   NV2    X
"""


def worth(topology, cards):
    """What a set is worth, the best first: by its links, then by how near its cards are over PCIe."""
    return -topology.sum(cards), -near(topology, combinations(cards, 2))


def near(topology, pairs):
    """0 where no PCIe path beside NVLinks is known: then links alone count."""
    if not any(link.path for row in topology.links for link in row):
        return 0
    step = {"PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10, "X": 0}
    links = (topology.link(one, other) for one, other in pairs)
    return sum(step[(link.path or link.kind).value] for link in links)


def linked(topology, card):
    """To the whole machine."""
    return sum(topology.weights[card]), near(topology, ((card, other) for other in range(topology.size)))


def rest(topology, free, cards):
    """What stays free, the better linked the less, then what the cards are linked to; it counts on machines
    with NVLinks alone.
    """
    if not has_nvlinks(topology):
        return (), ()
    later = [linked(topology, card) for card in cards]
    return worth(topology, free - set(cards)), tuple(map(sum, zip(*later, strict=True)))


def has_nvlinks(topology):
    return max(map(max, topology.weights)) >= Link.parse("NV1").weight


def brute_best(topology, free, k):
    sets = combinations(sorted(free), k)
    return min(sets, key=lambda s: (worth(topology, s), rest(topology, free, s), s), default=None)


def brute_fragment(topology, free):
    def left(card):
        rest = free - {card}
        best = [worth(topology, brute_best(topology, rest, k)) for k in range(1, len(rest) + 1)]
        return tuple(map(sum, zip(*best, strict=True)))

    later = has_nvlinks(topology)
    return min(
        free, key=lambda card: (left(card), linked(topology, card) if later else 0, card), default=None
    )


@quick
@given(st.one_of(topologies_with_free(), topologies_with_free(2, 8, over_pcie)))
def test_the_best_set_is_the_best_of_all_sets(case):
    topology, free = case
    for k in range(1, topology.size + 1):
        assert best_set(topology, free, k) == brute_best(topology, free, k)


@quick
@given(st.one_of(topologies_with_free(), topologies_with_free(1, 8, over_pcie)))
def test_the_fragment_is_the_card_whose_loss_costs_least(case):
    assert fragment(*case) == brute_fragment(*case)


few = st.sampled_from([Link.parse("NV2"), Link.parse("PIX"), Link.parse("SYS")])


@settings(max_examples=60)
@given(st.one_of(topologies_with_free(), topologies_with_free(6, 8, few)))
def test_no_exchange_of_two_cards_adds_to_a_set_on_a_big_node(case):
    topology, free = case
    for k in range(1, len(free) + 1):
        found = grown_set(topology, free, k)
        assert len(found) == k
        assert free.issuperset(found)
        others = ((found, out, new) for out in found for new in free - set(found))
        assert all(topology.sum({*found, new} - {out}) <= topology.sum(found) for found, out, new in others)


def test_sets_of_a_big_irregular_node_are_nearly_the_best_and_the_same_each_time():
    dice, ratios = generator(2), []
    for _ in range(12):
        topology, free = random_machine(10, dice), frozenset(dice.sample(range(10), 8))
        for k in range(2, 8):
            found = grown_set(topology, free, k)
            assert found == grown_set(topology, free, k)
            ratios.append(topology.sum(found) / topology.sum(brute_best(topology, free, k)))
    assert min(ratios) > 0.95
    assert statistics.mean(ratios) > 0.999


@pytest.mark.parametrize("size", [PREPARED + 1, 24, 64])
def test_a_bigger_node_is_searched(size):
    topology = tree(size, (2, "NV4"), (8, "PIX"))
    free = frozenset(range(size)) - {0, 8, 9, 11}
    assert best_set(topology, free, 2) == (2, 3)
    assert best_set(topology, free, 3) == (1, 2, 3)
    assert best_set(topology, free, 6) == (2, 3, 4, 5, 6, 7)
    assert best_set(topology, free, len(free)) == tuple(sorted(free))
    assert best_set(topology, free, size) is None
    assert fragment(tree(size, (size // 2, "NV4")), frozenset(range(size)) - {0}) == brute_broken(size)


def brute_broken(size):
    """In two groups, one of them short of card 0: its next card, unless a lone last card is left over."""
    return size - 1 if size % 2 else 1


@pytest.mark.parametrize(
    ("busy", "one", "two", "three", "four"),
    [
        ((), 4, (0, 1), (0, 1, 2), (0, 1, 2, 3)),
        ((0,), 4, (2, 3), (1, 2, 3), (1, 2, 3, 4)),
        ((0, 2), 1, (4, 5), None, None),
        ((0, 2, 4), 5, (1, 3), (1, 3, 5), None),
        ((1,), 4, (2, 3), None, None),
        ((4,), 5, (0, 1), (0, 1, 2), (0, 1, 2, 3)),
        ((2,), None, (0, 1), None, None),
    ],
)
def test_the_predecessors_six_cards(busy, one, two, three, four):
    free = frozenset(range(6)) - set(busy)
    assert one is None or fragment(SIX, free) == one
    assert best_set(SIX, free, 2) == two
    assert three is None or best_set(SIX, free, 3) == three
    assert four is None or best_set(SIX, free, 4) == four
    assert best_set(SIX, free, len(free) + 1) is None


def test_the_predecessors_eight_cards():
    everything = frozenset(range(8))
    assert fragment(EIGHT, everything) == 0
    assert best_set(EIGHT, everything, 4) == (0, 1, 2, 3)
    free = everything - {0}
    assert fragment(EIGHT, free) == 1
    assert best_set(EIGHT, free, 3) == (1, 2, 3)
    assert best_set(EIGHT, free, 4) == (4, 5, 6, 7)


def test_the_best_sets_of_a_cube_mesh():
    mesh = parse_topology(CUBE_MESH).topology
    everything = frozenset(range(8))
    assert best_set(mesh, everything, 2) == (0, 3)
    assert best_set(mesh, everything, 4) == (0, 1, 2, 3)
    assert mesh.sum((0, 1, 2, 3)) == mesh.sum((4, 5, 6, 7)) == 900
    assert best_set(mesh, everything - {0}, 4) == (4, 5, 6, 7)
    assert fragment(mesh, everything) == brute_fragment(mesh, everything)


few_kinds = st.sampled_from([Link.parse("NV2"), Link.parse("PIX")])
NODES = st.lists(st.sampled_from([0, 1, None]), min_size=8, max_size=8).map(tuple)


@quick
@given(st.one_of(topologies_with_free(2, 8, few_kinds), topologies_with_free(2, 8, over_pcie)), NODES)
def test_of_equal_sets_the_one_on_the_fewest_numa_nodes_is_taken(case, nodes):
    topology, free = case
    numa = nodes[: topology.size]

    def rank(cards):
        nodes = len({numa[card] for card in cards})
        return worth(topology, cards), nodes, rest(topology, free, cards), cards

    for k in range(1, len(free) + 1):
        assert best_set(topology, free, k, numa) == min(combinations(sorted(free), k), key=rank)
        grown = grown_set(topology, free, k, numa)
        assert rank(grown)[:1] >= rank(best_set(topology, free, k, numa))[:1]
    assert fragment(topology, free, numa) == fragment(topology, free)


def test_no_pair_crosses_the_sockets_of_an_nvswitch_machine_for_nothing():
    assert best_set(tree(8, (8, "NV18")), frozenset({1, 4, 5}), 2, (0,) * 4 + (1,) * 4) == (4, 5)


@pytest.mark.parametrize("size", [8, 20])
def test_of_sets_that_nvlinks_join_alike_the_one_nearest_over_pcie_is_taken(size):
    machine, everything = nvswitch(size), frozenset(range(size))
    half = size // 2
    assert best_set(machine, everything - {0}, 2) == (2, 3)
    assert best_set(machine, everything - {0, 3}, 2) == (4, 5)
    assert best_set(machine, frozenset({1, 3, half, half + 2, half + 3}), 3) == (half, half + 2, half + 3)
    assert fragment(machine, everything - {2}) == 3, "of a broken pair"
    assert machine.sum((0, half)) == machine.sum((0, 1)) == 1800, "the score itself says nothing of PCIe"


def test_a_better_path_never_outweighs_an_nvlink():
    near, far = Link(LinkKind.NVLINK, 1, LinkKind.PIX), Link(LinkKind.NVLINK, 2, LinkKind.SYS)
    rows = ((SELF, near, far), (near, SELF, near), (far, near, SELF))
    assert best_set(Topology(rows), frozenset(range(3)), 2) == (0, 2)


def test_nothing_free_is_nothing_found():
    assert fragment(SIX, frozenset()) is None
    assert best_set(SIX, frozenset(), 1) is None
    assert best_set(SIX, frozenset({3}), 0) is None
    assert best_set(SIX, frozenset({3}), 1) == (3,)
    assert fragment(SIX, frozenset({3})) == 3


@pytest.mark.parametrize(
    "levels", [((2, "NV4"), (4, "PIX"), (8, "NODE")), ((8, "NV12"),), ((16, "NV12"),), ()]
)
@pytest.mark.parametrize("size", [11, 16])
def test_beyond_the_table_sets_of_regular_machines_are_exact(size, levels):
    topology = tree(size, *levels)
    for busy in ({0}, {1, 2, 9}, {0, 4, 5, 10}):
        free = frozenset(range(size)) - busy
        for k in range(1, len(free) + 1):
            assert topology.sum(grown_set(topology, free, k)) == topology.sum(best_set(topology, free, k))
