"""The API server over HTTPS, as plain JSON: what the tests ask of it and no more."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gpu_manager.domain.contract import TOKEN_HEADER

MERGE = "application/merge-patch+json"


class ApiError(RuntimeError):
    """No answer (``code`` 0) or one that is no success."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}" if code else text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Api:
    """One server, one user; a connection a request."""

    host: str
    port: int
    token: str
    authority: Path
    seconds: float = 15.0
    user: str = ""  # to be, with an administrator's rights

    def get(self, path: str, *, text: bool = False, **query: str) -> Any:
        """An object, or text."""
        accept = "*/*" if text else "application/json"
        answer = self.request("GET", f"{path}?{urlencode(query)}" if query else path, accept=accept)
        return answer.decode("utf-8", "replace") if text else json.loads(answer)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Create."""
        return json.loads(self.request("POST", path, body))

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Merge."""
        return json.loads(self.request("PATCH", path, body, MERGE))

    def delete(self, path: str, grace: int | None = None) -> None:
        """Delete, and what belongs to it in the background; one that is gone already is no error."""
        body: dict[str, Any] = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Background",
        }
        try:
            self.request("DELETE", path, body if grace is None else {**body, "gracePeriodSeconds": grace})
        except ApiError as error:
            if error.code != http.client.NOT_FOUND:
                raise

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
        accept: str = "application/json",
    ) -> bytes:
        """Ask once. Raises ApiError."""
        context = ssl.create_default_context(cafile=str(self.authority))
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=self.seconds, context=context)
        # The API server passes the second on to a program of ours behind its proxies.
        token = f"Bearer {self.token}"
        headers = {"Authorization": token, TOKEN_HEADER: token, "Content-Type": kind, "Accept": accept}
        if self.user:
            headers |= {"Impersonate-User": self.user, "Impersonate-Group": "system:masters"}
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(0, f"no answer to {method} {path}: {error}") from error
        finally:
            connection.close()
        if response.status >= 300:
            raise ApiError(response.status, content.decode("utf-8", "replace")[:2000])
        return content
