"""PodDisruptionBudgets: which evictions would violate one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_manager.domain.kube.label_selectors import Term, meets, read_terms
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.untrusted import mapping


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget: ``allowed`` more pods may go now; ``disrupted`` names pods already counted.

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
