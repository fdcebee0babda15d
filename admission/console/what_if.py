"""What would become of manifests that are not applied yet: what explain says of their pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from admission.explain.explain_api import ExplainSources, drafted
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


def judged_workloads(
    workloads: Sequence[Workload], namespace: str, knowledge: ExplainSources
) -> list[dict[str, Any]]:
    """JSON for each: what it is, and either ``error`` or ``said``, the explanation of one of its pods.

    ``namespace``: the only one that the caller may see, empty for all. It is that of workloads that name
    none; ``default`` if it is empty.

    Raises:
        NodeUnready: nodes and pods have not been listed yet.
        RequestInvalid: too many workloads.
    """
    if len(workloads) > MOST_WORKLOADS:
        raise RequestInvalid(f"{len(workloads)} workloads in one file: at most {MOST_WORKLOADS} are judged")
    return [_judged(one, namespace, knowledge) for one in workloads]


def _judged(workload: Workload, namespace: str, knowledge: ExplainSources) -> dict[str, Any]:
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
        pod = drafted(workload.template, knowledge.terms, place, workload.name)
    except RequestInvalid as error:
        return {**shown, "error": str(error)}
    return {**shown, "said": as_json(knowledge.explain(pod, everywhere=not namespace))}
