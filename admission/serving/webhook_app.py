"""The HTTPS service on :9443 as an ASGI application: plain functions behind paths, the gate before them."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final

import structlog
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from admission.config import AdmissionSettings, ClusterTerms
from admission.replay.reviews import Recorded, judged
from admission.serving.certs import Pair, Switch
from admission.serving.https_server import readiness
from admission.serving.inflight_limit import InflightLimit
from admission.serving.metrics import AdmissionMetrics
from admission.webhook.admission_review import (
    ANSWER_SCHEMA,
    REVIEW_SCHEMA,
    Review,
    ReviewVerdict,
    encode_answer,
    parse_review,
)
from admission.webhook.admit import SILENT, CreateTimeChecks
from admission.webhook.claim_translation import EnsureTemplate, turn
from gpu_manager.domain.contract import ADMISSION_NAME
from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.domain.features import stages

log = structlog.get_logger(__name__)

_JSON: Final = "application/json"
_LONGEST_NAME: Final = 253  # what Kubernetes grants a name
_PROXIED: Final = "x-forwarded-uri"  # an API server's proxy adds it to what people send (services/proxy)


@dataclass(frozen=True, slots=True)
class WebhookParts:
    """The parts of the HTTPS service beside the webhooks themselves.

    ``ask_leader`` returns the leader's answer to a review that this replica cannot answer; None without one.
    """

    metrics: AdmissionMetrics
    version: str
    ready: Callable[[], Mapping[str, bool]]
    draining: Callable[[], bool]
    checks: CreateTimeChecks = SILENT
    routers: Sequence[APIRouter] = ()
    ask_leader: Callable[[bytes], bytes | None] = lambda _: None
    why: Callable[[], str] = str  # what is wrong beside the conditions of being ready
    ensure: EnsureTemplate | None = None  # None where no pod is turned into a claim
    recorded: Recorded | None = None


def build_app(settings: AdmissionSettings, parts: WebhookParts) -> InflightLimit:
    """The ASGI application on :9443."""
    api = FastAPI(title=ADMISSION_NAME, version=parts.version, docs_url=None, redoc_url=None)
    api.include_router(_webhooks(settings.terms, parts))
    api.include_router(_status(parts))
    for router in parts.routers:
        api.include_router(router)
    rooms = {f"/{path.split('/')[1]}" for path in api.openapi()["paths"]}

    def answered(path: str, code: int) -> None:
        room = f"/{path.split('/')[1]}" if path.startswith("/") else path
        parts.metrics.answered(room if room in rooms else "other", code)

    return InflightLimit(api, settings.bounds, answered, parts.draining)


async def _body(request: Request) -> bytes:
    return await request.body()  # the gate has read it already


Body = Annotated[bytes, Depends(_body)]


def _webhooks(terms: ClusterTerms, parts: WebhookParts) -> APIRouter:
    router = APIRouter()

    def judge(verb: str) -> Callable[[Review], ReviewVerdict]:
        return lambda review: judged(verb, review, terms, parts.checks, parts.recorded)

    @router.post("/mutate", **_documented("Mend a pod that is being created."))
    def mutate_review(request: Request, body: Body) -> Response:
        return _judge(request, body, "mutate", judge("mutate"), parts)

    ensure = parts.ensure
    if ensure is not None:

        @router.post("/mutate/claims", **_documented("Turn a pod that is being created into a claim."))
        def turn_review(request: Request, body: Body) -> Response:
            return _judge(
                request, body, "mutate", lambda review: turn(review, terms, ensure, parts.checks), parts
            )

    @router.post("/validate", **_documented("Judge a pod, or warn about a workload's pod template."))
    def validate_review(request: Request, body: Body) -> Response:
        return _judge(request, body, "validate", judge("validate"), parts)

    return router


def _documented(summary: str) -> dict[str, Any]:
    refusals = (
        (HTTPStatus.BAD_REQUEST, "No AdmissionReview of admission.k8s.io/v1"),
        (HTTPStatus.FORBIDDEN, "It came through an API server's proxy, from somebody who may use that"),
        (HTTPStatus.REQUEST_TIMEOUT, "The body came too slowly"),
        (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body is too large"),
        (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The body is not application/json"),
        (HTTPStatus.SERVICE_UNAVAILABLE, "Too many requests at once"),
    )
    error = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
    return {
        "summary": summary,
        "response_class": Response,
        "responses": {
            200: {"description": "The answer, yes or no", "content": {_JSON: {"schema": ANSWER_SCHEMA}}},
            **{int(s): {"description": text, "content": {_JSON: {"schema": error}}} for s, text in refusals},
        },
        "openapi_extra": {"requestBody": {"required": True, "content": {_JSON: {"schema": REVIEW_SCHEMA}}}},
    }


def _judge(
    request: Request, body: bytes, verb: str, judge: Callable[[Review], ReviewVerdict], parts: WebhookParts
) -> Response:
    if _PROXIED in request.headers:
        return _refusal(HTTPStatus.FORBIDDEN, "API servers send reviews themselves, not through their proxy")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _JSON:
        return _refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send {_JSON}, as API servers do")
    begun = time.perf_counter()
    try:
        review = parse_review(body)
    except RequestInvalid as error:
        return _refusal(HTTPStatus.BAD_REQUEST, str(error))
    verdict = judge(review)
    if verdict.code == HTTPStatus.SERVICE_UNAVAILABLE and PASSED_ON not in request.headers:
        answer = parts.ask_leader(body)
        if answer is not None:
            return Response(answer, media_type=_JSON)  # judged, counted and told there
    parts.metrics.judged(verb, verdict, time.perf_counter() - begun)
    tell = log.debug if verdict.result == "allowed" else log.info
    tell(
        "judged",
        verb=verb,
        result=verdict.result,
        rules=verdict.rules,
        kind=_short(review.kind),
        namespace=_short(review.namespace),
        name=_short(review.name or _generated(review)),
        user=_short(review.user),
        dry_run=review.dry_run,
    )
    # Whoever asks again may find another replica that can answer.
    headers = {"connection": "close"} if verdict.code == HTTPStatus.SERVICE_UNAVAILABLE else None
    return Response(encode_answer(review.uid, verdict), media_type=_JSON, headers=headers)


def _short(text: str) -> str:
    """A name for the log: nobody has judged its length yet."""
    return printable(text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}…")


def _generated(review: Review) -> str:
    meta = (review.obj or {}).get("metadata")
    found = meta.get("generateName") if isinstance(meta, Mapping) else None
    return f"{found}…" if isinstance(found, str) else ""


def _refusal(status: HTTPStatus, text: str) -> Response:
    return JSONResponse({"error": text}, status_code=int(status))


def _status(parts: WebhookParts) -> APIRouter:
    router = APIRouter()

    @router.get("/metrics", response_class=PlainTextResponse)
    def metrics(request: Request) -> Response:
        """Prometheus, or OpenMetrics if asked for."""
        page, content_type = parts.metrics.page(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    @router.get("/healthz", response_class=PlainTextResponse)
    def healthz() -> str:
        """The program answers."""
        return "ok\n"

    @router.get("/readyz", responses={503: {"description": "Not all of them hold"}})
    def readyz() -> JSONResponse:
        """What must hold before this replica is asked, and whether it does."""
        return readiness(parts.ready(), parts.why())

    @router.get("/version")
    def version_() -> dict[str, str | dict[str, str]]:
        """The version of the program, and each feature's stage."""
        return {"version": parts.version, "features": stages()}

    return router


