"""The oracle of graph memory, against hand-made cases from the documentation and against brute force."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle.graph_memory import (
    Alloc,
    Child,
    Free,
    Graph,
    Other,
    Process,
    RefusedError,
    flat,
    heaviest,
    peak,
    weight,
)
from tests.oracle.random_graphs import MIB, apply, random_graph, random_history
from tests.seeds import generator, seeds

A, B, C = 1, 2, 3  # addresses


def chain(*nodes: Alloc | Free | Other | Child) -> Graph:
    return Graph(nodes, tuple((number, number + 1) for number in range(len(nodes) - 1)))


TEN_IN_A_ROW = chain(*(node for address in range(10) for node in (Alloc(address, 300 * MIB), Free(address))))


@pytest.mark.parametrize(
    ("graph", "most"),
    [
        (Graph(()), 0),
        (chain(Alloc(A, 5), Free(A)), 5),
        (TEN_IN_A_ROW, 300 * MIB),
        (
            Graph((Alloc(A, 5), Free(A), Alloc(B, 7), Free(B)), ((0, 1), (2, 3))),
            12,
        ),  # two branches may overlap
        (Graph((Alloc(A, 5), Free(A), Alloc(B, 7), Free(B)), ((0, 1), (1, 2), (2, 3))), 7),
        (Graph((Alloc(A, 5), Free(A), Alloc(B, 7), Free(B)), ((0, 1), (0, 2), (2, 3))), 12),
        (Graph((Alloc(A, 5), Alloc(B, 7))), 12),  # unfreed
        (chain(Alloc(A, 9), Alloc(B, 1), Free(A), Alloc(C, 8), Free(B), Free(C)), 10),
        (chain(Other(), Free(A)), 0),  # of another graph: not this graph's memory
        (chain(Child(chain(Alloc(A, 5), Free(A))), Child(chain(Alloc(B, 7), Free(B)))), 7),
        (Graph((Child(chain(Alloc(A, 5), Free(A))), Child(chain(Alloc(B, 7), Free(B))))), 12),
        (chain(Child(chain(Alloc(A, 5))), Alloc(B, 7), Free(A), Free(B)), 12),  # freed by the parent
        (chain(Child(Graph(())), Child(chain(Other(), Child(chain(Alloc(A, 5), Free(A)))))), 5),
    ],
)
def test_what_a_graph_can_hold_at_once(graph: Graph, most: int) -> None:
    assert peak(graph) == most


def brute(weights: Sequence[int], edges: Sequence[tuple[int, int]]) -> int:
    """Every set of nodes, one by one."""
    sets = range(1 << len(weights))
    allowed = (
        chosen
        for chosen in sets
        if all(chosen >> left & 1 or not chosen >> right & 1 for left, right in edges)
    )
    return max(sum(value for node, value in enumerate(weights) if chosen >> node & 1) for chosen in allowed)


def by_running(graph: Graph, chance: random.Random) -> int:
    """The most that was live in one run in a random order."""
    inner, sizes = flat(graph), graph.allocations()
    waiting, live, most = set(range(len(inner.nodes))), 0, 0
    while waiting:
        ready = [
            node
            for node in waiting
            if not any(right == node and left in waiting for left, right in inner.edges)
        ]
        node = chance.choice(ready)
        waiting.remove(node)
        live += weight(inner.nodes[node], sizes)
        most = max(most, live)
    return most


@settings(max_examples=300)
@given(
    st.lists(st.integers(-9, 9), max_size=9),
    st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=20),
)
def test_the_heaviest_set_is_the_one_that_brute_force_finds(
    weights: list[int], pairs: set[tuple[int, int]]
) -> None:
    edges = [(left, right) for left, right in pairs if left < right < len(weights)]
    assert heaviest(weights, edges) == brute(weights, edges)


def test_ten_thousand_random_graphs_hold_no_more_than_their_peak_in_any_run_and_no_less_in_the_worst() -> (
    None
):
    chance = generator(14)
    small = 0
    for _ in range(10_000):
        graph = random_graph(chance, count(1), nodes=8)
        most, inner, sizes = peak(graph), flat(graph), graph.allocations()
        assert by_running(graph, chance) <= most <= sum(sizes.values())
        if len(inner.nodes) <= 8:
            small += 1
            assert most == brute([weight(node, sizes) for node in inner.nodes], inner.edges)
    assert small > 3000


def test_random_graphs_have_branches_children_and_unfreed_allocations() -> None:
    graphs = [random_graph(random.Random(seed), count(1)) for seed in seeds(500)]
    assert sum(any(isinstance(node, Child) for node in graph.nodes) for graph in graphs) > 100
    assert sum(bool(graph.unfreed()) for graph in graphs) > 50
    assert sum(peak(graph) < sum(graph.allocations().values()) for graph in graphs) > 100
    for graph in graphs:
        assert all(left < right for left, right in graph.edges)
        assert graph.frees() <= graph.allocations().keys()


def launched(*graphs: Graph, auto_free: bool = False) -> Process:
    """A process in which each graph is instantiated: executable N is graph N."""
    process = Process()
    for graph in graphs:
        process.instantiate(graph, auto_free=auto_free)
    return process


def test_memory_comes_with_the_launch_and_stays_until_it_is_trimmed() -> None:
    process = launched(chain(Alloc(A, 5), Free(A)))
    assert (process.greatest_live(), process.greatest_held(), process.kept) == (0, 0, 0)
    process.launch(0)
    assert (process.greatest_live(), process.greatest_held(), process.kept) == (5, 5, 5)
    process.synchronise()
    process.destroy(0)
    assert (process.greatest_live(), process.greatest_held(), process.kept) == (0, 0, 5)
    process.trim()
    assert process.kept == 0


def test_an_upload_maps_all_of_a_graph() -> None:
    process = launched(chain(Alloc(A, 5), Free(A)))
    process.upload(0)
    assert (process.greatest_live(), process.kept) == (0, 5)


def test_launches_into_one_stream_share_their_memory_and_into_two_they_may_not() -> None:
    one, two = chain(Alloc(A, 5), Free(A)), chain(Alloc(B, 7), Free(B))
    process = launched(one, two)
    process.launch(0, 0)
    process.launch(1, 0)
    assert (process.greatest_live(), process.greatest_held(), process.kept) == (7, 7, 7)
    process = launched(one, two)
    process.launch(0, 0)
    process.launch(1, 1)
    assert (process.greatest_live(), process.greatest_held(), process.kept) == (12, 12, 7)


def test_a_stream_that_waits_for_another_runs_behind_it() -> None:
    process = launched(chain(Alloc(A, 5), Free(A)), chain(Alloc(B, 7), Free(B)))
    process.launch(0, 0)
    process.wait(1, 0)
    process.launch(1, 1)
    assert process.greatest_held() == 7


def test_an_executable_graph_never_runs_beside_itself() -> None:
    process = launched(chain(Alloc(A, 5), Free(A)))
    process.launch(0, 0)
    process.launch(0, 1)
    assert (process.greatest_live(), process.greatest_held()) == (5, 5)


def test_a_graph_with_unfreed_allocations_is_not_launched_again() -> None:
    process = launched(chain(Alloc(A, 5)))
    process.launch(0)
    with pytest.raises(RefusedError, match="unfreed"):
        process.launch(0)
    process.free_async(A)
    process.launch(0)
    assert (process.greatest_live(), process.live) == (5, {A: 5})


def test_auto_free_on_launch_launches_again_and_again_in_the_same_memory() -> None:
    process = launched(chain(Alloc(A, 5)), auto_free=True)
    for stream in (0, 0, 1, 2):
        process.launch(0, stream)
        assert (process.greatest_live(), process.greatest_held(), process.kept) == (5, 5, 5)
    process.destroy(0)
    process.trim()
    assert (process.live, process.kept) == ({A: 5}, 5)  # destroying a graph frees nothing


def test_unfreed_memory_lives_on_beside_the_next_graph() -> None:
    process = launched(chain(Alloc(A, 5)), chain(Alloc(B, 7), Free(B)))
    process.launch(0)
    process.launch(1)
    assert (process.greatest_live(), process.greatest_held(), process.kept) == (12, 12, 12)
    process.synchronise()
    assert process.settled(A)
    process.free(A)
    assert (process.greatest_live(), process.kept) == (0, 12)


def test_a_launch_needs_what_others_left_and_its_own_peak() -> None:
    process = launched(chain(Alloc(A, 5)), chain(Alloc(B, 7), Free(B), Alloc(C, 4)), auto_free=True)
    assert (process.needs(0), process.needs(1)) == (5, 7)
    process.launch(0)
    process.launch(1)
    assert (process.needs(0), process.needs(1)) == (9, 12)


def test_another_graph_frees_it() -> None:
    process = launched(chain(Alloc(A, 5)), chain(Free(A), Alloc(B, 7), Free(B)))
    with pytest.raises(RefusedError, match="not allocated"):
        process.launch(1)
    process.launch(0, 0)
    process.launch(1, 1)  # behind the first for A's sake
    assert process.greatest_live() == 7  # by node, A is gone before B comes
    assert process.greatest_held() == 12  # by launch, the second graph's pages are its own
    assert not process.live


def test_synchronising_one_stream_settles_its_work_alone() -> None:
    process = launched(chain(Alloc(A, 5)), chain(Alloc(B, 7), Free(B)))
    process.launch(0, 0)
    process.launch(1, 1)
    process.synchronise(0)
    assert process.greatest_held() == 12
    assert process.settled(A)
    process.synchronise(1)
    assert process.greatest_held() == 5


def test_a_graph_with_memory_nodes_has_one_instantiation() -> None:
    graph = chain(Alloc(A, 5), Free(A))
    process = launched(graph)
    with pytest.raises(RefusedError, match="one instantiation"):
        process.instantiate(graph)
    process.destroy(0)
    process.instantiate(graph)


def test_an_update_takes_effect_with_the_next_launch() -> None:
    process = launched(chain(Alloc(A, 5), Free(A)))
    process.launch(0)
    process.update(0, chain(Alloc(B, 7), Free(B)))
    assert process.greatest_held() == 5
    process.launch(0)
    assert process.greatest_held() == 7


@pytest.mark.parametrize("block", range(5))
def test_random_histories_keep_their_order(block: int) -> None:
    """200 histories: live by node never exceeds held by launch; both fall to what is unfreed once all is done."""
    verbs: dict[str, int] = {}
    for seed in seeds(200)[block * 40 : block * 40 + 40]:
        history, process = random_history(seed), Process()
        assert history == random_history(seed)
        for number, call in enumerate(history.calls):
            verbs[call.verb] = verbs.get(call.verb, 0) + 1
            if number in history.refused:
                with pytest.raises(RefusedError):
                    apply(process, history.graphs, call)
            else:
                apply(process, history.graphs, call)
            unfreed = sum(process.live.values())
            assert unfreed <= process.kept
            assert process.greatest_live() <= process.greatest_held()
        process.synchronise()
        assert process.greatest_live() == process.greatest_held() == sum(process.live.values())
        process.trim()
        assert process.kept == sum(process.live.values())
    assert len(verbs) == 10
