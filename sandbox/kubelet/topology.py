"""The topology manager: which NUMA nodes a container should lie on (container scope).

As in the kubelet: every resource names the sets of nodes that could serve it, one set of each is
intersected with the others, and the narrowest intersection that all prefer wins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from gpu_manager.domain.topology import NumaPolicy

Nodes = frozenset[int]


@dataclass(frozen=True, slots=True)
class Hint:
    """``nodes`` could serve the request; ``None`` is indifference."""

    nodes: Nodes | None
    preferred: bool


def hints(
    everything: Mapping[str, Nodes], available: Collection[str], reusable: Collection[str], size: int
) -> list[Hint]:
    """What one resource proposes. ``everything`` maps all its ids to their nodes (empty when unknown)."""
    bearing = sorted(set().union(*everything.values()))
    narrowest, usable = len(bearing), []
    for mask in _masks(bearing):
        if sum(bool(nodes & mask) for nodes in everything.values()) >= size:
            narrowest = min(narrowest, len(mask))
        again = [everything.get(one, Nodes()) for one in reusable]
        if any(nodes and not nodes & mask for nodes in again):
            continue  # the ids of the init container will be used, and lie elsewhere
        fresh = sum(bool(everything.get(one, Nodes()) & mask) for one in available if one not in reusable)
        if fresh + sum(bool(nodes) for nodes in again) >= size:
            usable.append(mask)
    return [Hint(mask, len(mask) == narrowest) for mask in usable]


def affinity(
    policy: NumaPolicy, nodes: Collection[int], proposals: Sequence[Sequence[Hint]]
) -> tuple[Nodes | None, bool]:
    """The nodes to lie on (``None``: anywhere), and whether the pod may be admitted under ``policy``."""
    if policy is NumaPolicy.NONE:
        return None, True
    every = Nodes(nodes)
    groups: list[list[Hint]] = [list(group) or [Hint(None, preferred=False)] for group in proposals]
    if policy is NumaPolicy.SINGLE:
        groups = [
            [h for h in group if h.preferred and (h.nodes is None or len(h.nodes) == 1)] for group in groups
        ]
    best = Hint(every, preferred=False)
    for permutation in product(*groups):
        named = [h.nodes for h in permutation if h.nodes is not None]
        merged = every.intersection(*named)
        preferred = all(h.preferred for h in permutation) and len(set(named)) <= 1
        if merged and (preferred, -len(merged)) > (best.preferred, -len(best.nodes or every)):
            best = Hint(merged, preferred)
    admit = best.preferred or policy is NumaPolicy.BEST_EFFORT
    return (None if policy is NumaPolicy.SINGLE and best.nodes == every else best.nodes), admit


def _masks(nodes: Sequence[int]) -> Iterator[Nodes]:
    """Narrow ones first, of equally narrow ones that with more low-numbered nodes (bitmask.IsLessThan)."""
    for count in range(1, len(nodes) + 1):
        yield from map(Nodes, sorted(combinations(nodes, count), key=lambda some: sum(1 << n for n in some)))
