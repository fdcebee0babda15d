"""What people and their programs may ask on :9443: why a pod waits, what of a quota is left.

Who may get pods in a namespace may hear about them here (:mod:`admission.explain.caller_gate`). Text for
people, JSON for programs: ``?o=text``, ``?o=json``, else by Accept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.concurrency import run_in_threadpool

from admission.cluster.pod_view import PodView, pod_view
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.config import ClusterTerms
from admission.explain.caller_gate import Answer, CallerGate, documented, said
from admission.explain.claims import claiming_pod, explain_claims
from admission.explain.explanation import Explanation, explain
from admission.explain.simulation import simulate
from admission.explain.views import as_json, as_text, quota_text
from admission.extender.feasibility import FeasibilityJudge
from admission.extender.fragmentation_score import LeastFragmentation
from admission.quota.quota_book import QuotaBook
from admission.webhook.admit import TEMPLATES
from admission.webhook.draft import draft_pod
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.domain.pod import parse_pod
from gpu_manager.domain.whatif.scheduling_constraints import pod_constraints

_PLURALS: Final = {plural.removesuffix("s"): path for (_, plural), path in TEMPLATES.items()}


@dataclass(frozen=True, slots=True)
class ExplainSources:
    """What is known here. ``fetch`` asks the API server for a pod's object, for one that holds and wants
    nothing.
    """

    cluster: ClusterState
    quota: QuotaBook
    judge: FeasibilityJudge
    policy: LeastFragmentation
    terms: ClusterTerms
    fetch: Callable[[str, str], Mapping[str, Any] | None]

    def snapshot(self) -> Snapshot:
        """As it is. Raises NodeUnready: before the first lists."""
        if not self.cluster.synced:
            raise NodeUnready("nodes and pods have not been listed yet: ask again in a few seconds")
        return self.cluster.snapshot()

    def explain(self, occupant: PodView, *, everywhere: bool = False) -> Explanation:
        """Why it waits, or where it is. ``everywhere``: for who may get pods in all namespaces."""
        return explain(
            occupant,
            self.snapshot(),
            self.quota.current,
            self.judge,
            self.terms.minimum_cores,
            everywhere=everywhere,
        )

    def find(self, namespace: str, name: str) -> PodView | None:
        """The pod of that name.

        Raises:
            NodeUnready: it is not known here and nobody can be asked.
            RequestInvalid: its object cannot be read.
        """
        known = self.cluster.named(namespace, name)
        if known is not None:
            return known
        obj = self.fetch(namespace, name)
        return None if obj is None else pod_view(parse_pod(obj), obj)

    def explain_named(self, namespace: str, name: str) -> Explanation | None:
        """Why the pod of that name waits or where it is, by its claims if it asks for nothing else; None if
        there is no such pod. Raises as :meth:`find`.
        """
        known = self.cluster.named(namespace, name)
        if known is not None:
            return self.explain(known)
        obj = self.fetch(namespace, name)
        if obj is None:
            return None
        claiming = claiming_pod(obj)
        by_claims = explain_claims(claiming, self.cluster, self.terms.minimum_cores) if claiming else None
        return by_claims or self.explain(pod_view(parse_pod(obj), obj))


def explain_routes(knowledge: ExplainSources, gate: CallerGate) -> APIRouter:
    """The routes."""
    router = APIRouter()

    @router.get("/explain/{namespace}/{pod}", **documented("Why a pod waits, or where it is."))
    def explain_pod(namespace: str, pod: str, request: Request) -> Response:
        def work() -> Response:
            knowledge.snapshot()
            found = knowledge.explain_named(namespace, pod)
            if found is None:
                raise Answer(HTTPStatus.NOT_FOUND, f"there is no pod {quoted(f'{namespace}/{pod}')}")
            return _explained(request, found)

        return gate.answered(request, namespace, work)

    @router.post(
        "/explain",
        **documented("Where a pod would go, before it is created: its manifest as JSON."),
        openapi_extra=_MANIFEST,
    )
    async def explain_manifest(request: Request) -> Response:
        body = await request.body()

        def work() -> Response:
            try:
                occupant = _drafted(body, knowledge.terms)
            except RequestInvalid as error:
                return said(HTTPStatus.BAD_REQUEST, str(error))
            return gate.answered(
                request,
                occupant.pod.namespace,
                lambda: _explained(request, knowledge.explain(occupant)),
            )

        return await run_in_threadpool(work)

    @router.post(
        "/simulate",
        **documented(
            "Where pods would go if they came now, one after the other; kubectl vcuda simulate asks it."
        ),
    )
    async def simulate_pods(request: Request) -> Response:
        body = await request.body()
        return await run_in_threadpool(gate.answered, request, "", lambda: _simulated(body, knowledge))

    @router.get("/quota", **documented("Quotas and what is used of them; ?namespace= for one."))
    def quota(request: Request, namespace: str = "") -> Response:
        def work() -> Response:
            limits = knowledge.quota.current
            if limits is None:
                raise NodeUnready(knowledge.quota.missing())
            snapshot = knowledge.snapshot()
            if namespace:
                limits = limits.only(namespace)
            if _wants_json(request):
                body: dict[str, Any] = {"quota": limits.rows(snapshot.used, snapshot.protected)}
                return JSONResponse({**body, "complaint": knowledge.quota.complaint or None})
            note = f"\n{knowledge.quota.complaint}" if knowledge.quota.complaint else ""
            return PlainTextResponse(f"{quota_text(limits, snapshot)}{note}\n")

        return gate.answered(request, namespace, work)

    return router


def _drafted(body: bytes, terms: ClusterTerms) -> PodView:
    """The pod of a manifest as ``/mutate`` would leave it. Raises RequestInvalid: it is none."""
    try:
        obj = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestInvalid(
            f"the manifest is not JSON: {error}; kubectl create --dry-run=client -o json makes it so"
        ) from error
    if not isinstance(obj, Mapping):
        raise RequestInvalid("the manifest is not an object: send a Pod, or a workload with a pod template")
    meta = obj.get("metadata")
    namespace = meta.get("namespace") if isinstance(meta, Mapping) else None
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
    name = meta.get("name") if isinstance(meta, Mapping) else None
    return drafted(
        template,
        terms,
        namespace if isinstance(namespace, str) else "",
        name if isinstance(name, str) else "",
    )


def drafted(template: Mapping[str, Any], terms: ClusterTerms, namespace: str, name: str) -> PodView:
    """The pod of a template as ``/mutate`` would leave it. Raises RequestInvalid: it is none.

    ``namespace`` and ``name`` are those of the workload; the template's own where they are empty or, for the
    name, where it has one.
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
    return replace(view, constraints=pod_constraints(template.get("spec")))


def _simulated(body: bytes, knowledge: ExplainSources) -> Response:
    knowledge.snapshot()
    return JSONResponse(simulate(body, knowledge.policy, knowledge.quota, knowledge.terms))


def _explained(request: Request, explanation: Explanation) -> Response:
    if _wants_json(request):
        return JSONResponse(as_json(explanation))
    return PlainTextResponse(f"{as_text(explanation)}\n")


def _wants_json(request: Request) -> bool:
    asked = request.query_params.get("o")
    if asked in ("json", "text"):
        return asked == "json"
    return "application/json" in request.headers.get("accept", "")


_NUMBERS: Final = {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}
_CONTAINER: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "resources": {"type": "object", "properties": {"limits": _NUMBERS, "requests": _NUMBERS}},
    },
}
_MANIFEST: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "kind": {"type": "string", "examples": ["Pod", "Deployment"]},
                        "metadata": {"type": "object"},
                        "spec": {
                            "type": "object",
                            "properties": {"containers": {"type": "array", "items": _CONTAINER}},
                        },
                    },
                }
            }
        },
    }
}
