"""PodDisruptionBudgets: which pods, if they had to go, would break a promise of their owners. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_manager.domain.lenient import mapping
from gpu_manager.domain.pod import Pod, PodUid

_MOST_EXPRESSIONS = 64


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget. ``allowed`` is how many more of its pods may go now; ``disrupted`` are counted already.

    ``terms`` are (key, operator, values), all of which a pod's labels must meet; None selects nothing.
    """

    namespace: str
    name: str
    allowed: int
    disrupted: frozenset[str]
    terms: tuple[tuple[str, str, frozenset[str]], ...] | None

    def selects(self, pod: Pod) -> bool:
        """True if the pod is one of its own."""
        if self.terms is None or pod.namespace != self.namespace:
            return False
        return all(_meets(pod.labels, *term) for term in self.terms)


def read_budget(obj: Mapping[str, Any]) -> Budget | None:
    """Read a policy/v1 PodDisruptionBudget; None if it has not the shape of one."""
    meta, spec, status = (mapping(obj.get(part)) for part in ("metadata", "spec", "status"))
    name, namespace = meta.get("name"), meta.get("namespace")
    if not isinstance(name, str) or not isinstance(namespace, str):
        return None
    allowed = status.get("disruptionsAllowed")
    return Budget(
        namespace=namespace,
        name=name,
        allowed=allowed if isinstance(allowed, int) and not isinstance(allowed, bool) else 0,
        disrupted=frozenset(map(str, mapping(status.get("disruptedPods")))),
        terms=_terms(spec.get("selector")),
    )


def violating(pods: Iterable[Pod], budgets: Sequence[Budget]) -> frozenset[PodUid]:
    """Those whose end would break a budget, if they went in this order: as kube-scheduler counts."""
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


def _terms(selector: object) -> tuple[tuple[str, str, frozenset[str]], ...] | None:
    if not isinstance(selector, Mapping):
        return None  # policy/v1: no selector selects no pod, an empty one all
    terms = [(str(k), "In", frozenset({str(v)})) for k, v in mapping(selector.get("matchLabels")).items()]
    expressions = selector.get("matchExpressions")
    for expression in (expressions if isinstance(expressions, list) else [])[:_MOST_EXPRESSIONS]:
        one = mapping(expression)
        values = one.get("values")
        listed = frozenset(map(str, values)) if isinstance(values, list) else frozenset()
        terms.append((str(one.get("key")), str(one.get("operator")), listed))
    return tuple(terms)


def _meets(labels: Mapping[str, str], key: str, operator: str, values: frozenset[str]) -> bool:
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    if operator == "Exists":
        return key in labels
    return operator == "DoesNotExist" and key not in labels
