"""One run: pods come one by one and are placed or dropped, by the protocol of the openb experiment."""

from __future__ import annotations

import random
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.placement.policies import Fragments, Offer, Policy
from bench.placement.trace import MOST_PODS, Node, Pod
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.closing import ClosedNode
from gpu_manager.domain.score.multi_gpu_slots import with_kept
from gpu_manager.domain.score.request_mix import FreeShape, RequestShape, Stock
from gpu_manager.domain.score.scorer import in_all

EMPTY_CARD: Final = (CORES_PER_CARD, 0)
State = tuple[FreeShape, Hashable]


def stock_of(nodes: Iterable[Node]) -> dict[str, Stock]:
    """The cluster's cards by model."""
    cards: dict[str, int] = {}
    for node in nodes:
        cards[node.model] = cards.get(node.model, 0) + node.cards
    return {model: Stock(count, 0) for model, count in cards.items()}


class World:
    """The nodes, gathered by what they hold: a policy prices each kind of node once.

    ``nodes`` stand in the order of their names as the run sees them.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        policy: Policy,
        chance: random.Random | None = None,
        *,
        warm: bool = False,
    ) -> None:
        self.policy = policy
        self.warm = warm
        self.chance = chance  # with it any node that fits is taken
        self.host_memory = [node.memory for node in nodes]
        self.pods = [0] * len(nodes)
        self.state: list[int] = []
        self.live: dict[int, set[int]] = {}
        self.states: list[State] = []
        self.refresh_seconds: list[float] = []
        self._number: dict[State, int] = {}
        self._rows: dict[RequestShape, dict[int, Offer]] = {}
        self._free = 0  # cores
        self._places: list[int] = []  # what the policy counts, over all nodes …
        self._each: dict[int, Sequence[int]] = {}  # … and of each kind of node
        self._cpu: dict[int, int] = {}  # of each kind of node, used or not
        self._waiting: Mapping[int, RequestShape] = {}
        self._kept: Mapping[int, int] | None = {}
        self._closed: ClosedNode[int, int] | None = None
        self._running = 0  # pods with cards
        for at, node in enumerate(nodes):
            number = self._intern((FreeShape(node.model, 0, node.cpu, (EMPTY_CARD,) * node.cards), None))
            self.state.append(number)
            self.live.setdefault(number, set()).add(at)
            self._free += self.states[number][0].cores
            self._cpu[number] = node.cpu
        self._count_all()

    def _intern(self, state: State) -> int:
        number = self._number.get(state)
        if number is None:
            number = self._number[state] = len(self.states)
            self.states.append(state)
        return number

    def arrived(self, shape: RequestShape) -> None:
        """Count it, and where that changed the prices, work them out anew."""
        if self.policy.arrived(shape):
            began = time.perf_counter()
            shapes, self._rows = list(self._rows), {}
            self._count_all()
            for each in shapes if self.warm else ():
                self._row(each)
            self.refresh_seconds.append(time.perf_counter() - began)

    def wait(self, shapes: Mapping[int, RequestShape]) -> None:
        """So much waits now, by the number of the pod, the first come first."""
        self._waiting = {number: shape for number, shape in shapes.items() if shape.cards > 1}
        self._changed()

    def _changed(self) -> None:
        self._kept = None if self._waiting or self._closed else {}

    def choose(self, pod: Pod) -> tuple[int, FreeShape] | None:
        """The node that takes the pod, and how that leaves it; None if it fits nowhere."""
        row = self._row(pod.shape)
        if self.chance:
            return self._any(pod, row)
        prices = self.policy.prices(self._free, self._places)
        offers = [
            (in_all(offer[0], offer[2], prices) if offer[2] else offer[0], number)
            for number in self.live
            if (offer := row[number])
        ]
        if self._kept is None:
            nodes = ((number, self.states[number][0], self._cpu[number]) for number in self.live)
            self._kept = self.policy.kept(list(self._waiting.values()), nodes)
            firsts = [(min(at), self.states[n][0], self._cpu[n], n) for n, at in self.live.items()]
            self._closed = self.policy.closed(self._waiting, self._running, firsts)
        if kept := self._kept:
            cards = pod.shape.cards
            offers = [(with_kept(key, cards, kept.get(number, 0)), number) for key, number in offers]
        if not offers:
            return None
        at = self._best(pod, offers, min(offers)[0])
        if at is None:  # host memory keeps the pod from all of these: from the best on
            at = next(
                (
                    a
                    for key in sorted({k for k, _ in offers})
                    if (a := self._best(pod, offers, key)) is not None
                ),
                None,
            )
        offer = None if at is None else row[self.state[at]]
        return None if at is None or offer is None else (at, offer[1])

    def _best(self, pod: Pod, offers: Sequence[tuple[object, int]], key: object) -> int | None:
        """Of the nodes of that key the first by free host memory (unless names go first) and name."""
        memory, need, closed = self.host_memory, pod.host_memory, self._closed
        barred = closed.node if closed and pod.shape.cores and pod.shape.cards < closed.cards else None
        able = (
            (0 if self.policy.by_name else memory[at], at)
            for each, number in offers
            if each == key
            for at in self.live[number]
            if memory[at] >= need and self.pods[at] < MOST_PODS and at != barred
        )
        first = min(able, default=None)
        return None if first is None else first[1]

    def _row(self, shape: RequestShape) -> dict[int, Offer]:
        """What each kind of node costs; only those that came up since are priced."""
        row = self._rows.setdefault(shape, {})
        new = [number for number in self.live if number not in row]
        if new:
            rooms = [self.states[number] for number in new]
            found = self.policy.offers(shape, [room for room, _ in rooms], [tag for _, tag in rooms])
            row.update(zip(new, found, strict=True))
        return row

    def _any(self, pod: Pod, row: dict[int, Offer]) -> tuple[int, FreeShape] | None:
        able = [
            at
            for number, nodes in self.live.items()
            if row[number]
            for at in nodes
            if self.host_memory[at] >= pod.host_memory
        ]
        if not able or self.chance is None:
            return None
        at = self.chance.choice(sorted(able))
        offer = row[self.state[at]]
        return (at, offer[1]) if offer else None

    def put(self, pod: Pod, at: int, after: FreeShape, number: int = -1) -> None:
        """The pod lies on the node; ``number``: as which it waited."""
        self.host_memory[at] -= pod.host_memory
        self.pods[at] += 1
        self._running += pod.cores > 0
        self.policy.started(number, pod.shape.cards, at)
        self._move(at, (after, self.policy.tagged(pod.shape, self.states[self.state[at]][1])))

    def leave(self, pod: Pod, at: int, free: tuple[tuple[int, int], ...]) -> None:
        """The pod is gone; ``free`` is what the node's cards then have."""
        self.policy.left(pod.shape)
        self._running -= pod.cores > 0
        room, tag = self.states[self.state[at]]
        self.host_memory[at] += pod.host_memory
        self.pods[at] -= 1
        cpu = None if room.cpu is None else room.cpu + pod.shape.cpu
        self._move(at, (room._replace(cpu=cpu, free=free), tag))

    def _move(self, at: int, state: State) -> None:
        old, new = self.state[at], self._intern(state)
        self.live[old].discard(at)
        if not self.live[old]:
            del self.live[old]
        self.state[at] = new
        self._cpu[new] = self._cpu[old]
        self.live.setdefault(new, set()).add(at)
        self._changed()
        self._free += state[0].cores - self.states[old][0].cores
        pairs = zip(self._places, self._counted(old), self._counted(new), strict=True)
        self._places = [total - was + now for total, was, now in pairs]

    def _counted(self, number: int) -> Sequence[int]:
        found = self._each.get(number)
        if found is None:
            found = self._each[number] = self.policy.places(self.states[number][0])
        return found

    def _count_all(self) -> None:
        self._each = {}
        each = [[n * len(at) for n in self._counted(number)] for number, at in self.live.items()]
        self._places = [sum(column) for column in zip(*each, strict=True)]

    def room(self, at: int) -> FreeShape:
        """What is free on a node."""
        return self.states[self.state[at]][0]


