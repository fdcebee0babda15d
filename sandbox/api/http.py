"""The wire: HTTP/1.1 with keep-alive, chunked watch streams, connections that can all be closed at once."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sandbox.api.faults import CutConnection
from sandbox.api.routing import ApiRequest, Router
from sandbox.api.status import ApiError, bad_request
from sandbox.api.verbatim import written
from sandbox.api.verbs import VerbOutcome
from sandbox.api.watching import ApiWatch

BODY_LIMIT = 3 << 20  # the API server's limit


class Server(ThreadingHTTPServer):
    """Accepts connections on loopback until :meth:`shut`."""

    daemon_threads = True
    request_queue_size = 256
    timeout = 0.0  # handle_request is called when somebody is there

    def __init__(self, port: int, router: Router, tls: ssl.SSLContext | None) -> None:
        self.router = router
        self.watches: set[ApiWatch] = set()
        self.guard = threading.Lock()
        self.ending = False
        self._tls = tls
        self._wake = socket.socketpair()
        self._connections: set[socket.socket] = set()
        self._workers: set[threading.Thread] = set()
        try:
            super().__init__(("127.0.0.1", port), ApiHandler)
        except OSError:
            for end in self._wake:
                end.close()
            raise

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept; the TLS handshake is left to the connection's own thread."""
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self.guard:
            self._connections.add(connection)
        return connection, address

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection to its end."""
        with self.guard:
            self._workers.add(threading.current_thread())
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self.guard:
                self._workers.discard(threading.current_thread())
                self._connections.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in mid-sentence is its own affair; anything else is a fault here."""
        import sys  # noqa: PLC0415 - only on this path

        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def serve(self) -> None:
        """Accept until :meth:`shut` (without the base class's polling, so that it ends at once)."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        poll.register(self._wake[0], select.POLLIN)
        while not any(handle == self._wake[0].fileno() for handle, _ in poll.poll()):
            self.handle_request()

    def shut(self, acceptor: threading.Thread) -> None:
        """End ``acceptor``, which runs :meth:`serve`, and every connection, and wait for their threads."""
        self._wake[1].send(b"x")
        acceptor.join(5.0)
        self.server_close()
        for end in self._wake:
            end.close()
        with self.guard:
            self.ending = True  # a watch that begins from now on ends by itself
            watches, connections, workers = set(self.watches), set(self._connections), set(self._workers)
        for watch in watches:
            watch.stop()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for worker in workers:
            worker.join(5.0)


class ApiHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one segment for headers and body
    server: Server

    def handle(self) -> None:
        """Serve requests until the connection ends."""
        with contextlib.suppress(ConnectionError, TimeoutError, ssl.SSLError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's signature
        """Say nothing: requests are no events of the product."""

    def _serve(self) -> None:
        try:
            request = ApiRequest(
                self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, self._body()
            )
            answer = self.server.router.answer(request)
        except ApiError as error:
            headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
            self._send(error.code, error.body(), headers)
        except CutConnection:
            self.close_connection = True
        else:
            if isinstance(answer, ApiWatch):
                self._stream(answer)
            else:
                self._send_outcome(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - the base class looks for these names

    def _body(self) -> bytes:
        text = self.headers.get("Content-Length") or "0"
        if self.headers.get("Transfer-Encoding") or not text.isdigit():
            self.close_connection = True
            raise bad_request("the stand-in needs a Content-Length")
        if int(text) > BODY_LIMIT:
            self.close_connection = True
            raise ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_LIMIT}")
        return self.rfile.read(int(text))

    def _send_outcome(self, outcome: VerbOutcome) -> None:
        text = outcome.text if outcome.text is not None else written(outcome.obj)
        warnings = ", ".join(f'299 - "{w.translate(_QUOTED)}"' for w in outcome.warnings)
        self._send(outcome.code, text, {"Warning": warnings} if warnings else {})

    def _send(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _stream(self, watch: ApiWatch) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        with self.server.guard:
            self.server.watches.add(watch)
            if self.server.ending:
                watch.stop()
        try:
            for lines in watch:
                if not lines and self._hung_up():
                    self.close_connection = True
                    return
                for line in lines:
                    self._line(line, watch)
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()
        except (CutConnection, OSError):
            self.close_connection = True
        finally:
            with self.server.guard:
                self.server.watches.discard(watch)

    def _line(self, line: bytes, watch: ApiWatch) -> None:
        cut = watch.cut_next  # once, as it may be set while this line is under way
        part = line[: len(line) // 2] if cut else line
        self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
        self.wfile.flush()
        if cut:
            raise CutConnection

    def _hung_up(self) -> bool:
        """True if the client has closed. A client says nothing during a watch, so any input is its end."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        return bool(poll.poll(0))


_QUOTED = str.maketrans({'"': '\\"', "\\": "\\\\", "\n": " "})
