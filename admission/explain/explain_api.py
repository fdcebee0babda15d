"""The API on :9443 for people and programs: why a pod waits, and what is left of a quota.

Open to callers that may get pods in the namespace (:mod:`admission.explain.caller_gate`). Text for people,
JSON for programs: ``?o=text``, ``?o=json``, else by Accept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.concurrency import run_in_threadpool

from admission.cluster.pod_view import PodView, pod_view
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.config import ClusterTerms
from admission.explain.caller_gate import Answer, CallerGate, documented, said
from admission.explain.claims import ClaimingPods, claiming_pod, explain_both, explain_claims
from admission.explain.drafts import DraftedPod, claims_to_come, read_draft, refused_at_create, simulate
from admission.explain.explanation import FITS, SHOWN_NODES, Explanation, explain
from admission.explain.remedies import QUOTA_GROWS
from admission.extender.feasibility import FeasibilityJudge, Unfit
from admission.extender.fragmentation_score import LeastFragmentation
from admission.gangs.members import GangState
from admission.quota.claims_quota import limits_of_claims, quota_reasons
from admission.quota.quota_book import QuotaBook
from gpu_manager.domain.cluster.claims import KnownClaim
from gpu_manager.domain.cluster.quota import EXCEEDED, Quota, quota_table
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.domain.placement.explain import LINE_LIMIT, explanation_lines

# Explanations and quotas for people and programs: as text, as JSON. Data only, no HTTP.


def as_text(explanation: Explanation) -> str:
    """A table for people."""
    return "\n".join(explanation_lines(as_json(explanation), SHOWN_NODES, ", counted above"))


def as_json(explanation: Explanation) -> dict[str, Any]:
    """The same for programs. Amounts: hundredths of a card, bytes."""
    found = asdict(replace(explanation, nearest=None))
    del found["nearest"]
    found["nodes"] = [{**node, "cards": list(node["cards"])} for node in found["nodes"]]
    return found


def quota_text(quota: Quota, snapshot: Snapshot) -> str:
    """What ``/quota`` shows to people: a row for each namespace and key."""
    rows = quota_table(quota.rows(snapshot.used, snapshot.protected))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def closed_nodes(snapshot: Snapshot, namespace: str = "") -> list[Mapping[str, Any]]:
    """The nodes that are closed to smaller pods, and for whom; pods of another namespace are not named."""
    views = snapshot.nodes.values()
    return [{"node": view.name, **view.kept.as_json(namespace)} for view in views if view.kept is not None]


@dataclass(frozen=True, slots=True)
class ExplainSources:
    """The sources of answers. ``fetch`` reads the object of a pod without a card request from the API server;
    ``claiming`` knows the pods that wait for ResourceClaims; ``schedulers`` are those that call this service,
    empty for any; ``gang_of`` returns the gang of a pod.
    """

    cluster: ClusterState
    quota: QuotaBook
    judge: FeasibilityJudge
    policy: LeastFragmentation
    terms: ClusterTerms
    fetch: Callable[[str, str], Mapping[str, Any] | None]
    claiming: ClaimingPods | None = None
    schedulers: frozenset[str] = frozenset()
    gang_of: Callable[[PodUid], GangState | None] = lambda _uid: None

    def snapshot(self) -> Snapshot:
        """The present snapshot. Raises NodeUnready: before the first lists."""
        if not self.cluster.synced:
            raise NodeUnready("nodes and pods have not been listed yet: ask again in a few seconds")
        return self.cluster.snapshot()

    def explain(self, occupant: PodView, *, everywhere: bool = False) -> Explanation:
        """Why the pod waits, or where it is: by its claims, if it requests or lacks nothing else.

        ``everywhere``: the reader may get pods in all namespaces.
        """
        own = explain(
            occupant,
            self.snapshot(),
            self.quota.current,
            self.judge,
            self.terms.minimum_cores,
            everywhere=everywhere,
            schedulers=self.schedulers,
            gang=self.gang_of(occupant.uid),
        )
        if self.claiming is None or not _has_room(own):
            return own
        found = self.claiming.explain(occupant, everywhere=everywhere)
        return explain_both(own, found) if found else own

    def waiting(self, namespace: str | None = None) -> tuple[PodView, ...]:
        """Pods that wait for a node, of one namespace or of all."""
        by_claims = self.claiming.waiting(namespace) if self.claiming else ()
        return tuple({o.uid: o for o in (*self.cluster.waiting(namespace), *by_claims)}.values())

    def explain_draft(self, draft: DraftedPod, *, everywhere: bool = False) -> Explanation:
        """Where a pod would go that is not created yet. Raises RequestInvalid: a claim with it is illegal.

        ``everywhere`` as in :meth:`explain`.
        """
        own = self.explain(draft.view, everywhere=everywhere)
        if draft.refused:
            line = f"would not be created: {draft.refused}"[:LINE_LIMIT]
            return replace(own, line=line, counts={Unfit.NEVER.value: own.total}, nodes=())
        if refused := refused_at_create(draft.view, self.snapshot(), self.quota.current, self.terms):
            line = f"{refused}{_what_helps(own)}"[:LINE_LIMIT]
            return replace(own, line=line, counts={Unfit.QUOTA.value: own.total}, nodes=())
        if draft.claiming is None or not _has_room(own):
            return own
        claims, unknown = claims_to_come(draft, self.cluster)
        total = len(self.snapshot().nodes)
        if unknown:
            line = (
                f"waits: {unknown[0]} is not in the file, and the cluster has none of that name in namespace "
                f"{quoted(draft.view.pod.namespace)} that may be given a card here"
            )
            return Explanation(own.pod, own.asks, line[:LINE_LIMIT], "", {"not asked": total}, total)
        found = explain_claims(
            draft.claiming, self.cluster, self.terms.minimum_cores, everywhere=everywhere, drafts=claims
        )
        return own if found is None else self._held_to_quota(explain_both(own, found), draft, claims)

    def _held_to_quota(
        self, found: Explanation, draft: DraftedPod, claims: Mapping[str, KnownClaim]
    ) -> Explanation:
        """The explanation with what the quota says of claims that would be created."""
        quota, namespace = self.quota.current, draft.view.pod.namespace
        demanded = [one for claim in claims.values() for one in self.cluster.claims.demand_of(claim.spec)]
        limits = limits_of_claims(quota, namespace, demanded) if quota else None
        if quota is None or limits is None:
            return found
        snapshot = self.snapshot()
        lines = tuple(map(str, quota.lines(namespace, snapshot.used, snapshot.protected)))
        reasons = quota_reasons(limits, snapshot, namespace, demanded)
        if not reasons:
            return replace(found, quota=lines)
        line = f"its claims would not be created: {reasons}"[:LINE_LIMIT]
        return replace(found, line=line, counts={Unfit.QUOTA.value: found.total}, nodes=(), quota=lines)

    def find(self, namespace: str, name: str) -> PodView | None:
        """The pod of that name.

        Raises:
            NodeUnready: it is not known here and the API server cannot be asked.
            RequestInvalid: its object cannot be read.
        """
        known = self.cluster.named(namespace, name)
        if known is not None:
            return known
        obj = self.fetch(namespace, name)
        return None if obj is None else pod_view(parse_pod(obj), obj)

    def explain_named(self, namespace: str, name: str) -> Explanation | None:
        """Why the pod of that name waits or where it is, by its claims if it requests nothing else; None if
        there is no such pod. Raises as :meth:`find`.
        """
        known = self.cluster.named(namespace, name)
        if known is not None:
            return self._with_held_claims(self.explain(known), known)
        obj = self.fetch(namespace, name)
        if obj is None:
            return None
        claiming, view = claiming_pod(obj), pod_view(parse_pod(obj), obj)
        by_claims = explain_claims(claiming, self.cluster, self.terms.minimum_cores) if claiming else None
        if by_claims is None:
            return self.explain(view)
        draft = DraftedPod(view, claiming)
        claims, _ = claims_to_come(draft, self.cluster)
        return self._held_to_quota(by_claims, draft, claims) if claims else by_claims

    def _with_held_claims(self, own: Explanation, occupant: PodView) -> Explanation:
        """The explanation of a pod that is on a node, with what it holds by claims, which its view lacks."""
        if not occupant.pod.node or self.claiming is None:
            return own
        try:
            obj = self.fetch(occupant.pod.namespace, occupant.pod.name)
        except NodeUnready:
            return own
        claiming = claiming_pod(obj) if obj else None
        found = explain_claims(claiming, self.cluster, self.terms.minimum_cores) if claiming else None
        return explain_both(own, found) if found else own


def _what_helps(refused: Explanation) -> str:
    """What the pod, or an operator, could change, for the line of one that would not be created. That other
    pods end does not help it; why the quota refuses it is said already.
    """
    change = refused.change.partition(f": {EXCEEDED}")[0]
    own = refused.nearest is not None or not change.startswith(f"{QUOTA_GROWS}, or")
    return f". Smallest change: {change if own else QUOTA_GROWS}" if change else ""


def _has_room(explanation: Explanation) -> bool:
    """Return whether nothing but claims may keep the pod off; a cluster without nodes takes none of them."""
    return bool(explanation.counts.get(FITS)) or not explanation.total


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
        **documented(
            "Where a pod would go, before it is created: its manifest as JSON, or a List of it with its "
            "ResourceClaims and ResourceClaimTemplates."
        ),
        openapi_extra=_MANIFEST,
    )
    async def explain_manifest(request: Request) -> Response:
        body = await request.body()

        def work() -> Response:
            try:
                draft = read_draft(body, knowledge.terms)
            except RequestInvalid as error:
                return said(HTTPStatus.BAD_REQUEST, str(error))
            return gate.answered(
                request, draft.view.pod.namespace, lambda: _explained(request, knowledge.explain_draft(draft))
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

    @router.get(
        "/closed",
        **documented(
            "Nodes that are closed to smaller pods, for whom and for how long; ?namespace= for who may get "
            "pods there alone: a pod of another is not named. kubectl vcuda graph asks it."
        ),
    )
    def closed(request: Request, namespace: str = "") -> Response:
        def work() -> Response:
            return JSONResponse({"closed": closed_nodes(knowledge.snapshot(), namespace)})

        return gate.answered(request, namespace, work, heavy=False)

    return router


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
