"""Links, the matrix of `nvidia-smi topo -m` in every form, and the choice of sets of cards."""

import contextlib
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_manager.domain import card_sets
from gpu_manager.domain.card_sets import PREPARED, best_set, fragment
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.topology import (
    MAX_CARDS,
    SELF,
    Affinity,
    Link,
    LinkKind,
    ParsedTopology,
    Topology,
    format_topology,
    parse_topology,
)

RECORDED = Path(__file__).parents[2].parent / "shared/data/topologies"
quick = settings(deadline=None, max_examples=100, derandomize=True)

links = st.one_of(
    st.builds(Link, st.sampled_from([k for k in LinkKind if k not in (LinkKind.SELF, LinkKind.NVLINK)])),
    st.builds(lambda lanes: Link(LinkKind.NVLINK, lanes), st.integers(1, 18)),
)


@st.composite
def topologies(draw, low=1, high=8, kinds=links):
    size = draw(st.integers(low, high))
    cells = {pair: draw(kinds) for pair in combinations(range(size), 2)}
    rows = [[SELF if i == j else cells[min(i, j), max(i, j)] for j in range(size)] for i in range(size)]
    return Topology(tuple(map(tuple, rows)))


@st.composite
def topologies_with_free(draw, low=1, high=8, kinds=links):
    topology = draw(topologies(low, high, kinds))
    return topology, frozenset(draw(st.sets(st.integers(0, topology.size - 1))))


def tree(size, *levels):
    """Cards in groups: ``(2, "PIX")`` joins every pair, wider groups follow, SYS between the rest."""

    def link(i, j):
        if i == j:
            return SELF
        return Link.parse(next((cell for width, cell in levels if i // width == j // width), "SYS"))

    return Topology(tuple(tuple(link(i, j) for j in range(size)) for i in range(size)))


# The machines of the worked examples.
SIX = tree(6, (2, "PIX"), (4, "PHB"))
EIGHT = tree(8, (2, "PIX"), (4, "PHB"))
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


# -- links ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "weight"),
    [("X", 0), ("PIX", 50), ("PXB", 40), ("PHB", 30), ("NODE", 20), ("SYS", 10), ("SOC", 10)]
    + [(f"NV{n}", 100 * n) for n in range(1, 19)],
)
def test_every_cell_has_its_weight(cell, weight):
    link = Link.parse(f" {cell} ")
    assert link.weight == weight
    assert str(link) == ("SYS" if cell == "SOC" else cell)


@pytest.mark.parametrize(
    "cell", ["", "NV", "NV0", "NV007", "NV100", "nv1", "pix", "N/A", "GPU0", "NV\uff11", "NVLINK"]
)
def test_what_is_no_link_is_a_value_error(cell):
    with pytest.raises(ValueError):
        Link.parse(cell)


def test_only_nvlinks_have_lanes():
    with pytest.raises(ValueError):
        Link(LinkKind.PIX, 1)
    with pytest.raises(ValueError):
        Link(LinkKind.NVLINK)


@given(links)
def test_a_link_is_its_cell(link):
    assert Link.parse(str(link)) == link


# -- the matrix as a value -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        [["X", "PIX"]],
        [["X", "PIX"], ["PIX"]],
        [["PIX"]],
        [["X", "X"], ["X", "X"]],
        [["X", "PIX"], ["SYS", "X"]],
    ],
    ids=["not square", "short row", "no X", "X beside the diagonal", "not symmetric"],
)
def test_a_matrix_that_cannot_be_is_refused(rows):
    with pytest.raises(ValueError):
        Topology(tuple(tuple(map(Link.parse, row)) for row in rows))


def test_a_uniform_machine_has_one_link():
    topology = Topology.uniform(4, Link.parse("NV12"))
    assert topology.size == 4
    assert topology.link(0, 3) == Link(LinkKind.NVLINK, 12)
    assert topology.link(2, 2) == SELF
    assert topology.sum(range(4)) == 6 * 1200
    assert Topology.uniform(0, SELF).sum(()) == 0


# -- reading ----------------------------------------------------------------------------------------------------


def recorded():
    if not RECORDED.is_dir():
        return [
            pytest.param(
                None, marks=pytest.mark.skip(reason="shared/data/topologies is not beside this tree")
            )
        ]
    return [pytest.param(path, id=path.stem) for path in sorted(RECORDED.glob("*.txt"))]


