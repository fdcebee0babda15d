"""An HTTP server on loopback that answers as a test says."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def serving(
    respond: Callable[[BaseHTTPRequestHandler], object],
    certificate: tuple[Path, Path] | None = None,
    *,
    context: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """Answers GET and POST by ``respond(handler)``; yields its address, https with a ``certificate`` and its key,
    or with a ``context`` of TLS.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            respond(self)

        do_POST = do_GET  # noqa: N815  # the method's name

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # callers hang up on purpose
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"{'https' if context else 'http'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def given(handler: BaseHTTPRequestHandler) -> bytes:
    """The body that came."""
    return handler.rfile.read(int(handler.headers["Content-Length"]))


def send(
    handler: BaseHTTPRequestHandler,
    body: bytes,
    code: int = 200,
    *,
    length: int | None = None,
    kind: str = "application/json",
    **headers: str,
) -> None:
    """Answer it; a ``length`` other than the body's is sent as if the connection broke."""
    handler.send_response(code)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)
    if length is not None:
        handler.close_connection = True
