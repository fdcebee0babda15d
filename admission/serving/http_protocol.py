"""HTTP on one connection: uvicorn over httptools, with the bounds that uvicorn leaves to a proxy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from admission.serving.connections import Connections, ServerProtocol
from admission.serving.inflight_limit import WHOLE_BODY

# Requests answered as soon as their last byte is read: without task, thread or ASGI.
# A scheduler filters one pod after the other and waits for each answer, so the overhead of HTTP delays
# every pod. :class:`~admission.serving.http_protocol.BoundedHttp` reads and answers the requests accepted
# by :meth:`Questions.begin`; all others go through the ASGI application.


LARGEST: Final = 1 << 20
"""Bytes of a question. Names of 10,000 nodes are well below; whole Node objects, which take long to read, are
above.
"""
_MOST_HELD: Final = 16 << 20  # bytes announced by all questions that are being sent
_STATUS_LINES: Final = {int(s): f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}

Header = tuple[bytes, bytes]
Client = tuple[str, int] | None
"""Address and port that a request came from."""


class WholeAnswer(NamedTuple):
    """An answer, and work to do once it has been sent."""

    status: int
    kind: bytes  # the content type
    body: bytes
    after: Callable[[], object] | None = None

    def written(self, headers: Iterable[Header], *, last: bool) -> bytes:
        """The whole HTTP answer; after the ``last`` one the connection is closed."""
        parts = [_STATUS_LINES[self.status]]
        parts += [b"%b: %b\r\n" % header for header in headers]
        parts.append(b"content-type: %b\r\ncontent-length: %d\r\n" % (self.kind, len(self.body)))
        parts += [b"connection: close\r\n\r\n" if last else b"\r\n", self.body]
        return b"".join(parts)


@dataclass(slots=True)
class Question:
    """One of which the head was read: ``size`` bytes are announced."""

    answer: Callable[[bytes, Client], WholeAnswer]
    size: int
    body: bytearray = field(default_factory=bytearray)  # what has come of them


class Questions:
    """The paths answered at once, and their handlers. Used in one event loop.

    While ``ending`` returns True, connections are closed after their answer, so that callers go elsewhere.
    """

    def __init__(
        self,
        answers: Mapping[bytes, Callable[[bytes, Client], WholeAnswer]],
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self._answers = answers
        self.ending = ending
        self._held = 0

    def begin(self, path: bytes, headers: Sequence[Header]) -> Question | None:
        """Accept a POST with these headers (lower-case names); None if it must go through the ASGI
        application.
        """
        answer = self._answers.get(path)
        if answer is None:
            return None
        length = dict(headers).get(b"content-length", b"")
        if not length.isdigit() or len(length) > len(str(LARGEST)):
            return None
        size = int(length)
        if size > LARGEST or self._held + size > _MOST_HELD:
            return None
        self._held += size
        return Question(answer, size)

    def end(self, question: Question) -> None:
        """Its body is there, or will never be."""
        self._held -= question.size


# Bytes, beyond one read, that are neither a whole header nor a part of a body: an endless header, trailer or
# chunk extension. The parser has no bound of its own and keeps what it has of a header.
_LARGEST_HEAD: Final = 64 << 10
# Requests that were sent before the answer to the one before; each becomes objects of some KiB at once.
_MOST_AHEAD: Final = 16
_CONTINUE: Final = b"HTTP/1.1 100 "
_WHOLE: Final = {WHOLE_BODY: dict[str, str]()}
_FAILED: Final = WholeAnswer(500, b"text/plain; charset=utf-8", b"Internal Server Error")


class _Peer(NamedTuple):
    names: frozenset[str]
    end: Callable[[], None]


class Peers:
    """Which certificates the clients of a listener have shown, by their address as ASGI has it."""

    def __init__(self) -> None:
        self._peers: dict[tuple[str, int], _Peer] = {}

    def names(self, client: tuple[str, int] | None) -> frozenset[str]:
        """The common names of the verified certificate behind that connection; empty if there is none."""
        peer = self._peers.get(client) if client else None
        return peer.names if peer else frozenset()

    def come(
        self, client: tuple[str, int], certificate: Mapping[str, Any], end: Callable[[], None] = lambda: None
    ) -> None:
        """A connection was made with this certificate (as :meth:`ssl.SSLSocket.getpeercert` has it).

        ``end`` closes it once the request that is under way is answered.
        """
        parts = (part for group in certificate.get("subject", ()) for part in group)
        self._peers[client] = _Peer(frozenset(value for key, value in parts if key == "commonName"), end)

    def go(self, client: tuple[str, int]) -> None:
        """It has ended."""
        self._peers.pop(client, None)

    def end(self) -> None:
        """Close all of these connections, so that clients present their certificates anew. Thread-safe."""
        for peer in tuple(self._peers.values()):
            peer.end()


class _OneAnswer:
    """The transport of one answer: its head goes out with the first piece of its body, in one packet."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._head is None and not data.startswith(_CONTINUE):
            self._head = data
        else:
            self._transport.write(self._head + data if self._head else data)
            self._head = self._head and b""

    def flush(self) -> None:
        """Send the head of an answer without body."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        self.flush()
        self._transport.close()


class BoundedHttp(HttpToolsProtocol, ServerProtocol):
    """A connection that is closed if it begins no request, never ends its headers, sends too much of them or
    too many requests ahead, or does not take its answer.
    """

    def __init__(
        self,
        server: uvicorn.Server,
        connections: Connections,
        peers: Peers,
        questions: Questions,
        patience_seconds: float,
    ) -> None:
        super().__init__(server.config, server.server_state, {})
        self._open = connections
        self._peers = peers
        self._questions = questions
        self._question: Question | None = None  # of which the body is being read
        self._asked: Question | None = None  # that is to be answered now
        self._ends = False  # after the answer to the question that is being read
        self._refusal = ""  # of what came last; said once all that came before is answered
        self._patience_seconds = patience_seconds
        self._in_head = False
        self._progress = False  # in what was just received
        self._unframed = 0  # bytes since the last progress
        self._unasked: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """See :class:`ServerProtocol`. A request still being received does not count: its sender may stop."""
        if self.cycle is None or self.cycle.response_complete:
            return False
        return not self.cycle.more_body or bool(self.pipeline)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base
        super().connection_made(transport)
        self._wait()
        certificate = transport.get_extra_info("peercert")  # only of a handshake that verified it
        if certificate and self.client:
            self._peers.come(self.client, certificate, self._end)

    def data_received(self, data: bytes) -> None:
        if self._refusal:
            return
        self._progress = False
        super().data_received(data)
        self._unframed = 0 if self._progress else self._unframed + len(data)
        if self.transport.is_closing():
            return
        if self._unframed > _LARGEST_HEAD:
            self.send_400_response("Too large a header.")
        elif self._asked is not None:
            self._stop()
            self._answer(self._asked)
        elif self._in_head or self.cycle is None or self.cycle.response_complete:
            self._wait()  # headers have begun and not ended, or what comes belongs to no request
        else:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self._question is not None:
            self._questions.end(self._question)
            self._question = None
        if self.client:
            self._peers.go(self.client)
        self._open.ended(self)
        super().connection_lost(exc)

    # What the parser has found.

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else a trailer, which nobody reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._progress = False, True
        if self._is_free():
            self._question = self._questions.begin(self.url, self.headers)
            if self._question is not None:
                return
        if len(self.pipeline) >= _MOST_AHEAD:
            raise ValueError("too many requests ahead")  # the parser's callers answer 400 and close
        super().on_headers_complete()
        answer = _OneAnswer(self.transport)
        self.cycle.transport = answer  # type: ignore[assignment]  # it has all that is called
        self.cycle.on_response = partial(self._answered, answer)

    def on_body(self, body: bytes) -> None:
        self._progress = True
        if self._question is not None:
            self._question.body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._progress = True
        if self._question is not None:
            self._questions.end(self._question)
            self._asked, self._question = self._question, None
            return
        super().on_message_complete()
        self.scope["extensions"] = _WHOLE  # type: ignore[typeddict-item]  # of ours

    def on_response_complete(self) -> None:
        self._open.used(self)
        last = not self.pipeline
        super().on_response_complete()
        if self._refusal and last and not self.transport.is_closing():
            super().send_400_response(self._refusal)

    def send_400_response(self, msg: str) -> None:
        """Refuse what was received last and close; complete earlier requests are answered first."""
        if len(self.pipeline) >= _MOST_AHEAD:  # then nobody waits for the answers
            self._asked = None
        if self._asked is not None:
            self._answer(self._asked)
        if self.transport.is_closing():
            return
        if len(self.pipeline) < _MOST_AHEAD and self._owes_answers():
            self._stop()
            self._refusal = msg
        else:
            super().send_400_response(msg)

    def _owes_answers(self) -> bool:
        """True if requests have come whole and are not answered; one that came in part is dropped."""
        if self.cycle is None or self.cycle.response_complete:
            return False
        if self.cycle.more_body and self.pipeline:
            self.pipeline.popleft()
            self.cycle.more_body = False  # it counts as the one before it, which is under way
        return not self.cycle.more_body

    def _answered(self, answer: _OneAnswer) -> None:
        answer.flush()
        self.on_response_complete()

    # What is answered at once.

    def _is_free(self) -> bool:
        """True if the request whose headers have ended may be answered as soon as it is read."""
        return (
            (self.cycle is None or self.cycle.response_complete)
            and self._asked is None
            and not (self.expect_100_continue or self.flow.write_paused)
            and self.parser.get_method() == b"POST"
            and self.parser.should_keep_alive()
            and not self.parser.should_upgrade()
        )

    def _answer(self, question: Question) -> None:
        self._asked = None
        try:
            answer = question.answer(bytes(question.body), self.client)
        except BaseException:
            self._say(_FAILED, last=True)
            raise
        self._say(answer, last=self._ends or self._questions.ending())

    def _say(self, answer: WholeAnswer, *, last: bool) -> None:
        self.transport.write(answer.written(self.server_state.default_headers, last=last))
        if last:
            self.transport.close()
        if self.cycle is None or self.cycle.response_complete:  # else one that was sent ahead goes on
            self.on_response_complete()
        if answer.after is not None:
            self.loop.call_soon(answer.after)

    def shutdown(self) -> None:
        """Close the connection; a question that is being read is answered before."""
        if self._question is not None:
            self._ends = True
        else:
            super().shutdown()

    # Who takes none of its answer.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self._patience_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _end(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and this connection with it
            self.loop.call_soon_threadsafe(self.shutdown)

    def _wait(self) -> None:
        if self._unasked is None:
            self._unasked = self.loop.call_later(self._patience_seconds, self._expire)

    def _stop(self) -> None:
        if self._unasked is not None:
            self._unasked.cancel()
            self._unasked = None

    def _expire(self) -> None:
        self._unasked = None
        if self.flow.read_paused:
            self._wait()  # what is missing may have been sent: it is not read while answers are due
        elif not self.transport.is_closing():
            self.transport.close()