PASSED_ON: Final = "x-gpu-quota-admission-passed-on"
"""Header of a review that another replica has passed on: it is not passed on again."""

_AT_ONCE: Final = 8  # half of what a replica works at: pods must not wait for a leader that does not answer

ReviewClient = Callable[[bytes], bytes | None]
"""Sends a review, and returns the answer; None if there is none."""


class LeaderReviews:
    """Forwards reviews. Thread-safe. ``connect`` makes a client with the trust of the given context."""

    def __init__(self, switch: Switch, connect: Callable[[ssl.SSLContext], ReviewClient]) -> None:
        self._switch = switch
        self._connect = connect
        self._turns = threading.BoundedSemaphore(_AT_ONCE)
        self._client: tuple[Pair, ReviewClient] | None = None

    def ask(self, body: bytes) -> bytes | None:
        """The leader's answer to a review; None without an answer, or if too many reviews wait already."""
        pair = self._switch.pair
        if pair is None or not self._turns.acquire(blocking=False):
            return None
        try:
            return self._trusting(pair)(body)
        finally:
            self._turns.release()

    def _trusting(self, pair: Pair) -> ReviewClient:
        known = self._client
        if known is None or known[0] != pair:
            known = self._client = pair, self._connect(_trusts(pair))
        return known[1]


def _trusts(pair: Pair) -> ssl.SSLContext:
    """A client's context that trusts exactly the certificate of the pair, under whatever name."""
    (leaf, *_) = x509.load_pem_x509_certificates(pair.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=leaf.public_bytes(serialization.Encoding.PEM).decode())
    return context
