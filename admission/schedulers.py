"""Where schedulers ask, :3456: the extender's table as an ASGI application, bind and preempt guarded.

Filter and prioritize say nothing that a caller could not see in the cluster, and change nothing but where a
pod is expected for a few seconds. Bind writes and preempt chooses who is evicted: only for who runs in this
pod, or shows a certificate.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route as Path
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from admission.config import Bounds, ExtenderDoor
from admission.extender import Extender, Route
from admission.figures import Figures
from admission.gate import Gate
from admission.listener import Peers

# Not all of 127/8: a mesh's proxy in this pod calls from 127.0.0.6 for whoever called it.
_HERE: Final = (ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1"))
_FORBIDDEN: Final = (
    "bind and preempt are open to 127.0.0.1 and ::1, and over TLS to clients that show a certificate: run the"
    " scheduler in this pod, or give it one (tlsConfig) and this service --extender-client-ca-file"
)


def build_extender(
    door: ExtenderDoor,
    extender: Extender,
    peers: Peers,
    figures: Figures,
    version: str,
    draining: Callable[[], bool],
) -> Gate:
    """The ASGI application on :3456."""
    # Plain ASGI: FastAPI's part was a tenth of what a pod costs, and the extender reads bytes by itself.
    verbs = [
        Path(route.path, _Verb(route, door, peers, figures), methods=["POST"]) for route in extender.routes()
    ]
    # The version as text is the predecessor's way.
    pages = [
        Path(path, PlainTextResponse(text), methods=["GET"])
        for path, text in (("/version", f"{version}\n"), ("/healthz", "ok\n"))
    ]
    api = Router([*verbs, *pages])
    return Gate(api, Bounds(body=door.body), lambda _path, _code: None, draining)


class _Verb:
    """One of the scheduler's questions, as an ASGI application."""

    def __init__(self, route: Route, door: ExtenderDoor, peers: Peers, figures: Figures) -> None:
        self._route = route
        self._door = door
        self._peers = peers
        self._figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call."""
        route, request = self._route, Request(scope, receive)
        client = (request.client.host, request.client.port) if request.client else None
        if route.guarded and not _may_write(client, self._door, self._peers):
            self._figures.asked(route.verb, int(HTTPStatus.FORBIDDEN), 0.0)
            refusal = JSONResponse({"error": _FORBIDDEN}, status_code=int(HTTPStatus.FORBIDDEN))
            await refusal(scope, receive, send)
            return
        body = await request.body()
        begun = time.perf_counter()
        reply = await run_in_threadpool(route.handle, body)
        self._figures.asked(route.verb, int(reply.status), time.perf_counter() - begun)
        kind = "application/json" if reply.status is HTTPStatus.OK else "text/plain; charset=utf-8"
        await Response(reply.body, status_code=int(reply.status), media_type=kind)(scope, receive, send)


def _may_write(client: tuple[str, int] | None, door: ExtenderDoor, peers: Peers) -> bool:
    if client is None:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address) in _HERE or bool(peers.names(client) & door.client_names)
