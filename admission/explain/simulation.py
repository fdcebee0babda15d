"""``POST /simulate``: where the extender would place each of a list of future pods. Data only, no HTTP.

The caller lists the nodes that the cluster's scheduler leaves to the extender, which judges no taints, and of
a node's host only the CPU.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from admission.cluster.pod_view import PodView, pod_view
from admission.cluster.snapshot import Snapshot
from admission.config import ClusterTerms
from admission.explain.explanation import Explanation, explain
from admission.extender.feasibility import FeasibilityJudge
from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.simulation import ExtenderSimulation
from admission.quota.quota_book import QuotaBook, quota_refusal
from admission.webhook.draft import draft_pod
from gpu_manager.domain.cluster.quota import Quota
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.kube.constraints import shown_bars
from gpu_manager.domain.kube.host_resources import HostResources
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.explain import LINE_LIMIT
from gpu_manager.domain.resources import ZERO
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.whatif.simulation import MOST_ASKED

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
