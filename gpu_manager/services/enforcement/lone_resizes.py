"""Requests for another size on a node without an extender: judged by the agent alone, on its own books."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_manager.domain.contract import CORE, MEMORY, RESIZE
from gpu_manager.domain.pod import Pod
from gpu_manager.domain.resize.judgement import check_resize, judge_room, legal_sizes
from gpu_manager.domain.resources import Amount
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.allocation.grant import limits_of
from gpu_manager.services.allocation.node_state import NodeState


@dataclass(frozen=True, slots=True)
class LoneSizes:
    """What a pod's containers shall have now, by name, and why others keep what they have."""

    sizes: Mapping[str, Amount] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def lone_sizes(state: NodeState, pod: Pod, minimum_cores: int) -> LoneSizes:
    """The sizes that the pod's own request gives it; its spec's where it asks for nothing any more.

    A container that has what its device ids count is left alone if nothing is asked: its size may be of
    another time. There is no quota without an extender. ``minimum_cores`` is the smallest part of a card.
    """
    view = state.view
    held = {a.container: g for a in view.ledger.of_pod(pod.uid).values() if (g := view.grants.get(a.key))}
    fractions = {name: grant for name, grant in held.items() if grant.directory and limits_of(grant)}
    wanted = legal_sizes(pod, state.node.unit, minimum_cores)
    if wanted is None:
        why = str(check_resize(pod, state.node.unit, minimum_cores)[0].message)
        return LoneSizes(refused=dict.fromkeys(fractions, why))
    if RESIZE not in pod.annotations:
        fractions = {name: grant for name, grant in fractions.items() if _is_resized(grant, state.node.unit)}
    sizes: dict[str, Amount] = {}
    refused: dict[str, str] = {}
    for name in wanted.keys() & fractions.keys():
        allocation = fractions[name].allocation
        card = state.node.card(allocation.cards[0])
        no = None if card is None else judge_room(view.ledger, allocation, wanted[name], card)
        if no is None:
            sizes[name] = wanted[name]
        else:
            refused[name] = str(no)
    return LoneSizes(sizes, refused)


def _is_resized(grant: Grant, unit: int) -> bool:
    has = grant.allocation.shares[0].amount
    counted = {CORE: has.cores, MEMORY: has.memory // unit}
    return bool(grant.memory_cap) or any(len(grant.ids.get(r, ())) not in (0, n) for r, n in counted.items())
