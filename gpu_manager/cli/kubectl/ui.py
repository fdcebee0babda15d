"""``kubectl vcuda ui``: the cluster's console on loopback, with the caller's own rights.

The browser gets no credential. Each request goes through the API server's service proxy with the caller's
login, and the address holds a secret: neither other users of the machine nor other sites' pages can ask in
the caller's name.
"""

from __future__ import annotations

import gzip
import hmac
import json
import re
import secrets
import sys
import webbrowser
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Final
from urllib.parse import urlencode

from gpu_manager.cli.kubectl import service
from gpu_manager.cli.kubectl.service import BY_KUBECONFIG, Access, Login, Namespace, log_in
from gpu_manager.cli.program import interrupt_on_termination
from gpu_manager.domain.contract import TOKEN_HEADER
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.runtime.arguments import Option
from gpu_manager.ui import CONTENT_POLICY

_PAGES: Final = re.compile(r"/ui(/[a-z_.-]+)?|/explain/[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9.-]*")
_TYPES: Final = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", "/ui": "text/html"}
_LARGEST: Final = 3 << 20  # bytes of a manifest, as the service takes them
_SECONDS: Final = 60.0  # that a connection of the browser may say nothing
Answer = tuple[int, bytes]


def command(
    port: Annotated[int, Option(min=0, max=65535, help="Port on loopback; default: a free one.")] = 0,
    no_browser: Annotated[  # the way to a flag
        bool, Option("--no-browser", help="Print the address, and open nothing.")
    ] = False,
    namespace: Namespace = "",
    admission: service.Admission = service.USUAL,
    access: Access = BY_KUBECONFIG,
) -> int:
    """Open the cluster's console in the browser, with your own rights, until Ctrl+C.

    Who may get pods in all namespaces sees everything, others the namespace of their context, or --namespace.
    The admission service is reached through the API server (get on services/proxy).

    Examples:
      kubectl vcuda ui
      kubectl vcuda ui -n team-a --port 8080 --no-browser
    """
    with log_in(access, namespace) as login:
        if login.acting_as:
            raise RequestInvalid(service.acting(login))
        relay = Relay(login, admission)
        shown = namespace or relay.visible()
        with serve(relay, port) as server:
            query = f"#/overview?{urlencode({'namespace': shown})}" if shown else ""
            address = f"http://127.0.0.1:{server.server_port}/{server.secret}/ui{query}"
            interrupt_on_termination()
            try:
                print(f"{address}\nopen until Ctrl+C; whoever has this address sees what you may", flush=True)
                if not no_browser and not webbrowser.open(address):
                    print("no browser could be started: open the address yourself", file=sys.stderr)
                server.serve_forever()
            except KeyboardInterrupt:
                return 0
    return 0


class Relay:
    """Asks the admission service through the API server. Thread-safe."""

    def __init__(self, login: Login, admission: str) -> None:
        """Raises RequestInvalid: ``admission`` is not NAMESPACE/NAME."""
        self._login = login
        self._admission = admission
        self._root = service.root(admission)

    def visible(self) -> str:
        """The namespace to show: empty (all) if the caller may see all, else the context's.

        Raises:
            NodeUnready: the service cannot be reached.
        """
        status, _ = self.ask("GET", "/ui")
        if status != 200:
            raise NodeUnready(service.reason(status, self._admission))
        return self._login.namespace if self.ask("GET", "/ui/data")[0] == 403 else ""

    def ask(self, method: str, page: str, body: bytes | None = None, authorization: str = "") -> Answer:
        """Status and body. ``authorization``: a token typed into the page, used in place of the login's.

        Raises:
            NodeUnready: no answer.
        """
        connection = self._login.connection
        headers = {"Accept-Encoding": "gzip", "Content-Type": "application/yaml"}
        for _ in range(2):  # a login that has ended is renewed once
            token = authorization or (f"Bearer {connection.token}" if connection.token else "")
            shown = {TOKEN_HEADER: token} if token else {}
            answer = connection.page(
                f"ask {self._admission}", method, self._root + page, body, headers | shown
            )
            if answer.status != 401 or authorization or not connection.renew():
                break
        if answer.headers.get("content-encoding") != "gzip":
            return answer.status, answer.body
        try:
            return answer.status, gzip.decompress(answer.body)
        except (OSError, EOFError, zlib.error) as error:
            raise NodeUnready(f"{self._admission} answered with what is no gzip: {error}") from error


class ConsoleServer(ThreadingHTTPServer):
    """The console on loopback, below a path that nobody can guess."""

    daemon_threads = True

    def __init__(self, relay: Relay, port: int) -> None:
        self.relay = relay
        self.secret = secrets.token_urlsafe(32)
        super().__init__(("127.0.0.1", port), _Handler)


def serve(relay: Relay, port: int) -> ConsoleServer:
    """A server that listens. Raises NodeUnready: the port is taken."""
    try:
        return ConsoleServer(relay, port)
    except OSError as error:
        why = f"cannot listen on 127.0.0.1:{port}: {error.strerror}"
        raise NodeUnready(f"{why}; name another --port") from error


class _Handler(BaseHTTPRequestHandler):
    server: ConsoleServer
    protocol_version = "HTTP/1.1"
    server_version = "kubectl-vcuda"
    sys_version = ""
    timeout = _SECONDS

    def do_GET(self) -> None:  # http.server's name
        self._answer(None)

    def do_POST(self) -> None:  # http.server's name
        size = self.headers.get("Content-Length", "")
        if not (size.isascii() and size.isdecimal() and len(size) < 10 and int(size) <= _LARGEST):
            self.close_connection = True
            self._send(413, _error(f"a manifest has at most {_LARGEST} bytes, and says how many"))
            return
        self._answer(self.rfile.read(int(size)))

    def _answer(self, body: bytes | None) -> None:
        path, _, query = self.path.partition("?")
        secret, _, rest = path[1:].partition("/")
        page = f"/{rest}"
        mine = hmac.compare_digest(secret.encode(), self.server.secret.encode())
        if not mine or not _PAGES.fullmatch(page):
            self._send(404, _error("there is no such page: use the whole address that was printed"))
            return
        asked = f"{page}?{query}" if query else page
        try:
            typed = self.headers.get("Authorization", "")
            self._send(*self.server.relay.ask(self.command, asked, body, typed), page)
        except NodeUnready as error:
            self._send(502, _error(str(error)))

    def _send(self, status: int, body: bytes, page: str = "") -> None:
        kind = _TYPES.get(page[page.rfind(".") :] if "." in page else page, "application/json")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind if status == 200 else 'application/json'}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", CONTENT_POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
        """Requests are not printed: the terminal shows the address."""


def _error(text: str) -> bytes:
    return json.dumps({"error": text}).encode()
