"""The recorded decisions on :9443, for ``kubectl vcuda report``: for callers who may get pods everywhere."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from http import HTTPStatus
from typing import Protocol

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from admission.explain.caller_gate import Answer, CallerGate, documented


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
