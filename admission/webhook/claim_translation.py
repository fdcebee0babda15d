"""``/mutate/claims``: converts pods of labelled namespaces to request their vcuda resources by a
ResourceClaim.

The API server calls it only for pods of namespaces with the label ``tencent.com/vcuda-front: dra``, after
``/mutate`` has completed them. A pod that is illegal, or that a claim cannot describe, is left unchanged: the
former is refused by ``/validate`` with its own text, the latter gets a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from admission.config import ClusterTerms
from admission.webhook.admission_review import ALLOWED, Operation, Review, ReviewVerdict, pointer
from admission.webhook.admit import SILENT, CreateTimeChecks, denied
from admission.webhook.draft import container_places, is_mirror, read_pod
from gpu_manager.domain.contract import CORE, MEMORY, TEMPLATE_SIZE
from gpu_manager.domain.dra.translation import TurnedPod, turned_into_claim, turned_warnings
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.rules.legal_values import check_pod
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.rulebook import Rule, violation
from gpu_manager.domain.untrusted import mapping, mappings, text

EnsureTemplate = Callable[[str, str, Mapping[str, Any]], str]
"""Namespace, name, and spec of its claims → why the template may not exist; empty if it does."""

_CLAIM: Final = "vcuda"  # entry of spec.resourceClaims; another number where something has it


def turn(
    review: Review, terms: ClusterTerms, ensure: EnsureTemplate, checks: CreateTimeChecks = SILENT
) -> ReviewVerdict:
    """Convert the extended resources of a pod that is being created to a claim. A dry run creates nothing."""
    if (review.group, review.resource, review.operation) != ("", "pods", "CREATE") or review.obj is None:
        return ALLOWED
    try:
        pod = replace(read_pod(review.obj), namespace=review.namespace or "default")
    except RequestInvalid:
        return ALLOWED
    if not pod.asks or is_mirror(review) or check_pod(pod, terms.unit, terms.minimum_cores):
        return ALLOWED
    request = judged_request(pod, terms.unit, terms.minimum_cores)
    try:
        turned = turned_into_claim(pod, request)
    except RequestInvalid as error:
        told = violation(Rule.NOT_TURNED_INTO_CLAIM, "", "", "", reason=str(error))
        return ReviewVerdict(warnings=(told.message,), rules=(told.rule.id,))
    refusals = checks.refusals(pod, request)
    if refusals:
        return denied(refusals)  # else the claim is refused later, where nobody reads it
    why = "" if review.dry_run else ensure(pod.namespace, turned.template, turned.spec)
    if why:
        return ReviewVerdict(
            allowed=False,
            message=f"the ResourceClaimTemplate of the pod cannot be made: {why}. Create the pod again",
            code=500,  # no other replica has a better answer
            reason="InternalError",
        )
    warnings = turned_warnings(request, turned)
    return ReviewVerdict(
        patch=tuple(_patch(review.obj, pod, turned)),
        warnings=tuple(one.message for one in warnings),
        rules=tuple(one.rule.id for one in warnings),
    )


def _patch(obj: Mapping[str, Any], pod: Pod, turned: TurnedPod) -> Iterator[Operation]:
    spec = mapping(obj.get("spec"))
    entry = _free_name(spec)
    for container, place in zip(pod.containers, container_places(obj), strict=True):
        request = turned.request_of(container.name)
        if request:
            yield from _use(_at(obj, place), place, {"name": entry, "request": request})
    added = {"name": entry, "resourceClaimTemplateName": turned.template}
    yield _append(mappings(spec.get("resourceClaims")), ("spec", "resourceClaims"), added)
    if TEMPLATE_SIZE in pod.annotations:
        yield Operation("remove", pointer("metadata", "annotations", TEMPLATE_SIZE))


def _use(
    resources: Mapping[str, Any], place: tuple[str | int, ...], used: Mapping[str, str]
) -> Iterator[Operation]:
    """The container's request in place of its extended resources."""
    for group in ("limits", "requests"):
        for name in (CORE, MEMORY):
            if name in mapping(resources.get(group)):
                yield Operation("remove", pointer(*place, group, name))
    yield _append(mappings(resources.get("claims")), (*place, "claims"), used)


def _append(there: object, place: tuple[str | int, ...], value: Mapping[str, str]) -> Operation:
    if there:
        return Operation("add", pointer(*place, "-"), dict(value))
    return Operation("add", pointer(*place), [dict(value)])


def _at(obj: Mapping[str, Any], place: tuple[str | int, ...]) -> Mapping[str, Any]:
    found: Any = obj
    for step in place:
        found = found[step]
    return mapping(found)


def _free_name(spec: Mapping[str, Any]) -> str:
    taken = {text(one.get("name")) for one in mappings(spec.get("resourceClaims"))}
    others = (f"{_CLAIM}-{number}" for number in range(2, len(taken) + 3))
    return _CLAIM if _CLAIM not in taken else next(name for name in others if name not in taken)