@pytest.mark.parametrize("path", recorded())
def test_every_recorded_machine_is_read(path):
    text = path.read_text()
    parsed = parse_topology(text)
    rows = [line.split() for line in text.splitlines() if line.startswith("GPU")]
    assert parsed.topology.size == len(rows)
    for i, row in enumerate(rows):
        assert [str(link) for link in parsed.topology.links[i]] == row[1 : 1 + len(rows)]
        assert parsed.affinities[i].cpus in row
    for variant in (
        text.replace("\n", "\r\n"),
        "\ufeff" + text,
        "\n\n$ nvidia-smi topo -m\n" + text + "\n$ exit\n",
        "\t" + "\n".join(line.strip() for line in text.splitlines()),
        text.replace("GPU0", "\x1b[4mGPU0", 1).replace("\n", "\x1b[0m\n", 1),
        format_topology(parsed),
    ):
        assert parse_topology(variant) == parsed


PADDED = "        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
TABBED = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TABBED + "GPU0\t X \tSYS\t0-31\t0\t\tN/A\nGPU1\tSYS\t X \t32-63\t1\t\tN/A\n", ("0-31", "0", "N/A")),
        (TABBED + "GPU0\t X \tSYS\t0-31\t\tN/A\t\tN/A\nGPU1\tSYS\t X \n", ("0-31", "N/A", "N/A")),
        (TABBED + "GPU0\t X \tSYS\t\t0\tN/A\nGPU1\tSYS\t X \t\t\t\n", (None, "0", "N/A")),
        (TABBED + "GPU0\t X \tSYS\nGPU1\tSYS\t X \n", (None, None, None)),
        (
            TABBED.expandtabs() + "GPU0     X  SYS  0-31  0  N/A\nGPU1    SYS   X   32-63  1 N/A",
            ("0-31", "0", "N/A"),
        ),
        (
            PADDED + "GPU0     X      SYS                     3               N/A\nGPU1    SYS      X\n",
            (None, "3", "N/A"),
        ),
        (
            PADDED + "GPU0     X      SYS     0-7                             1\nGPU1    SYS      X\n",
            ("0-7", None, "1"),
        ),
        ("GPU0 GPU1 CPU\nGPU0 X SYS PHB\nGPU1 SYS X PHB\nCPU PHB PHB X", (None, None, None)),
        ("GPU0 GPU1 CPU Affinity CPU Affinity Cats\nGPU0 X SYS\nGPU1 SYS X 1", (None, None, None)),
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSOC\t0-7\t\nGPU1\tSOC\t X \t8-15\t\n", ("0-7", None, None)),
        (
            "GPU0\tGPU1\tmlx5_0\tCPU  Affinity\nGPU0\tX\tSYS\tPIX\t0-7\nmlx5_0\nGPU1\tSYS\tX\tPIX\t0-7",
            ("0-7", None, None),
        ),
        ("\u001b[4m\tGPU0\tGPU1\u001b[0m\nGPU1\tSYS\tX\nGPU0\tX\tSYS\n\u001b(B", (None, None, None)),
        (
            "\ufffd[4m GPU0\xa0 GPU1[0m\nGPU0 X SYS\n\nGPU1 SYS X\nGPU0 is the first card\n",
            (None, None, None),
        ),
        ("GPU1 GPU0\nGPU0 SYS X\nGPU1 X SYS\n", (None, None, None)),
    ],
)
def test_the_matrix_is_read_in_every_form(text, expected):
    parsed = parse_topology(text)
    assert parsed.topology == Topology.uniform(2, Link.parse("SYS"))
    first = parsed.affinities[0]
    assert (first.cpus, first.numa, first.gpu_numa) == expected


@pytest.mark.parametrize(("numa", "node"), [("3", 3), ("0-1", None), ("N/A", None), (None, None), ("", None)])
def test_the_numa_node_is_known_only_where_it_is_one(numa, node):
    assert Affinity(numa=numa).node == node


