"""The agent's HTTP on :5678: metrics, usage and graph for programs and people, health for the kubelet.

The paths and the shape of ``/usage`` are the predecessor's. Requests are read-only, bounded and answered
from memory; a bearer token can be asked for everything but the health answers.
"""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.resources import CORES_PER_CARD, MIB, format_bytes
from gpu_manager.services.allocator import Allocator
from gpu_manager.services.usage import Sample, Usage

log = structlog.get_logger(__name__)

REQUEST_SECONDS: Final = 10.0
Answer = tuple[HTTPStatus, str, bytes]
_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"


class Status:
    """The pages behind the paths; every method answers from what is in memory."""

    def __init__(
        self,
        allocator: Allocator,
        usage: Usage,
        registry: CollectorRegistry,
        version: str,
        ready: Callable[[], Mapping[str, bool]],
    ) -> None:
        self._allocator = allocator
        self._usage = usage
        self._registry = registry
        self._version = version
        self._ready = ready

    def answer(self, path: str, accept: str) -> Answer:
        """Status, content type and body for one GET; ``accept`` is the header's value."""
        if path in ("/metric", "/metrics"):
            encoder, content_type = choose_encoder(accept)
            return HTTPStatus.OK, content_type, encoder(self._registry)
        if path == "/usage":
            return _json(HTTPStatus.OK, self.usage())
        if path == "/graph":
            graph = self.graph()
            return (
                _json(HTTPStatus.OK, graph)
                if _JSON in accept
                else (HTTPStatus.OK, _TEXT, draw(graph).encode())
            )
        if path == "/version":
            return _json(HTTPStatus.OK, {"version": self._version})
        if path == "/healthz":
            return HTTPStatus.OK, _TEXT, b"ok\n"
        if path == "/readyz":
            checks = dict(self._ready())
            return _json(HTTPStatus.OK if all(checks.values()) else HTTPStatus.SERVICE_UNAVAILABLE, checks)
        return (
            HTTPStatus.NOT_FOUND,
            _TEXT,
            b"paths: /metric /metrics /usage /graph /version /healthz /readyz\n",
        )

    def usage(self) -> dict[str, Any]:
        """Pod UID → its containers, their cards and what they asked for (MiB, percent, cards)."""
        sample = self._usage.last
        node = self._allocator.node
        pods: dict[str, Any] = {}
        for key, grant in sample.grants.items():
            allocation = grant.allocation
            pod = pods.setdefault(
                key[0], {"project": allocation.namespace, "pod": allocation.pod_name, "stat": {}, "spec": {}}
            )
            pod["spec"][key[1]] = {
                "gpu": sum(s.amount.cores for s in allocation.shares) / CORES_PER_CARD,
                "mem": sum(s.amount.memory for s in allocation.shares) / MIB,
            }
            pod["stat"][key[1]] = {"dev": []}
        for use in sample.shares:
            state = node.card(use.share.card)
            device: dict[str, Any] = {"id": state.card.pci_bus_id if state else "", "uuid": use.share.card}
            if state is not None:
                device |= {"card_idx": str(state.card.index), "device_mem": state.card.memory / MIB}
            if use.core is not None:
                device["gpu"] = use.core * 100
            if use.memory is not None:
                device["mem"] = use.memory / MIB
            pods[use.key[0]]["stat"][use.key[1]]["dev"].append(device | {"pids": list(use.pids)})
        return {"usage": pods}

    def graph(self) -> dict[str, Any]:
        """The node's cards, who holds what of them, and how they are joined."""
        sample: Sample = self._usage.last
        used = {(u.key, u.share.card): u for u in sample.shares}
        return self._allocator.read(
            lambda books, node: {
                "node": node.name,
                "unit": node.unit,
                "links": [[str(link) for link in row] for row in node.topology.links],
                "cards": [
                    {
                        "index": s.card.index,
                        "uuid": s.card.uuid,
                        "model": s.card.model,
                        "healthy": s.healthy,
                        "cordoned": s.cordoned,
                        "mig": s.card.mig,
                        "reason": s.reason,
                        "cores_free": books.ledger.free(s.card.uuid).cores,
                        "memory": s.card.capacity(node.unit).memory,
                        "memory_free": books.ledger.free(s.card.uuid).memory,
                        "holders": [
                            {
                                "namespace": a.namespace,
                                "pod": a.pod_name,
                                "container": a.container,
                                "cores": share.amount.cores,
                                "memory": share.amount.memory,
                                "planned": not a.granted,
                                "memory_used": use.memory
                                if (use := used.get((a.key, s.card.uuid)))
                                else None,
                                "core_used": use.core if use else None,
                            }
                            for a in books.ledger.holders(s.card.uuid)
                            for share in a.shares
                            if share.card == s.card.uuid
                        ],
                    }
                    for s in node.cards
                ],
            }
        )


def draw(graph: Mapping[str, Any]) -> str:
    """The graph as text, one line a card and one a holder."""
    lines = [f"{graph['node']}: {len(graph['cards'])} cards"]
    for card in graph["cards"]:
        state = "" if card["healthy"] else f", unhealthy: {card['reason']}"
        state += ", cordoned" if card["cordoned"] else ""
        state += ", MIG (left alone)" if card["mig"] else ""
        lines.append(
            f"|---card {card['index']} ({card['model']}, {card['uuid']}): {card['cores_free']} of 100 cores free, "
            f"{format_bytes(card['memory_free'])} of {format_bytes(card['memory'])} free{state}"
        )
        for holder in card["holders"]:
            planned = ", planned" if holder["planned"] else ""
            lines.append(
                f"|   |---{holder['namespace']}/{holder['pod']} {holder['container']}: "
                f"{holder['cores']} cores, {format_bytes(holder['memory'])}{planned}"
            )
    return "\n".join(lines) + "\n"


def _json(status: HTTPStatus, value: object) -> Answer:
    return status, _JSON, (json.dumps(value, indent=1) + "\n").encode()


class StatusServer:
    """Serves :class:`Status` on one address until stopped."""

    def __init__(self, status: Status, address: str, port: int, token: str | None = None) -> None:
        """Bind. ``port`` 0 takes a free one; with ``token`` all but health asks for ``Authorization: Bearer``.

        Raises:
            NodeUnready: the address is taken or not ours.
        """
        handler = type("Handler", (_Handler,), {"status": status, "token": token})
        try:
            self._server = _Server((address, port), handler)
        except OSError as error:
            raise NodeUnready(
                f"cannot listen on {address}:{port}: {error.strerror}; choose another --http-port"
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.5}, name="http"
        )

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and close the socket."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


class _Handler(BaseHTTPRequestHandler):
    status: Status
    token: str | None
    timeout = REQUEST_SECONDS
    server_version = "gpu-manager"
    sys_version = ""

    def do_GET(self) -> None:  # http.server's name
        path = urlsplit(self.path).path.rstrip("/") or "/"
        if (
            self.token is not None
            and path not in ("/healthz", "/readyz")
            and not self._authorised(self.token)
        ):
            self._send(HTTPStatus.UNAUTHORIZED, _TEXT, b"a bearer token is needed\n")
            return
        self._send(*self.status.answer(path, self.headers.get("Accept", "")))

    do_HEAD = do_GET  # noqa: N815

    def _authorised(self, token: str) -> bool:
        return hmac.compare_digest(self.headers.get("Authorization", "").encode(), f"Bearer {token}".encode())

    def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
        log.debug("http", client=self.client_address[0], line=format % args)
