"""Why a pod waits for its ResourceClaims, or what they hold: Kubernetes reports only that it waits.

:mod:`admission.explain.waiting_claims` works out where the claims would go, card by card. kube-scheduler
calls no extender for such a pod, so a pod counts as waiting by what kube-scheduler writes into its status;
within a second an Event then gives the reason.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView, pod_view
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.explain.explanation import (
    FITS,
    SHOWN_NODES,
    Explanation,
    NodeLine,
    counts_of_bound,
    nodes_words,
)
from admission.explain.pending_events import EventSender, PendingEvents
from admission.explain.waiting_claims import WaitingClaims
from gpu_manager.domain.cluster.claims import KnownClaim
from gpu_manager.domain.dra.claim import ClaimSpec
from gpu_manager.domain.dra.demand import Classes, is_ours
from gpu_manager.domain.dra.device import device_names
from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.domain.placement.explain import LINE_LIMIT, explain_priority, neighbours, with_priority
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.untrusted import mapping, mappings, text
from gpu_manager.ports.clock import Clock

_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class ClaimingPod:
    """A pod that uses claims, by the pod's own name for each: ``claims`` has their names, empty for a claim
    that is not created yet, and ``templates`` the names of their templates.
    """

    key: str
    namespace: str
    node: str
    claims: Mapping[str, str]
    templates: Mapping[str, str]


def claiming_pod(obj: Mapping[str, Any]) -> ClaimingPod | None:
    """Read a core/v1 Pod; None if it uses no claim."""
    meta, spec, status = (mapping(obj.get(part)) for part in ("metadata", "spec", "status"))
    made = {
        text(one.get("name")): text(one.get("resourceClaimName"))
        for one in mappings(status.get("resourceClaimStatuses"))
    }
    wanted = mappings(spec.get("resourceClaims"))
    claims = {
        (own := text(one.get("name"))): text(one.get("resourceClaimName")) or made.get(own, "")
        for one in wanted
    }
    templates = {
        text(one.get("name")): template
        for one in wanted
        if (template := text(one.get("resourceClaimTemplateName")))
    }
    namespace = text(meta.get("namespace"))
    key = f"{namespace}/{text(meta.get('name'))}"
    return ClaimingPod(key, namespace, text(spec.get("nodeName")), claims, templates) if claims else None


def may_be_ours(pod: ClaimingPod, cluster: ClusterState) -> bool:
    """True if a claim of the pod is for this driver, or will be by its template."""
    with cluster.lock:
        classes = cluster.claims.classes
        named = (cluster.claims.named(pod.namespace, name) for name in pod.claims.values() if name)
        return any(one is not None and _is_ours(one, classes) for one in named) or any(
            spec is not None and _asks_for_ours(spec, classes)
            for own in pod.claims
            if not pod.claims[own] and (spec := _of_template(pod, own, cluster))
        )


def _of_template(pod: ClaimingPod, own: str, cluster: ClusterState) -> ClaimSpec | None:
    named = {"resourceClaimTemplateName": pod.templates.get(own, "")}
    return cluster.claims.spec_of(pod.namespace, named)


def explain_claims(
    pod: ClaimingPod,
    cluster: ClusterState,
    minimum_cores: int = 1,
    *,
    everywhere: bool = False,
    drafts: Mapping[str, KnownClaim] | None = None,
) -> Explanation | None:
    """Why the pod waits, or what its claims hold; None if none of them is, or may be, for this driver.

    ``everywhere``: the reader may get pods in all namespaces; otherwise holders in other namespaces are not
    named. ``drafts``: claims that would be created with the pod, by the pod's own names.
    """
    drafts = drafts or {}
    with cluster.lock:
        snapshot, classes = cluster.snapshot(), dict(cluster.claims.classes)
        told = dict(cluster.claims.class_config)
        known = {
            own: drafts.get(own) or cluster.claims.named(pod.namespace, name)
            for own, name in pod.claims.items()
        }
        to_come = {own: _of_template(pod, own, cluster) for own, name in pod.claims.items() if not name}
    missing = [
        own
        for own, spec in to_come.items()
        if own not in drafts and (spec is None or _asks_for_ours(spec, classes))
    ]
    ours = [one for one in known.values() if one is not None and _is_ours(one, classes)]
    if missing and not ours:
        return _plain(pod, snapshot, _not_created(missing))
    if not ours:
        return None
    waiting = [one for one in ours if not one.allocated and one.spec is not None]
    if not waiting:
        return _plain(pod, snapshot, _held(pod, ours, snapshot))
    case = WaitingClaims(pod.namespace, waiting, classes, minimum_cores, everywhere, told)
    found = sorted(map(case.on, snapshot.nodes.values()), key=lambda one: one.rank)
    counts = Counter(one.outcome for one in found)
    nodes = tuple(map(case.shown, found[:SHOWN_NODES]))
    line = case.line(nodes, counts, snapshot)
    if missing:
        line = f"{line}. {_not_created(missing)}"
    return Explanation(pod.key, case.asks(), line[:LINE_LIMIT], "", dict(counts), len(found), nodes)


def _is_ours(claim: KnownClaim, classes: Classes) -> bool:
    if claim.devices or claim.allocated or claim.spec is None:
        return bool(claim.devices or claim.admin_devices)
    return _asks_for_ours(claim.spec, classes)


def _asks_for_ours(spec: ClaimSpec, classes: Classes) -> bool:
    return any(is_ours(one, classes) for alternatives in spec.requests for one in alternatives)


def _plain(pod: ClaimingPod, snapshot: Snapshot, line: str) -> Explanation:
    total = len(snapshot.nodes)
    return Explanation(pod.key, "", line[:LINE_LIMIT], "", counts_of_bound(pod.node, snapshot), total)


def _not_created(missing: Sequence[str]) -> str:
    names = ", ".join(printable(one) for one in missing[:_SHOWN])
    return (
        f"waits: its claim {names} is not created yet; if that is refused, as by the quota, an Event of the "
        "pod says why (kubectl describe pod)"
    )


def _held(pod: ClaimingPod, claims: Sequence[KnownClaim], snapshot: Snapshot) -> str:
    where = f"bound to node {printable(pod.node)}" if pod.node else "its claims are allocated"
    parts = []
    for claim in claims:
        for name in sorted(claim.nodes):
            view = snapshot.nodes.get(name)
            charge = view.held_claims.get(claim.uid) if view else None
            cards = {state.card.uuid: state.card.index for state in view.node.cards} if view else {}
            allocations = charge.allocations if charge else ()
            shares = [share for one in allocations for share in one.shares]
            held = ", ".join(f"{share.amount} of card {cards[share.card]}" for share in shares)
            worth = dict.fromkeys(_worth(view, one) for one in allocations) if view else ()
            parts.append(
                f"claim {printable(claim.name)} holds {held or 'a card not known here'} on {printable(name)}"
                + "".join(map(with_priority, worth))
            )
        if claim.admin_devices:
            parts.append(f"claim {printable(claim.name)} {_looks(claim, snapshot)}")
    return f"{where}: {'; '.join(parts)}"


def _looks(claim: KnownClaim, snapshot: Snapshot) -> str:
    """What a claim sees by admin access."""
    seen: dict[str, list[str]] = {}
    for pool, device in claim.admin_devices:
        view = snapshot.nodes.get(pool)
        states = view.node.cards if view else ()
        names = device_names([state.card for state in states])
        index = next(
            (f"{state.card.index}" for state in states if names[state.card.uuid] == device), "not known here"
        )
        seen.setdefault(pool, []).append(index)
    where = " and ".join(f"card {', '.join(cards)} on {printable(pool)}" for pool, cards in seen.items())
    return f"looks at {where} by admin access, which holds nothing"


def _worth(view: NodeView, held: Allocation) -> str:
    """What the priority of a claim's shares is worth on their cards."""
    beside = neighbours(view.ledger, held.pod, held.cards)
    return explain_priority(held.priority, beside, gates=view.node.gates)


