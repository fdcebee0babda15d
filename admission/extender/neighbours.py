"""How little the cards on which a pod would lie suit its priority, node by node."""

from __future__ import annotations

from collections.abc import Sequence

from admission.extender.ranking import RankedNode
from gpu_manager.domain.priority import Priority, unprotected_beside
from gpu_manager.domain.rules.request import PodRequest


def unsuited(request: PodRequest, candidates: Sequence[RankedNode]) -> list[int]:
    """Return the steps by which each candidate suits less, summed over the cards that it would take; empty
    where no priority is in play.
    """
    plain = request.priority is Priority.NORMAL
    if plain and not any(view.ledger.prioritised for view, _ in candidates):
        return []
    found = []
    for view, fit in candidates:
        ledger, steps = view.ledger, 0
        if not plain or ledger.prioritised:
            uuids = [view.node.cards[at].card.uuid for at, _ in fit.taken]
            own = request.uid if ledger.of_pod(request.uid) else None
            steps = sum(unprotected_beside(request.priority, ledger.priorities(uuid, own)) for uuid in uuids)
        found.append(steps)
    return found
