"""Whether a pod would be created as its quota stands: for the webhook, and for who asks beforehand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from admission.cluster.node_view import NodeView
from admission.cluster.snapshot import Snapshot
from admission.quota.quota_book import refuse_at_create
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.quota import Quota, refusal
from gpu_manager.domain.errors import printable, quoted
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
    return (
        refuse_at_create(quota, snapshot.used, pod.namespace, least_charge(request), models, protected) or ""
    )


def refused_past_scheduler(quota: Quota, snapshot: Snapshot, pod: Pod, request: PodRequest) -> str:
    """Why a pod with ``spec.nodeName`` cannot be created; empty if its namespace has room for it now.

    It does not wait: the node starts it at once, and nobody judges the quota again. The agent there chooses
    among all cards that the pod may use, so there has to be room of each model of them. ``pod.node`` may be
    no node with cards yet: then under every model.
    """
    mine = quota.of(pod.namespace, request.priority)
    if mine is None:
        return ""
    view = snapshot.nodes.get(pod.node)
    cards = [s.card for s in view.node.cards if request.allows(s.card)] if view else []
    used, protected = (each.get(pod.namespace, {}) for each in (snapshot.used, snapshot.protected))
    reasons: list[str] = []
    if view is not None and not mine.allows_pool(view.node.pool):
        pools = ", ".join(map(printable, mine.pools))
        reasons.append(f"node {quoted(pod.node)} is in none of its pools ({pools})")
    memory = {card.model: card.capacity(view.node.unit).memory for card in cards} if view else {}
    for model in sorted(memory) or [""]:
        asked = {model: least_charge(request, memory.get(model, 0))}
        reasons += mine.passed(used, asked, protected).values()
    if not reasons:
        return ""
    return f"{refusal(pod.namespace, reasons)}, and with spec.nodeName it cannot wait: leave that out"


def least_charge(request: PodRequest, whole: int = 0) -> Amount:
    """What the pod takes at least at its worst moment, were all of it of one model.

    ``whole``: bytes of a whole card. By default the memory is not known before the card is, and counts as
    none.
    """
    card = CardUuid("")
    held = [
        Allocation(
            request.uid,
            c.name,
            c.kind,
            c.order,
            (Share(card, replace(c.request.amount, memory=c.request.cards * whole or c.request.memory)),),
        )
        for c in request.containers
    ]
    return peak(held, card)
