"""What people and their programs may ask on :9443: why a pod waits, what of a quota is left.

Behind TokenReview and SubjectAccessReview: who may get pods in a namespace may hear about them here. Text
for people, JSON for programs: ``?o=text``, ``?o=json``, else by Accept. The page ``/ui`` is open, for it
holds nothing; what it draws, the whole cluster, is for who may get pods everywhere.
"""

from __future__ import annotations

import json
import threading
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
from admission.explain.access import AccessCheck, AccessVerdict
from admission.explain.explanation import Explanation, explain
from admission.explain.page import ClusterPage
from admission.explain.views import as_json, as_text, quota_text
from admission.extender.feasibility import FeasibilityJudge
from admission.quota.quota_book import QuotaBook
from admission.webhook.admit import TEMPLATES
from admission.webhook.draft import draft_pod
from gpu_manager import ui
from gpu_manager.domain.contract import TOKEN_HEADER
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.domain.pod import Pod
from gpu_manager.ports import Clock

_MOST_AT_WORK: Final = 2  # explanations of a large cluster take a second of one core each
_MOST_INSIDE: Final = 8  # of the threads that webhooks, too, are answered by
_WAIT_SECONDS: Final = 5.0
_PAGE_HEADERS: Final = {
    "content-security-policy": ui.CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
_CURE: Final = "send Authorization: Bearer <token>, such as that of kubectl create token"
_PLURALS: Final = {plural.removesuffix("s"): path for (_, plural), path in TEMPLATES.items()}


@dataclass(frozen=True, slots=True)
class ExplainSources:
    """What is known here. ``fetch`` asks the API server for a pod that holds and wants nothing."""

    cluster: ClusterState
    quota: QuotaBook
    judge: FeasibilityJudge
    terms: ClusterTerms
    fetch: Callable[[str, str], Pod | None]

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
        """The pod of that name. Raises NodeUnready: it is not known here and nobody can be asked."""
        known = self.cluster.named(namespace, name)
        if known is not None:
            return known
        pod = self.fetch(namespace, name)
        return None if pod is None else pod_view(pod)


class _Answer(Exception):  # noqa: N818  # it is an answer, not a fault
    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


def explain_routes(knowledge: ExplainSources, access: AccessCheck, clock: Clock) -> APIRouter:
    """The routes."""
    router = APIRouter()
    page = ClusterPage(
        knowledge.snapshot,
        knowledge.cluster.waiting,
        lambda occupant: knowledge.explain(occupant, everywhere=True),
        clock,
    )
    inside, at_work = threading.BoundedSemaphore(_MOST_INSIDE), threading.BoundedSemaphore(_MOST_AT_WORK)

    def answered(request: Request, namespace: str, work: Callable[[], Response]) -> Response:
        """``work``, if whoever asks may, and not too many are at it."""
        if not inside.acquire(blocking=False):
            return _said(HTTPStatus.SERVICE_UNAVAILABLE, "too many questions at once: try again")
        try:
            _check(access.may(_credentials(request), namespace), namespace)
            if not at_work.acquire(timeout=_WAIT_SECONDS):
                return _said(HTTPStatus.SERVICE_UNAVAILABLE, "too many explanations at once: try again")
            try:
                return work()
            finally:
                at_work.release()
        except _Answer as answer:
            return _said(answer.status, str(answer))
        except RequestInvalid as error:
            return _said(HTTPStatus.BAD_REQUEST, str(error))
        except NodeUnready as error:
            return _said(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        finally:
            inside.release()

    @router.get("/explain/{namespace}/{pod}", **_documented("Why a pod waits, or where it is."))
    def explain_pod(namespace: str, pod: str, request: Request) -> Response:
        def work() -> Response:
            knowledge.snapshot()
            found = knowledge.find(namespace, pod)
            if found is None:
                raise _Answer(HTTPStatus.NOT_FOUND, f"there is no pod {quoted(f'{namespace}/{pod}')}")
            return _explained(request, knowledge.explain(found))

        return answered(request, namespace, work)

    @router.post(
        "/explain",
        **_documented("Where a pod would go, before it is created: its manifest as JSON."),
        openapi_extra=_MANIFEST,
    )
    async def explain_manifest(request: Request) -> Response:
        body = await request.body()

        def work() -> Response:
            try:
                occupant = _drafted(body, knowledge.terms)
            except RequestInvalid as error:
                return _said(HTTPStatus.BAD_REQUEST, str(error))
            return answered(
                request,
                occupant.pod.namespace,
                lambda: _explained(request, knowledge.explain(occupant)),
            )

        return await run_in_threadpool(work)

    @router.get("/quota", **_documented("Quotas and what is used of them; ?namespace= for one."))
    def quota(request: Request, namespace: str = "") -> Response:
        def work() -> Response:
            limits = knowledge.quota.current
            if limits is None:
                raise NodeUnready(knowledge.quota.missing())
            snapshot = knowledge.snapshot()
            if namespace:
                limits = limits.only(namespace)
            if _wants_json(request):
                body: dict[str, Any] = {"quota": limits.rows(snapshot.used)}
                return JSONResponse({**body, "complaint": knowledge.quota.complaint or None})
            note = f"\n{knowledge.quota.complaint}" if knowledge.quota.complaint else ""
            return PlainTextResponse(f"{quota_text(limits, snapshot)}{note}\n")

        return answered(request, namespace, work)

    @router.get("/ui/data", **_documented("What the page shows: cards and who holds them, pods that wait."))
    def page_data(request: Request) -> Response:
        def work() -> Response:
            return Response(page.data(), media_type="application/json", headers=_PAGE_HEADERS)

        return answered(request, "", work)

    for path in ("/ui", "/ui/page.css", "/ui/page.js"):
        router.add_api_route(path, _asset, summary="The page for people.", response_class=Response)
    return router


def _asset(request: Request) -> Response:
    found = ui.asset(request.url.path)
    if found is None:
        return _said(HTTPStatus.NOT_FOUND, "no such part of the page")
    kind, body = found
    return Response(body, headers={**_PAGE_HEADERS, "content-type": kind})


def _credentials(request: Request) -> str:
    """The caller's bearer token, first of all that in a header of our own.

    The API server's proxy takes Authorization off; another may put its own identity there, which has other
    rights than who asks through it.
    """
    return request.headers.get(TOKEN_HEADER) or request.headers.get("authorization", "")


def _check(verdict: AccessVerdict, namespace: str) -> None:
    if verdict is AccessVerdict.NOBODY:
        raise _Answer(HTTPStatus.UNAUTHORIZED, _CURE)
    if verdict is AccessVerdict.NO:
        everywhere = "in all namespaces (or ask for one where ?namespace= is taken)"
        where = f"in namespace {quoted(namespace)}" if namespace else everywhere
        raise _Answer(HTTPStatus.FORBIDDEN, f"this needs the right to get pods {where}")


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
    pod = draft_pod(template, terms, trusted=False).pod
    name = pod.name or (meta.get("name") if isinstance(meta, Mapping) else None)
    place = namespace if isinstance(namespace, str) and namespace else pod.namespace
    # Not created yet: whatever it says of a node or of an end is not so.
    return pod_view(
        replace(pod, namespace=place, name=str(name or "")[:253], node="", phase="", deleting=False)
    )


def _explained(request: Request, explanation: Explanation) -> Response:
    if _wants_json(request):
        return JSONResponse(as_json(explanation))
    return PlainTextResponse(f"{as_text(explanation)}\n")


def _wants_json(request: Request) -> bool:
    asked = request.query_params.get("o")
    if asked in ("json", "text"):
        return asked == "json"
    return "application/json" in request.headers.get("accept", "")


def _said(status: HTTPStatus, text: str) -> Response:
    headers = {"www-authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else None
    return JSONResponse({"error": text}, status_code=int(status), headers=headers)


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


def _documented(summary: str) -> dict[str, Any]:
    said = {400: "No pod's manifest", 401: "No token", 403: "Not allowed", 404: "No such pod", 503: "Not now"}
    media = {"application/json": {"schema": {"type": "object"}}, "text/plain": {"schema": {"type": "string"}}}
    return {
        "summary": summary,
        "response_class": Response,
        "responses": {
            200: {"description": "The answer", "content": media},
            **{code: {"description": text} for code, text in said.items()},
        },
    }
