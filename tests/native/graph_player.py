"""Random histories of graphs with memory nodes, played by a program in a tight container beside the oracle.

The oracle (tests/oracle/graph_memory.py) says which launches may not be refused; the card says what it has given.
"""

from __future__ import annotations

import copy
import random
import struct
from dataclasses import dataclass

from tests.native.driven import (
    CONTEXT,
    FIVE_STREAMS,
    GRANULE,
    INVALID_VALUE,
    OUT,
    OUT_OF_MEMORY,
    SUCCESS,
    Container,
    Program,
)
from tests.native.structures import pool_props
from tests.oracle.graph_memory import Alloc, Child, Free, Graph, Node, Process, RefusedError, peak
from tests.oracle.random_graphs import STREAMS, Call, History, apply, random_history

GRAPH_NODE, MOVE = 4, 1  # CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE


@dataclass(slots=True)
class Verdict:
    """What was seen in some histories; bytes are the worst of any instant."""

    graphs: int = 0
    launches: int = 0
    refusals: int = 0  # calls that ended with CUDA_ERROR_OUT_OF_MEMORY
    false_refusals: int = 0  # of these, calls that fit in any order, whatever else may still run
    hasty_refusals: int = 0  # of these, calls that fit once earlier work is done
    bytes_uncharged: int = 0  # that the card had given and the account did not hold
    bytes_over: int = 0  # that the card had given beyond the limit


def judge(container: Container, guest: Program, seed: int, verdict: Verdict, *, set_bytes: int = 0) -> None:
    """Play the history of this seed with a limit that is often too small for it, and add to the verdict.

    Nodes without memory set so many bytes, so that graphs take time and those of several streams overlap.

    At its end everything is given back; the account and the card must then hold the context alone.
    """
    history = random_history(seed)
    chance = random.Random(seed)
    most = max(peak(graph) for graph in history.graphs) * chance.choice((0.8, 1, 1.3, 2))
    room = max(1, round(most / GRANULE)) * GRANULE
    container.change(memory_limit=CONTEXT + FIVE_STREAMS + room)
    player = _Player(container, guest, history, room, verdict, set_bytes)
    player.play()
    player.end()


