"""Pods that come, wait, run and leave: how much GPU demand waits on average.

Arrivals are a Poisson stream of pods drawn from the trace; a pod runs as long as it did in the trace, an hour
at most, so that a run lasts many lifetimes. One that finds no room waits; whenever something leaves a node,
those that wait are tried there in the order of their arrival, and whoever has waited an hour gives up (else
pods of eight GPUs would pile up for ever, whatever the policy). The first half of the arrivals fills the
cluster and is not measured.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from bench.placement.policies import Policy, fits
from bench.placement.replay import World
from bench.placement.trace import Node, Pod, Trace
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.request_mix import FreeShape

LONGEST: Final = 3600  # seconds
PATIENCE: Final = 3600  # seconds
LOADS: Final = (0.9, 0.95)  # of the cluster's GPUs, if no pod had to wait
PODS: Final = 8000
_PART: Final = 16  # every sixteenth node


@dataclass(frozen=True, slots=True)
class Coming:
    """A pod, when it comes and how long it runs, in seconds."""

    pod: Pod
    at: float
    runs: float


def stream(trace: Trace, seed: int, load: float) -> tuple[list[Node], list[Coming]]:
    """A part of the nodes, and pods for it."""
    nodes = list(trace.nodes[::_PART])
    capacity = CORES_PER_CARD * sum(node.cards for node in nodes)
    runs = {pod.name: min(LONGEST, max(1, pod.gone - pod.born)) for pod in trace.pods}
    work = sum(pod.cores * runs[pod.name] for pod in trace.pods) / len(trace.pods)
    chance = random.Random(f"departures {seed}")
    gap, now, coming = work / (load * capacity), 0.0, list[Coming]()
    for _ in range(PODS):
        pod = chance.choice(trace.pods)
        now += chance.expovariate(1 / gap)
        coming.append(Coming(pod, now, runs[pod.name]))
    return nodes, coming


class _Cards:
    """Which card each pod lies on: rooms are sorted and do not say."""

    def __init__(self, world: World, nodes: int) -> None:
        self._world = world
        self._free = [[cores for cores, _ in world.room(at).free] for at in range(nodes)]

    def put(self, pod: Pod, at: int, after: FreeShape) -> list[int]:
        """The cards it takes."""
        cards = self._free[at]
        touched = Counter(cards) - Counter(cores for cores, _ in after.free)
        taken: list[int] = []
        for cores in touched.elements():
            taken.append(next(i for i, free in enumerate(cards) if free == cores and i not in taken))
        for card in taken:
            cards[card] -= min(pod.cores, CORES_PER_CARD)
        self._world.put(pod, at, after)
        return taken

    def leave(self, pod: Pod, at: int, taken: Sequence[int]) -> None:
        """It gives them back."""
        for card in taken:
            self._free[at][card] += min(pod.cores, CORES_PER_CARD)
        self._world.leave(pod, at, tuple(sorted((cores, 0) for cores in self._free[at])))


def waiting_demand(nodes: Sequence[Node], coming: Sequence[Coming], policy: Policy) -> float:
    """Percent of the cluster's GPUs that wait, averaged over the time of the later half of the arrivals."""
    world = World(nodes, policy)
    cards = _Cards(world, len(nodes))
    waiting: list[Coming] = []
    leaving: list[tuple[float, int, Coming, int, list[int]]] = []
    number, demand, area = count(), 0, 0.0
    begin = last = coming[len(coming) // 2].at

    def advance(now: float) -> None:
        nonlocal area, last
        if now > last:
            area += demand * (now - last)
            last = now

    def start(each: Coming, now: float) -> bool:
        choice = world.choose(each.pod)
        if choice is None:
            return False
        taken = cards.put(each.pod, *choice)
        heapq.heappush(leaving, (now + each.runs, next(number), each, choice[0], taken))
        return True

    def depart() -> None:
        nonlocal demand, waiting
        now, _, gone, at, taken = heapq.heappop(leaving)
        advance(now)
        cards.leave(gone.pod, at, taken)
        still: list[Coming] = []
        for each in waiting:  # only this node has changed, so only what fits here can start
            if now - each.at > PATIENCE or (fits(each.pod.shape, world.room(at)) and start(each, now)):
                demand -= each.pod.cores
            else:
                still.append(each)
        waiting = still

    for each in coming:
        while leaving and leaving[0][0] <= each.at:
            depart()
        advance(each.at)
        world.arrived(each.pod.shape)
        if not start(each, each.at):
            waiting.append(each)
            demand += each.pod.cores
    return 100 * area / (last - begin) / (CORES_PER_CARD * sum(node.cards for node in nodes))
