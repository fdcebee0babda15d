"""Choose the cards of a container with equal parts of several cards: always different ones.

The choice narrows the sets of cards with room step by step; a step keeps the sets with the fewest cards of a
kind, or those with the largest sum of links. The order of the steps is the policy's:

* ``binpack``: cards that suit the pod's priority, fewest idle cards, links;
* ``spread``: the same, but most idle cards;
* ``topology``: cards that the pod uses already, links, then as ``binpack``.

Of the sets that are left, the one with the least left over is taken: compared card by card, the fullest first
(by free cores, then free memory, then index). Exact up to
:data:`~gpu_manager.domain.placement.card_sets.PREPARED` cards, where one integer has a bit for every set;
beyond, the cards are chosen one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from gpu_manager.domain.placement.card_sets import PREPARED, Ranks, ranked
from gpu_manager.domain.placement.trial_placement import ContainerGroup, TrialPlacement
from gpu_manager.domain.rules.request import PlacementPolicy
from gpu_manager.domain.topology import Topology

LINKS: Final = None
"""This step keeps the sets with the best links; every other one keeps those with the fewest of its cards."""

Steps = Sequence[Collection[int] | None]


def several_cards(
    trial: TrialPlacement, group: ContainerGroup, policy: PlacementPolicy, topology: Topology
) -> tuple[int, ...] | None:
    """Return the positions of the cards, in rising order; None where too few open cards have room."""
    rooms = sorted(trial.with_room(group))
    if len(rooms) < group.parts:
        return None
    fullest = [at for *_, at in rooms]
    steps = _steps(trial, fullest, policy)
    if topology.size > PREPARED:
        return _one_by_one(topology, fullest, group.parts, steps)
    return _of_sets(topology, ranked(topology.ranks, trial.numa)[group.parts], fullest, steps)


def _steps(trial: TrialPlacement, rooms: Sequence[int], policy: PlacementPolicy) -> Steps:
    idle = frozenset(at for at in rooms if trial.idle(at))
    if policy is PlacementPolicy.SPREAD:
        return (*_unsuited(trial, rooms), frozenset(rooms) - idle, LINKS)
    if policy is PlacementPolicy.TOPOLOGY:
        away = frozenset(at for at in rooms if not trial.held(at))
        return (away, LINKS, *_unsuited(trial, rooms), idle)
    return (*_unsuited(trial, rooms), idle, LINKS)


def _unsuited(trial: TrialPlacement, rooms: Sequence[int]) -> Iterator[Collection[int]]:
    """The cards that suit the pod's priority worst, then those that suit it better, without the best."""
    suits = trial.unprotected
    if suits is not None:
        for value in sorted({suits[at] for at in rooms}, reverse=True)[:-1]:
            yield frozenset(at for at in rooms if suits[at] == value)


def _of_sets(topology: Topology, ranks: Ranks, fullest: Sequence[int], steps: Steps) -> tuple[int, ...]:
    sets = ranks.without(topology.size, frozenset(fullest))
    for step in steps:
        sets = ranks.as_good(sets) if step is LINKS else _fewest(ranks, sets, step)
    chosen: list[int] = []
    for at in fullest:
        if with_it := sets & ranks.holding[at]:
            sets = with_it
            chosen.append(at)
    return tuple(sorted(chosen))


def _fewest(ranks: Ranks, sets: int, cards: Collection[int]) -> int:
    """Return a bit for every set with as few of these cards as any."""
    by_number = [sets]  # of these cards in the set
    for at in cards:
        with_it = [some & ranks.holding[at] for some in by_number]
        by_number = [
            (some ^ held) | more
            for some, held, more in zip((*by_number, 0), (*with_it, 0), (0, *with_it), strict=True)
        ]
    return next(some for some in by_number if some)


def _one_by_one(topology: Topology, fullest: Sequence[int], count: int, steps: Steps) -> tuple[int, ...]:
    """Take the best card by the steps, then the next beside it; of equal ones the fullest."""
    chosen: list[int] = []
    while len(chosen) < count:
        rest = [at for at in fullest if at not in chosen]
        chosen.append(
            min(
                rest,
                key=lambda at: tuple(
                    -sum(topology.ranks[at][other] for other in chosen or rest)
                    if step is LINKS
                    else at in step
                    for step in steps
                ),
            )
        )
    return tuple(sorted(chosen))
