"""From a request line to a verb: paths, query parameters, rights, faults."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from prometheus_client import CollectorRegistry

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.runtime import threads
from gpu_manager.runtime.inbound import SampledCounter, scrape
from sandbox.api import verbatim
from sandbox.api.access import AccessGate, AccessRules, User
from sandbox.api.faults import ApiFaults, CutConnection
from sandbox.api.kinds import NO_CONTROLLERS, REVIEW_GROUPS, Target, discovery, parse_path
from sandbox.api.selectors import Predicate, field_selector, label_selector
from sandbox.api.status import ApiError, bad_request
from sandbox.api.tables import table, wants_table
from sandbox.api.verbs import Call, Page, VerbOutcome, Verbs
from sandbox.api.watching import ApiWatch

VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0-standin",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
WATCH_SECONDS = 1800.0  # the API server's --min-request-timeout: a watch without timeoutSeconds lasts as long


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One HTTP request; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


# What stands behind /proxy: path and query from there on, method, headers, body → HTTP code and body.
Proxy = Callable[[str, str, Mapping[str, str], bytes], tuple[int, bytes]]


class Router:
    """Answers requests. Raises ApiError for what is refused and CutConnection where a fault says so."""

    def __init__(self, verbs: Verbs, gate: AccessGate, faults: ApiFaults, bookmark_seconds: float) -> None:
        self._verbs = verbs
        self._gate = gate
        self._faults = faults
        self._bookmark_seconds = bookmark_seconds
        self.proxies: dict[str, Proxy] = {}  # /api/v1/namespaces/…/proxy → what stands there

    def answer(self, request: ApiRequest) -> VerbOutcome | ApiWatch:
        """An answer, or a watch to be streamed."""
        url = urlsplit(request.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        path = unquote(url.path).rstrip("/")
        user = self._gate.user(request.headers.get("authorization") or "")
        before, proxied, _ = path.partition("/proxy")
        if proxied and before + proxied in self.proxies:
            return self._passed_on(before + proxied, request)
        target = parse_path(path)
        if target is None:
            return self._page(path)
        watching = query.get("watch") in ("true", "1")
        verb = _verb(request.method, target, watching=watching)
        self._gate.enter(
            user,
            AccessRules(user.name, verb, target.resource.group, target.path, target.namespace),
            target.name,
        )
        lose = self._faults.before(f"{verb} {target.path} {target.namespace}/{target.name}")
        outcome = self._perform(verb, target, request, query, user)
        if lose:
            raise CutConnection
        if verb in ("get", "list") and isinstance(outcome, VerbOutcome):
            return _as_asked(outcome, target, request.headers.get("accept") or "")
        return outcome

    def _passed_on(self, prefix: str, request: ApiRequest) -> VerbOutcome:
        """As API servers do, who take the caller's Authorization off. Raises ApiError: nobody answers."""
        rest = unquote(request.path).partition("/proxy")[2]
        headers = {name: value for name, value in request.headers.items() if name != "authorization"}
        try:
            code, body = self.proxies[prefix](rest, request.method, headers, request.body)
        except NodeUnready as error:
            raise ApiError(503, "ServiceUnavailable", f"error trying to reach service: {error}") from error
        return VerbOutcome({}, code, text=body)

    def _page(self, path: str) -> VerbOutcome:
        if path == "/version":
            return VerbOutcome(VERSION)
        if path in ("/healthz", "/readyz", "/livez"):
            return VerbOutcome({}, text=b"ok")
        if path == "/metrics":
            return VerbOutcome({}, text=scrape(_metrics(), "")[0])
        if path == "/openapi/v2":
            return VerbOutcome({}, text=b"")  # no schema, in protobuf: kubectl then checks nothing by itself
        found = discovery(path)
        if found is None:
            said = f"the server could not find the requested resource ({path[:200]})"
            if path.startswith("/apis/"):
                said += f"; {NO_CONTROLLERS}"
            raise ApiError(404, "NotFound", said)
        return VerbOutcome(found)

    def _perform(
        self, verb: str, target: Target, request: ApiRequest, query: Mapping[str, str], user: User
    ) -> VerbOutcome | ApiWatch:
        call = Call(user, dry_run=query.get("dryRun") == "All")
        if verb == "get":
            return self._verbs.get(target)
        if verb in ("list", "watch", "deletecollection"):
            matches = _selection(target, query)
            if verb == "list":
                page = Page.asked(query.get("limit", ""), query.get("continue", ""))
                return self._verbs.listing(target, matches, page)
            if verb == "watch":
                return self._watch(target, matches, query)
            return self._verbs.delete_collection(target, matches, _options(request, query), call)
        if verb == "delete":
            return self._verbs.delete(target, _options(request, query), call)
        body = _json(request)
        if verb == "patch":
            kind = (request.headers.get("content-type") or "").partition(";")[0].strip()
            return self._verbs.patch(target, body, kind, call)
        if not isinstance(body, dict):
            raise bad_request("the body of the request is not an object")
        if verb == "update":
            return self._verbs.update(target, body, call)
        if target.resource.group in REVIEW_GROUPS:
            return VerbOutcome(self._gate.review(target.resource.kind, body, user), 201)
        return self._verbs.create(target, body, call)

    def _watch(self, target: Target, matches: Predicate, query: Mapping[str, str]) -> ApiWatch:
        version = query.get("resourceVersion", "")
        if version and not version.isdigit():
            raise bad_request(f'invalid resource version "{version}"')
        if "sendInitialEvents" in query:
            raise ApiError(422, "Invalid", "sendInitialEvents is forbidden: the WatchList feature is off")
        bookmarks = query.get("allowWatchBookmarks") in ("true", "1", "True")
        return ApiWatch(
            self._verbs.storage,
            self._faults,
            target,
            matches,
            int(version) if version and version != "0" else None,
            seconds=float(query.get("timeoutSeconds") or WATCH_SECONDS),
            bookmark_seconds=self._bookmark_seconds if bookmarks else None,
        )


