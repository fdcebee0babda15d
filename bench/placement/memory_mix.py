"""Requests for memory of cards: ours beside FGD on four mixes, by the protocol of the openb experiment.

The trace asks for no memory of cards, so each fraction is given some, by its share of cores, and the models
get sizes: those of their data sheets, and an assumed one for the two that are not disclosed. FGD is the
published one: it knows nothing of memory, and places only where the memory is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from bench.placement.policies import Policy
from bench.placement.replay import World
from bench.placement.trace import Node, Pod, Trace, arrivals, permuted
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.score.request_mix import FreeShape, Stock

GIB: Final = 4  # units
MEMORY: Final[Mapping[str, int]] = {
    "T4": 16 * GIB,
    "P100": 16 * GIB,
    "V100M16": 16 * GIB,
    "V100M32": 32 * GIB,
    "A10": 24 * GIB,
    "G2": 24 * GIB,  # assumed
    "G3": 32 * GIB,  # assumed
}
PART: Final = 16  # every sixteenth node


def _share(least: float, most: float) -> Callable[[int, random.Random], int]:
    """So many times the cores' share of a card of 16 GiB, drawn evenly."""
    return lambda cores, chance: round(16 * GIB * cores * chance.uniform(least, most) / CORES_PER_CARD)


def _two_kinds(cores: int, chance: random.Random) -> int:
    """One of three asks for 22 GiB, whatever its cores: more than a card of 16 GiB has; the others for 2."""
    del cores
    return 22 * GIB if chance.random() < 1 / 3 else 2 * GIB


MIXES: Final[Mapping[str, Callable[[int, random.Random], int]]] = {
    "as cores": _share(0.8, 1.2),
    "heavy": _share(1.5, 3.0),  # of memory more is asked for than there is
    "wide": _share(0.2, 2.2),
    "2 and 22 GiB": _two_kinds,
}


class Held(NamedTuple):
    """Percent at 130 % arrived demand: of the cluster's cores that are allocated, and of the pods with a
    request for cores those that were refused.
    """

    cores: float
    refused: float


def with_memory(trace: Trace, mix: str, part: int = PART) -> Trace:
    """Every ``part``-th node, and the pods with memory by that mix, at most what the largest card has."""
    chance, most = random.Random(f"memory {mix}"), max(MEMORY.values())
    pods: list[Pod] = []
    for pod in trace.pods:
        units = 0
        if 0 < pod.cores < CORES_PER_CARD:
            units = min(most, max(1, MIXES[mix](pod.cores, chance)))
        pods.append(replace(pod, shape=pod.shape._replace(memory=units)))
    return Trace(trace.nodes[::part], tuple(pods))


def stock_of(nodes: Sequence[Node]) -> dict[str, Stock]:
    """The cards by model, with their memory."""
    cards: dict[str, int] = {}
    for node in nodes:
        cards[node.model] = cards.get(node.model, 0) + node.cards
    return {model: Stock(count, MEMORY[model]) for model, count in cards.items()}


class _World(World):
    """Nodes whose cards have memory."""

    def __init__(self, nodes: Sequence[Node], policy: Policy) -> None:
        super().__init__((), policy)
        self.host_memory = [node.memory for node in nodes]
        self.pods = [0] * len(nodes)
        for at, node in enumerate(nodes):
            units = MEMORY[node.model]
            room = FreeShape(node.model, units, node.cpu, ((CORES_PER_CARD, units),) * node.cards)
            number = self._intern((room, None))
            self.state.append(number)
            self.live.setdefault(number, set()).add(at)
            self._free += room.cores
            self._cpu[number] = node.cpu
        self._count_all()


def replay(trace: Trace, seed: int, policy: Policy) -> Held:
    """All pods once, in the order of the seed; one that fits nowhere is dropped."""
    world = _World(permuted(trace.nodes, seed), policy)
    held = asked = refused = 0
    for pod in arrivals(trace, seed):
        world.arrived(pod.shape)
        choice = world.choose(pod)
        asked += bool(pod.cores)
        if choice is None:
            refused += bool(pod.cores)
        else:
            world.put(pod, *choice)
            held += pod.cores
    return Held(100 * held / trace.capacity, 100 * refused / asked)
