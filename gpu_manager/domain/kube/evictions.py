"""Which evictions would violate a PodDisruptionBudget, and which marks of agents the evictor obeys. Pure.

A mark is obeyed only within its agent's rights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpu_manager.domain.contract import EvictionMark
from gpu_manager.domain.kube.constraints import Term, meets, read_terms
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.untrusted import mapping


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget: ``allowed`` more pods may be disrupted now; ``disrupted`` names pods already
    counted.

    ``terms`` is its label selector: an empty one selects all pods of the namespace, None selects none.
    """

    namespace: str
    name: str
    allowed: int
    disrupted: frozenset[str]
    terms: tuple[Term, ...] | None

    def selects(self, pod: Pod) -> bool:
        """True if the budget covers the pod."""
        if self.terms is None or pod.namespace != self.namespace:
            return False
        return meets(pod.labels, self.terms)


def read_budget(obj: Mapping[str, Any]) -> DisruptionBudget | None:
    """Read a policy/v1 PodDisruptionBudget; None if the object is malformed."""
    meta, spec, status = (mapping(obj.get(part)) for part in ("metadata", "spec", "status"))
    name, namespace = meta.get("name"), meta.get("namespace")
    if not isinstance(name, str) or not isinstance(namespace, str):
        return None
    allowed = status.get("disruptionsAllowed")
    return DisruptionBudget(
        namespace=namespace,
        name=name,
        allowed=allowed if isinstance(allowed, int) and not isinstance(allowed, bool) else 0,
        disrupted=frozenset(map(str, mapping(status.get("disruptedPods")))),
        terms=read_terms(spec.get("selector")),
    )


def violating(pods: Iterable[Pod], budgets: Sequence[DisruptionBudget]) -> frozenset[PodUid]:
    """Pods whose eviction, in this order, would violate a budget; counted as kube-scheduler does."""
    left = {(b.namespace, b.name): b.allowed for b in budgets}
    broken: set[PodUid] = set()
    for pod in pods:
        for budget in budgets:
            if pod.name in budget.disrupted or not budget.selects(pod):
                continue
            key = budget.namespace, budget.name
            left[key] -= 1
            if left[key] < 0:
                broken.add(pod.uid)
    return frozenset(broken)


RENEW_SECONDS: Final = 240.0
"""After so long an agent writes a mark anew that it still stands by."""

OBEYED_SECONDS: Final = 600.0
"""A mark that is older says nothing: its agent has ended, or has changed its mind."""

_SKEW_SECONDS: Final = 120.0  # between the clocks of two nodes


def why_not_evicted(pod: Pod, mark: EvictionMark | None, now: float) -> str:
    """Why the evictor leaves the pod alone; empty if it may evict it. ``now``: seconds since 1970."""
    if mark is None:
        return "the mark cannot be read"
    if mark.uid != pod.uid:
        return "the mark is about another pod of that name"
    age = now - mark.at
    if not -_SKEW_SECONDS <= age <= OBEYED_SECONDS:
        return f"the mark is {age:.0f} s old: it counts for {OBEYED_SECONDS:.0f} s"
    if pod.static or not pod.controlled:
        return "no controller would replace the pod"
    return ""
