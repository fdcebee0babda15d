"""The endpoint for schedulers, :3456: the extender's routes as an ASGI application, bind and preempt guarded.

Filter and prioritize reveal nothing that a caller could not read in the cluster, and change nothing but where
a pod is expected: for minutes if the caller may bind, else briefly. Bind writes and preempt chooses victims:
only for callers in this pod, or with a client certificate.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route as Path
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from admission.config import ExtenderEndpoint, InflightBounds
from admission.extender.cluster_metrics import ClusterMetrics
from admission.extender.verbs import Extender, Reply, Route
from admission.serving.http_protocol import Client, Peers, Questions, WholeAnswer
from admission.serving.inflight_limit import InflightLimit

# Not all of 127/8: a mesh's proxy in this pod calls from 127.0.0.6 for whoever called it.
_HERE: Final = (ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1"))
_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain; charset=utf-8"
_FORBIDDEN: Final = (
    "bind and preempt are open to clients that show a certificate (--extender-client-ca-file), or without TLS"
    " to 127.0.0.1 and ::1: run the scheduler in this pod, or give it a certificate (tlsConfig)"
)


def build_extender(
    endpoint: ExtenderEndpoint,
    extender: Extender,
    peers: Peers,
    metrics: ClusterMetrics,
    version: str,
    draining: Callable[[], bool],
) -> InflightLimit:
    """The ASGI application on :3456."""
    workers = _Workers()
    verbs = {route.path: _Verb(route, endpoint, peers, metrics, workers) for route in extender.routes()}
    paths = [Path(path, verb, methods=["POST"]) for path, verb in verbs.items()]
    # The version as text is the predecessor's way.
    pages = [
        Path(path, PlainTextResponse(text), methods=["GET"])
        for path, text in (("/version", f"{version}\n"), ("/healthz", "ok\n"))
    ]
    return InflightLimit(
        _Doors(verbs, Router([*paths, *pages])),
        InflightBounds(body=endpoint.body),
        lambda _path, _code: None,
        draining,
    )


def scheduler_questions(
    extender: Extender,
    endpoint: ExtenderEndpoint,
    peers: Peers,
    metrics: ClusterMetrics,
    draining: Callable[[], bool],
) -> Questions:
    """Routes open to any scheduler, answered in the event loop: they wait for nothing but the interpreter, so
    a thread would only add two context switches.
    """

    def answers(route: Route) -> Callable[[bytes, Client], WholeAnswer]:
        def answer(body: bytes, client: Client) -> WholeAnswer:
            handle = route.handler(binds=_may_write(client, endpoint, peers))
            return _answer(route, metrics, time.perf_counter(), handle(body))

        return answer

    return Questions({r.path.encode(): answers(r) for r in extender.routes() if not r.guarded}, draining)


def _answer(route: Route, metrics: ClusterMetrics, begun: float, reply: Reply) -> WholeAnswer:
    metrics.asked(route.verb, int(reply.status), time.perf_counter() - begun)
    kind = _JSON if reply.status is HTTPStatus.OK else _TEXT
    return WholeAnswer(int(reply.status), kind, reply.body, reply.after)


class _Doors:
    """What a scheduler posts goes to its verb, all else by the routes.

    Frameworks and their ways into a thread were a fifth of what a pod costs, and the extender reads bytes by
    itself: hence plain ASGI from here to the answer. Most questions do not even come here
    (:func:`scheduler_questions`).
    """

    def __init__(self, verbs: Mapping[str, _Verb], rest: Router) -> None:
        self._verbs = verbs
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        verb = self._verbs.get(scope["path"]) if scope["method"] == "POST" else None
        await (verb or self._rest)(scope, receive, send)


class _Workers:
    """The threads that handlers run in: as many as the gate lets in, gone with the loop that uses them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, handle: Callable[[bytes], Reply], body: bytes) -> Reply:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            loop.set_default_executor(ThreadPoolExecutor(InflightBounds().at_work, "extender"))
        return await loop.run_in_executor(None, handle, body)


@dataclass(eq=False, repr=False)
class _Verb:
    """One of the scheduler's questions, as an ASGI application behind the gate, which has read the body."""

    route: Route
    endpoint: ExtenderEndpoint
    peers: Peers
    metrics: ClusterMetrics
    workers: _Workers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call."""
        route, who = self.route, scope.get("client")
        client = (who[0], who[1]) if who else None
        binds = _may_write(client, self.endpoint, self.peers)
        if route.guarded and not binds:
            self.metrics.asked(route.verb, int(HTTPStatus.FORBIDDEN), 0.0)
            refusal = JSONResponse({"error": _FORBIDDEN}, status_code=int(HTTPStatus.FORBIDDEN))
            await refusal(scope, receive, send)
            return
        body = (await receive()).get("body", b"")
        begun = time.perf_counter()
        reply = await self.workers.run(route.handler(binds=binds), body)
        answer = _answer(route, self.metrics, begun, reply)
        headers = [(b"content-type", answer.kind), (b"content-length", b"%d" % len(answer.body))]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})


def _may_write(client: Client, endpoint: ExtenderEndpoint, peers: Peers) -> bool:
    if client is None:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    # On a node's network loopback is every program's of that node: where certificates are shown, they decide.
    here = endpoint.client_ca is None and (mapped or address) in _HERE
    return here or bool(peers.names(client) & endpoint.client_names)
