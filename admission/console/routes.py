"""The console and the recorded decisions on :9443: the console's files, which hold no data and are open;
data, for callers who may get pods.

Manifests that are not applied yet get the explanation that their pods would get.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Protocol

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from admission.console.agents_usage import AgentsUsage, card_health, pod_advice
from admission.console.cluster_page import ClusterPage, PageSources
from admission.console.history import ConsoleHistory, held_shares
from admission.explain.caller_gate import Answer, CallerGate, documented, said
from admission.explain.drafts import drafted, explain_copies
from admission.explain.explain_api import ExplainSources, as_json
from admission.explain.explanation import FITS
from gpu_manager import ui
from gpu_manager.domain.cluster.pod_events import PodEvent, pod_events_json
from gpu_manager.domain.cluster.usage_history import MINUTES, HistoryQuery
from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.ports.clock import Clock
from gpu_manager.runtime.inbound import GET_PODS, LIST_EVENTS, accepts_gzip

# The recorded decisions on :9443, for `kubectl vcuda report`: for callers who may get pods everywhere.


class DecisionRecords(Protocol):
    """The files of recorded decisions. Both methods raise NodeUnready."""

    def names(self) -> Sequence[str]:
        """The names of the files, the oldest first."""

    def read(self, name: str) -> bytes | None:
        """A file's content; None if there is no such file."""


def record_routes(records: DecisionRecords | None, gate: CallerGate) -> APIRouter:
    """The routes. ``records``: None where none are kept."""
    router = APIRouter()

    @router.get("/records", **documented("The files of recorded decisions, the oldest first."))
    def names(request: Request) -> Response:
        def work() -> Response:
            return JSONResponse({"files": list(records.names()) if records else []})

        return gate.answered(request, "", work, heavy=False)

    @router.get("/records/{name}", **documented("A file of recorded decisions, compressed by gzip."))
    def content(request: Request, name: str) -> Response:
        def work() -> Response:
            found = records.read(name) if records else None
            if found is None:
                raise Answer(HTTPStatus.NOT_FOUND, "there is no such file: see /records")
            return Response(gzip.compress(found, 5, mtime=0), media_type="application/gzip")

        return gate.answered(request, "", work)

    return router


_HEADERS: Final = {
    "content-security-policy": ui.CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "vary": "accept-encoding",
}
ReadEvents = Callable[[str, PodUid], tuple[Sequence[PodEvent], bool]]
"""Namespace and UID of a pod → its Events, and whether there are more. Raises NodeUnready."""
_MANIFESTS: Final[dict[str, Any]] = {
    "requestBody": {"required": True, "content": {"application/yaml": {"schema": {"type": "string"}}}}
}


