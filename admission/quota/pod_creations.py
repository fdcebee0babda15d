"""Whether a pod would be created as its quota stands: for the webhook, and for who asks beforehand."""

from __future__ import annotations

from collections.abc import Iterable

from admission.cluster.node_view import NodeView
from admission.cluster.snapshot import Snapshot
from admission.quota.quota_book import refuse_at_create
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.quota import Quota
from gpu_manager.domain.placement.ledger import Allocation, Share, peak
from gpu_manager.domain.pod import Pod
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.rules.request import PodRequest


def quota_refusal(
    quota: Quota, snapshot: Snapshot, pod: Pod, request: PodRequest, views: Iterable[NodeView]
) -> str:
    """Why the pod cannot be created; empty if it can, and waits at the most.

    ``views``: a node of each kind that the cluster has.
    """
    if quota.of(pod.namespace, request.priority) is None:
        return ""
    models = {
        state.card.model
        for view in views
        for state in view.node.cards
        if not request.models or request.allows(state.card) or request.uuids
    }
    protected = snapshot.protected if request.priority is Priority.PROTECTED else None
    return refuse_at_create(quota, snapshot.used, pod.namespace, _least(request), models, protected) or ""


def _least(request: PodRequest) -> Amount:
    """What the pod takes at least at its worst moment, were all of it of one model.

    Of whole cards the memory is not known before the card is, and counts as none.
    """
    card = CardUuid("")
    held = [
        Allocation(request.uid, c.name, c.kind, c.order, (Share(card, c.request.amount),))
        for c in request.containers
    ]
    return peak(held, card)
