"""Pods that come, wait, run and leave: how much GPU demand waits on average.

Arrivals are a Poisson stream of pods drawn from the trace; a pod runs as long as it did in the trace, an hour
at most, so that a run lasts many lifetimes, or as another law of the same mean says. One that finds no room
waits; whenever something leaves a node, those that wait are tried there in the order of their arrival, and
whoever has waited for long enough gives up. The first half of the arrivals fills the cluster and is not
measured.
"""

from __future__ import annotations

import csv
import gzip
import heapq
import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from bench.placement.policies import Policy, fits
from bench.placement.replay import World
from bench.placement.trace import Node, Pod, Trace
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.request_mix import FreeShape

LONGEST: Final = 3600  # seconds
PATIENCE: Final = 3600  # seconds
LOADS: Final = (0.9, 0.95)  # of the cluster's GPUs, if no pod had to wait
PODS: Final = 8000
PART: Final = 16  # every sixteenth node
LAWS: Final = ("trace", "exponential", "bimodal")
OBSERVED: Final = "dlrm-2025"  # the law of given lifetimes, those of that trace


@dataclass(frozen=True, slots=True)
class Coming:
    """A pod, when it comes and how long it runs, in seconds."""

    pod: Pod
    at: float
    runs: float


def stream(
    trace: Trace,
    seed: int,
    load: float,
    law: str = "trace",
    part: int = PART,
    observed: Sequence[float] = (),
) -> tuple[list[Node], list[Coming]]:
    """Every ``part``-th node, and pods for them, as many a card whatever the part. ``law`` is of
    :data:`LAWS`, or :data:`OBSERVED`: lifetimes drawn from the ``observed`` ones, scaled to the same mean.
    """
    nodes = list(trace.nodes[::part])
    capacity = CORES_PER_CARD * sum(node.cards for node in nodes)
    mean = lifetime(trace)
    runs = {pod.name: _runs(pod) if law == "trace" else mean for pod in trace.pods}
    work = sum(pod.cores * runs[pod.name] for pod in trace.pods) / len(trace.pods)
    chance, lives = random.Random(f"departures {seed}"), random.Random(f"{law} {seed}")
    gap, now, coming = work / (load * capacity), 0.0, list[Coming]()
    if law == OBSERVED:
        scale = mean / statistics.mean(observed)
        observed = [each * scale for each in observed]
    for _ in range(PODS * PART // part):
        pod = chance.choice(trace.pods)
        now += chance.expovariate(1 / gap)
        coming.append(
            Coming(pod, now, runs[pod.name] if law == "trace" else _drawn(law, mean, lives, observed))
        )
    return nodes, coming


def observed_lifetimes(instances: Path) -> list[float]:
    """The lifetimes, in seconds, of those instances of a dlrm-2025 file whose beginning and end were seen."""
    with gzip.open(instances, "rt", newline="", encoding="utf-8") as file:
        seen = ((row["creation_time"], row["deletion_time"]) for row in csv.DictReader(file))
        return [max(1.0, float(gone) - float(born)) for born, gone in seen if born and gone]


def lifetime(trace: Trace) -> float:
    """The mean time that a pod runs, in seconds."""
    return statistics.mean(map(_runs, trace.pods))


def _runs(pod: Pod) -> int:
    return min(LONGEST, max(1, pod.gone - pod.born))


def _drawn(law: str, mean: float, chance: random.Random, observed: Sequence[float]) -> float:
    """A lifetime. ``bimodal``: nine of ten pods run a third of the mean on average, one seven times the
    mean.
    """
    if law == OBSERVED:
        return chance.choice(observed)
    if law == "bimodal":
        mean *= 7 if chance.random() < 0.1 else 1 / 3
    return chance.expovariate(1 / mean)


class _Cards:
    """Which card each pod lies on: rooms are sorted and do not say."""

    def __init__(self, world: World, nodes: int) -> None:
        self._world = world
        self._free = [[cores for cores, _ in world.room(at).free] for at in range(nodes)]

    def put(self, pod: Pod, at: int, after: FreeShape, number: int) -> list[int]:
        """The cards it takes; ``number`` is that of the arrival."""
        cards = self._free[at]
        touched = Counter(cards) - Counter(cores for cores, _ in after.free)
        taken: list[int] = []
        for cores in touched.elements():
            taken.append(next(i for i, free in enumerate(cards) if free == cores and i not in taken))
        for card in taken:
            cards[card] -= min(pod.cores, CORES_PER_CARD)
        self._world.put(pod, at, after, number)
        return taken

    def leave(self, pod: Pod, at: int, taken: Sequence[int]) -> None:
        """It gives them back."""
        for card in taken:
            self._free[at][card] += min(pod.cores, CORES_PER_CARD)
        self._world.leave(pod, at, tuple(sorted((cores, 0) for cores in self._free[at])))


class Outcome(NamedTuple):
    """Percent, over the later half of the arrivals: of the cluster's GPUs that wait, averaged over time; of
    the GPUs asked for, those of pods that gave up.
    """

    waiting: float
    rejected: float


def waiting_demand(
    nodes: Sequence[Node], coming: Sequence[Coming], policy: Policy, patience: float = PATIENCE
) -> float:
    """Percent of the cluster's GPUs that wait, averaged over the time of the later half of the arrivals."""
    return run(nodes, coming, policy, patience=patience).waiting


def run(
    nodes: Sequence[Node],
    coming: Sequence[Coming],
    policy: Policy,
    halfway: Callable[[Sequence[Coming], Sequence[Coming]], None] | None = None,
    patience: float = PATIENCE,
) -> Outcome:
    """One run. ``halfway`` gets the pods that run when the measured half begins, and those that wait;
    ``patience`` in seconds.
    """
    world = World(nodes, policy)
    cards = _Cards(world, len(nodes))
    waiting: dict[int, Coming] = {}  # by their places among those that come
    leaving: list[tuple[float, int, Coming, int, list[int]]] = []
    number, demand, area = count(), 0, 0.0
    later = coming[len(coming) // 2 :]
    begin = last = later[0].at
    gave_up = 0

    def advance(now: float) -> None:
        nonlocal area, last
        if now > last:
            area += demand * (now - last)
            last = now

    def start(place: int, each: Coming, now: float) -> bool:
        choice = world.choose(each.pod)
        if choice is None:
            return False
        taken = cards.put(each.pod, *choice, place)
        heapq.heappush(leaving, (now + each.runs, next(number), each, choice[0], taken))
        return True

    def depart() -> None:
        nonlocal demand, waiting, gave_up
        now, _, gone, at, taken = heapq.heappop(leaving)
        advance(now)
        cards.leave(gone.pod, at, taken)
        still: dict[int, Coming] = {}
        for place, each in waiting.items():  # only this node has changed, so only what fits here can start
            patient = now - each.at <= patience
            if not patient or (fits(each.pod.shape, world.room(at)) and start(place, each, now)):
                demand -= each.pod.cores
                gave_up += 0 if patient or each.at < begin else each.pod.cores
            else:
                still[place] = each
        if len(still) < len(waiting):
            waiting = still
            world.wait({place: each.pod.shape for place, each in waiting.items()})

    for place, each in enumerate(coming):
        while leaving and leaving[0][0] <= each.at:
            depart()
        advance(each.at)
        if each is later[0] and halfway is not None:
            halfway([running for _, _, running, _, _ in leaving], list(waiting.values()))
            world.wait({at: those.pod.shape for at, those in waiting.items()})  # looked at anew
        world.arrived(each.pod.shape)
        if not start(place, each, each.at):
            waiting[place] = each
            world.wait({place: each.pod.shape for place, each in waiting.items()})
            demand += each.pod.cores
    asked = sum(each.pod.cores for each in later)
    return Outcome(
        100 * area / (last - begin) / (CORES_PER_CARD * sum(node.cards for node in nodes)),
        100 * gave_up / asked if asked else 0.0,
    )
