"""Bounds for one caller: body size, time to send it, and requests in progress and waiting.

An ASGI wrapper around the whole service. It reads a body before the service is called, so that no slow sender
holds one of its threads; answers to GET (health, metrics) never queue behind reviews.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from admission.config import InflightBounds

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_MOST_BUFFERED: Final = 64 << 20  # bytes of all bodies in memory at one time
_MOST_SWALLOWED: Final = 8  # times the bound: read and dropped, so that the sender gets to hear why
_GONE: Final = "http.disconnect"
WHOLE_BODY: Final = "vcuda.whole-body"
"""The ASGI extension of a request whose body is there: reading it needs no time limit."""


class _Refused(Exception):  # noqa: N818  # it is an answer, not a fault
    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(eq=False, repr=False)
class InflightLimit:
    """Forwards requests to ``app`` within ``bounds``.

    ``answered`` is called with path and code of every answer; while ``draining`` returns True, connections
    are closed after their answer, so that callers go to another replica.
    """

    app: App
    bounds: InflightBounds
    answered: Callable[[str, int], None]
    draining: Callable[[], bool]

    def __post_init__(self) -> None:
        self._buffered = 0
        self._inside = 0
        self._at_work: asyncio.Semaphore | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        send = self._noted(scope, send)
        if scope["method"] in ("GET", "HEAD"):
            await self.app(scope, receive, send)
            return
        held = [0]
        try:
            with self._a_place():
                body = await self._body(scope, receive, held)
                at_work = await self._enter()
                try:
                    await self.app(scope, _replay(body, receive), send)
                finally:
                    at_work.release()
        except _Refused as refused:
            await _answer(send, refused.status, str(refused))
        except ConnectionError:
            pass  # whoever asked has left in the middle of the question
        finally:
            self._buffered -= held[0]

    def _noted(self, scope: MutableMapping[str, Any], send: Send) -> Send:
        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.answered(str(scope["path"]), int(message["status"]))
                if self.draining():
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        return noted

    @contextlib.contextmanager
    def _a_place(self) -> Any:
        if self._inside >= self.bounds.at_work + self.bounds.waiting:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once: try again")
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    async def _enter(self) -> asyncio.Semaphore:
        """A place at work, to be released."""
        if self._at_work is None:  # made here, in the loop that uses it
            self._at_work = asyncio.Semaphore(self.bounds.at_work)
        if not self._at_work.locked():
            await self._at_work.acquire()  # does not wait
            return self._at_work
        try:
            async with asyncio.timeout(self.bounds.seconds):
                await self._at_work.acquire()
        except TimeoutError:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too much work waits: try again") from None
        return self._at_work

    async def _body(self, scope: MutableMapping[str, Any], receive: Receive, held: list[int]) -> bytes:
        if WHOLE_BODY in scope.get("extensions", ()):
            return await self._read(scope, receive, held)
        try:
            async with asyncio.timeout(self.bounds.seconds):
                return await self._read(scope, receive, held)
        except TimeoutError:
            seconds = self.bounds.seconds
            raise _Refused(
                HTTPStatus.REQUEST_TIMEOUT, f"the body was not sent within {seconds:g} seconds"
            ) from None

    async def _read(self, scope: MutableMapping[str, Any], receive: Receive, held: list[int]) -> bytes:
        pieces: list[bytes] = []
        too_large, total = self._is_announced_too_large(scope), 0
        while True:
            message = await receive()
            if message["type"] == _GONE:
                raise ConnectionError
            piece = message.get("body", b"")
            total += len(piece)
            too_large = too_large or total > self.bounds.body
            if not too_large:
                self._hold(piece, pieces, held)
            if total > _MOST_SWALLOWED * self.bounds.body or not message.get("more_body"):
                break
        if too_large:
            # Only now: whoever is still sending would see a broken connection and not the reason.
            raise self._too_large()
        return b"".join(pieces)

    def _is_announced_too_large(self, scope: MutableMapping[str, Any]) -> bool:
        said = dict(scope["headers"]).get(b"content-length", b"0")
        return bool(said.isdigit()) and int(said[:20]) > self.bounds.body

    def _hold(self, piece: bytes, pieces: list[bytes], held: list[int]) -> None:
        pieces.append(piece)
        held[0] += len(piece)
        self._buffered += len(piece)
        if self._buffered > _MOST_BUFFERED:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too much is being sent: try again")

    def _too_large(self) -> _Refused:
        return _Refused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {self.bounds.body} bytes"
        )


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


async def _answer(send: Send, status: HTTPStatus, text: str) -> None:
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers.append((b"connection", b"close"))
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})
