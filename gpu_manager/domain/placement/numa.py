"""The kubelet's NUMA policy: on which NUMA nodes a container's device ids lie, and which sets of cards it
admits.

The kubelet lets a container have devices of the fewest NUMA nodes that could serve the request if nothing
were taken (``restricted``), or of a single one (``single-numa-node``), and fails the pod for good otherwise.
Under every policy but ``none`` it chooses the NUMA nodes itself, by the free ids that it counts there: the
fewest nodes, then those with the lowest numbers (kubelet 1.36.3, topologymanager and bitmask.IsLessThan).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final

from gpu_manager.domain.card import Card, CardState
from gpu_manager.domain.placement.card_sets import best_set
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.topology import NumaPolicy, Topology

MOST_NODES: Final = 8  # NUMA nodes: on machines with more the kubelet by default aligns nothing


def admitted_set(
    topology: Topology, cards: Sequence[CardState], free: frozenset[int], k: int
) -> tuple[int, ...] | None:
    """Return the :func:`~gpu_manager.domain.placement.card_sets.best_set` among the sets that the kubelet
    admits.

    None if there is none. Of equal sums the set on the fewest NUMA nodes wins, then the lowest positions.
    """
    numa = tuple(state.card.numa for state in cards)
    if not topology.numa_policy.strict:
        return best_set(topology, free, k, numa)
    found = [best_set(topology, free & group, k, numa) for group in _groups(topology.numa_policy, cards, k)]
    return min(
        (each for each in found if each is not None),
        key=lambda each: (-topology.rank(each), len({numa[at] for at in each}), each),
        default=None,
    )


def numbered(cards: Iterable[Card]) -> Sequence[int] | None:
    """Return the numbers of the NUMA nodes of these cards; None if the kubelet aligns nothing by them."""
    nodes = {card.numa for card in cards}
    known = sorted(node for node in nodes if node is not None)
    return known if len(known) == len(nodes) and 1 < len(known) <= MOST_NODES else None


def most_together(topology: Topology, cards: Sequence[CardState]) -> int:
    """Return how many whole cards one container could have at most if all open cards were idle."""
    one = topology.numa_policy is NumaPolicy.SINGLE
    groups = _groups(NumaPolicy.SINGLE, cards, 1) if one else [range(len(cards))]
    return max(
        (sum(cards[at].open and cards[at].card.undivided for at in group) for group in groups), default=0
    )


def aligned(
    topology: Topology,
    cards: Sequence[CardState],
    free: Callable[[int], tuple[int, int]],
    cores: int,
    units: int,
) -> frozenset[int] | None:
    """Return the positions of the cards whose ids the kubelet prefers for a container that requests this many
    ids of ``cores`` and ``units`` of memory; None if it has no preference, or none that can be followed.

    ``free`` has the free ids of both, by position. The kubelet counts the ids of a NUMA node, not knowing
    that a share lies on one card: possibly none of these cards has room.
    """
    ours = [at for at, state in enumerate(cards) if not state.card.mig]
    numbers = numbered([cards[at].card for at in ours])
    if topology.numa_policy is NumaPolicy.NONE or numbers is None:
        return None
    there = {node: [at for at in ours if cards[at].card.numa == node] for node in numbers}
    most = sorted((CORES_PER_CARD * len(group) for group in there.values()), reverse=True)
    width = next((n for n in range(1, len(most) + 1) if sum(most[:n]) >= cores), 0)
    has = {node: [free(at) for at in group if cards[at].open] for node, group in there.items()}
    left = {node: (sum(c for c, _ in found), sum(u for _, u in found)) for node, found in has.items()}
    for some in sorted(combinations(numbers, width), key=lambda some: sum(1 << node for node in some)):
        if sum(left[n][0] for n in some) >= cores and sum(left[n][1] for n in some) >= units:
            return frozenset(at for node in some for at in there[node])
    return None


def _groups(policy: NumaPolicy, cards: Sequence[CardState], k: int) -> Iterator[frozenset[int]]:
    """Positions of the cards of each choice of NUMA nodes; all cards if the kubelet knows no NUMA nodes."""
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
