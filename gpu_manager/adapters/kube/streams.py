"""Lists and watches of the API server, object by object as they arrive.

A list is read in pages of about :data:`PAGE_BYTES`, and of none more than one object is held at a time.
Objects are watched in a thread while a list of them is read, so that changes do not wait for its end.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass
from typing import Any, Final

from gpu_manager.adapters.http import FOREIGN, HttpStream
from gpu_manager.adapters.kube.connection import Connection, Refused, Unreachable
from gpu_manager.adapters.kube.objects import (
    ListReader,
    Obj,
    Told,
    Unreadable,
    decode,
    lines,
    trimmed,
    unheard,
    unreadable,
)
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.untrusted import mapping

PAGE_BYTES: Final = 8 << 20  # what a page should have: the API server holds it whole
_FIRST: Final = 20  # objects of the first page, whose size nobody knows
_MOST: Final = 500
_GROWTH: Final = 4.0  # from page to page
_CAREFUL: Final = 1.25  # the same, once a page has failed
_TRIES: Final = 3  # of a page
_EXPIRED: Final = ("Expired", "Gone")  # reasons of what is 410


@dataclass(eq=False, repr=False)
class Pages:
    """Lists one resource; :meth:`read` as often as wanted, one at a time.

    A page is asked for by the number of its objects. That follows from the bytes of those before it, and is
    halved where a page does not arrive in time. ``told`` hears of each object that cannot be read.
    ``version`` is the resourceVersion of the last list that was read to its end: of the first page that was
    begun. A page that is begun anew is newer, and so is the rest of a list that has expired.

    ``what`` completes "refused to …" in the text of an error.
    """

    connection: Connection
    what: str
    path: str
    query: InitVar[Mapping[str, str] | None] = None
    told: Told = unheard

    def __post_init__(self, query: Mapping[str, str] | None) -> None:
        self._query = query or {}
        self._limit = _FIRST
        self.version = ""

    def read(self, begun: Callable[[str], None] = lambda _: None) -> Iterator[Obj]:
        """Yield every object; one of a page that was begun anew comes twice.

        ``begun`` is told the list's version with its first page, if more come.

        Raises:
            Refused: the server refuses. Unreachable: no usable answer, nor with smaller pages.
        """
        more, first, told, failures, growth = "", "", False, 0, _GROWTH
        while True:
            page = _Page(self.connection, self.what, self.path, self._asked(more))
            reader = ListReader(page.pieces(), self.told)
            try:
                yield from reader
                following = _read_to(reader.head)
            except (Unreachable, Refused, ValueError) as error:
                if isinstance(error, Refused) and error.code == 410 and more and error.more:
                    more = error.more
                    continue
                first = first or _version(reader.head)
                small, self._limit = self._limit == 1, max(1, self._limit // 2)
                failures, growth = failures + 1, _CAREFUL
                started = bool(more or reader.count)
                if isinstance(error, Refused) or small or not started or failures == _TRIES:
                    if isinstance(error, ValueError):
                        raise self.connection.unreachable(self.what, error) from error
                    raise
                continue
            failures, first, more = 0, first or _version(reader.head), following
            if more and first and not told:
                told = True
                begun(first)
            if reader.count:
                fitting = PAGE_BYTES * reader.count // page.size
                self._limit = max(1, min(fitting, int(growth * self._limit) + 1, _MOST))
            if not more:
                self.version = first
                return

    def _asked(self, more: str) -> Mapping[str, str]:
        return {**self._query, "limit": str(self._limit), **({"continue": more} if more else {})}


def _read_to(head: Mapping[str, Any]) -> str:
    """A page's continue token. Raises ValueError: something else must not count as an empty list."""
    meta = head.get("metadata")
    if not str(head.get("kind")).endswith("List") or not isinstance(meta, dict):
        raise ValueError("the answer is no list")
    return str(meta.get("continue") or "")


def _version(head: Mapping[str, Any]) -> str:
    """A page's resourceVersion, which comes before its items; empty if none has been read."""
    return str(mapping(head.get("metadata")).get("resourceVersion") or "")


class _Page:
    """The bytes of a page, counted."""

    def __init__(self, connection: Connection, what: str, path: str, query: Mapping[str, str]) -> None:
        self._asked = connection, what, path, query
        self.size = 0

    def pieces(self) -> Iterator[bytes]:
        connection, what, path, query = self._asked
        for piece in connection.pieces(what, path, query):
            self.size += len(piece)
            yield piece