class _Player:
    def __init__(
        self,
        container: Container,
        guest: Program,
        history: History,
        room: int,
        verdict: Verdict,
        set_bytes: int,
    ) -> None:
        self._set = struct.pack("<QQIIQQ", 0, 0, 0, 1, set_bytes, 1) if set_bytes else b""
        self._container, self._guest, self._history = container, guest, history
        self._room, self._verdict = room, verdict
        self._process = Process()
        self._addresses: dict[int, int] = {}  # the oracle's names → addresses
        self._streams = [guest("cuStreamCreate", OUT, 1).value for _ in range(STREAMS)]
        self._event = guest("cuEventCreate", OUT, 2).value
        self._graphs = [self._build(graph) for graph in history.graphs]
        self._executables: list[int] = []
        verdict.graphs += len(self._graphs)

    def play(self) -> None:
        for call in self._history.calls:
            if self._sensible(call):
                self._make(call)
                self._look()

    def end(self) -> None:
        """Give everything back."""
        self._done("cuCtxSynchronize")
        self._process.synchronise()
        for address in list(self._process.live):
            self._done("cuMemFree_v2", self._addresses[address])
        gone = {call.arguments[0] for call in self._history.calls if call.verb == "destroy"}
        for name, executable in enumerate(self._executables):
            if name not in gone:
                self._done("cuGraphExecDestroy", executable)
        for graph in self._graphs:
            self._done("cuGraphDestroy", graph)
        for stream in self._streams:
            self._done("cuStreamDestroy_v2", stream)
        self._done("cuEventDestroy_v2", self._event)
        self._done("cuDeviceGraphMemTrim", 0)
        assert self._container.charged() == self._guest.card_used() == CONTEXT + FIVE_STREAMS

    def _sensible(self, call: Call) -> bool:
        """Whether the program still makes it: one that was refused memory frees nothing later."""
        if call.verb == "launch":
            return self._process.ready(call.arguments[0])
        if call.verb == "free":
            return self._process.settled(call.arguments[0])
        return call.verb != "free_async" or call.arguments[0] in self._process.live

    def _make(self, call: Call) -> None:
        after = copy.deepcopy(self._process)
        try:
            apply(after, self._history.graphs, call)
        except RefusedError:
            assert self._call(call) in (INVALID_VALUE, OUT_OF_MEMORY), call
            return
        result = self._call(call)
        self._verdict.launches += call.verb == "launch"
        if result == OUT_OF_MEMORY:
            self._refused(call, after)
        elif call.verb != "update" or result == SUCCESS:  # which updates a driver takes is its own affair
            assert result == SUCCESS, f"{call} returned {result}"
            self._process = after

    def _refused(self, call: Call, after: Process) -> None:
        needs = self._process.needs(call.arguments[0])
        most = after.greatest_held() if call.verb == "launch" else self._process.greatest_held() + needs
        self._verdict.refusals += 1
        self._verdict.hasty_refusals += needs <= self._room
        self._verdict.false_refusals += most <= self._room

    def _look(self) -> None:
        charged, used = self._container.charged(), self._guest.card_used()
        self._verdict.bytes_uncharged = max(self._verdict.bytes_uncharged, used - charged)
        self._verdict.bytes_over = max(self._verdict.bytes_over, used - CONTEXT - FIVE_STREAMS - self._room)

    def _done(self, name: str, *arguments: int) -> None:
        result = self._guest(name, *arguments).result
        assert result == SUCCESS, f"{name} returned {result}"

    def _call(self, call: Call) -> int:
        if call.verb == "instantiate":
            number, auto_free = call.arguments
            answer = self._guest("cuGraphInstantiateWithFlags", OUT, self._graphs[number], auto_free)
            self._executables.append(answer.value)
            return answer.result
        if call.verb == "wait":
            self._done("cuEventRecord", self._event, self._streams[call.arguments[1]])
        name, *arguments = self._words(call)
        return self._guest(str(name), *arguments).result

    def _words(self, call: Call) -> tuple[str | int | bytes, ...]:
        """The call of the driver that a call of the oracle stands for."""
        streams, executables = self._streams, self._executables
        match call.verb, call.arguments:
            case "update", (executable, graph):
                return "cuGraphExecUpdate_v2", executables[executable], self._graphs[graph], bytes(24)
            case "destroy", (executable,):
                return "cuGraphExecDestroy", executables[executable]
            case "upload", (executable,):
                return "cuGraphUpload", executables[executable], streams[0]
            case "launch", (executable, stream):
                return "cuGraphLaunch", executables[executable], streams[stream]
            case "free_async", (address, stream):
                return "cuMemFreeAsync", self._addresses[address], streams[stream]
            case "free", (address,):
                return "cuMemFree_v2", self._addresses[address]
            case "wait", (stream, _):
                return "cuStreamWaitEvent", streams[stream], self._event, 0
            case "synchronise", (stream,):
                return "cuStreamSynchronize", streams[stream]
            case "synchronise", ():
                return ("cuCtxSynchronize",)
            case "trim", ():
                return "cuDeviceGraphMemTrim", 0
        raise AssertionError(call)

    def _build(self, graph: Graph) -> int:
        made = self._guest("cuGraphCreate", OUT, 0).value
        nodes: list[int] = []
        for number, node in enumerate(graph.nodes):
            nodes.append(
                self._add(made, node, [nodes[left] for left, right in graph.edges if right == number])
            )
        return made

    def _add(self, graph: int, node: Node, behind: list[int]) -> int:
        edges = struct.pack(f"<{len(behind)}Q", *behind) if behind else 0
        where = (OUT, graph, edges, len(behind))
        if isinstance(node, Alloc):
            params = pool_props() + struct.pack("<QQQQ", 0, 0, node.size, 0)
            answer = self._guest("cuGraphAddMemAllocNode", *where, params)
            (self._addresses[node.address],) = struct.unpack("<Q", answer.structs[-1][-8:])
        elif isinstance(node, Free):
            answer = self._guest("cuGraphAddMemFreeNode", *where, self._addresses[node.address])
        elif isinstance(node, Child):
            params = struct.pack("<i12xQi", GRAPH_NODE, self._build(node.graph), MOVE).ljust(256, b"\0")
            answer = self._guest("cuGraphAddNode_v2", OUT, graph, edges, 0, len(behind), params)
        elif self._set:
            answer = self._guest("cuGraphAddMemsetNode", *where, self._set, 0)
        else:
            answer = self._guest("cuGraphAddEmptyNode", *where)
        return answer.value
