"""The library's arithmetic of what a graph can hold at once, beside the oracle's."""

from __future__ import annotations

import functools
import random
import subprocess
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from tests.native.driven import GRANULE, SANITIZERS
from tests.native.tools import FULL, build_tests
from tests.oracle.graph_memory import flat, peak, weight
from tests.oracle.random_graphs import random_graph

GRAPHS = 10_000 if FULL else 1_500
ENOUGH = 20_000_000
"""Edges that the library looks at before it is content with an upper bound."""

Weighted = tuple[Sequence[int], Sequence[tuple[int, int]]]


@functools.cache
def program(sanitize: str) -> Path:
    """The library's arithmetic, which reads graphs and prints peaks."""
    return build_tests("unit_graph_peak", sanitize=sanitize) / "unit_graph_peak"


def peaks(graphs: Sequence[Weighted], *, steps: int = ENOUGH, sanitize: str = "") -> list[tuple[int, bool]]:
    """What the library says of each: the peak, and whether it is exact."""
    lines = []
    for weights, edges in graphs:
        lines.append(f"{len(weights)} {len(edges)} {steps}")
        lines += [" ".join(map(str, weights)), *(f"{left} {right}" for left, right in edges)]
    done = subprocess.run(
        [program(sanitize)], input="\n".join(lines), capture_output=True, text=True, check=True, timeout=300
    )
    assert not done.stderr
    answers = [line.split() for line in done.stdout.splitlines()]
    return [(int(bytes_), bool(int(exact))) for bytes_, exact in answers]


@pytest.mark.parametrize("sanitize", SANITIZERS)
def test_the_peak_of_random_graphs_is_the_oracles(sanitize: str) -> None:
    graphs = [random_graph(random.Random(seed), count(1)) for seed in range(GRAPHS)]
    weighted = [
        ([weight(node, graph.allocations()) for node in flat(graph).nodes], flat(graph).edges)
        for graph in graphs
    ]
    assert peaks(weighted, sanitize=sanitize) == [(peak(graph), True) for graph in graphs]


def layers(width: int, depth: int) -> Weighted:
    """``depth`` layers of ``width`` pairs, each layer behind all frees of the one before."""
    chance = random.Random(width)
    weights: list[int] = []
    edges: list[tuple[int, int]] = []
    for layer in range(depth):
        first = len(weights)
        for place in range(width):
            size = chance.randint(1, 100) * GRANULE
            weights += [size, -size]
            edges.append((first + 2 * place, first + 2 * place + 1))
            if layer:
                edges += [(first - 2 * width + 2 * before + 1, first + 2 * place) for before in range(width)]
    return weights, edges


@pytest.mark.parametrize(("width", "depth"), [(1, 10_000), (10, 100), (50, 20), (2_000, 1)])
def test_graphs_of_thousands_of_nodes_are_exact_within_the_librarys_patience(width: int, depth: int) -> None:
    weights, edges = layers(width, depth)
    began = time.process_time()
    ((bytes_, exact),) = peaks([(weights, edges)])
    each = [sum(weights[2 * width * layer : 2 * width * (layer + 1) : 2]) for layer in range(depth)]
    assert (bytes_, exact) == (max(each), True)
    assert time.process_time() - began < 10


def test_a_search_that_is_cut_short_says_more_never_less() -> None:
    weights, edges = layers(10, 10)
    exact = peaks([(weights, edges)])[0][0]
    for steps in range(0, 20_000, 500 if FULL else 2_500):
        bytes_, is_exact = peaks([(weights, edges)], steps=steps)[0]
        assert exact <= bytes_ <= sum(value for value in weights if value > 0)
        assert bytes_ == exact or not is_exact
