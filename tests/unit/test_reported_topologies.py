"""What `nvidia-smi topo -m` says on machines that were described in public."""

from __future__ import annotations

import pytest

from gpu_manager.domain.topology import LinkKind, parse_topology

LEGEND = "\nLegend:\n\n  X    = Self\n  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge\n"
PEERS = (
    "\n \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"
)
TWO = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tPHB\t0-63\t0\t\tN/A\nGPU1\tPHB\t X \t0-63\t0\t\tN/A\n"
)
FIVE = """        GPU0    GPU1    GPU2    GPU3    GPU4    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      SYS     SYS     SYS     SYS     8-15,24-31      1               N/A
GPU1    SYS      X      PHB     NODE    NODE    0-7,16-23       0               N/A
GPU2    SYS     PHB      X      NODE    NODE    0-7,16-23       0               N/A
GPU3    SYS     NODE    NODE     X      PHB     0-7,16-23       0               N/A
GPU4    SYS     NODE    NODE    PHB      X      0-7,16-23       0               N/A
"""
INDENTED = """    ```
          GPU0 GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID
    GPU0  X      NODE    0-15    0               N/A
    GPU1 NODE     X      0-15    0               N/A
"""
OLD = """        GPU0    GPU1    GPU2    mlx4_0  CPU Affinity
GPU0     X      PIX     SYS     PHB     0-9,20-29
GPU1    PIX      X      SYS     PHB     0-9,20-29
GPU2    SYS     SYS      X      SYS     10-19,30-39
"""
BONDED = (
    "\tGPU0\tGPU1\tmlx5_bond_0\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNV12\tPXB\t0-31,64-95\t0\nGPU1\tNV12\t X \tSYS\t32-63,96-127\t1\nmlx5_bond_0\tPXB\tSYS\t X \t\t\n"
)
GRACE = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV18\tNODE\t0-71\t0,2-17\t2\nGPU1\tNV18\t X \tSYS\t72-143\t1,18-33\t18\n"
)


@pytest.mark.parametrize(
    ("text", "nodes", "first"),
    [
        pytest.param(TWO + LEGEND, (0, 0), LinkKind.PHB, id="two cards of a workstation"),
        pytest.param(TWO + LEGEND + PEERS, (0, 0), LinkKind.PHB, id="the matrix of peers behind it"),
        pytest.param(FIVE, (1, 0, 0, 0, 0), LinkKind.SYS, id="five cards, one alone on its socket"),
        pytest.param(INDENTED, (0, 0), LinkKind.NODE, id="as it was pasted"),
        pytest.param(OLD, (0, 0, 1), LinkKind.PIX, id="an old driver's, without NUMA column"),
        pytest.param(BONDED, (0, 1), LinkKind.NVLINK, id="bonded NICs"),
        pytest.param(GRACE, (0, 1), LinkKind.NVLINK, id="cards with NUMA nodes of their own"),
    ],
)
def test_a_topology_that_was_shown_in_public(text: str, nodes: tuple[int, ...], first: LinkKind) -> None:
    parsed = parse_topology(text)
    assert parsed.nodes == nodes
    assert parsed.topology.link(0, 1).kind is first
