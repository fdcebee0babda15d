"""One watch: the changes of a resource, filtered and rendered as the lines of a watch stream."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from sandbox.api.faults import ApiFaults
from sandbox.api.kinds import Target
from sandbox.api.selectors import Predicate
from sandbox.api.status import ApiError
from sandbox.api.storage import Change, Storage, Stored
from sandbox.api.verbatim import written

LAST_BOOKMARK_SECONDS: Final = 2.0  # before the end of a watch


class ApiWatch:
    """An iterator of batches of lines; an empty batch asks the caller whether anyone still listens.

    ``since`` is the last version the watcher has seen, None for "begin with everything there is".
    """

    def __init__(
        self,
        storage: Storage,
        faults: ApiFaults,
        target: Target,
        matches: Predicate,
        since: int | None,
        *,
        seconds: float,
        bookmark_seconds: float | None,
    ) -> None:
        self._storage = storage
        self._faults = faults
        self._target = target
        self._matches = matches
        self._since = since
        self._ends = time.monotonic() + seconds
        self._bookmark_seconds = bookmark_seconds
        self._stopped = threading.Event()
        self.cut_next = False  # the next line is to be broken in the middle

    def stop(self) -> None:
        """End the stream."""
        self._stopped.set()
        self._storage.wake()

    def cut_in_line(self) -> None:
        """Break the stream in the middle of its next line."""
        self.cut_next = True

    def __iter__(self) -> Iterator[list[bytes]]:
        if self._since is None:
            stored, self._since = self._storage.all(self._target.resource)
            first = [_line("ADDED", s.text) for s in stored if self._wants(s)]
            if first:
                yield first
        next_bookmark = self._next_bookmark(time.monotonic())
        news = self._storage.news(self._target.resource)
        while not self._stopped.is_set():
            with news:
                try:
                    lines, waits = self._ready()
                except ApiError as error:
                    yield [_line("ERROR", error.body())]
                    return
                now = time.monotonic()
                if not lines and now >= next_bookmark:
                    lines = [self._bookmark(pending=waits > 0)]
                    next_bookmark = self._next_bookmark(now)
                if not lines and now < self._ends:
                    until = min(self._ends, next_bookmark)
                    news.wait(max(0.0, min(1.0, until - now, waits or 1.0)))
                    if self._stopped.is_set():
                        return
                    lines, _ = self._ready_or_nothing()
            yield lines
            if time.monotonic() >= self._ends:
                return

    def _next_bookmark(self, now: float) -> float:
        """As the API server's: every so often, and a little before the watch ends."""
        if self._bookmark_seconds is None:
            return math.inf
        last = self._ends - LAST_BOOKMARK_SECONDS
        regular = now + self._bookmark_seconds
        return min(regular, last) if now < last else regular

    def _ready_or_nothing(self) -> tuple[list[bytes], float]:
        try:
            return self._ready()
        except ApiError:
            return [], 0.0  # the next round reports it

    def _ready(self) -> tuple[list[bytes], float]:
        """Lines that are due, and after how many seconds the next held-back change will be (0: none is)."""
        assert self._since is not None  # noqa: S101 - set before the loop
        lag, now = self._faults.watch_lag, time.monotonic()
        lines: list[bytes] = []
        for change in self._storage.since(self._target.resource, self._since):
            if change.at + lag > now:
                return lines, min(change.at + lag - now, 1.0)
            self._since = change.version
            line = self._render(change)
            if line:
                lines.append(line)
        return lines, 0.0

    def _bookmark(self, *, pending: bool) -> bytes:
        resource = self._target.resource
        if not pending:
            self._since = self._storage.version
        obj: dict[str, Any] = {"kind": resource.kind, "apiVersion": resource.api_version}
        obj["metadata"] = {"resourceVersion": str(self._since), "creationTimestamp": None}
        return _line("BOOKMARK", json.dumps(obj, separators=(",", ":")).encode())

    def _wants(self, stored: Stored | None) -> bool:
        if stored is None:
            return False
        namespace = stored.obj["metadata"].get("namespace", "")
        return self._target.namespace in ("", namespace) and self._matches(stored.obj)

    def _render(self, change: Change) -> bytes | None:
        """As the watcher sees it: entering its selection is ADDED, leaving it DELETED."""
        before, after = self._wants(change.old), not change.gone and self._wants(change.new)
        if after:
            return _line("MODIFIED" if before else "ADDED", change.new.text)
        if not before:
            return None
        if change.gone or change.old is None:
            return _line("DELETED", change.new.text)
        metadata = {**change.old.obj["metadata"], "resourceVersion": str(change.version)}
        return _line("DELETED", written({**change.old.obj, "metadata": metadata}))


def _line(kind: str, text: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + text + b"}\n"
