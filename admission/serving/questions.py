"""Requests answered as soon as their last byte is read: without task, thread or ASGI.

A scheduler filters one pod after the other and waits for each answer, so the overhead of HTTP delays every
pod. :class:`~admission.serving.http_protocol.BoundedHttp` reads and answers the requests accepted by
:meth:`Questions.begin`; all others go through the ASGI application.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, NamedTuple

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