_SETTLE_SECONDS: Final = 0.3
_MOST: Final = 4096


class ClaimingPods:
    """Thread-safe; :meth:`run` is one thread's."""

    def __init__(self, cluster: ClusterState, voice: EventSender, clock: Clock, minimum_cores: int) -> None:
        self._cluster = cluster
        self._minimum_cores = minimum_cores
        self._lock = threading.Lock()
        self._pods: OrderedDict[PodUid, tuple[PodView, ClaimingPod]] = OrderedDict()
        self._events = PendingEvents(self._find, self._explain, voice, clock, _SETTLE_SECONDS)

    def look(self, obj: Mapping[str, Any], *, gone: bool, tells: bool) -> None:
        """Handle a pod as the watch shows it; one that found no node gets an Event if ``tells``."""
        uid = PodUid(text(mapping(obj.get("metadata")).get("uid")))
        with self._lock:
            known = self._pods.pop(uid, None)
        if gone or (known is None and not mapping(obj.get("spec")).get("resourceClaims")):
            return
        claiming = claiming_pod(obj)
        try:
            view = pod_view(parse_pod(obj), obj)
        except RequestInvalid:
            return
        if claiming is None or not view.waits:
            return
        with self._lock:
            self._pods[uid] = view, claiming
            if len(self._pods) > _MOST:
                self._pods.popitem(last=False)
        if view.unschedulable and tells:
            self._events.refused(uid)

    def waiting(self, namespace: str | None = None) -> tuple[PodView, ...]:
        """Pods that wait for a node and use claims of this driver, of one namespace or of all."""
        with self._lock:
            known = list(self._pods.values())
        return tuple(
            view
            for view, claiming in known
            if namespace in (None, view.pod.namespace) and may_be_ours(claiming, self._cluster)
        )

    def explain(self, pod: PodView, *, everywhere: bool = False) -> Explanation | None:
        """Why the pod waits for its claims; None if it does not wait, or for no claim of this driver.

        ``everywhere`` as in :func:`~admission.explain.claims.explain_claims`.
        """
        with self._lock:
            known = self._pods.get(pod.uid)
        if known is None:
            return None
        return explain_claims(known[1], self._cluster, self._minimum_cores, everywhere=everywhere)

    def run(self, ended: threading.Event) -> None:
        """Publish due Events until ``ended``."""
        self._events.run(ended)

    def tell(self) -> bool:
        """Publish the Event of one pod that is due; False if there is none."""
        return self._events.tell()

    def _find(self, uid: PodUid) -> PodView | None:
        with self._lock:
            known = self._pods.get(uid)
        return known[0] if known else None

    def _explain(self, occupant: PodView) -> Explanation:
        # Nothing of ours, or gone meanwhile: nothing to tell.
        return self.explain(occupant) or Explanation(occupant.pod.key, "", "", "", {FITS: 1}, 0)