def _as_asked(outcome: VerbOutcome, target: Target, accept: str) -> VerbOutcome:
    if target.subresource or not wants_table(accept):
        return outcome
    now = dt.datetime.now(dt.UTC)
    obj = outcome.obj if outcome.text is None else json.loads(outcome.text)
    return VerbOutcome(table(target.resource, obj, now), outcome.code)


def _verb(method: str, target: Target, *, watching: bool) -> str:
    if method == "GET":
        return "get" if target.name else "watch" if watching else "list"
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    verb = {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method)
    creates_below = target.subresource in ("binding", "eviction")
    if verb is None or (verb == "create") != (not target.name or creates_below):
        raise ApiError(
            405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
        )
    return verb


def _selection(target: Target, query: Mapping[str, str]) -> Predicate:
    by_field = field_selector(query.get("fieldSelector", ""), target.resource)
    by_label = label_selector(query.get("labelSelector", ""))
    return lambda obj: by_field(obj) and by_label(obj)


def _metrics() -> CollectorRegistry:
    """What went wrong in the sandbox's own threads; a real API server has its own metrics here."""
    registry = CollectorRegistry()
    text = "Unexpected errors in the sandbox's own threads, which went on"
    registry.register(SampledCounter("vcuda_sandbox_thread_failures", text, "thread", threads.failures))
    return registry


def _json(request: ApiRequest) -> Any:
    kind = (request.headers.get("content-type") or "application/json").partition(";")[0].strip()
    if not kind.endswith("json"):
        raise ApiError(
            415,
            "UnsupportedMediaType",
            f"the sandbox's API server reads JSON, not {kind}: write a manifest, and kubectl apply -f it",
        )
    try:
        return verbatim.read(request.body)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"couldn't read the body as JSON: {error}") from None


def _options(request: ApiRequest, query: Mapping[str, str]) -> dict[str, Any]:
    options = _json(request) if request.body else {}
    if not isinstance(options, dict):
        raise bad_request("DeleteOptions are an object")
    if "gracePeriodSeconds" in query:
        options = {**options, "gracePeriodSeconds": int(query["gracePeriodSeconds"])}
    return options
