"""Links, and the matrix of `nvidia-smi topo -m` in every form."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tests.fakes.machines import links, recorded, topologies

quick = settings(max_examples=100)


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


def test_only_nvlinks_have_a_path_beside_them_and_it_weighs_nothing():
    assert Link(LinkKind.NVLINK, 4, LinkKind.PXB).weight == Link.parse("NV4").weight
    assert str(Link(LinkKind.NVLINK, 4, LinkKind.PXB)) == "NV4"
    with pytest.raises(ValueError, match="has no PHB path"):
        Link(LinkKind.PIX, path=LinkKind.PHB)
    with pytest.raises(ValueError, match="has no NVLINK path"):
        Link(LinkKind.NVLINK, 1, LinkKind.NVLINK)


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


@pytest.mark.parametrize(
    ("numa", "node"),
    [
        ("3", 3),
        ("0-1", None),
        ("N/A", None),
        (None, None),
        ("", None),
        ("0,3-9,11-17", 0),  # GB200: the others are memory of cards
        ("1,2-9", 1),
        ("x,1", None),
        ("123456", None),
    ],
)
def test_the_numa_node_is_known_only_where_it_is_one(numa, node):
    assert Affinity(numa=numa).node == node


def wide(*, glued: str, cells: str = "SYS  NODE") -> str:
    """Two cards of two sockets beside two network cards, whose columns nvidia-smi has set without a blank."""
    head = f"        GPU0    GPU1    {glued}    NUMA Affinity   GPU NUMA ID\n"
    return (
        head
        + f"GPU0     X      SYS     {cells}     0-15    0               N/A\n"
        + f"GPU1    SYS      X      {cells}     16-31   1               N/A\n"
    )


@pytest.mark.parametrize(
    ("glued", "cells"),
    [
        ("NIC0    NIC1    CPU Affinity", "SYS  NODE"),
        ("NIC0NIC1    CPU Affinity", "SYS  NODE"),
        ("NIC0    NIC1CPU Affinity", "SYS  NODE"),
        ("NIC0NIC1CPU Affinity", "SYSNODE"),
        ("NIC10NIC11    CPU Affinity", "PIX NV18"),
    ],
)
def test_columns_without_a_blank_between_them_move_no_affinity(glued: str, cells: str) -> None:
    parsed = parse_topology(wide(glued=glued, cells=cells))
    assert parsed.topology.size == 2
    assert parsed.affinities == (Affinity("0-15", "0", "N/A"), Affinity("16-31", "1", "N/A"))
    assert parsed.nodes == (0, 1)


@pytest.mark.parametrize(
    ("cpus", "nodes"),
    [
        (("0-23,48-71", "0-23,48-71", "24-47,72-95"), (0, 0, 1)),
        (("24-47", "0-23", "24-47"), (0, 1, 0)),
        (("0-95", "0-95", "0-95"), (None, None, None)),  # every CPU there is, or one socket: no difference
        (("0-23", "N/A", "24-47"), (0, None, 1)),
        (("N/A", "N/A", "N/A"), (None, None, None)),
    ],
)
def test_where_no_numa_node_is_written_the_cpus_tell_the_sockets(
    cpus: tuple[str, ...], nodes: tuple[int | None, ...]
) -> None:
    rows = ("GPU0 X SYS SYS", "GPU1 SYS X SYS", "GPU2 SYS SYS X")
    lines = [f"{row} {place}" for row, place in zip(rows, cpus, strict=True)]
    assert parse_topology("\n".join(("GPU0 GPU1 GPU2 CPU Affinity", *lines))).nodes == nodes


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
