"""Names without effect: misspelt, another system's, or in the wrong place. They are legal, and a mistake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from gpu_manager.domain.contract import (
    CARDS,
    CORE,
    CORE_LIMIT,
    FOREIGN_RESOURCES,
    GPU_MODEL,
    GPU_UUID,
    LONGEST_NAME,
    MEMORY,
    OUR_PREFIX,
    PLACEMENT,
    POD_ANNOTATIONS,
    PREDICATE_INDEX,
    PREEMPTION_DELAY,
    PRELOAD,
    PRIORITY,
)
from gpu_manager.domain.errors import printable
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation
from gpu_manager.domain.untrusted import mapping, mappings

_FOR_PEOPLE = (CARDS, CORE_LIMIT, GPU_MODEL, GPU_UUID, PLACEMENT, PREEMPTION_DELAY, PRELOAD, PRIORITY)
_NODE_MAKERS = ("NodePool", "Provisioner")  # Karpenter's
OF_VPA = "a VerticalPodAutoscaler sizes CPU and memory alone: take it out, and see docs/sizing.md"
_ALIKE = 0.7  # of difflib's ratio, without the prefix
_MOST = 8  # reported annotations of one pod


def unknown_names(pod: Pod) -> Iterator[Violation]:
    """Yield a warning for each such name in the pod, with the name that was probably meant."""
    for container in pod.containers:
        for name in container.strange:
            others = f", but another's: ask for {CORE} and {MEMORY}"
            hint = others if name in FOREIGN_RESOURCES else _meant(name, (CORE, MEMORY))
            yield violation(Rule.RESOURCE_UNKNOWN, container.name, printable(name), "", hint=hint)
    ours = (key for key in pod.annotations if key.startswith(OUR_PREFIX) and len(key) <= LONGEST_NAME)
    unknown = sorted(k for k in ours if k not in POD_ANNOTATIONS and not k.startswith(PREDICATE_INDEX))
    for key in unknown[:_MOST]:
        yield violation(Rule.ANNOTATION_UNKNOWN, "", printable(key), "", hint=_meant(key, _FOR_PEOPLE))


def asks_strangely(pod: Pod) -> str:
    """Why a pod without a known card resource gets no node: it requests a name that no node here offers."""
    strange = next((name for container in pod.containers for name in container.strange), "")
    return (
        f"asks for {printable(strange)}, which none of our nodes offers: ask for {CORE} and {MEMORY}"
        * bool(strange)
    )


def uncounted(obj: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield a warning for each card resource in bounds of a system that does not know it."""
    kind, spec = obj.get("kind"), mapping(obj.get("spec"))
    bounds = [("spec.limits", spec.get("limits"))] if kind in _NODE_MAKERS else []
    if kind == "VerticalPodAutoscaler":
        policies = mappings(mapping(spec.get("resourcePolicy")).get("containerPolicies"))
        bounds = [(part, policy.get(part)) for policy in policies for part in ("minAllowed", "maxAllowed")]
    reason = "Karpenter counts what instance types offer" if kind in _NODE_MAKERS else OF_VPA
    for where, amounts in bounds:
        for name in (CORE, MEMORY):
            if name in mapping(amounts):
                yield violation(Rule.RESOURCE_UNCOUNTED, "", name, where, reason=reason)


def misplaced(
    own: Mapping[str, Any], template: Mapping[str, Any], kind: str, place: Sequence[str]
) -> Iterator[Violation]:
    """Yield a warning for each pod annotation that is on a workload instead of its template.

    ``own`` and ``template``: annotations of the workload, of this ``kind``, and of the template at ``place``.
    """
    where = ".".join((*place, "metadata", "annotations"))
    for key in _FOR_PEOPLE:
        if key in own and template.get(key) != own[key]:
            yield violation(Rule.ANNOTATION_OF_WORKLOAD, "", key, "", kind=kind, place=where)


def _meant(name: str, known: Sequence[str]) -> str:
    short = {one.removeprefix(OUR_PREFIX): one for one in known}
    close = get_close_matches(name.removeprefix(OUR_PREFIX), short, n=1, cutoff=_ALIKE)
    return f": did you mean {short[close[0]]}?" if close else ""
