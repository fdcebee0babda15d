"""The connections of the status port, all on one thread: requests come in, answers go out, within bounds.

Anybody on the network may connect. Refusing the next connection at a bound would shut out Prometheus and the
kubelet, so a new connection always gets in, and another one is closed for it. Who waits to be let in, and
health, come before pages: a flood of scrapes costs the others one page's time.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import structlog

from gpu_manager.runtime import threads

log = structlog.get_logger(__name__)

_BACKLOG: Final = 1024
_AT_ONCE: Final = 64  # connections accepted before others get their turn
_CHUNK: Final = 65536
_TICK_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 0.05  # until a socket may be free again
_MOST_REQUEST: Final = 65537  # bytes; the parser refuses a longer line
_HEADER_END: Final = re.compile(rb"\r?\n\r?\n")
_HEALTH: Final = re.compile(rb"(GET|HEAD) /(healthz|readyz)[ /?]")

_FAULT: Final = (
    b"HTTP/1.0 500 Internal Server Error\r\n\r\nan internal error, which the agent's log explains\n"
)

Respond = Callable[[bytes, str], bytes | None]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Connections in all and of one peer's address, and the seconds that a connection has: until its request
    is there, and in all.
    """

    total: int = 256
    per_peer: int = 32
    request_seconds: float = 3.0
    seconds: float = 10.0


DEFAULT_BOUNDS: Final = Bounds()


@dataclass(slots=True, eq=False)
class _Connection:
    """``request`` grows until it is whole; ``answer`` shrinks until it is sent."""

    line: socket.socket
    peer: str
    since: float
    request: bytearray = field(default_factory=bytearray)
    whole: bool = False
    answer: memoryview | None = None


class ConnectionLoop:
    """Serves ``listening`` from :meth:`start` to :meth:`stop`.

    ``respond`` makes the whole answer to a request from its bytes and the address of its peer; it must not
    wait. None: it cannot be answered yet, and is asked again after :meth:`look_again`.
    """

    def __init__(self, listening: socket.socket, respond: Respond, bounds: Bounds) -> None:
        self._listening = listening
        self._respond = respond
        self._bounds = bounds
        self._selector = selectors.DefaultSelector()
        self._open: dict[_Connection, None] = {}  # oldest first
        self._by_peer: dict[str, dict[_Connection, None]] = {}
        self._waiting: list[_Connection] = []  # for a page
        self._later: list[_Connection] = []  # for what their page depends on
        self._all_accepted = True
        self._last_page = 0.0
        self._stopping = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ, self._woken)
        self._thread = threads.forever("http", self._run)

    def start(self) -> None:
        """Begin to accept and to answer."""
        self._listening.settimeout(0)
        self._listening.listen(_BACKLOG)
        self._selector.register(self._listening, selectors.EVENT_READ, self._accept)
        self._thread.start()

    def look_again(self) -> None:
        """Try again to answer waiting requests. Any thread may call it."""
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Close every connection and the listening socket."""
        if self._thread.is_alive():
            self._stopping = True
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        for connection in tuple(self._open):
            self._close(connection)
        self._selector.close()
        os.close(self._wake)
        self._listening.close()

    def _run(self) -> None:
        while not self._stopping:
            self._all_accepted = True
            tick = _TICK_SECONDS if self._open else None
            for key, _ in self._selector.select(0 if self._waiting else tick):
                key.data()
            now = time.monotonic()
            self._close_late(now)
            if self._waiting and (self._all_accepted or now - self._last_page > _TICK_SECONDS):
                self._send_page()
                self._last_page = time.monotonic()

    def _woken(self) -> None:
        os.eventfd_read(self._wake)
        self._waiting += self._later
        self._later.clear()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                line, address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the client has left already, or no socket is free
                log.debug("http_accept_failed", reason=str(error))
                if self._open:
                    self._close_one_of(self._open)
                time.sleep(_RETRY_SECONDS)
                return
            self._admit(line, str(address[0]))
        self._all_accepted = False

    def _admit(self, line: socket.socket, peer: str) -> None:
        if len(self._by_peer.get(peer, ())) >= self._bounds.per_peer:
            self._close_one_of(self._by_peer[peer])
        elif len(self._open) >= self._bounds.total:
            self._close_one_of(max(self._by_peer.values(), key=len))
        line.settimeout(0)
        connection = _Connection(line, peer, time.monotonic())
        self._open[connection] = None
        self._by_peer.setdefault(peer, {})[connection] = None
        self._selector.register(line, selectors.EVENT_READ, lambda: self._read(connection))

    def _close_one_of(self, connections: Collection[_Connection]) -> None:
        """Close the oldest without a whole request, else the oldest."""
        self._close(min(connections, key=lambda one: one.whole))

    def _read(self, connection: _Connection) -> None:
        if connection not in self._open:  # closed by what came before it in this round
            return
        try:
            data = connection.line.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        request = connection.request
        request += data
        if not data:
            self._close(connection)
        elif len(request) >= _MOST_REQUEST or _HEADER_END.search(request):
            connection.whole = True
            self._selector.unregister(connection.line)
            self._waiting.append(connection)
            if _HEALTH.match(request):
                self._respond_to(connection)

    def _send_page(self) -> None:
        """Answer the peer with the fewest connections; of these, who came first."""
        self._respond_to(min(self._waiting, key=lambda one: len(self._by_peer[one.peer])))

    def _respond_to(self, connection: _Connection) -> None:
        self._waiting.remove(connection)
        answer = self._answer(connection)
        if answer is None:
            self._later.append(connection)
        else:
            self._send(connection, answer)

    def _answer(self, connection: _Connection) -> bytes | None:
        try:
            return self._respond(bytes(connection.request), connection.peer)
        except Exception:  # noqa: BLE001 - a run loop: a fault of ours costs one answer
            threads.failed("http_request_failed", client=connection.peer)
            return _FAULT

    def _send(self, connection: _Connection, answer: bytes) -> None:
        connection.answer = memoryview(answer)
        self._selector.register(connection.line, selectors.EVENT_WRITE, lambda: self._write(connection))
        self._write(connection)

    def _write(self, connection: _Connection) -> None:
        if connection not in self._open or connection.answer is None:
            return
        try:
            sent = connection.line.send(connection.answer)
        except BlockingIOError:
            return
        except OSError as error:
            log.debug("http_connection_lost", client=connection.peer, reason=str(error))
            self._close(connection)
            return
        connection.answer = connection.answer[sent:]
        if not connection.answer:
            with contextlib.suppress(OSError):
                connection.line.shutdown(socket.SHUT_WR)
            self._close(connection)

    def _close_late(self, now: float) -> None:
        for connection in tuple(self._open):
            if now - connection.since < self._bounds.request_seconds:
                return  # those behind it are younger
            seconds = self._bounds.seconds if connection.whole else self._bounds.request_seconds
            if now - connection.since >= seconds:
                self._close(connection)

    def _close(self, connection: _Connection) -> None:
        del self._open[connection]
        of_peer = self._by_peer[connection.peer]
        del of_peer[connection]
        if not of_peer:
            del self._by_peer[connection.peer]
        for waiting in (self._waiting, self._later):
            if connection in waiting:
                waiting.remove(connection)
        with contextlib.suppress(KeyError):  # it waits for a page
            self._selector.unregister(connection.line)
        connection.line.close()
