"""What a pod names beside its requests: names without effect, which are legal and a mistake, and ways to be
shown more cards than its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

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
    VISIBLE_ENV,
)
from gpu_manager.domain.errors import printable, quoted
from gpu_manager.domain.kube.pod import Container, Pod
from gpu_manager.domain.rules.rulebook import Rule, Violation, violation
from gpu_manager.domain.untrusted import mapping, mappings

# How a container could be shown more cards than its own: by a variable, by envFrom, or by privilege.
# NVIDIA's container runtime shows a container every card that `NVIDIA_VISIBLE_DEVICES` names.


EPHEMERAL_SHOWN: Final = "nodes with that runtime"  # where envFrom shows an ephemeral container cards


def check_visible_devices(pod: Pod) -> Iterator[Violation]:
    """Yield a violation for each container that chooses cards past the agent; separate from the amounts, so
    that a pod which already runs continues.
    """
    yield from _chosen(pod.containers)


def _chosen(containers: Iterable[Container]) -> Iterator[Violation]:
    for container in containers:
        if value := container.visible_devices:
            yield violation(Rule.VISIBLE_DEVICES_SET, container.name, VISIBLE_ENV, quoted(value))


def check_env_from(pod: Pod, shown: str) -> Iterator[Violation]:
    """Yield a violation for each container that ``envFrom`` may show cards, in a pod that requests some.

    ``shown``: where that happens, such as a node whose runtime shows cards by that variable.
    """
    if any(c.asks and not c.lent for c in pod.containers):
        yield from _brought(pod.containers, shown)


def _brought(containers: Iterable[Container], shown: str) -> Iterator[Violation]:
    for container in containers:
        if container.env_from:
            yield violation(Rule.ENV_FROM, container.name, VISIBLE_ENV, shown)


def check_ephemeral(pod: Pod, added: Iterable[Container]) -> Iterator[Violation]:
    """Yield how ephemeral containers could be shown cards, in a pod that requests some; they get none."""
    if any(c.core is not None or c.memory_units is not None for c in pod.containers):
        yield from _chosen(added)
        yield from _brought(added, EPHEMERAL_SHOWN)


def warn_privileged(pod: Pod) -> Iterator[Violation]:
    """Yield a warning for each privileged container in the pod of a part of a card."""
    share = next((c.name for c in pod.containers if c.is_part), None)
    for container in pod.containers if share is not None else ():
        if container.privileged and not container.core:
            field = "securityContext.privileged"
            yield violation(Rule.PRIVILEGED_BESIDE_SHARE, container.name, field, quoted(share))


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
