"""Pods of three priorities on openb's cluster, through filter and prioritize: what it costs to keep those
apart that are not protected from each other, and how many protected pods lie beside best-effort ones alone.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from bench.placement import wire
from bench.placement.bars import Rows
from bench.placement.study import SEEDS
from bench.placement.trace import Node, Pod, Trace, arrivals, kin, permuted
from bench.rows import Row
from gpu_manager.domain.priority import Priority

MIX: Final = {
    Priority.PROTECTED: 20,
    Priority.NORMAL: 40,
    Priority.BEST_EFFORT: 40,
}  # percent of the fractions


class Mixed(NamedTuple):
    """Allocation at 100 % arrived without and with priorities, and the protected pods: all, and those for
    whom protection holds.
    """

    plain: float
    mixed: float
    protected: int
    held: int


def measure(nodes: Sequence[Node], pods: Sequence[Pod], seed: int) -> Mixed:
    """Place the same pods twice: without a priority, and with one drawn for each fraction."""
    plain = wire.replay(nodes, pods, wire.Wire(nodes, seed))[100]
    cluster = wire.Wire(nodes, seed, priority=drawn(seed))
    mixed = wire.replay(nodes, pods, cluster)[100]
    beside = [others for own, others in cluster.neighbours() if own is Priority.PROTECTED]
    return Mixed(plain, mixed, len(beside), sum(others <= {Priority.BEST_EFFORT} for others in beside))


def drawn(seed: int) -> Callable[[Pod, int], Priority]:
    """A priority for each pod, by :data:`MIX`."""
    chance = random.Random(f"priorities {seed}")
    return lambda _pod, _number: chance.choices([*MIX], [*MIX.values()])[0]


def rows(row: Rows, trace: Trace) -> Iterator[Row]:
    """The kin in which every pod with a GPU asks for a fraction; one node in 8, in 16 unless full."""
    found: list[Mixed] = []
    seeds, part = (SEEDS[:4], 8) if row.full else (SEEDS[:1], 16)
    share = kin(trace, "share")
    for seed in seeds:
        nodes, pods = wire.few(permuted(share.nodes, seed), arrivals(share, seed), part)
        found.append(measure(nodes, pods, seed))
    plain, mixed = (statistics.mean(f[at] for f in found) for at in (0, 1))
    said = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    held, protected = sum(f.held for f in found), sum(f.protected for f in found)
    mix = ", ".join(f"{percent} % {each.value}" for each, percent in MIX.items())
    note = f"kin share, one node of {part}, through filter and prioritize, {said}; {mix}"
    points = f"allocated at 100 % arrived, without priorities {plain:.2f}, with them {mixed:.2f}; {note}"
    yield row("priority_allocated_points", plain - mixed, points)
    percent = f"protected pods beside best-effort ones alone: {held} of {protected}; {note}"
    yield row("priority_protected_percent", 100 * held / max(1, protected), percent)
