"""What would become of manifests that are not applied yet: what explain says of their pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from admission.explain.drafts import drafted
from admission.explain.explain_api import ExplainSources
from admission.explain.views import as_json
from gpu_manager.domain.errors import RequestInvalid, printable, quoted

MOST_WORKLOADS: Final = 20  # of one file


@dataclass(frozen=True, slots=True)
class Workload:
    """An object that runs pods, ``copies`` at once. ``template`` is None if it has none where one belongs."""

    kind: str
    namespace: str
    name: str
    copies: int
    template: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """What a file holds: objects that run pods, and ResourceClaims and ResourceClaimTemplates."""

    workloads: Sequence[Workload]
    claims: Sequence[Mapping[str, Any]] = ()


def judged_workloads(file: ManifestFile, namespace: str, knowledge: ExplainSources) -> list[dict[str, Any]]:
    """JSON for each: what it is, and either ``error`` or ``said``, the explanation of one of its pods.

    ``namespace``: the only one that the caller may see, empty for all. It is that of workloads that name
    none; ``default`` if it is empty.

    Raises:
        NodeUnready: nodes and pods have not been listed yet.
        RequestInvalid: too many workloads.
    """
    if (count := len(file.workloads)) > MOST_WORKLOADS:
        raise RequestInvalid(f"{count} workloads in one file: at most {MOST_WORKLOADS} are judged")
    return [_judged(one, file.claims, namespace, knowledge) for one in file.workloads]


def _judged(
    workload: Workload, claims: Sequence[Mapping[str, Any]], namespace: str, knowledge: ExplainSources
) -> dict[str, Any]:
    place = workload.namespace or namespace or "default"
    shown = {
        "kind": printable(workload.kind),
        "name": f"{printable(place)}/{printable(workload.name)}",
        "copies": workload.copies,
    }
    if namespace not in ("", place):
        mine = f"it is of namespace {quoted(place)}, and only {quoted(namespace)} is shown here"
        return {**shown, "error": mine}
    if workload.template is None:
        return {**shown, "error": "it has no pod template where one belongs"}
    try:
        pod = drafted(workload.template, knowledge.terms, place, workload.name, claims)
        explanation = knowledge.explain_draft(pod, everywhere=not namespace)
    except RequestInvalid as error:
        return {**shown, "error": str(error)}
    return {**shown, "said": as_json(explanation)}
