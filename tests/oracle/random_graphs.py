"""Random graphs with memory nodes, and random histories of a process that launches them.

All follow from a seed, so that a failure is named by a number.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from tests.oracle.graph_memory import Alloc, Child, Free, Graph, Node, Other, Process, RefusedError

MIB = 1 << 20
GRANULE = 2 * MIB  # sizes are whole granules, so that no rounding of the driver's is in the way


def random_graph(
    chance: random.Random, addresses: Iterator[int], *, nodes: int = 12, depth: int = 1
) -> Graph:
    """A graph of at most ``nodes`` nodes, with branches, with free nodes behind their allocations, with children."""
    made: list[Node] = []
    edges: set[tuple[int, int]] = set()
    unfreed: dict[int, int] = {}  # address → the node that allocates it
    density = chance.choice((0.05, 0.2, 0.5))
    for number in range(chance.randint(1, nodes)):
        kind = chance.random()
        behind = {earlier for earlier in range(number) if chance.random() < density}
        if kind < 0.45:
            address = next(addresses)
            unfreed[address] = number
            made.append(Alloc(address, chance.randint(1, 16) * GRANULE))
        elif kind < 0.8 and unfreed:
            address = chance.choice(list(unfreed))
            behind.add(unfreed.pop(address))
            made.append(Free(address))
        elif kind < 0.9 and depth:
            made.append(Child(random_graph(chance, addresses, nodes=4, depth=depth - 1)))
        else:
            made.append(Other())
        edges |= {(earlier, number) for earlier in behind}
    if chance.random() < 0.7:  # most graphs free what they allocate
        for address, number in unfreed.items():
            edges |= {(earlier, len(made)) for earlier in {number, chance.randint(number, len(made) - 1)}}
            made.append(Free(address))
    return Graph(tuple(made), tuple(sorted(edges)))


def twin(graph: Graph, chance: random.Random, addresses: Iterator[int]) -> Graph:
    """A graph of the same shape with allocations of its own, of other sizes: what ``cuGraphExecUpdate`` may be given."""
    new: dict[int, int] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node, Alloc):
            new[node.address] = next(addresses)
            nodes.append(Alloc(new[node.address], chance.randint(1, 16) * GRANULE))
        elif isinstance(node, Free):
            nodes.append(Free(new[node.address]))
        elif isinstance(node, Child):
            nodes.append(Child(twin(node.graph, chance, addresses)))
        else:
            nodes.append(node)
    return Graph(tuple(nodes), graph.edges)


Verb = Literal[
    "instantiate",
    "update",
    "destroy",
    "upload",
    "launch",
    "free_async",
    "free",
    "wait",
    "synchronise",
    "trim",
]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the method of `Process` that has its name.

    ``arguments`` are its own, but for ``instantiate`` (number of a graph of the history, 1 for AUTO_FREE_ON_LAUNCH) and
    ``update`` (executable, number of a graph).
    """

    verb: Verb
    arguments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """The graphs of a program, and its calls in their order; the driver refuses those in ``refused``."""

    graphs: tuple[Graph, ...]
    calls: tuple[Call, ...]
    refused: frozenset[int]


STREAMS = 3


def apply(process: Process, graphs: Sequence[Graph], call: Call) -> None:
    """Let a model make a call.

    Raises:
        RefusedError: the driver would refuse it.
    """
    if call.verb == "instantiate":
        process.instantiate(graphs[call.arguments[0]], auto_free=bool(call.arguments[1]))
    elif call.verb == "update":
        process.update(call.arguments[0], graphs[call.arguments[1]])
    else:
        getattr(process, call.verb)(*call.arguments)


def random_history(seed: int, *, calls: int = 20) -> History:
    """A program that CUDA allows, apart from launches that the driver is known to refuse."""
    chance = random.Random(seed)
    addresses = count(1)
    graphs = [random_graph(chance, addresses) for _ in range(chance.randint(1, 4))]
    twins = {number: number + len(graphs) for number in range(len(graphs))}
    graphs += [twin(graph, chance, addresses) for graph in graphs]
    left = [address for graph in graphs for address in graph.unfreed() if chance.random() < 0.3]
    freeing = Graph(tuple(Free(address) for address in left))
    process = Process()
    made = [Call("instantiate", (number, chance.randint(0, 1))) for number in twins]
    made += [Call("instantiate", (len(graphs), 0))] if left else []
    for call in made:
        apply(process, [*graphs, freeing], call)
    alive, refused = list(range(len(made))), set()
    for _ in range(calls):
        made.append(_next(chance, process, alive, twins))
        if made[-1].verb == "destroy":
            alive.remove(made[-1].arguments[0])
        try:
            apply(process, [*graphs, freeing], made[-1])
        except RefusedError:
            refused.add(len(made) - 1)
    return History((*graphs, freeing), tuple(made), frozenset(refused))


def _next(chance: random.Random, process: Process, alive: Sequence[int], twins: dict[int, int]) -> Call:
    """A call that the program can make now; executable N was instantiated from graph N."""
    stream = chance.randrange(STREAMS)
    at_once = [address for address in process.live if process.settled(address)]
    choices: list[tuple[int, Call]] = [
        (2, Call("synchronise", (stream,))),
        (1, Call("synchronise")),
        (1, Call("wait", (stream, chance.randrange(STREAMS)))),
        (1, Call("trim")),
    ]
    if alive:
        executable = chance.choice(alive)
        choices += [(10, Call("launch", (executable, stream)))] if process.ready(executable) else []
        choices += [(1, Call("upload", (executable,)))]
        choices += [(1, Call("update", (executable, twins[executable])))] if executable in twins else []
        choices += [(1, Call("destroy", (executable,)))] if chance.random() < 0.3 else []
    if process.live:
        choices.append((4, Call("free_async", (chance.choice(list(process.live)), stream))))
    if at_once:
        choices.append((2, Call("free", (chance.choice(at_once),))))
    return chance.choices([call for _, call in choices], [weight for weight, _ in choices])[0]
