"""The placement policies of a pod: one function each, and the table that names them.

A policy chooses the card of a container that asks for part of one card or for one whole card. Several whole
cards are chosen by :func:`gpu_manager.domain.placement.card_sets.best_set` under every policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpu_manager.domain.placement.card_sets import fragment
from gpu_manager.domain.placement.trial_placement import TrialPlacement, Unit
from gpu_manager.domain.rules.request import PlacementPolicy
from gpu_manager.domain.topology import Topology

Policy = Callable[[TrialPlacement, Unit, Topology], int | None]
"""The position of the chosen card in ``trial.cards``, or None where no open card has room for the unit."""

_NOWHERE: Final = (None,)


def binpack(trial: TrialPlacement, unit: Unit, topology: Topology) -> int | None:
    """The default. A part of a card goes where least is left: cores first, then memory, then the index.

    A whole card is the idle one whose loss leaves the best-joined sets to later pods.
    """
    if unit.cards:
        return fragment(topology, _idle(trial))
    return min(trial.with_room(unit), default=_NOWHERE)[-1]


def spread(trial: TrialPlacement, unit: Unit, topology: Topology) -> int | None:
    """A part of a card goes where most is left: cores first, then memory, then the index.

    A whole card is chosen as by :func:`binpack`: nobody else is on it in any case.
    """
    if unit.cards:
        return fragment(topology, _idle(trial))
    ranked = ((-cores, -memory, at) for cores, memory, at in trial.with_room(unit))
    return min(ranked, default=_NOWHERE)[-1]


def topology(trial: TrialPlacement, unit: Unit, topology: Topology) -> int | None:
    """As near as can be to the cards that the pod's other containers have; the first goes as by
    :func:`binpack`.

    A part of a card goes to a card of the pod's own before any other; then to the best joined, then to the
    one with least left.
    """
    if not trial.positions:
        return binpack(trial, unit, topology)
    if unit.cards:
        return min(_idle(trial), key=lambda at: (-_joined(trial, topology, at), at), default=None)
    ranked = (
        (-bool(trial.held(at)), -_joined(trial, topology, at), cores, memory, at)
        for cores, memory, at in trial.with_room(unit)
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
    """How well a card is joined to the cards that the pod has: the sum of pair weights."""
    return sum(topology.weights[at][other] for other in range(topology.size) if trial.held(other))
