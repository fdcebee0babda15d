"""Pods that are not created yet: a manifest as ``/mutate`` would leave it, with the ResourceClaims and
ResourceClaimTemplates beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from admission.cluster.pod_view import PodView, pod_view
from admission.cluster.pod_view import asked as asked_cpu
from admission.cluster.snapshot import ClusterState
from admission.config import ClusterTerms
from admission.explain.claims import ClaimingPod, claiming_pod
from admission.webhook.admit import TEMPLATES, protected_past_scheduler
from admission.webhook.draft import draft_pod
from gpu_manager.domain.cluster.claims import KnownClaim
from gpu_manager.domain.dra.claim import CLAIM_KIND, CLAIM_TEMPLATE_KIND, is_claim, parse_claim_spec
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.kube.constraints import pod_constraints
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.untrusted import mapping, mappings, text

_PLURALS: Final = {plural.removesuffix("s"): path for (_, plural), path in TEMPLATES.items()}
_LIST: Final = "List"
Obj = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DraftedPod:
    """A pod that does not exist yet, its use of claims (None: none), and the claims that come with it.

    ``refused``: why it would not be created whatever the cluster has, apart from the rules for its amounts.
    """

    view: PodView
    claiming: ClaimingPod | None = None
    claims: Sequence[Obj] = ()
    refused: str = ""


def read_draft(body: bytes, terms: ClusterTerms) -> DraftedPod:
    """Read a manifest as JSON: a Pod, a workload, or a List of one of them with claims and templates.

    Raises RequestInvalid: it is something else.
    """
    try:
        obj = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestInvalid(
            f"the manifest is not JSON: {error}; kubectl create --dry-run=client -o json makes it so"
        ) from error
    if not isinstance(obj, Mapping):
        raise RequestInvalid("the manifest is not an object: send a Pod, or a workload with a pod template")
    claims: Sequence[Obj] = ()
    if obj.get("kind") == _LIST:
        items = mappings(obj.get("items"))
        claims = [one for one in items if is_claim(one)]
        others = [one for one in items if not is_claim(one)]
        if len(others) != 1:
            raise RequestInvalid(
                f"the List has {len(others)} objects beside claims and their templates: send one, a Pod or a "
                "workload with a pod template"
            )
        obj = others[0]
    meta = mapping(obj.get("metadata"))
    return drafted(_template(obj), terms, text(meta.get("namespace")), text(meta.get("name")), claims)


def _template(obj: Obj) -> Obj:
    kind = obj.get("kind")
    template: Any = obj
    if kind not in (None, "Pod"):
        path = _PLURALS.get(str(kind).lower())
        if path is None:
            raise RequestInvalid(f"the manifest is a {quoted(kind)}: send a Pod, or a workload with pods")
        for step in path:
            template = template.get(step) if isinstance(template, Mapping) else None
    if not isinstance(template, Mapping):
        raise RequestInvalid("the manifest has no pod template where one belongs")
    return template


def drafted(
    template: Obj, terms: ClusterTerms, namespace: str, name: str, claims: Sequence[Obj] = ()
) -> DraftedPod:
    """The pod of a template as ``/mutate`` would return it. Raises RequestInvalid: it has no pod template.

    ``namespace`` and ``name`` are those of the workload; the template's own if they are empty or, for the
    name, if it has one. ``claims``: claims and templates created together with it.
    """
    pod = draft_pod(template, terms, trusted=False).pod
    # Not created yet: whatever it says of a node or of an end is not so.
    view = pod_view(
        replace(
            pod,
            namespace=namespace or pod.namespace,
            name=(pod.name or name)[:253],
            node="",
            phase="",
            deleting=False,
        )
    )
    meta = {"namespace": view.pod.namespace, "name": view.pod.name}
    asked = {"resourceClaims": mapping(template.get("spec")).get("resourceClaims")}
    return DraftedPod(
        replace(view, cpu=asked_cpu(template), constraints=pod_constraints(template.get("spec"))),
        claiming_pod({"metadata": meta, "spec": asked}),
        claims,
        "; ".join(one.message for one in protected_past_scheduler(pod, terms)),
    )


def claims_to_come(draft: DraftedPod, cluster: ClusterState) -> tuple[dict[str, KnownClaim], list[str]]:
    """The claims that would be created for the pod, by the pod's own names, and the unknown ones.

    An existing claim counts as it is. Raises RequestInvalid: a claim's spec that no API server would store.
    """
    pod = draft.claiming
    if pod is None:
        return {}, []
    beside = {
        (one["kind"], text(meta.get("name"))): mapping(one.get("spec"))
        for one in draft.claims
        if text((meta := mapping(one.get("metadata"))).get("namespace")) in ("", pod.namespace)
    }
    found: dict[str, KnownClaim] = {}
    unknown: list[str] = []
    for own, name in pod.claims.items():
        template = pod.templates.get(own, "")
        if name and cluster.claims.named(pod.namespace, name):
            continue
        spec = beside.get((CLAIM_KIND, name) if name else (CLAIM_TEMPLATE_KIND, template))
        if spec is not None:
            known = parse_claim_spec(spec if name else spec.get("spec"))
        elif not name and (made := cluster.claims.spec_of(pod.namespace, _entry(template))):
            known = made
        else:
            unknown.append(f"claim {quoted(name)}" if name else f"claim template {quoted(template)}")
            continue
        # Without a UID: nothing that the cluster has.
        found[own] = KnownClaim(PodUid(""), pod.namespace, name or own, known)
    return found, unknown


def _entry(template: str) -> Obj:
    return {"resourceClaimTemplateName": template}
