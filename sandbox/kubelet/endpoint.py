"""The kubelet's own /pods over HTTP, on loopback: what an agent with the right ``nodes/pods`` may read."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpu_manager.runtime import threads


class PodsEndpoint:
    """Serves ``http://127.0.0.1:<port>/pods`` with what ``pods`` returns, as a PodList.

    With a ``token``, callers without it get 401. (A real kubelet serves the same over HTTPS.)
    """

    def __init__(
        self, pods: Callable[[], Sequence[Mapping[str, Any]]], *, port: int = 0, token: str = ""
    ) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(pods, token))
        self._thread = threads.forever("kubelet-pods", lambda: self._server.serve_forever(poll_interval=0.05))

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Listen."""
        self._thread.start()

    def stop(self) -> None:
        """End the server and its threads."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(pods: Callable[[], Sequence[Mapping[str, Any]]], token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the base class's name
            given = self.headers.get("Authorization", "")
            if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                self.send_error(HTTPStatus.UNAUTHORIZED)
            elif self.path.partition("?")[0].rstrip("/") != "/pods":
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                items = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": list(pods())}
                body = json.dumps(items).encode()
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
            """Say nothing: the sandbox prints its own table."""

    return Handler
