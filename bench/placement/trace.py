"""The openb experiment's input: nodes, pods, the order in which they come, and kin resampled from a trace."""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.request_mix import RequestShape

DEMAND: Final = 1.3  # of the cluster's GPUs, at which a run ends
MOST_PODS: Final = 1001  # on one node, as in the published runs
KIN_SEED: Final = 7
_MILLI: Final = 10  # thousandths of a GPU in one core
_WHOLE: Final = 1000  # thousandths of a GPU, where a row does not say how much of each


@dataclass(frozen=True, slots=True)
class Node:
    """A row of the node list. ``cpu`` in thousandths, ``memory`` in MiB."""

    name: str
    cpu: int
    memory: int
    cards: int
    model: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A row of the pod list. ``host_memory`` in MiB; ``born`` and ``gone`` in seconds."""

    name: str
    shape: RequestShape
    host_memory: int
    born: int = 0
    gone: int = 0

    @property
    def cores(self) -> int:
        """Hundredths of a GPU that it asks for in all."""
        return self.shape.cores


@dataclass(frozen=True, slots=True)
class Trace:
    """Nodes with GPUs, and the pods in the order of their names."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]

    @property
    def capacity(self) -> int:
        """Hundredths of a GPU in the cluster."""
        return CORES_PER_CARD * sum(node.cards for node in self.nodes)

    @property
    def demand(self) -> int:
        """The same of what the pods ask for."""
        return sum(pod.cores for pod in self.pods)


def read(nodes: Path, pods: Path) -> Trace:
    """Two csv files in any form of the openb trace: of pods, the first five columns are enough."""
    with nodes.open(newline="", encoding="utf-8") as file:
        rows = [
            Node(r["sn"], int(r["cpu_milli"]), int(r["memory_mib"]), int(r["gpu"]), r["model"])
            for r in csv.DictReader(file)
        ]
    with pods.open(newline="", encoding="utf-8") as file:
        asked = [_pod(row) for row in csv.DictReader(file)]
    return Trace(
        tuple(sorted((n for n in rows if n.cards), key=lambda n: n.name)),
        tuple(sorted(asked, key=lambda p: p.name)),
    )


def _pod(row: dict[str, str]) -> Pod:
    count = int(row["num_gpu"] or 0)
    milli = int(row["gpu_milli"] or (_WHOLE if count else 0))
    if milli % _MILLI:
        raise SystemExit(f"{row['name']}: gpu_milli {milli} is no multiple of {_MILLI}, one vcuda-core")
    models = tuple(sorted(name for name in (row.get("gpu_spec") or "").split("|") if name))
    shape = RequestShape(milli // _MILLI * count, 0, int(row["cpu_milli"]), models)
    times = (int(row.get(key) or 0) for key in ("creation_time", "deletion_time"))
    return Pod(row["name"], shape, int(row["memory_mib"]), *times)


def arrivals(trace: Trace, seed: int) -> list[Pod]:
    """The published order: the trace shuffled, then clones of it until 130 % of the GPUs are asked for.

    The test for the end uses what a clone asks of *one* GPU, as the original does.
    """
    chance = random.Random(seed)
    order = list(trace.pods)
    chance.shuffle(order)
    asked, limit = trace.demand, DEMAND * trace.capacity
    while asked > limit:
        asked -= order.pop(chance.randrange(len(order))).cores
    while True:
        clone = trace.pods[chance.randrange(len(trace.pods))]
        if asked + min(clone.cores, CORES_PER_CARD) > limit:
            return order
        order.append(clone)
        asked += clone.cores


def permuted(nodes: Sequence[Node], seed: int) -> list[Node]:
    """The nodes in another order, which stands for that of their names."""
    order = list(nodes)
    random.Random(f"nodes {seed}").shuffle(order)
    return order


def typical(pods: Sequence[Pod], share: float = 0.95) -> list[tuple[RequestShape, float]]:
    """The commonest shapes that make up 95 % of the pods, and how common each is: FGD's classes."""
    counts = Counter(pod.shape for pod in pods)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept: list[tuple[RequestShape, int]] = []
    covered = 0
    for shape, count in ranked:
        if covered >= share * len(pods):
            break
        kept.append((shape, count))
        covered += count
    return [(shape, count / covered) for shape, count in kept]


def _until(chance: random.Random, pods: Sequence[Pod], wanted: int, size: Callable[[Pod], int]) -> list[Pod]:
    """Pods drawn with replacement until they ask for ``wanted``."""
    drawn: list[Pod] = []
    asked = 0
    while asked < wanted:
        drawn.append(pods[chance.randrange(len(pods))])
        asked += size(drawn[-1])
    return drawn


def kin(trace: Trace, kind: str) -> Trace:
    """A trace resampled with :data:`KIN_SEED` from this one; GPU demand as before, but for ``cpu``.

    ``share``  every pod with a GPU asks for a fraction (drawn from those of the trace)
    ``cpu``    2.5 times the CPU that pods without a GPU ask for
    ``multi``  half of the GPU demand comes from pods of 2 to 8 GPUs
    ``spec``   a third of the pods with GPUs name 1 to 3 models, each set drawn uniformly
    """
    chance = random.Random(f"{KIN_SEED} {kind}")
    without = [p for p in trace.pods if not p.cores]
    parts = [p for p in trace.pods if 0 < p.cores < CORES_PER_CARD]
    several = [p for p in trace.pods if p.cores > CORES_PER_CARD]
    single = [p for p in trace.pods if 0 < p.cores <= CORES_PER_CARD]
    pods = [*without]
    if kind == "share":
        pods += _until(chance, parts, trace.demand, lambda p: p.cores)
    elif kind == "cpu":
        more = round(1.5 * sum(p.shape.cpu for p in without))
        pods = [*trace.pods, *_until(chance, without, more, lambda p: p.shape.cpu)]
    elif kind == "multi":
        for group in (several, single):
            pods += _until(chance, group, trace.demand // 2, lambda p: p.cores)
    elif kind == "spec":
        models = sorted({n.model for n in trace.nodes})
        bound = set(chance.sample([p.name for p in single + several], len(single + several) // 3))
        for pod in single + several:
            names = tuple(sorted(chance.sample(models, chance.randint(1, 3)))) if pod.name in bound else ()
            pods.append(replace(pod, shape=pod.shape._replace(models=names)))
    else:
        raise ValueError(kind)
    named = [replace(pod, name=f"{kind}-{number:06d}") for number, pod in enumerate(pods)]
    return Trace(trace.nodes, tuple(named))
