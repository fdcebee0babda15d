"""Pods that are not created yet: a manifest as ``/mutate`` would leave it, with its ResourceClaims; and where
the extender would place each of a list of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from admission.cluster.pod_view import PodView, pod_view
from admission.cluster.pod_view import asked as asked_cpu
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.config import ClusterTerms
from admission.explain.claims import ClaimingPod, claiming_pod
from admission.explain.explanation import Explanation, explain
from admission.extender.feasibility import FeasibilityJudge
from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.node_choice import ExtenderSimulation
from admission.quota.quota_book import QuotaBook, quota_refusal
from admission.webhook.admit import TEMPLATES, protected_past_scheduler
from admission.webhook.draft import draft_pod
from gpu_manager.domain.cluster.claims import KnownClaim
from gpu_manager.domain.cluster.quota import Quota
from gpu_manager.domain.dra.claim import CLAIM_KIND, CLAIM_TEMPLATE_KIND, is_claim, parse_claim_spec
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.kube.constraints import HostResources, pod_constraints, shown_bars
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.explain import LINE_LIMIT
from gpu_manager.domain.resources import ZERO
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.untrusted import mapping, mappings, text
from gpu_manager.domain.whatif.simulation import MOST_ASKED

# `POST /simulate`: where the extender would place each of a list of future pods. Data only, no HTTP.
# The caller lists the nodes that the cluster's scheduler leaves to the extender, which judges no taints,
# and of a node's host only the CPU.


SECONDS: Final = 20.0  # that one question may take


@dataclass(frozen=True, slots=True)
class _Group:
    """Pods that are alike but for their names."""

    pod: PodView
    names: tuple[str, ...]
    nodes: tuple[str, ...]
    host: HostResources


def simulate(
    body: bytes,
    policy: LeastFragmentation,
    quota: QuotaBook,
    terms: ClusterTerms,
    monotonic: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """The answer as JSON: ``placements``, ``refused``, and the cores that are free afterwards on open cards.

    ``body``: ``{"pods": [{"manifest": a Pod, "names": [...], "nodes": [...], "host": [CPU, memory, pods]}],
    "free": {node: the same}}``, CPU in thousandths, memory in bytes. Raises RequestInvalid.
    """
    groups, free = _read(body, terms)
    if (most := sum(len(group.names) for group in groups)) > MOST_ASKED:
        raise RequestInvalid(f"{most} pods in one question: at most {MOST_ASKED}")
    trial = ExtenderSimulation(policy, quota.current, terms.minimum_cores)
    placements, refused = [], []
    ends = monotonic() + SECONDS
    for pod, group in _each(groups):
        if monotonic() > ends:
            raise RequestInvalid(f"this takes more than {SECONDS:g} s: ask about fewer pods")
        lacks = {n: free[n].lacks(group.host) if n in free else "" for n in group.nodes}
        place = trial.place(pod, [n for n, lack in lacks.items() if not lack])
        if place is None:
            refused.append({"pod": pod.pod.key, "reason": _why(trial, pod, lacks, quota, terms)})
            continue
        if place.node in free:
            free[place.node] -= group.host
        placements.append({"pod": pod.pod.key, "node": place.node, "cards": list(place.cards)})
    views = trial.snapshot.nodes.values()
    left = sum((v.ledger.free(s.card.uuid) for v in views for s in v.node.cards if s.open), ZERO)
    return {"placements": placements, "refused": refused, "free_cores": left.cores}


def explain_copies(
    first: Explanation,
    pod: PodView,
    copies: int,
    policy: LeastFragmentation,
    quota: Quota | None,
    terms: ClusterTerms,
    *,
    everywhere: bool,
    monotonic: Callable[[], float] = time.monotonic,
) -> tuple[int, Explanation]:
    """How many of a workload's pods fit, one after the other, and the explanation of the first that waits, or
    that of the ``first`` if none does.
    """
    trial = ExtenderSimulation(policy, quota, terms.minimum_cores)
    ends = monotonic() + SECONDS
    for count in range(copies):
        if count == MOST_ASKED or monotonic() > ends:
            return count, replace(first, line=f"{count} of {copies} copies fit now; more were not tried")
        one = replace(pod, pod=replace(pod.pod, uid=PodUid(f"(what if) {count}")))
        views = trial.snapshot.nodes.values()
        if trial.place(one, [v.name for v in views if not v.bars(one)]) is None:
            judge, snapshot = FeasibilityJudge(), trial.snapshot
            waits = explain(one, snapshot, quota, judge, terms.minimum_cores, everywhere=everywhere)
            line = f"{count} of {copies} copies fit now; the next {waits.line}"
            return count, replace(waits, line=line[:LINE_LIMIT])
    return copies, replace(first, line=f"all {copies} copies fit now: {first.line}"[:LINE_LIMIT])


def _each(groups: list[_Group]) -> Iterator[tuple[PodView, _Group]]:
    for at, group in enumerate(groups):
        for number, name in enumerate(group.names):
            pod = replace(group.pod.pod, uid=PodUid(f"(what if) {at}/{number}"), name=name)
            yield replace(group.pod, pod=pod), group


def _why(
    trial: ExtenderSimulation, pod: PodView, lacks: Mapping[str, str], quota: QuotaBook, terms: ClusterTerms
) -> str:
    """Why none of the nodes takes it. ``lacks``: by node, what its host has too little of, or nothing."""
    snapshot = trial.snapshot
    if refused := refused_at_create(pod, snapshot, quota.current, terms):
        return refused
    those = {n: snapshot.nodes[n] for n, lack in lacks.items() if not lack and n in snapshot.nodes}
    if not those and (barred := {n: lack for n, lack in lacks.items() if lack}):
        return f"no node takes it: {shown_bars(barred)}"
    if not those:
        return "no node that it may go to has cards, and the host CPU, memory and pod slots left"
    asked = replace(snapshot, nodes=those)
    return explain(pod, asked, quota.current, FeasibilityJudge(), terms.minimum_cores, everywhere=True).line


def refused_at_create(pod: PodView, snapshot: Snapshot, quota: Quota | None, terms: ClusterTerms) -> str:
    """Why its namespace's quota would refuse the creation of a pod; empty if the pod would be created, or is
    illegal anyway.
    """
    if quota is None:
        return ""
    try:
        request = judged_request(pod.pod, snapshot.unit, terms.minimum_cores)
    except RequestInvalid:
        return ""
    reason = quota_refusal(quota, snapshot, pod.pod, request, snapshot.nodes.values())
    return f"would not be created: {reason}"[:LINE_LIMIT] if reason else ""


def _read(body: bytes, terms: ClusterTerms) -> tuple[list[_Group], dict[str, HostResources]]:
    """The question. Raises RequestInvalid: it is malformed."""
    try:
        asked = json.loads(body)
        free = {str(name): _host(host) for name, host in asked.get("free", {}).items()}
        return [_group(one, terms) for one in asked["pods"]], free
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise RequestInvalid(f"this is no list of pods to simulate: {error}") from error


def _group(one: Mapping[str, Any], terms: ClusterTerms) -> _Group:
    manifest = one["manifest"]
    namespace = manifest["metadata"]["namespace"]
    if not isinstance(namespace, str) or not namespace:
        raise RequestInvalid(f"a pod's namespace is {quoted(namespace)}")
    host = _host(one["host"])
    pod = draft_pod(manifest, terms, trusted=False).pod
    view = pod_view(replace(pod, namespace=namespace, node="", phase="", deleting=False))
    names, nodes = tuple(map(str, one["names"])), tuple(map(str, one["nodes"]))
    return _Group(replace(view, cpu=host.cpu), names, nodes, host)


def _host(parts: Any) -> HostResources:
    cpu, memory, pods = map(int, parts)
    return HostResources(cpu, memory, pods)


_PLURALS: Final = {plural.removesuffix("s"): path for (_, plural), path in TEMPLATES.items()}
_LIST: Final = "List"
Obj = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DraftedPod:
    """A pod that does not exist yet, its use of claims (None: none), and the claims that come with it.

    ``refused``: why it would not be created whatever the cluster has, apart from the rules for its amounts.
    """

    view: PodView
    claiming: ClaimingPod | None = None
    claims: Sequence[Obj] = ()
    refused: str = ""


def read_draft(body: bytes, terms: ClusterTerms) -> DraftedPod:
    """Read a manifest as JSON: a Pod, a workload, or a List of one of them with claims and templates.

    Raises RequestInvalid: it is something else.
    """
    try:
        obj = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestInvalid(
            f"the manifest is not JSON: {error}; kubectl create --dry-run=client -o json makes it so"
        ) from error
    if not isinstance(obj, Mapping):
        raise RequestInvalid("the manifest is not an object: send a Pod, or a workload with a pod template")
    claims: Sequence[Obj] = ()
    if obj.get("kind") == _LIST:
        items = mappings(obj.get("items"))
        claims = [one for one in items if is_claim(one)]
        others = [one for one in items if not is_claim(one)]
        if len(others) != 1:
            raise RequestInvalid(
                f"the List has {len(others)} objects beside claims and their templates: send one, a Pod or a "
                "workload with a pod template"
            )
        obj = others[0]
    meta = mapping(obj.get("metadata"))
    return drafted(_template(obj), terms, text(meta.get("namespace")), text(meta.get("name")), claims)


def _template(obj: Obj) -> Obj:
    kind = obj.get("kind")
    template: Any = obj
    if kind not in (None, "Pod"):
        path = _PLURALS.get(str(kind).lower())
        if path is None:
            raise RequestInvalid(f"the manifest is a {quoted(kind)}: send a Pod, or a workload with pods")
        for step in path:
            template = template.get(step) if isinstance(template, Mapping) else None
    if not isinstance(template, Mapping):
        raise RequestInvalid("the manifest has no pod template where one belongs")
    return template


def drafted(
    template: Obj, terms: ClusterTerms, namespace: str, name: str, claims: Sequence[Obj] = ()
) -> DraftedPod:
    """The pod of a template as ``/mutate`` would return it. Raises RequestInvalid: it has no pod template.

    ``namespace`` and ``name`` are those of the workload; the template's own if they are empty or, for the
    name, if it has one. ``claims``: claims and templates created together with it.
    """
    pod = draft_pod(template, terms, trusted=False).pod
    # Not created yet: whatever it says of a node or of an end is not so.
    view = pod_view(
        replace(
            pod,
            namespace=namespace or pod.namespace,
            name=(pod.name or name)[:253],
            node="",
            phase="",
            deleting=False,
        )
    )
    meta = {"namespace": view.pod.namespace, "name": view.pod.name}
    asked = {"resourceClaims": mapping(template.get("spec")).get("resourceClaims")}
    return DraftedPod(
        replace(view, cpu=asked_cpu(template), constraints=pod_constraints(template.get("spec"))),
        claiming_pod({"metadata": meta, "spec": asked}),
        claims,
        "; ".join(one.message for one in protected_past_scheduler(pod, terms)),
    )


def claims_to_come(draft: DraftedPod, cluster: ClusterState) -> tuple[dict[str, KnownClaim], list[str]]:
    """The claims that would be created for the pod, by the pod's own names, and the unknown ones.

    An existing claim counts as it is. Raises RequestInvalid: a claim's spec that no API server would store.
    """
    pod = draft.claiming
    if pod is None:
        return {}, []
    beside = {
        (one["kind"], text(meta.get("name"))): mapping(one.get("spec"))
        for one in draft.claims
        if text((meta := mapping(one.get("metadata"))).get("namespace")) in ("", pod.namespace)
    }
    found: dict[str, KnownClaim] = {}
    unknown: list[str] = []
    for own, name in pod.claims.items():
        template = pod.templates.get(own, "")
        if name and cluster.claims.named(pod.namespace, name):
            continue
        spec = beside.get((CLAIM_KIND, name) if name else (CLAIM_TEMPLATE_KIND, template))
        if spec is not None:
            known = parse_claim_spec(spec if name else spec.get("spec"))
        elif not name and (made := cluster.claims.spec_of(pod.namespace, _entry(template))):
            known = made
        else:
            unknown.append(f"claim {quoted(name)}" if name else f"claim template {quoted(template)}")
            continue
        # Without a UID: nothing that the cluster has.
        found[own] = KnownClaim(PodUid(""), pod.namespace, name or own, known)
    return found, unknown


def _entry(template: str) -> Obj:
    return {"resourceClaimTemplateName": template}
