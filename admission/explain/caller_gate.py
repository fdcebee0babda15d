"""Rights for requests on :9443 about pods and quotas: callers must be able to get pods there; their number is
bounded.

Uses TokenReview and SubjectAccessReview (:mod:`gpu_manager.runtime.inbound`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from gpu_manager.domain.contract import TOKEN_HEADER
from gpu_manager.domain.errors import NodeUnready, RequestInvalid, quoted
from gpu_manager.runtime.inbound import GET_PODS, AccessCheck, AccessVerdict, Right

_MOST_AT_WORK: Final = 2  # explanations of a large cluster take a second of one core each
_MOST_INSIDE: Final = 8  # of the threads that webhooks, too, are answered by
_WAIT_SECONDS: Final = 5.0
_CURE: Final = "send Authorization: Bearer <token>, such as that of kubectl create token"


class Answer(Exception):  # noqa: N818  # it is an answer, not a fault
    """Ends the work with this status and text."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class CallerGate:
    """Lets callers in; thread-safe."""

    def __init__(self, access: AccessCheck) -> None:
        self._access = access
        self._inside = threading.BoundedSemaphore(_MOST_INSIDE)
        self._at_work = threading.BoundedSemaphore(_MOST_AT_WORK)

    def answered(
        self,
        request: Request,
        namespace: str,
        work: Callable[[], Response],
        *,
        heavy: bool = True,
        rights: Sequence[Right] = (GET_PODS,),
    ) -> Response:
        """``work()``, if the caller has the rights in the namespace (empty: in all), and there are not too
        many calls.

        ``heavy`` work costs a core; work that only waits for another program is not heavy and takes no slot
        from it.
        """
        if not self._inside.acquire(blocking=False):
            return said(HTTPStatus.SERVICE_UNAVAILABLE, "too many questions at once: try again")
        try:
            for right in rights:
                _check(self._access.may(_credentials(request), namespace, right), right, namespace)
            if not heavy:
                return work()
            if not self._at_work.acquire(timeout=_WAIT_SECONDS):
                return said(HTTPStatus.SERVICE_UNAVAILABLE, "too many explanations at once: try again")
            try:
                return work()
            finally:
                self._at_work.release()
        except Answer as answer:
            return said(answer.status, str(answer))
        except RequestInvalid as error:
            return said(HTTPStatus.BAD_REQUEST, str(error))
        except NodeUnready as error:
            return said(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        finally:
            self._inside.release()


def said(status: HTTPStatus, text: str) -> Response:
    """An error answer with its reason."""
    headers = {"www-authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else None
    return JSONResponse({"error": text}, status_code=int(status), headers=headers)


def documented(summary: str) -> dict[str, Any]:
    """The OpenAPI description of a route behind the gate."""
    texts = {400: "Malformed", 401: "No token", 403: "Not allowed", 404: "No such pod", 503: "Not now"}
    media = {"application/json": {"schema": {"type": "object"}}, "text/plain": {"schema": {"type": "string"}}}
    return {
        "summary": summary,
        "response_class": Response,
        "responses": {
            200: {"description": "The answer", "content": media},
            **{code: {"description": text} for code, text in texts.items()},
        },
    }


def _credentials(request: Request) -> str:
    """The caller's bearer token, first of all that in a header of our own.

    The API server's proxy takes Authorization off; another may put its own identity there, which has other
    rights than who asks through it.
    """
    return request.headers.get(TOKEN_HEADER) or request.headers.get("authorization", "")


def _check(verdict: AccessVerdict, right: Right, namespace: str) -> None:
    if verdict is AccessVerdict.NOBODY:
        raise Answer(HTTPStatus.UNAUTHORIZED, _CURE)
    if verdict is AccessVerdict.NO:
        everywhere = "in all namespaces (or ask for one where ?namespace= is taken)"
        where = f"in namespace {quoted(namespace)}" if namespace else everywhere
        raise Answer(HTTPStatus.FORBIDDEN, f"this needs the right to {right} {where}")
