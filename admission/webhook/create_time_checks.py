"""Checks of a legal pod at creation against the cluster's state: from memory, in bounded time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.extender.feasibility import FeasibilityJudge, Fit, Unfit
from admission.extender.refusal_lines import describe
from admission.quota.claims_quota import ClaimCreations, says_protected
from admission.quota.quota_book import QuotaBook, protected_refusal, quota_refusal, refused_past_scheduler
from admission.webhook.admit import CreateTimeChecks, InjectionWays
from gpu_manager.domain.cluster.claims import read_claim
from gpu_manager.domain.cluster.quota import refusal
from gpu_manager.domain.contract import FEATURES, MULTI_CARD, PRIORITY
from gpu_manager.domain.dra.demand import double_uses, requests_of_containers, shared_uses
from gpu_manager.domain.errors import printable, quoted
from gpu_manager.domain.kube.constraints import NodeConstraints, pod_constraints
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.placement.card_sets import most_together
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import format_bytes
from gpu_manager.domain.rules.pod_annotations import has_fractions_alone
from gpu_manager.domain.rules.request import PodRequest
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation
from gpu_manager.domain.topology import NumaPolicy
from gpu_manager.domain.untrusted import mapping
from gpu_manager.ports.clock import Clock

_KINDS_SECONDS = 1.0
_BY_VARIABLE = "nvidia"  # the strategy by which NVIDIA's runtime injects the cards that a variable names
_NOT_HELD = "this replica holds no claims to quotas, and is about to be replaced: create the claim again"
_OLD_REPLICA = (
    f"replica {{name}} of the admission service has not written {MULTI_CARD} into annotation {FEATURES} of "
    "its pod: it is of an earlier release, has just started, or may not write there (upgrade the chart too)"
)
_MOST_KINDS = 64  # kinds of nodes that are asked; a cluster with more gets no warning


def create_time_checks(
    cluster: ClusterState,
    quota: QuotaBook,
    judge: FeasibilityJudge,
    clock: Clock,
    claims: ClaimCreations | None = None,
    *,
    any_scheduler: bool = False,
) -> CreateTimeChecks:
    """The checks for the webhook. They have no effect until nodes and pods have been listed.

    ``claims``: None if claims have no quota. ``any_scheduler``: no scheduler is named whose pods are bound
    here, so protected pods are counted at creation.
    """
    kinds = _Recent(cluster, clock)

    def refuse(pod: Pod, request: PodRequest) -> Sequence[str]:
        if quota.current is None or not cluster.synced:
            return ()
        snapshot = cluster.snapshot()
        reason = quota_refusal(quota.current, snapshot, pod, request, kinds.now())
        if not reason and pod.node:
            reason = refused_past_scheduler(quota.current, snapshot, pod, request)
        if not reason and quota.current.is_best_effort(pod.namespace) and has_fractions_alone(pod):
            reason = _not_best_effort(pod)
        if not reason and any_scheduler:
            waiting = cluster.waiting(pod.namespace)
            reason = protected_refusal(quota.current, snapshot, waiting, pod, request)
        return (reason,) if reason else ()

    def warn(pod: Pod, request: PodRequest) -> Sequence[str]:
        if not cluster.synced:
            return ()
        return _never(pod, request, cluster.snapshot(), kinds.now(), judge)

    def claim(obj: Mapping[str, Any], namespace: str, dry_run: bool) -> tuple[str, bool]:  # noqa: FBT001
        if claims is None:  # a replica of before its cluster had claims, on its way out
            limits = quota.current
            limited = limits is not None and limits.of(namespace or "default") is not None
            known = read_claim(obj)
            limited = limited or (known is not None and says_protected(known))
            return (_NOT_HELD, True) if limited else ("", False)
        found = claims.refuse(obj, namespace or "default", dry_run=dry_run)
        return (found.text, found.again) if found else ("", False)

    def pod_claims(obj: Mapping[str, Any], namespace: str) -> tuple[Violation, ...]:
        if claims is None or not mapping(obj.get("spec")).get("resourceClaims"):
            return ()
        parts = [one.name for one in parse_pod(obj).containers if one.is_part]
        with cluster.lock:
            known = cluster.claims
            used = requests_of_containers(obj, lambda one: known.spec_of(namespace, one), known.classes)
        return (
            *(
                violation(Rule.CLAIMS_IN_ONE_CONTAINER, container, "", "", reason=text)
                for container, text in double_uses(used, parts)
            ),
            *(violation(Rule.CLAIM_SHARED, "", "", "", reason=text) for text in shared_uses(used)),
        )

    def injection(obj: Mapping[str, Any]) -> InjectionWays:
        return _ways(obj, cluster.snapshot()) if cluster.synced else InjectionWays()

    def best_effort(namespace: str) -> bool:
        return quota.current is not None and quota.current.is_best_effort(namespace)

    def no_parts() -> str:
        if not cluster.synced:
            return "the service's replicas are not known yet"
        old = cluster.without_feature(MULTI_CARD)
        return _OLD_REPLICA.format(name=printable(old)) if old else ""

    size = cluster.workloads.asked_of
    return CreateTimeChecks(refuse, warn, size, claim, pod_claims, injection, best_effort, no_parts)


def _not_best_effort(pod: Pod) -> str:
    """Why a pod with another priority is refused in a namespace that is best-effort; empty if it is not."""
    written = pod.annotations.get(PRIORITY, Priority.BEST_EFFORT.value)
    if written == Priority.BEST_EFFORT.value:
        return ""
    return refusal(
        pod.namespace,
        [f"its fractions are best-effort, and annotation {PRIORITY} is {quoted(written)}: leave it out"],
    )


def _ways(obj: Mapping[str, Any], snapshot: Snapshot) -> InjectionWays:
    """Of the nodes with cards that the pod may go to; cordons and taints may be gone when it does."""
    spec = mapping(obj.get("spec"))
    named, wishes = spec.get("nodeName"), pod_constraints(spec)
    found = {
        view.node.name: view.node.injects_by
        for view in snapshot.nodes.values()
        if view.node.cards
        and (view.node.name == named if named else not _unselected(view.constraints).bars(wishes))
    }
    by_variable = next((name for name, way in found.items() if way == _BY_VARIABLE), "")
    return InjectionWays(by_variable, bool(found) and all(found.values()))


def _unselected(constraints: NodeConstraints) -> NodeConstraints:
    return replace(constraints, cordoned=False, taints=(), closed="")


class _Recent:
    """One node of each kind, looked up once a second: thousands of nodes are too many for each review."""

    def __init__(self, cluster: ClusterState, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._found: tuple[float, tuple[NodeView, ...]] = float("-inf"), ()

    def now(self) -> tuple[NodeView, ...]:
        """As it was at most a second ago."""
        now = self._clock.monotonic()
        if now - self._found[0] >= _KINDS_SECONDS:
            self._found = now, _kinds(self._cluster.snapshot().nodes.values())
        return self._found[1]


_CLOSED: Final = "cards that are unhealthy or cordoned now are not counted on"


def _never(
    pod: Pod, request: PodRequest, snapshot: Snapshot, known: Sequence[NodeView], judge: FeasibilityJudge
) -> Sequence[str]:
    """One sentence if no node could take the pod even if empty; none while there is no node with cards."""
    views = known
    if request.uuids:
        nodes = snapshot.nodes.values()
        views = [v for v in nodes if any(not request.uuids.isdisjoint(s.card.names) for s in v.node.cards)]
        if not views:
            cards = any(v.node.cards for v in known)
            return ("none of the cards that it names by UUID is in this cluster",) if cards else ()
    kinds = [view for view in views if not view.problem]
    if not kinds or len(kinds) > _MOST_KINDS:
        return ()
    question = judge.ask(PodView(pod), request, snapshot, None, chosen=True)  # who is kept out now may wait
    for view in kinds:
        found = question.on(view)
        if isinstance(found, Fit) or found is not Unfit.NEVER:
            return ()
    known_cards = [(v.node.unit, s.card) for v in kinds for s in v.node.cards]
    allowed = [one for one in known_cards if request.allows_model(one[1].model)] or known_cards
    size, model = max((card.capacity(unit).memory, card.model) for unit, card in allowed)
    suited = (sum(not s.card.mig and request.allows_model(s.card.model) for s in v.node.cards) for v in kinds)
    most = max(suited) or max(len(v.node.cards) for v in kinds)
    together = max(most_together(v.node.topology, v.node.cards) for v in kinds)
    single = f"one container gets {together} of them at most (the kubelet's policy {NumaPolicy.SINGLE.value})"
    models = sorted({printable(s.card.model) for v in kinds for s in v.node.cards})
    parts = [
        f"the largest card has {format_bytes(size)} ({printable(model)})",
        f"a node has {most} card{'s' * (most != 1)} at most",
        *([_CLOSED] if not all(s.healthy and not s.cordoned for v in kinds for s in v.node.cards) else []),
        *([single] if all(v.node.topology.numa_policy is NumaPolicy.SINGLE for v in kinds) else []),
        *([f"models are {', '.join(models[:8])}"] if request.models else []),
    ]
    return (f"no node of this cluster can hold {describe(request)}, even if empty: {'; '.join(parts)}",)


def _kinds(views: Iterable[NodeView]) -> tuple[NodeView, ...]:
    """One node of each kind: what its cards are like does not depend on their names."""
    return tuple({(view.hardware, view.problem): view for view in views}.values())
