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

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.concurrency import run_in_threadpool

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
    api = FastAPI(title="gpu-quota-admission extender", version=version, docs_url=None, redoc_url=None)
    for route in extender.routes():
        api.add_api_route(
            route.path, _handler(route, door, peers, figures), methods=["POST"], response_class=Response
        )

    @api.get("/version", response_class=PlainTextResponse)
    def version_() -> str:
        """The version of the program, as text: the predecessor's way."""
        return f"{version}\n"

    @api.get("/healthz", response_class=PlainTextResponse)
    def healthz() -> str:
        """The program answers."""
        return "ok\n"

    return Gate(api, Bounds(body=door.body), lambda _path, _code: None, draining)


def _handler(route: Route, door: ExtenderDoor, peers: Peers, figures: Figures) -> Callable[..., object]:
    async def handle(request: Request) -> Response:
        client = (request.client.host, request.client.port) if request.client else None
        if route.guarded and not _may_write(client, door, peers):
            figures.asked(route.verb, int(HTTPStatus.FORBIDDEN), 0.0)
            return JSONResponse({"error": _FORBIDDEN}, status_code=int(HTTPStatus.FORBIDDEN))
        body = await request.body()
        begun = time.perf_counter()
        reply = await run_in_threadpool(route.handle, body)
        figures.asked(route.verb, int(reply.status), time.perf_counter() - begun)
        kind = "application/json" if reply.status is HTTPStatus.OK else "text/plain; charset=utf-8"
        return Response(reply.body, status_code=int(reply.status), media_type=kind)

    return handle


def _may_write(client: tuple[str, int] | None, door: ExtenderDoor, peers: Peers) -> bool:
    if client is None:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address) in _HERE or bool(peers.names(client) & door.client_names)
