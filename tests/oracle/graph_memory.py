"""How much memory can a CUDA graph with allocation nodes hold at once, and what does the driver keep of it?

Written from CUDA's documentation alone (the Programming Guide's chapter on graph memory nodes, and the Driver API pages
of the functions named below). Model, not yet a card: what is a guess says so.

- An allocation lives from the moment execution reaches its node until execution reaches its free: a free node, a
  ``cuMemFreeAsync``, or at once for ``cuMemFree`` (Programming Guide, "API Fundamentals").
- Nodes run in any order that the edges allow, so what is live at once is the weight of a set of nodes that contains every
  predecessor of its members. The greatest such weight is a maximum-weight closure (Picard, 1976), found as a minimum cut.
- A child graph runs between the predecessors and the successors of its node; one that holds memory nodes is moved to its
  parent (``CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE``, CUDA 12.9).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True)
class Alloc:
    """``cuGraphAddMemAllocNode``: ``address`` names the allocation, in all graphs of a process."""

    address: int
    size: int


@dataclass(frozen=True, slots=True)
class Free:
    """``cuGraphAddMemFreeNode``: of an allocation of this graph or of another."""

    address: int


@dataclass(frozen=True, slots=True)
class Other:
    """A node that neither allocates nor frees."""


@dataclass(frozen=True, slots=True)
class Child:
    """A graph that runs as one node."""

    graph: Graph


Node = Alloc | Free | Other | Child


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes by number, and edges (from, to) between them."""

    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...] = ()

    def allocations(self) -> dict[int, int]:
        """Address → size of what the graph allocates, children included."""
        return {node.address: node.size for node in flat(self).nodes if isinstance(node, Alloc)}

    def frees(self) -> set[int]:
        """Addresses that the graph frees, its own and others', children included."""
        return {node.address for node in flat(self).nodes if isinstance(node, Free)}

    def unfreed(self) -> dict[int, int]:
        """Address → size of what is still allocated once the graph has run."""
        freed = self.frees()
        return {address: size for address, size in self.allocations().items() if address not in freed}


def flat(graph: Graph) -> Graph:
    """The same graph with the nodes of its children in their places."""
    nodes: list[Node] = []
    edges: list[tuple[int, int]] = []
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, node in enumerate(graph.nodes):
        first[number] = len(nodes)
        if isinstance(node, Child):
            inner = flat(node.graph)
            begin, end = len(nodes), len(nodes) + len(inner.nodes) + 1
            nodes += [Other(), *inner.nodes, Other()]
            edges += [(begin + 1 + left, begin + 1 + right) for left, right in inner.edges]
            edges += [edge for place in range(begin + 1, end) for edge in ((begin, place), (place, end))]
            edges.append((begin, end))
        else:
            nodes.append(node)
        last[number] = len(nodes) - 1
    edges += [(last[left], first[right]) for left, right in graph.edges]
    return Graph(tuple(nodes), tuple(edges))


def peak(graph: Graph) -> int:
    """Bytes that the graph's own allocations can hold at once, in the worst order that its edges allow."""
    inner = flat(graph)
    sizes = graph.allocations()
    return heaviest([weight(node, sizes) for node in inner.nodes], inner.edges)


def weight(node: Node, sizes: dict[int, int]) -> int:
    """By how many bytes the node changes what is live; ``sizes`` are the allocations that count."""
    if isinstance(node, Alloc):
        return sizes.get(node.address, 0)
    return -sizes.get(node.address, 0) if isinstance(node, Free) else 0


def heaviest(weights: Sequence[int], edges: Sequence[tuple[int, int]]) -> int:
    """The greatest weight of a set of nodes that contains all predecessors of its members (0: of the empty set)."""
    source, sink = len(weights), len(weights) + 1
    above = sum(value for value in weights if value > 0)
    capacity: list[dict[int, int]] = [{} for _ in range(len(weights) + 2)]
    for node, value in enumerate(weights):
        if value > 0:
            capacity[source][node] = value
            capacity[node].setdefault(source, 0)
        elif value < 0:
            capacity[node][sink] = -value
            capacity[sink].setdefault(node, 0)
    for left, right in edges:
        capacity[right][left] = above + 1
        capacity[left].setdefault(right, 0)
    return above - _flow(capacity, source, sink)


def _flow(capacity: list[dict[int, int]], source: int, sink: int) -> int:
    """The greatest flow, by shortest augmenting paths (Edmonds and Karp); ``capacity`` becomes what is left."""
    total = 0
    while path := _path(capacity, source, sink):
        pushed = min(capacity[left][right] for left, right in path)
        for left, right in path:
            capacity[left][right] -= pushed
            capacity[right][left] += pushed
        total += pushed
    return total


