"""Placement policies: one function each, and the table that names them.

A policy chooses the card of a container that requests part of one card or one whole card. Among the cards
with room for a fraction, ``binpack`` and ``spread`` consider only those that suit its priority best. Under
every policy :func:`gpu_manager.domain.placement.card_sets.best_set` chooses several whole cards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpu_manager.domain.placement.card_sets import fragment
from gpu_manager.domain.placement.trial_placement import ContainerGroup, TrialPlacement
from gpu_manager.domain.rules.request import PlacementPolicy
from gpu_manager.domain.topology import Topology

Policy = Callable[[TrialPlacement, ContainerGroup, Topology], int | None]
"""The position of the chosen card in ``trial.cards``, or None where no open card has room for the group."""

_NOWHERE: Final = (None,)


def binpack(trial: TrialPlacement, group: ContainerGroup, topology: Topology) -> int | None:
    """Put a fraction on the card with the least left: by cores, then memory, then index. The default.

    A whole card is the idle one whose loss leaves the best-linked sets to later pods.
    """
    if group.cards:
        return fragment(topology, _idle(trial), trial.numa)
    return min(trial.suiting(group), default=_NOWHERE)[-1]


def spread(trial: TrialPlacement, group: ContainerGroup, topology: Topology) -> int | None:
    """Put a fraction on the card with the most left: by cores, then memory, then index.

    A whole card is chosen as by :func:`binpack`, since it is never shared.
    """
    if group.cards:
        return fragment(topology, _idle(trial), trial.numa)
    ranked = ((-cores, -memory, at) for cores, memory, at in trial.suiting(group))
    return min(ranked, default=_NOWHERE)[-1]


def topology(trial: TrialPlacement, group: ContainerGroup, topology: Topology) -> int | None:
    """Choose the card closest to those of the pod's other containers; :func:`binpack` chooses the first.

    A fraction goes to a card that the pod already uses, else to the best-linked one, else to the one that
    suits its priority, else to the one with the least left.
    """
    suits = trial.unprotected
    if not trial.positions:
        return binpack(trial, group, topology)
    if group.cards:
        return min(_idle(trial), key=lambda at: (-_joined(trial, topology, at), at), default=None)
    ranked = (
        (-bool(trial.held(at)), -_joined(trial, topology, at), suits[at] if suits else 0, cores, memory, at)
        for cores, memory, at in trial.with_room(group)
    )
    return min(ranked, default=_NOWHERE)[-1]


POLICIES: Final[Mapping[PlacementPolicy, Policy]] = {
    PlacementPolicy.BINPACK: binpack,
    PlacementPolicy.SPREAD: spread,
    PlacementPolicy.TOPOLOGY: topology,
}


def _idle(trial: TrialPlacement) -> frozenset[int]:
    return frozenset(at for at in trial.open if trial.idle(at))


def _joined(trial: TrialPlacement, topology: Topology, at: int) -> int:
    """Return how near a card is to those that the pod already uses: the sum of the links' ranks."""
    return sum(topology.ranks[at][other] for other in range(topology.size) if trial.held(other))