_NODES_SHOWN: Final = 3


def explain_both(own: Explanation, claims: Explanation) -> Explanation:
    """One explanation of a pod from those of its extended resources and of its claims.

    ``own`` without a request is ignored. In clusters with more nodes than either explanation lists, it is
    left open whether one node has room for both.
    """
    if not own.asks:
        return claims
    if own.counts.get("bound"):
        held = claims.line.partition(": ")[2]
        return replace(own, line=f"{own.line}; {held}"[:LINE_LIMIT]) if held else own
    both = replace(claims, asks="; ".join(one for one in (own.asks, claims.asks) if one), quota=own.quota)
    mine = {one.node: one for one in own.nodes}
    if not claims.counts.get(FITS) or len(mine) < own.total or len(claims.nodes) < claims.total:
        return both
    nodes = sorted(
        (_on_both(mine[one.node], one) for one in claims.nodes if one.node in mine),
        key=lambda one: (one.outcome != FITS, one.node),
    )
    counts = Counter(one.outcome for one in nodes)
    return replace(both, line=_line(own, claims, nodes)[:LINE_LIMIT], counts=dict(counts), nodes=tuple(nodes))


def _on_both(own: NodeLine, claims: NodeLine) -> NodeLine:
    lacks = claims if own.outcome == FITS else own
    line = f"extended resources: {own.line}; claims: {claims.line}"
    return NodeLine(own.node, lacks.outcome, line[:LINE_LIMIT], lacks.cards, own.victims, own.barred)


def _line(own: Explanation, claims: Explanation, nodes: Sequence[NodeLine]) -> str:
    fitting = [one for one in nodes if one.outcome == FITS]
    if fitting:
        first = fitting[0]
        return (
            f"there is room now on {len(fitting)} of {nodes_words(len(nodes))}: on {first.node}, {first.line}"
        )
    return (
        f"waits: no node has room for its extended resources ({_fitting(own)}) and for its claims "
        f"({_fitting(claims)}). Only a node whose front is split gives cards in both ways"
    )


def _fitting(one: Explanation) -> str:
    names = [node.node for node in one.nodes if node.outcome == FITS]
    more = f" and {len(names) - _NODES_SHOWN} more" if len(names) > _NODES_SHOWN else ""
    return f"there is some on {', '.join(names[:_NODES_SHOWN])}{more}"
