"""A reflector: lists a resource, then watches it, and recovers from every failure of the API server."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from gpu_manager import threads
from gpu_manager.adapters.kube.connection import Connection, Refused, Unreachable, WatchStream
from gpu_manager.domain.errors import NodeUnready

Obj = Mapping[str, Any]
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pause:
    """Exponential backoff in seconds; up to a half is random, so that nodes do not retry in step."""

    first: float = 0.2
    most: float = 10.0

    def seconds(self, failures: int) -> float:
        """The pause after so many failures in a row (1 or more)."""
        whole = min(self.most, self.first * float(2 ** min(failures - 1, 20)))
        return whole * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing


PAGE = 500  # objects of one page: bounds the memory of a list


def _whole(obj: Obj) -> Obj | None:
    return obj


class Reflector:
    """One thread. ``replaced`` gets every full list, ``changed`` each (object, gone) after it.

    Both are called from that thread; an error of theirs is logged and causes a new list. A list is read in
    pages, and ``keep`` reduces each object before the list is complete (None drops it), so that a large
    cluster costs no more memory than is needed of it.

    ``watch_selector`` is the field selector of the watch where it differs from the list's. A watch shows an
    object that leaves its selection as deleted, in the state before: only a wider one tells that from a
    deletion.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        path: str,
        selector: str,
        *,
        replaced: Callable[[Sequence[Obj]], None],
        changed: Callable[[Obj, bool], None],
        pause: Pause | None = None,
        keep: Callable[[Obj], Obj | None] = _whole,
        watch_selector: str | None = None,
    ) -> None:
        self._keep = keep
        self._connection = connection
        self._name = name
        self._path = path
        self._listed = _selected_by(selector)
        self._watched = _selected_by(selector if watch_selector is None else watch_selector)
        self._replaced = replaced
        self._changed = changed
        self._pause = pause or Pause()
        self._stopped = threading.Event()
        self._synced = threading.Event()
        self._lock = threading.Lock()
        self._watch: WatchStream | None = None
        self._thread = threads.forever(f"watch-{name}", self._run)
        self._version: str | None = None
        self._failures = 0
        self._again = threading.Event()
        self.error: str | None = None  # why the contents may be stale, None while the watch is up
        self.listed: float | None = None  # monotonic: when the last complete list was requested
        self.heard: float | None = None  # monotonic: when the API server last sent anything

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for the first complete list; False if it takes longer."""
        return self._synced.wait(seconds)

    def relist(self) -> None:
        """List anew soon; ``listed`` is the time of the request."""
        self._again.set()
        with self._lock:
            if self._watch is not None:
                self._watch.close()

    def close(self, seconds: float = 1.0) -> None:
        """Stop; waits at most ``seconds`` (a request without an answer ends by its own time-out)."""
        self._stopped.set()
        with self._lock:
            if self._watch is not None:
                self._watch.close()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._round()
            except Refused as error:
                if error.code == 410:
                    log.info("watch_expired", resource=self._name)
                    self._version = None
                    self._failures += 1
                    if self._failures > 1:
                        self._wait(str(error))
                else:
                    self._wait(str(error))
            except NodeUnready as error:
                if not self._again.is_set():  # otherwise relist or close ended the watch
                    self._wait(str(error))
            except Exception as error:  # noqa: BLE001 - a run loop: a fresh list is the cure
                threads.failed("watch_failed", resource=self._name)
                self._version = None
                self._wait(str(error))

    def _round(self) -> None:
        what = f"watch {self._name}"
        if self._again.is_set():
            self._again.clear()
            self._version = None
        if self._version is None:
            self._version = self._list()
            self._synced.set()
        with self._lock:
            if self._stopped.is_set() or self._again.is_set():
                return
        watch = self._connection.watch(what, self._path, {**self._watched, "resourceVersion": self._version})
        with self._lock:
            self._watch = watch
            if self._stopped.is_set() or self._again.is_set():
                watch.close()
        self._fresh()
        self.heard = began = time.monotonic()
        seen = False
        try:
            for kind, obj in watch:
                if self._stopped.is_set() or self._again.is_set():
                    return
                self._take(kind, obj)
                seen = True
        finally:
            with self._lock:
                self._watch = None
        if seen or self._again.is_set() or time.monotonic() - began >= 1.0:
            return
        self._failures += 1
        if self._failures == 1:
            log.info("watch_ended_at_once", resource=self._name)
        self._stopped.wait(self._pause.seconds(self._failures))

    def _list(self) -> str:
        """Read a full list; returns its resourceVersion."""
        began = time.monotonic()
        kept: list[Obj] = []
        query = {**self._listed, "limit": str(PAGE)}
        while True:
            page = self._connection.request(f"list {self._name}", "GET", self._path, query=query)
            items, meta = _contents(page)
            kept += filter(None, map(self._keep, items))
            more = str(meta.get("continue") or "")
            if not more:
                break
            query["continue"] = more
        self._replaced(kept)
        self.listed, self.heard = began, time.monotonic()
        return str(meta.get("resourceVersion") or "")

    def _take(self, kind: str, obj: Obj) -> None:
        self.heard = time.monotonic()
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            self._changed(obj, kind == "DELETED")
        version = (obj.get("metadata") or {}).get("resourceVersion")
        if version:
            self._version = str(version)
        self._failures = 0

    def _fresh(self) -> None:
        if self.error is not None:
            log.info("watch_restored", resource=self._name)
        self.error = None

    def _wait(self, error: str) -> None:
        if self._stopped.is_set():
            return
        self._failures += 1
        if self.error is None:
            log.warning("watch_broken", resource=self._name, reason=error)
        self.error = error
        self._stopped.wait(self._pause.seconds(self._failures))


def _selected_by(selector: str) -> Mapping[str, str]:
    return {"fieldSelector": selector} if selector else {}


def _contents(listing: Obj) -> tuple[list[Obj], Obj]:
    """Items and metadata; an answer without items must not count as an empty list."""
    items, meta = listing.get("items"), listing.get("metadata")
    if (
        not str(listing.get("kind")).endswith("List")
        or not isinstance(items or [], list)
        or not isinstance(meta, dict)
    ):
        raise Unreachable("the API server answered a list request with something else")
    return [item for item in items or () if isinstance(item, dict)], meta
