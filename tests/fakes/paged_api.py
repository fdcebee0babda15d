"""An API server that lists pods in pages and watches them, and a reflector that hears it."""

from __future__ import annotations

import json
import queue
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from threading import Condition
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gpu_manager.adapters.kube.connection import Connection, Timeouts, connect
from gpu_manager.adapters.kube.objects import Unreadable
from gpu_manager.adapters.kube.reflector import Pause, Reflector
from tests.fakes.web import given, send, serving

_QUICK = Timeouts(connect=2.0, answer=10.0, watch=60)


def pod(name: str, fields: bytes = b"{}", version: int = 1) -> bytes:
    meta = {"name": name, "namespace": "team", "uid": f"u-{name}", "resourceVersion": str(version)}
    return b'{"metadata":%b,"managedFields":[%b]},"spec":{}}' % (json.dumps(meta).encode()[:-1], fields)


class Api:
    """Answers lists of pods in pages, and the newest watch of them with what :meth:`event` is told; it has no
    nodes.
    """

    def __init__(self, *pods: bytes) -> None:
        self.pods = list(pods)
        self.limits: list[int] = []
        self.watched_from: list[str] = []
        self.lists = 0
        self.version = 100
        self.posted: list[dict[str, Any]] = []
        self.spoil: Callable[[int], bool] = lambda _limit: False  # a page of so many breaks off
        self.before_page: Callable[[int], object] = lambda _begin: None
        self.refusals: list[tuple[int, bytes]] = []  # of the next pages that are no first ones
        self.of_watches: list[int] = []  # statuses of the next watches
        self._lines: deque[bytes | None] = deque()
        self._came = Condition()
        self._of_nodes: queue.Queue[bytes | None] = queue.Queue()

    def event(self, kind: str, obj: bytes) -> None:
        self.line(b'{"type":"%b","object":%b}\n' % (kind.encode(), obj))

    def line(self, line: bytes | None) -> None:
        with self._came:
            self._lines.append(line)
            self._came.notify_all()

    def end_watch(self) -> None:
        self.line(None)
        self._of_nodes.put(None)

    def _next(self, number: int) -> bytes | None:
        with self._came:
            self._came.wait_for(lambda: self._lines or number != len(self.watched_from))
            return self._lines.popleft() if number == len(self.watched_from) else None

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        nodes = handler.path.startswith("/api/v1/nodes")
        asked = {key: values[0] for key, values in parse_qs(urlsplit(handler.path).query).items()}
        if handler.command == "POST":
            self.posted.append(json.loads(given(handler)))
            send(handler, b"{}", 201)
            return
        if "watch" in asked:
            get_next: Callable[[], bytes | None] = self._of_nodes.get
            if not nodes:
                with self._came:
                    self.watched_from.append(asked["resourceVersion"])
                    self._came.notify_all()
                get_next = partial(self._next, len(self.watched_from))
                if self.of_watches:
                    send(handler, b'{"message":"no"}', self.of_watches.pop(0))
                    return
            handler.send_response(200)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            while (line := get_next()) is not None:
                handler.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
                handler.wfile.flush()
            handler.wfile.write(b"0\r\n\r\n")
            return
        if nodes:
            send(handler, b'{"kind":"NodeList","metadata":{"resourceVersion":"1"},"items":null}')
            return
        self.lists += "continue" not in asked
        limit, begin = int(asked["limit"]), int(asked.get("continue", 0))
        self.before_page(begin)
        if begin and self.refusals:
            code, body = self.refusals.pop(0)
            send(handler, body, code)
            return
        self.limits.append(limit)
        page = self.pods[begin : begin + limit]
        more = str(begin + limit) if begin + limit < len(self.pods) else ""
        spoilt = self.spoil(limit)
        head = json.dumps({"resourceVersion": str(self.version), "continue": more}).encode()
        body = b'{"kind":"PodList","apiVersion":"v1","metadata":%b,"items":[%b]}' % (head, b",".join(page))
        if spoilt:
            send(handler, body[: len(body) * 2 // 3], length=len(body))
        else:
            send(handler, body)


@contextmanager
def serving_pods(*pods: bytes) -> Iterator[tuple[Api, Connection]]:
    api = Api(*pods)
    with serving(api.respond) as url:
        connection = connect(url=url, timeouts=_QUICK)
        try:
            yield api, connection
        finally:
            api.end_watch()
            connection.close()


class Watcher:
    """Keeps what a reflector hears."""

    def __init__(self, connection: Connection, poison: str = "") -> None:
        self.heard: list[tuple[str, bool]] = []
        self.told: list[Unreadable] = []
        self.poison = poison
        self.slowly: Callable[[str], object] = lambda _name: None
        self.reflector = Reflector(
            connection,
            "pods",
            "/api/v1/pods",
            "",
            replaced=lambda objects, take: [take(obj) for obj in objects],
            changed=self._changed,
            unreadable=self.told.append,
            pause=Pause(0.01, 0.05),
        )

    def _changed(self, obj: Any, gone: bool) -> None:
        if obj["metadata"]["name"] == self.poison:
            raise KeyError("spec")
        self.slowly(obj["metadata"]["name"])
        self.heard.append((obj["metadata"]["name"], gone))


@contextmanager
def watching(connection: Connection, poison: str = "") -> Iterator[Watcher]:
    watcher = Watcher(connection, poison)
    watcher.reflector.start()
    try:
        yield watcher
    finally:
        watcher.reflector.close()
