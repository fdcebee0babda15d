"""How the API server says no: the ``Status`` object and its usual forms."""

from __future__ import annotations

import json
from typing import Any


class ApiError(Exception):
    """An answer that is no success. ``code`` is HTTP's, ``reason`` is Kubernetes' machine-readable word."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        causes: list[dict[str, str]] | None = None,
        retry_after: int = 0,
        more: str = "",
    ) -> None:
        """``more``: the token by which an expired list goes on."""
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = causes or []
        self.retry_after = retry_after
        self.more = more

    def body(self) -> bytes:
        """The ``Status`` object as JSON."""
        details: dict[str, Any] = {"causes": self.causes} if self.causes else {}
        if self.retry_after:
            details["retryAfterSeconds"] = self.retry_after
        return json.dumps(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {"continue": self.more} if self.more else {},
                "status": "Failure",
                "message": self.message,
                **({"reason": self.reason} if self.reason else {}),
                "details": details,
                "code": self.code,
            }
        ).encode()


REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


def bad_request(message: str) -> ApiError:
    """400: the request cannot be read."""
    return ApiError(400, "BadRequest", message)


def not_found(plural: str, name: str) -> ApiError:
    """404 in the server's words."""
    return ApiError(404, "NotFound", f'{plural} "{name}" not found')


def conflict(plural: str, name: str, why: str) -> ApiError:
    """409: the object is not as the caller believes."""
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": {why}')


def already_exists(plural: str, name: str) -> ApiError:
    """409: the name is taken."""
    return ApiError(409, "AlreadyExists", f'{plural} "{name}" already exists')


def invalid(kind: str, name: str, field: str, why: str) -> ApiError:
    """422: a field has no legal value."""
    cause = {"reason": "FieldValueInvalid", "message": why, "field": field}
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {field}: {why}', causes=[cause])


def success(plural: str = "", name: str = "", *, code: int = 200) -> dict[str, Any]:
    """The ``Status`` of an action that returns no object."""
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if plural:
        status["details"] = {"name": name, "kind": plural}
    if code != 200:
        status["code"] = code
    return status