def watch(connection: Connection, what: str, path: str, query: Mapping[str, str], told: Told) -> WatchStream:
    """Open a watch, which ends by itself after the connection's time for it.

    Raises:
        Refused, Unreachable: as :meth:`Connection.request`.
    """
    seconds = connection.timeouts.watch
    asked = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
    response = connection.open(what, path, asked)
    # The answer has begun in time; from here on silence is normal until the watch ends.
    response.settimeout(seconds + 15)
    return WatchStream(connection, what, response, told)


class WatchStream:
    """The events of one watch as (type, object) pairs; iterate once, :meth:`close` from any thread.

    ``told`` is called for each event that cannot be read; the stream continues after it.
    """

    def __init__(self, connection: Connection, what: str, response: HttpStream, told: Told) -> None:
        self._connection = connection
        self._what = what
        self._response = response
        self._told = told

    def close(self) -> None:
        """End the stream: a thread that waits for its next event returns at once."""
        with contextlib.suppress(OSError):
            self._response.shutdown()

    def __iter__(self) -> Iterator[tuple[str, Obj]]:
        """Yield events to the end of the stream. A broken last line was no event.

        Raises:
            Unreachable: the stream broke. Refused: the server ended it (410: begin anew with a list).
        """
        for line in self.lines():
            event = self.event(line)
            if event is not None:
                yield event

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the stream, for :meth:`event`. Raises Unreachable: it broke."""
        try:
            yield from lines(iter(self._response.read1, b""), self._told)
        except FOREIGN as error:
            raise self._connection.unreachable(self._what, error) from error
        finally:
            self._response.close()

    def event(self, line: bytes) -> tuple[str, Obj] | None:
        """A line's event; None if it cannot be read. Raises Refused: the server ends the watch."""
        try:
            event = decode(line)
        except ValueError as error:
            self._told(unreadable(line, str(error)))
            return None
        kind, obj = (event.get("type"), event.get("object")) if isinstance(event, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(obj, dict):
            self._told(unreadable(line, "an event without type or object"))
            return None
        if kind == "ERROR":
            code, reason = obj.get("code"), obj.get("reason")
            known = 410 if reason in _EXPIRED else code if type(code) is int else 500
            raise Refused(self._what, known, str(obj.get("message") or reason))
        return kind, trimmed(obj)


_WAITING: Final = 4  # events not taken yet; those after them wait at the API server
_LOOK_SECONDS: Final = 0.2  # between two looks for the end of a list that takes no events


class Meanwhile:
    """One list's: :meth:`begin` from the list's version, :meth:`events` as often as wanted, :meth:`close`.

    ``open`` opens the watch from a version, and says who hears of what it cannot read. A watch that breaks
    shows no more. ``version`` is that of the last event taken, empty before the first.
    """

    def __init__(self, name: str, open_: Callable[[str, Told], WatchStream], told: Told) -> None:
        self._name = name
        self._open = open_
        self._told = told
        self._came: queue.Queue[bytes | Unreadable] = queue.Queue(_WAITING)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._watch: WatchStream | None = None
        self.version = ""

    def begin(self, version: str) -> None:
        """Begin to receive changes since the list's version, in a thread."""
        from gpu_manager.runtime import threads  # noqa: PLC0415  # brings the log, which no command needs

        threads.once(f"meanwhile-{self._name}", lambda: self._hear(version)).start()

    def events(self) -> Iterator[tuple[str, Obj]]:
        """Yield the events received so far, decoded in the caller's thread; does not wait for more."""
        while not self._came.empty():
            came = self._came.get()
            if isinstance(came, Unreadable):
                self._told(came)
                continue
            try:
                event = self._watch.event(came) if self._watch else None
            except Refused:
                self.close()
                return
            if event is not None:
                yield event

    def close(self) -> None:
        """Hear no more."""
        self._ended.set()
        with self._lock:
            if self._watch is not None:
                self._watch.close()

    def _hear(self, version: str) -> None:
        try:
            watch = self._open(version, self._put)
            with self._lock:
                self._watch = watch
                if self._ended.is_set():
                    watch.close()
            for line in watch.lines():
                self._put(line)
        except NodeUnready:
            return  # the watch after the list says why

    def _put(self, came: bytes | Unreadable) -> None:
        while not self._ended.is_set():
            try:
                self._came.put(came, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
            return