@dataclass(slots=True)
class Run:
    """The figures of one run, in percent of the cluster's GPUs, by whole percent of arrived demand."""

    allocation: dict[int, float] = field(default_factory=dict)
    fragmentation: dict[int, float] = field(default_factory=dict)
    rejected: int = 0
    rejected_cpu: int = 0
    placed: int = 0
    decisions: list[float] = field(default_factory=list)  # seconds of processor time each
    refreshes: list[float] = field(default_factory=list)  # seconds each, beside the decisions
    seconds: float = 0.0

    def by_percent(self, columns: Mapping[int, Sequence[tuple[int, float]]], capacity: int) -> None:
        """Set both curves from what was held and in pieces, after each arrival of a percent."""
        for percent, seen in columns.items():
            self.allocation[percent] = 100 * sum(h for h, _ in seen) / len(seen) / capacity
            self.fragmentation[percent] = 10 * sum(f for _, f in seen) / len(seen) / capacity


def replay(
    nodes: Sequence[Node],
    pods: Sequence[Pod],
    policy: Policy,
    fragments: Fragments,
    chance: random.Random | None = None,
    *,
    warm: bool = False,
) -> Run:
    """All pods once. A pod that fits nowhere is dropped, and has arrived all the same."""
    capacity = CORES_PER_CARD * sum(node.cards for node in nodes)
    world, run = World(nodes, policy, chance, warm=warm), Run()
    fragment = sum(fragments.of([world.room(at) for at in range(len(nodes))]))
    asked = held = 0
    columns: dict[int, list[tuple[int, float]]] = {}
    began = time.perf_counter()
    for pod in pods:
        asked += pod.cores
        world.arrived(pod.shape)
        start = time.thread_time()
        choice = world.choose(pod)
        run.decisions.append(time.thread_time() - start)
        if choice is None:
            run.rejected += 1
            run.rejected_cpu += not pod.cores
        else:
            at, after = choice
            old, new = fragments.of([world.room(at), after])
            fragment += new - old
            world.put(pod, at, after)
            held += pod.cores
            run.placed += 1
        columns.setdefault(int(100 * asked / capacity + 0.5), []).append((held, fragment))
    run.refreshes = world.refresh_seconds
    run.seconds = time.perf_counter() - began
    run.by_percent(columns, capacity)
    return run
