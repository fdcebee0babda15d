"""Connections in the clear to a server of the admission service."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from admission.serving.https_server import HttpsServer
from tests.fakes.waiting import PATIENCE


@contextmanager
def lines_to(app: Any, **options: Any) -> Iterator[Callable[[], socket.socket]]:
    """Make a connection to ``app`` with each call; ``options`` are those of :class:`HttpsServer`."""
    server = HttpsServer(app, "127.0.0.1", 0, **options)
    server.start()
    with ExitStack() as lines:
        try:
            yield lambda: lines.enter_context(
                socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
            )
        finally:
            server.stop()
