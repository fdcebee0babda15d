"""The kubelet's probes, on a port of their own: whoever fills the webhook's port gets no pod killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router

from admission.config import ConnectionBounds
from admission.serving.https_server import HttpsServer

_BOUNDS = ConnectionBounds(total=64, per_source=48)


class ProbeServer:
    """``/healthz`` and ``/readyz`` over HTTP, from :meth:`start` to :meth:`stop`.

    ``stalled`` is True while the program serves nobody and only a restart would help; ``checks`` are the
    conditions for being asked, by name, ``why`` is what is wrong beside them.
    """

    def __init__(
        self,
        address: str,
        port: int,
        stalled: Callable[[], bool],
        checks: Callable[[], Mapping[str, bool]],
        why: Callable[[], str] = str,
    ) -> None:
        """Bind. Raises NodeUnready: the address is taken or not ours."""
        self._stalled = stalled
        self._checks = checks
        self._why = why
        routes = [Route("/healthz", self._healthz), Route("/readyz", self._readyz)]
        self._server = HttpsServer(Router(routes), address, port, bounds=_BOUNDS, grace_seconds=1)
        self.port = self._server.port
        self.start, self.stop = self._server.start, self._server.stop

    async def _healthz(self, _request: Request) -> Response:
        if self._stalled():
            return PlainTextResponse("the webhook's listener is stalled\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return PlainTextResponse("ok\n")

    async def _readyz(self, _request: Request) -> Response:
        return readiness(self._checks(), self._why())


def readiness(checks: Mapping[str, bool], why: str) -> JSONResponse:
    """Every check and whether it holds, and ``why`` where there is something to say; 503 unless all do."""
    status = HTTPStatus.OK if all(checks.values()) else HTTPStatus.SERVICE_UNAVAILABLE
    return JSONResponse({**checks, **({"why": why} if why else {})}, status_code=int(status))
