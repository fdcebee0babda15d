"""Several whole cards of one container under the kubelet's NUMA policy: the sets that it would admit.

The kubelet lets a container have devices of the fewest NUMA nodes that could serve the request if nothing
were taken (``restricted``), or of a single one (``single-numa-node``), and fails the pod for good otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

from gpu_manager.domain.card import CardState
from gpu_manager.domain.placement.card_sets import best_set
from gpu_manager.domain.topology import NumaPolicy, Topology

MOST_NODES: Final = 8  # NUMA nodes: on a machine with more the kubelet aligns nothing unless told otherwise


def admitted_set(
    topology: Topology, cards: Sequence[CardState], free: frozenset[int], k: int
) -> tuple[int, ...] | None:
    """Return :func:`~gpu_manager.domain.placement.card_sets.best_set` of the sets that the kubelet admits.

    None if there is none. Of equal sums the fewest NUMA nodes count, then the lowest positions.
    """
    numa = tuple(state.card.numa for state in cards)
    if not topology.numa_policy.strict:
        return best_set(topology, free, k, numa)
    found = [best_set(topology, free & group, k, numa) for group in _groups(topology.numa_policy, cards, k)]
    return min(
        (each for each in found if each is not None),
        key=lambda each: (-topology.sum(each), len({numa[at] for at in each}), each),
        default=None,
    )


def _groups(policy: NumaPolicy, cards: Sequence[CardState], k: int) -> Iterator[frozenset[int]]:
    """Positions of the cards of each choice of NUMA nodes; all cards where the kubelet knows no nodes."""
    ours = [at for at, state in enumerate(cards) if not state.card.mig]
    nodes = {cards[at].card.numa for at in ours}
    if None in nodes or len(nodes) > MOST_NODES:
        yield frozenset(ours)
        return
    for width in range(1, 1 + (1 if policy is NumaPolicy.SINGLE else len(nodes))):
        choices = combinations(sorted(node for node in nodes if node is not None), width)
        groups = [frozenset(at for at in ours if cards[at].card.numa in some) for some in choices]
        if any(len(group) >= k for group in groups):
            yield from groups
            return