def console_routes(
    knowledge: ExplainSources,
    gate: CallerGate,
    agents: AgentsUsage,
    history: ConsoleHistory,
    read: Callable[[bytes], ManifestFile],
    events: ReadEvents,
    stale_seconds: Callable[[], float],
    clock: Clock,
) -> APIRouter:
    """The routes.

    ``agents``: what agents say; asked for whenever somebody looks. ``history``: what they said
    before. ``read``: what a file in YAML or JSON holds; raises RequestInvalid if it is no manifest.
    ``events``: what the API server keeps of a pod's Events; for callers who may list Events there.
    ``stale_seconds``: for how long the API server has told nothing of what is shown.
    """
    router = APIRouter()
    page = ClusterPage(
        PageSources(
            knowledge.snapshot,
            knowledge.waiting,
            lambda occupant, everywhere: knowledge.explain(occupant, everywhere=everywhere),
            lambda: knowledge.quota.current,
            agents.look,
            history.ranges,
            stale_seconds,
        ),
        clock,
    )

    @router.get(
        "/ui/data", **documented("What the console shows; ?namespace= for one, ?since= for what changed.")
    )
    def data(request: Request, namespace: str = "", since: str = "") -> Response:
        def work() -> Response:
            zipped, headers = _form(request)
            body = page.data(namespace, since, zipped=zipped)
            return Response(body, media_type="application/json", headers=headers)

        return gate.answered(request, namespace, work)

    @router.get(
        "/ui/history",
        **documented("Use over time of the cluster, or of the node, card or pod that ?name= names."),
    )
    def past(
        request: Request, subject: str = "cluster", name: str = "", namespace: str = "", span: str = MINUTES
    ) -> Response:
        def work() -> Response:
            query = HistoryQuery.parse(subject, name, namespace)
            return JSONResponse(history.answer(query, span), headers=_HEADERS)

        return gate.answered(request, namespace, work, heavy=False)

    @router.get("/ui/health", **documented("What happened to the health of a card, as its agent tells it."))
    def health(request: Request, card: str = "", namespace: str = "") -> Response:
        def work() -> Response:
            return JSONResponse(card_health(card, knowledge.snapshot(), agents), headers=_HEADERS)

        return gate.answered(request, namespace, work, heavy=False)

    @router.get(
        "/ui/advice", **documented("The size advised for the containers of a pod that holds something.")
    )
    def advice(request: Request, name: str = "", namespace: str = "") -> Response:
        def work() -> Response:
            query = HistoryQuery.parse("pod", name, namespace)
            known = knowledge.cluster.named(*query.name.partition("/")[::2])
            found = pod_advice(query.name, known.pod if known else None, agents)
            return JSONResponse(found, headers=_HEADERS)

        return gate.answered(request, namespace, work, heavy=False)

    @router.get("/ui/events", **documented("The Kubernetes Events of a pod, the newest first."))
    def pod_events(request: Request, name: str = "", namespace: str = "") -> Response:
        try:
            where, _, pod = HistoryQuery.parse("pod", name, namespace).name.partition("/")
        except RequestInvalid as error:
            return said(HTTPStatus.BAD_REQUEST, str(error))

        def work() -> Response:
            found = knowledge.find(where, pod)
            if found is None:
                raise Answer(HTTPStatus.NOT_FOUND, f"there is no pod {quoted(name)}")
            told, more = events(where, found.pod.api_uid)
            return JSONResponse(pod_events_json(told, more=more), headers=_HEADERS)

        return gate.answered(request, where, work, heavy=False, rights=(GET_PODS, LIST_EVENTS))

    @router.get("/ui/waste", **documented("Pods that left most of their cores idle in the last hour."))
    def waste(request: Request, namespace: str = "") -> Response:
        def work() -> Response:
            found = history.waste(namespace, lambda: held_shares(knowledge.snapshot()))
            return JSONResponse(found, headers=_HEADERS)

        return gate.answered(request, namespace, work, heavy=False)

    @router.get(
        "/ui/trends",
        **documented("Each card's use over the last ten minutes, in percent; containers held back."),
    )
    def trends(request: Request, namespace: str = "") -> Response:
        def work() -> Response:
            return JSONResponse(history.trends(namespace), headers=_HEADERS)

        return gate.answered(request, namespace, work, heavy=False)

    @router.post(
        "/ui/what-if",
        **documented("Whether the pods of manifests are legal, and where each would go now."),
        openapi_extra=_MANIFESTS,
    )
    async def what_if(request: Request, namespace: str = "") -> Response:
        body = await request.body()

        def work() -> Response:
            found = judged_workloads(read(body), namespace, knowledge)
            return JSONResponse({"workloads": found}, headers=_HEADERS)

        return await run_in_threadpool(lambda: gate.answered(request, namespace, work))

    @router.get("/ui", summary="The console.", response_class=Response)
    def console(request: Request) -> Response:
        return _file(request, "/ui")

    @router.get("/ui/{name}", summary="A file of the console.", response_class=Response)
    def file(request: Request, name: str) -> Response:
        return _file(request, f"/ui/{name}")

    return router


def _form(request: Request) -> tuple[bool, Mapping[str, str]]:
    """Whether the answer is gzipped, and its headers."""
    zipped = accepts_gzip(request.headers.get("accept-encoding", ""))
    return zipped, {**_HEADERS, "content-encoding": "gzip"} if zipped else _HEADERS


def _file(request: Request, path: str) -> Response:
    zipped, headers = _form(request)
    found = ui.asset(path, zipped=zipped)
    if found is None:
        return said(HTTPStatus.NOT_FOUND, "the console has no such file")
    kind, body = found
    return Response(body, headers={**headers, "content-type": kind})


MOST_WORKLOADS: Final = 20  # of one file


@dataclass(frozen=True, slots=True)
class Workload:
    """An object that runs pods, ``copies`` at once. ``template`` is None if its template is missing."""

    kind: str
    namespace: str
    name: str
    copies: int
    template: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """The content of a file: objects that run pods, and ResourceClaims and ResourceClaimTemplates."""

    workloads: Sequence[Workload]
    claims: Sequence[Mapping[str, Any]] = ()


def judged_workloads(file: ManifestFile, namespace: str, knowledge: ExplainSources) -> list[dict[str, Any]]:
    """JSON for each: what it is, and either ``error`` or ``fit``, how many of its pods fit one after the
    other, and ``said``, the explanation of the first that does not, else of its first.

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
        fit = int(bool(explanation.counts.get(FITS)))
        if fit and workload.copies > 1 and pod.claiming is None and pod.view.pod.asks:
            fit, explanation = explain_copies(
                explanation,
                pod.view,
                workload.copies,
                knowledge.policy,
                knowledge.quota.current,
                knowledge.terms,
                everywhere=not namespace,
            )
    except RequestInvalid as error:
        return {**shown, "error": str(error)}
    return {**shown, "fit": fit, "said": as_json(explanation)}
