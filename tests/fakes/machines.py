"""Machines for tests of topology and placement: made, recorded, and any that can be."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import strategies as st

from gpu_manager.domain.topology import SELF, Link, LinkKind, Topology

RECORDED = Path(__file__).parents[2].parent / "shared/data/topologies"

links = st.one_of(
    st.builds(Link, st.sampled_from([k for k in LinkKind if k not in (LinkKind.SELF, LinkKind.NVLINK)])),
    st.builds(lambda lanes: Link(LinkKind.NVLINK, lanes), st.integers(1, 18)),
)
paths = st.sampled_from([kind for kind in LinkKind if kind not in (LinkKind.SELF, LinkKind.NVLINK)])
over_pcie = st.builds(  # links with the PCIe path beside NVLinks, as a node's own driver tells it
    lambda lanes, path: Link(LinkKind.NVLINK, lanes, path) if lanes else Link(path), st.integers(0, 2), paths
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


def nvswitch(size):
    """NVLinks of a switch join all; every two cards have a PCIe switch of their own, each half a socket."""
    pcie = tree(size, (2, "PXB"), (size // 2, "NODE"))
    joined = [
        [Link(LinkKind.NVLINK, 18, link.kind) if link != SELF else SELF for link in row] for row in pcie.links
    ]
    return Topology(tuple(map(tuple, joined)))


# The machines of the worked examples.
SIX = tree(6, (2, "PIX"), (4, "PHB"))
EIGHT = tree(8, (2, "PIX"), (4, "PHB"))


def recorded():
    """The recorded matrices as parameters; one that is skipped, with the reason, where they are not."""
    if not RECORDED.is_dir():
        return [
            pytest.param(
                None, marks=pytest.mark.skip(reason="shared/data/topologies is not beside this tree")
            )
        ]
    return [pytest.param(path, id=path.stem) for path in sorted(RECORDED.glob("*.txt"))]
