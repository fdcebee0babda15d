"""The console's files, and what a test has it show, on a port of their own: what a browser is sent to."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gpu_manager import ui
from tests.fakes.browser import Page
from tests.fakes.console import GIB, past
from tests.fakes.waiting import PATIENCE
from tests.fakes.web import given, send

SHOWN = "document.querySelector('main h1')"  # any view is
EVIL = "<img src=x onerror=document.title='broken'>"


class Served:
    """The console's files and `data`, on a port of their own."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {"nodes": [], "waiting": None}
        self.said: dict[str, Any] = {"pod": "", "line": "", "change": "", "nodes": [], "quota": []}
        self.judged: list[dict[str, Any]] = []
        self.past: dict[str, Any] = past()
        self.remembered: list[dict[str, list[str]]] = []  # the parameters of every question for history
        self.token = ""
        self.url = ""
        self.silent = False
        self.ended = threading.Event()
        self.asked: list[dict[str, list[str]]] = []  # the parameters of every question for data

    def open(self, page: Page, address: str = "", ready: str = SHOWN) -> None:
        """Send the browser to an address inside the console, the first one if it is empty."""
        page.open(f"{self.url}/ui{address and f'#/{address}'}", ready)

    def show(self, page: Page, data: dict[str, Any], address: str = "", ready: str = SHOWN) -> None:
        """Have the browser show this there."""
        self.data = data
        self.open(page, address, ready)

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        file = ui.asset(parts.path)
        if parts.path == "/ui/data":
            self.asked.append(parse_qs(parts.query))
            if self.silent:
                self.ended.wait(PATIENCE)
                return
        if parts.path == "/ui/what-if":
            assert given(handler) == b"kind: Deployment"
            send(handler, json.dumps({"workloads": self.judged}).encode(), 200, kind="application/json")
            return
        if parts.path == "/ui/health":
            event = {"event": EVIL, "text": EVIL, "first": 1.0, "last": 2.0, "count": 1}
            closed = {**event, "event": "card_closed"}
            answer = json.dumps({"since": None, "events": [event, closed]}).encode()
            send(handler, answer, 200, kind="application/json")
            return
        if parts.path == "/ui/events":
            words = dict.fromkeys(("kind", "reason", "message", "source"), EVIL)
            one = {**words, "first": None, "last": 1.0, "count": 1}
            told = {"events": [one], "left_out": 0, "more": True}
            send(handler, json.dumps(told).encode(), 200, kind="application/json")
            return
        if parts.path == "/ui/advice":
            figure = {"value": None, "reason": EVIL}
            amount = {"cores": 10, "memory": GIB}
            one = {"container": EVIL, "given": amount, "cores": figure, "memory": {**figure, "value": GIB}}
            send(handler, json.dumps({"containers": [one]}).encode(), 200, kind="application/json")
            return
        if parts.path == "/ui/trends":
            send(handler, b'{"cards": {}}', 200, kind="application/json")
            return
        if parts.path == "/ui/history":
            self.remembered.append(parse_qs(parts.query))
            send(handler, json.dumps(self.past).encode(), 200, kind="application/json")
            return
        body = self.said if parts.path.startswith("/explain/") else self.data
        kind, answer = file or ("application/json", json.dumps(body).encode())
        shown = handler.headers.get("Authorization", "")
        allowed = file is not None or not self.token or shown == f"Bearer {self.token}"
        policy = {"Content_Security_Policy": ui.CONTENT_POLICY}
        refusal = b"a bearer token is needed\n"
        send(handler, answer if allowed else refusal, 200 if allowed else 401, kind=kind, **policy)
