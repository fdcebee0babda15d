"""Nodes kept whole: the mixes are what they say, best fit beside them is one, and ours stays near it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.placement import compiled, whole_nodes
from bench.placement.ours import Ours
from bench.placement.replay import stock_of
from bench.placement.trace import Node, Pod
from bench.placement.whole_nodes import (
    DEMANDS,
    LOADS,
    NODES,
    SETTINGS,
    LeastBroken,
    Stream,
    by,
    by_ours,
    stream,
)
from gpu_manager.domain.score.request_mix import RequestShape

_FEW = 150  # pods


def few(demand: str, name: str) -> Stream:
    given = stream(demand, SETTINGS[name], name)
    return replace(given, pods=given.pods[:_FEW], arrived=[min(n, _FEW) for n in given.arrived[:_FEW]])


def every() -> Iterator[Stream]:
    return (stream(demand, setting, name) for name, setting in SETTINGS.items() for demand in DEMANDS)


def test_there_are_sixty_mixes_and_each_asks_for_four_fifths_of_the_cards():
    found = list(every())
    assert len(found) == 60
    for given in found:
        counts = [given.until(load) for load in LOADS]
        assert counts == sorted(set(counts))
        for count, load in zip(counts, LOADS, strict=True):
            asked = sum(pod.cores for pod in given.pods[:count])
            assert 0 <= load * NODES * 8 - asked < max(pod.cores for pod in given.pods)
        assert all(at < arrived <= len(given.pods) for at, arrived in enumerate(given.arrived))


def test_best_fit_fills_what_is_broken_the_fullest_card_first_and_breaks_an_idle_card_only_then():
    nodes = [Node(name, 1000, 1000, 2, "M") for name in ("a", "b")]
    pods = [Pod("", RequestShape(cores), 0) for cores in (60, 70, 100, 30, 40, 50, 200)]
    given = Stream(nodes, pods, range(1, len(pods) + 1), stated=False)
    assert by(LeastBroken(), given) == [0, 0, 1, 0, 0, 1, -1]


@pytest.mark.skipif(not compiled.available(), reason="the compiled replay needs g++")
def test_the_compiled_replay_of_a_mix_is_the_one_in_python():
    given = few("10 to 70, 5 % a card", "128 CPUs, a pod takes 2")
    assert by_ours(given) == by(Ours(stock_of(given.nodes)), given)


@pytest.mark.parametrize("demand", ["10 to 70", "10 to 70, 5 % a card", "5 to 70, 20 % a card", "a card"])
@pytest.mark.parametrize("name", ["no CPU stated", "32 CPUs, a pod takes 1"])
def test_mixes_occupy_at_most_a_node_more_than_best_fit(demand: str, name: str):
    given = few(demand, name)
    ours, best = (len(set(each)) for each in (by_ours(given), by(LeastBroken(), given)))
    assert ours <= best + 1


def test_a_cell_holds_within_a_node_or_a_tenth_and_a_pod_or_a_fiftieth():
    cell = whole_nodes.Cell("any", 20, 24, 23, 36, 37)
    assert cell.held
    assert not replace(cell, ours=26).held
    assert not replace(cell, ours_whole=35).held
    assert replace(cell, ours=330, best=300, ours_whole=98, best_whole=100).held
    assert not replace(cell, ours=331, best=300).held