def _path(capacity: list[dict[int, int]], source: int, sink: int) -> list[tuple[int, int]]:
    came: dict[int, int] = {source: source}
    queue = deque([source])
    while queue and sink not in came:
        here = queue.popleft()
        for there, room in capacity[here].items():
            if room > 0 and there not in came:
                came[there] = here
                queue.append(there)
    if sink not in came:
        return []
    path = [(came[sink], sink)]
    while path[-1][0] != source:
        path.append((came[path[-1][0]], path[-1][0]))
    return path


class RefusedError(Exception):
    """The driver would refuse the call (``CUDA_ERROR_INVALID_VALUE``)."""


@dataclass(slots=True)
class _Executable:
    graph: Graph
    auto_free: bool
    last: int | None = None  # the node that ends its last launch


@dataclass(frozen=True, slots=True)
class _Step:
    """A part of the work that is not known to be done: by how much it changes what is live, and what is held."""

    live: int
    held: int


class Process:
    """One process' graphs on one card: what is launched, and how much memory that can need.

    Executable graphs are numbered from 0 on in the order of ``instantiate()``. The work that is not known to be done is one large graph, looked at in two resolutions for two questions:

    - ``greatest_live()``: node by node. No charge may be below it.
    - ``greatest_held()``: launch by launch. A launch holds all memory of its graph while it is scheduled or runs, and
      physical pages are bound to one executing graph at a time (Programming Guide, "Physical Memory Footprint" and
      "Physical Memory Management and Sharing"). No launch that fits by this measure may be refused: whatever else the
      driver keeps can be trimmed.

    ``kept`` is what the driver surely keeps until it is trimmed, in use or not: "destroying a graph which contains
    memory nodes will not immediately return physical memory". How much more it keeps is its own choice (a guess: none),
    for where allocations of several sizes follow one another, addresses may not fit as snugly as sizes do.
    """

    def __init__(self) -> None:
        self.kept = 0
        self.live: dict[int, int] = {}  # address → size of what no call has freed so far
        self._done = 0  # bytes allocated by work that is known to be done
        self._executables: dict[int, _Executable] = {}
        self._names, self._numbers = count(), count()
        self._steps: dict[int, _Step] = {}
        self._edges: list[tuple[int, int]] = []
        self._streams: dict[int, int] = {}  # stream → its last step
        self._made: dict[int, int] = {}  # address → the step behind which it is allocated

    def instantiate(self, graph: Graph, *, auto_free: bool = False) -> int:
        """``cuGraphInstantiate``; costs no memory, as the stream of the launch is not known yet.

        Raises:
            RefusedError: the graph has memory nodes and is instantiated already (cuGraphAddMemAllocNode).
        """
        memory = graph.allocations() or graph.frees()
        if memory and any(executable.graph is graph for executable in self._executables.values()):
            raise RefusedError("a graph with memory nodes has one instantiation at a time")
        name = next(self._names)
        self._executables[name] = _Executable(graph, auto_free)
        return name

    def update(self, name: int, graph: Graph) -> None:
        """``cuGraphExecUpdate`` that the driver accepts: the next launch runs ``graph``.

        Whether a driver accepts other memory nodes is not documented: the limitations that cuGraphExecUpdate lists name
        none (a guess: it refuses them).
        """
        self._executables[name].graph = graph

    def destroy(self, name: int) -> None:
        """``cuGraphExecDestroy``: frees nothing, neither what is unfreed nor what the driver keeps."""
        del self._executables[name]

    def upload(self, name: int) -> None:
        """``cuGraphUpload``: maps all memory of the graph at once."""
        self._keep(self._executables[name].graph)

    def launch(self, name: int, stream: int = 0) -> None:
        """``cuGraphLaunch``: behind the stream's work and behind the last launch of this executable graph.

        Raises:
            RefusedError: an allocation of the graph is unfreed, and it was not instantiated with AUTO_FREE_ON_LAUNCH,
                which frees it as ``cuMemFreeAsync`` does; or the graph frees what is not allocated (a guess).
        """
        executable = self._executables[name]
        own = executable.graph.allocations()
        again = [address for address in own if address in self.live]
        if again and not executable.auto_free:
            raise RefusedError("the graph has unfreed allocations")
        if not self.ready(name):
            raise RefusedError("the graph frees what is not allocated")
        for address in again:
            self.free_async(address, stream)
        self._keep(executable.graph)
        self._run(executable, stream)

    def free_async(self, address: int, stream: int = 0) -> None:
        """``cuMemFreeAsync`` of a graph's allocation."""
        size = self._freed(address)
        self._streams[stream] = self._add(-size, -size, self._streams.get(stream), self._made.get(address))

    def free(self, address: int) -> None:
        """``cuMemFree``: at once and without a wait; that all uses are over is the program's business."""
        size = self._freed(address)
        if address in self._made:
            self._add(-size, -size, self._made[address])
        else:
            self._done -= size

    def wait(self, stream: int, other: int) -> None:
        """``cuStreamWaitEvent``: what ``stream`` is given from now on runs behind the work of ``other`` so far."""
        if other in self._streams:
            self._streams[stream] = self._add(0, 0, self._streams.get(stream), self._streams[other])

    def synchronise(self, stream: int | None = None) -> None:
        """``cuStreamSynchronize``, or ``cuCtxSynchronize`` without a stream."""
        done = set(self._steps) if stream is None else self._before(self._streams.get(stream))
        self._done += sum(self._steps.pop(step).live for step in done)
        self._edges = [edge for edge in self._edges if done.isdisjoint(edge)]
        self._streams = {name: step for name, step in self._streams.items() if step not in done}
        self._made = {address: step for address, step in self._made.items() if step not in done}
        for executable in self._executables.values():
            executable.last = None if executable.last in done else executable.last

    def trim(self) -> None:
        """``cuDeviceGraphMemTrim``: what is unfreed stays, and what runs may; all else is given back."""
        self.kept = sum(self.live.values())

    def ready(self, name: int) -> bool:
        """Whether all that an executable graph frees of other graphs is allocated, so that a program may launch it."""
        graph = self._executables[name].graph
        return self.live.keys() >= graph.frees() - graph.allocations().keys()

    def needs(self, name: int) -> int:
        """Bytes that a launch or an upload takes at the least once all earlier work is done and what is kept is trimmed:
        what other graphs left allocated, and the graph's own peak."""
        graph = self._executables[name].graph
        own = graph.allocations()
        return sum(size for address, size in self.live.items() if address not in own) + peak(graph)

    def settled(self, address: int) -> bool:
        """Whether an allocation is made and unfreed for sure, so that a program may free it at once."""
        return address in self.live and address not in self._made

    def greatest_live(self) -> int:
        """Bytes that can be live at once from now on, in any order that edges, streams and launches allow."""
        return self._greatest([step.live for step in self._steps.values()])

    def greatest_held(self) -> int:
        """The same, where each launch holds all of its graph's memory from its start to its end."""
        return self._greatest([step.held for step in self._steps.values()])

    def _greatest(self, weights: list[int]) -> int:
        place = {step: number for number, step in enumerate(self._steps)}
        return self._done + heaviest(weights, [(place[left], place[right]) for left, right in self._edges])

    def _freed(self, address: int) -> int:
        if address not in self.live:
            raise RefusedError(f"{address} is not allocated")
        return self.live.pop(address)

    def _add(self, live: int, held: int, *behind: int | None) -> int:
        step = next(self._numbers)
        self._steps[step] = _Step(live, held)
        self._edges += [(before, step) for before in behind if before is not None]
        return step

    def _before(self, step: int | None) -> set[int]:
        """A step and all that must be done before it."""
        found: set[int] = set()
        waiting = [] if step is None else [step]
        while waiting:
            here = waiting.pop()
            if here not in found:
                found.add(here)
                waiting += [left for left, right in self._edges if right == here]
        return found

    def _keep(self, graph: Graph) -> None:
        """The driver binds pages for the whole graph, none of which hold an allocation that no call has freed."""
        self.kept = max(self.kept, sum(self.live.values()) + peak(graph))

    def _run(self, executable: _Executable, stream: int) -> None:
        graph = executable.graph
        inner, own, left_over = flat(graph), graph.allocations(), graph.unfreed()
        outer = {address: self.live.pop(address) for address in graph.frees() - own.keys()}
        block = peak(graph)
        made = [self._made.get(address) for address in outer]
        begin = self._add(0, block, self._streams.get(stream), executable.last, *made)
        places = [self._add(weight(node, own | outer), 0, begin) for node in inner.nodes]
        self._edges += [(places[left], places[right]) for left, right in inner.edges]
        end = self._add(0, sum(left_over.values()) - block - sum(outer.values()), begin, *places)
        self.live |= left_over
        self._made |= dict.fromkeys(left_over, end)
        executable.last = self._streams[stream] = end
