"""Fractions alone: how many nodes of a cluster with plenty of room they take, through filter and prioritize.

Each repeat has other names for the nodes and other lots among equal scores; the pods are the same. The
extender refreshes its mix in a thread, as deployed, so that a repeat also shows whether timing decides.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

from bench.placement.trace import Node, Pod, permuted
from bench.placement.wire import Wire
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.request_mix import RequestShape

NODES: Final = 100
CARDS: Final = 8
PODS: Final = 300
SIZES: Final[Mapping[str, Sequence[int]]] = {
    "20 to 50 cores": range(20, 51, 10),
    "5 to 70 cores": range(5, 71, 5),
}
_CPU: Final = 96_000


def pods(sizes: Sequence[int]) -> list[Pod]:
    """The pods, each of a size drawn from these, in cores."""
    chance = random.Random(f"fractions {list(sizes)}")
    drawn = (RequestShape(chance.choice(sizes), 0, 2000) for _ in range(PODS))
    return [Pod(f"pod-{number}", shape, 1024) for number, shape in enumerate(drawn)]


def volume_bound(coming: Sequence[Pod]) -> int:
    """The fewest nodes whose cards together have the cores asked for."""
    return -(-sum(pod.cores for pod in coming) // (CORES_PER_CARD * CARDS))


def nodes_used(coming: Sequence[Pod], repeat: int) -> int:
    """The nodes that hold any of the pods in the end. Raises ValueError: one found no room."""
    nodes = permuted([Node(f"n{at:03}", _CPU, 1 << 20, CARDS, "M") for at in range(NODES)], repeat)
    wire = Wire(nodes, repeat, beside=True)
    used = {wire.place(pod, number) for number, pod in enumerate(coming)}
    if "" in used:
        raise ValueError("a pod found no room in an empty cluster")
    return len(used)
