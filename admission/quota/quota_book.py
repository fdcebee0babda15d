"""The quota in force as its ConfigMap changes, and whether a pod may be created under it.

The webhook and previews (explain, dry runs) get the same answer.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import Snapshot
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.node_books import Used
from gpu_manager.domain.cluster.quota import NO_QUOTA, QUOTA_PLACE, NamespaceQuota, Quota, refusal
from gpu_manager.domain.cluster.quota_map import read_quota
from gpu_manager.domain.errors import NodeUnready, printable, quoted
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.placement.ledger import Allocation, Share, peak
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.request import PodRequest

NOT_SYNCED: Final = "GPU quota has not been synced, please retry later"  # the predecessor's words


def refuse_at_create(
    quota: Quota,
    used: Used,
    namespace: str,
    asked: Amount,
    models: Iterable[str],
    protected: Used | None = None,
) -> str | None:
    """Why a pod cannot be created; None if it can.

    It cannot only if the quota grants less than it requests, for every model that it may use; otherwise it
    waits, however little is left. ``models``: those that it may use in this cluster. ``protected``: the
    namespace's use in protected shares, for a pod that requests such; else None.
    """
    mine = quota.of(namespace, Priority.NORMAL if protected is None else Priority.PROTECTED)
    candidates = sorted(set(models))
    if mine is None or not candidates:
        return None
    reasons: list[str] = []
    for model in candidates:
        if not mine.passed({}, {model: asked}):
            return None
        held = (protected or {}).get(namespace, {})  # with the sums as they are
        reasons += mine.passed(used.get(namespace, {}), {model: asked}, held).values()
    return refusal(namespace, reasons)


@dataclass(frozen=True, slots=True)
class QuotaNews:
    """The effect of a change of the ConfigMap. ``namespaces``: whose quota changed ("*": all without an
    entry).

    ``complaint`` is for an Event and a metric; empty if the change was accepted.
    """

    namespaces: frozenset[str] = frozenset()
    complaint: str = ""


class QuotaBook:
    """The quota in force; ``current`` is None before the API's first answer. Thread-safe.

    ``place``: namespace and name of the ConfigMap, for texts.
    """

    def __init__(self, place: tuple[str, str] = QUOTA_PLACE) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._current: Quota | None = None
        self._complaint = ""

    @property
    def current(self) -> Quota | None:
        """The last valid quota; None if there has been none yet."""
        with self._lock:
            return self._current

    @property
    def complaint(self) -> str:
        """Why the present ConfigMap is not in force; empty if it is."""
        with self._lock:
            return self._complaint

    def missing(self) -> str:
        """Why no pod can be judged, for people; empty once there is a quota in force."""
        with self._lock:
            if self._current is not None:
                return ""
            return f"{NOT_SYNCED}: {self._complaint}" if self._complaint else NOT_SYNCED

    def update(self, obj: Mapping[str, Any] | None) -> QuotaNews:
        """Apply the present ConfigMap, None if there is none: then no namespace is limited.

        An invalid one leaves the last valid quota in force.
        """
        try:
            quota = read_quota(obj, self._place)
        except NodeUnready as error:
            with self._lock:
                self._complaint = str(error)
            return QuotaNews(complaint=str(error))
        with self._lock:
            old = self._current or NO_QUOTA
            self._current, self._complaint = quota, ""
        names = old.named | quota.named
        return QuotaNews(frozenset(n for n in names if old.entry(n) != quota.entry(n)))


def quota_refusal(
    quota: Quota, snapshot: Snapshot, pod: Pod, request: PodRequest, views: Collection[NodeView]
) -> str:
    """Why the pod cannot be created; empty if it can, and waits at the most.

    ``views``: a node of each kind that the cluster has.
    """
    sized = ((f"container {quoted(c.name)}", c.request.total) for c in request.containers)
    if large := quota.too_large(pod.namespace, sized):
        return refusal(pod.namespace, large)
    if quota.of(pod.namespace, request.priority) is None:
        return ""
    models = {
        state.card.model
        for view in views
        for state in view.node.cards
        if request.uuids or request.allows(state.card)
    }
    protected = snapshot.protected if request.priority is Priority.PROTECTED else None
    asked = least_charge(request)
    found = refuse_at_create(quota, snapshot.used, pod.namespace, asked, models, protected) or ""
    mine = quota.of(pod.namespace, request.priority)
    pieces = sum(c.request.width for c in request.containers)
    if found and mine is not None and pieces > 1:
        for view in views:
            if _may_be_divided(mine, asked, {s.card.model for s in view.node.cards} & models):
                return ""
    return found


def _may_be_divided(mine: NamespaceQuota, asked: Amount, models: Iterable[str]) -> bool:
    """True if so much of the cards of one node, of several models, could be within what is granted."""
    left, taken = asked, dict[str, Amount]()
    for model in sorted(models):
        rooms = [line.room for line in mine.lines({}, only=model)]
        part = Amount(
            min([left.cores, *(room.cores for room in rooms)]),
            min([left.memory, *(room.memory for room in rooms)]),
        )
        taken[model], left = part, left - part
    return left == ZERO and not mine.passed({}, taken)


def refused_past_scheduler(quota: Quota, snapshot: Snapshot, pod: Pod, request: PodRequest) -> str:
    """Why a pod with ``spec.nodeName`` cannot be created; empty if its namespace has room for it now.

    Such a pod does not wait: the node starts it at once, and the quota is not judged again. The agent there
    chooses among all cards that the pod may use, so there must be room for each model of them. ``pod.node``
    may have no cards yet: then for every model.
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


def protected_refusal(
    quota: Quota, snapshot: Snapshot, waiting: Iterable[PodView], pod: Pod, request: PodRequest
) -> str:
    """Why a protected pod cannot be created where any scheduler may bind it; empty if it can.

    Another scheduler than ours counts no right, so the pods that wait already count as if they were bound.
    There has to be room of one of the models that the pod may use.
    """
    mine = quota.of(pod.namespace, Priority.PROTECTED)
    if request.priority is not Priority.PROTECTED or mine is None:
        return ""
    asked = least_charge(request)
    for other in waiting:
        theirs = other.request(snapshot.unit) if other.pod.uid != pod.uid else None
        if theirs is not None and theirs.priority is Priority.PROTECTED:
            asked += least_charge(theirs)
    models = {s.card.model for v in snapshot.nodes.values() for s in v.node.cards if request.allows(s.card)}
    right = replace(mine, limited=False)  # the sums are the scheduler's to count, as of all pods
    reasons: list[str] = []
    for model in sorted(models) or [""]:
        passed = right.passed({}, {model: asked}, snapshot.protected.get(pod.namespace, {}))
        if not passed:
            return ""
        reasons += passed.values()
    return f"{refusal(pod.namespace, reasons)}, protected pods that wait counted"


def least_charge(request: PodRequest, whole: int = 0) -> Amount:
    """The least that the pod takes at its peak, if all of it were of one model.

    ``whole``: bytes of a whole card. By default the memory is unknown before the card is, and counts as none.
    """
    card = CardUuid("")
    held = [
        Allocation(
            request.uid,
            c.name,
            c.kind,
            c.order,
            (Share(card, Amount(c.request.cores, c.request.cards * whole or c.request.memory)),),
        )
        for c in request.containers
    ]
    return peak(held, card)