def test_a_single_card_is_a_machine_too():
    assert parse_topology("\tGPU0\nGPU0\t X \n").topology.size == 1
    assert parse_topology("GPU0 CPU Affinity\nGPU0 X 0-11").affinities == (Affinity("0-11"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no GPU matrix"]),
        ("hello\nGPU0\n", ["no GPU matrix"]),
        ("GPU0 X PIX\nGPU1 PIX X\n", ["no GPU matrix"]),
        ("GPU0 GPU1\nGPU0 X PIX\n", ["GPU1", "no row"]),
        ("GPU0 GPU1\nGPU0 X PIX\nGPU0 X PIX\nGPU1 PIX X\n", ["two rows GPU0"]),
        ("GPU0 GPU2\nGPU0 X PIX\nGPU2 PIX X\n", ["GPU1", "GPU0 GPU2"]),
        ("GPU0 GPU0\nGPU0 X X\n", ["GPU0 GPU0"]),
        ("GPU0 GPU1\nGPU0 X PIG\nGPU1 PIX X\n", ["row GPU0, column GPU1", "'PIG'"]),
        ("GPU0 GPU1\nGPU0 X\nGPU1 PIX X\n", ["row GPU0, column GPU1", "too short"]),
        ("GPU0 GPU1\nGPU0 X PIX\nGPU1 SYS X\n", ["row GPU1, column GPU0: SYS", "PIX"]),
        ("GPU0 GPU1\nGPU0 PIX X\nGPU1 PIX X\n", ["row GPU0, column GPU0: PIX"]),
        ("GPU0 GPU1\nGPU0 X X\nGPU1 X X\n", ["row GPU0, column GPU1: X"]),
        ("GPU0 GPU1 CPU Affinity\nGPU0 X 0-7\nGPU1 PIX X 0-7\n", ["row GPU0, column GPU1", "'0-7'"]),
        (" ".join(f"GPU{i}" for i in range(MAX_CARDS + 1)) + "\nGPU0 X\n", ["65 GPUs"]),
    ],
)
def test_a_broken_matrix_is_refused_with_row_column_and_value(text, words):
    with pytest.raises(RequestInvalid) as caught:
        parse_topology(text)
    assert all(word in str(caught.value) for word in words), str(caught.value)


cells = st.one_of(
    st.none(), st.from_regex(r"[0-9]{1,3}(-[0-9]{1,3})?(,[0-9]{1,3})?", fullmatch=True), st.just("N/A")
)


@quick
@given(topologies(), st.data())
def test_reading_undoes_writing(topology, data):
    places = tuple(data.draw(st.builds(Affinity, cells, cells, cells)) for _ in range(topology.size))
    parsed = ParsedTopology(topology, places)
    assert parse_topology(format_topology(parsed)) == parsed


@quick
@given(st.text(alphabet="GPU01X NV\tSYCA-ffinity\n\x1b[4m", max_size=200))
def test_any_text_is_a_matrix_or_invalid_and_nothing_else(text):
    with contextlib.suppress(RequestInvalid):
        assert parse_topology("GPU0 GPU1 CPU Affinity NUMA Affinity\n" + text).topology.size > 0


# -- sets -------------------------------------------------------------------------------------------------------


def brute_best(topology, free, k):
    sets = combinations(sorted(free), k)
    return min(sets, key=lambda s: (-topology.sum(s), s), default=None)


def brute_fragment(topology, free):
    def left(card):
        rest = free - {card}
        return sum(topology.sum(brute_best(topology, rest, k)) for k in range(1, len(rest) + 1))

    return min(free, key=lambda card: (-left(card), card), default=None)


@quick
@given(topologies_with_free())
def test_the_best_set_is_the_best_of_all_sets(case):
    topology, free = case
    for k in range(1, topology.size + 1):
        assert best_set(topology, free, k) == brute_best(topology, free, k)


@quick
@given(topologies_with_free())
def test_the_fragment_is_the_card_whose_loss_costs_least(case):
    assert fragment(*case) == brute_fragment(*case)


few = st.sampled_from([Link.parse("NV2"), Link.parse("PIX"), Link.parse("SYS")])


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.one_of(topologies_with_free(), topologies_with_free(6, 8, few)))
def test_the_search_for_big_nodes_is_exact_too(case):
    topology, free = case
    weights = topology.weights
    for k in range(1, len(free) + 1):
        found = card_sets._Search(weights, free, k, card_sets.SEARCH_STEPS)
        assert found.best == brute_best(topology, free, k)
        assert found.score == topology.sum(found.best)
    if free:
        scores = card_sets._left_searched(topology, free)
        assert min(scores, key=lambda c: (-scores[c], c)) == brute_fragment(topology, free)


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


def test_a_search_that_ends_early_still_answers(monkeypatch):
    monkeypatch.setattr(card_sets, "SEARCH_STEPS", 1)
    topology = tree(20, (2, "NV4"), (10, "PIX"))
    free = frozenset(range(1, 20))
    assert len(best_set(topology, free, 9)) == 9
    assert fragment(topology, free) in free


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
def test_the_table_and_the_search_agree_where_brute_force_would_take_minutes(size, levels):
    topology = tree(size, *levels)
    for busy in ({0}, {1, 2, 9}, {0, 4, 5, 10}):
        free = frozenset(range(size)) - busy
        for k in range(1, len(free) + 1):
            search = card_sets._Search(topology.weights, free, k, card_sets.SEARCH_STEPS)
            assert best_set(topology, free, k) == search.best
        scores = card_sets._left_searched(topology, free)
        assert fragment(topology, free) == min(scores, key=lambda c: (-scores[c], c))
