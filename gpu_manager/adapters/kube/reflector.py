"""List, then watch, for ever: keeps a picture of a resource true while the API server comes and goes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from gpu_manager.adapters.kube.connection import Connection, Refused, Unreachable, Watch
from gpu_manager.domain.errors import NodeUnready

Obj = Mapping[str, Any]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pause:
    """Growing pauses in seconds, with up to a half taken off at random so that nodes do not march in step."""

    first: float = 0.2
    most: float = 10.0

    def seconds(self, failures: int) -> float:
        """The pause after so many failures in a row (1 or more)."""
        whole = min(self.most, self.first * float(2 ** min(failures - 1, 20)))
        return whole * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing


class Reflector:
    """One thread. ``replaced`` gets every full list, ``changed`` each (object, gone) after it.

    Both are called from that thread; an error of theirs is logged and answered with a new list.
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
    ) -> None:
        self._connection = connection
        self._name = name
        self._path = path
        self._query = {"fieldSelector": selector} if selector else {}
        self._replaced = replaced
        self._changed = changed
        self._pause = pause or Pause()
        self._stopped = threading.Event()
        self._synced = threading.Event()
        self._lock = threading.Lock()
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{name}", daemon=True)
        self._version: str | None = None
        self._failures = 0
        self.error: str | None = None  # why the picture may be old, None while it is kept fresh

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """True once the first list has been taken in."""
        return self._synced.wait(seconds)

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
                    _log.info("watch_expired", resource=self._name)
                    self._version = None
                    self._failures += 1
                    if self._failures > 1:
                        self._wait(str(error))
                else:
                    self._wait(str(error))
            except NodeUnready as error:
                self._wait(str(error))
            except Exception as error:  # noqa: BLE001 - a run loop: a fresh list is the cure
                _log.exception("watch_failed", resource=self._name)
                self._version = None
                self._wait(str(error))

    def _round(self) -> None:
        what = f"watch {self._name}"
        if self._version is None:
            listing = self._connection.request(f"list {self._name}", "GET", self._path, query=self._query)
            items, version = _contents(listing)
            self._replaced(items)
            self._version = version
            self._synced.set()
        with self._lock:
            if self._stopped.is_set():
                return
        watch = self._connection.watch(what, self._path, {**self._query, "resourceVersion": self._version})
        with self._lock:
            self._watch = watch
            if self._stopped.is_set():
                watch.close()
        self._fresh()
        began, seen = time.monotonic(), False
        try:
            for kind, obj in watch:
                if self._stopped.is_set():
                    return
                self._take(kind, obj)
                seen = True
        finally:
            with self._lock:
                self._watch = None
        if seen or time.monotonic() - began >= 1.0:
            return
        self._failures += 1
        if self._failures == 1:
            _log.info("watch_ended_at_once", resource=self._name)
        self._stopped.wait(self._pause.seconds(self._failures))

    def _take(self, kind: str, obj: Obj) -> None:
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            self._changed(obj, kind == "DELETED")
        version = (obj.get("metadata") or {}).get("resourceVersion")
        if version:
            self._version = str(version)
        self._failures = 0

    def _fresh(self) -> None:
        if self.error is not None:
            _log.info("watch_restored", resource=self._name)
        self.error = None

    def _wait(self, error: str) -> None:
        if self._stopped.is_set():
            return
        self._failures += 1
        if self.error is None:
            _log.warning("watch_broken", resource=self._name, reason=error)
        self.error = error
        self._stopped.wait(self._pause.seconds(self._failures))


def _contents(listing: Obj) -> tuple[list[Obj], str]:
    """Items and version; whatever has no items must not pass for a node without pods."""
    items, meta = listing.get("items"), listing.get("metadata")
    if (
        not str(listing.get("kind")).endswith("List")
        or not isinstance(items or [], list)
        or not isinstance(meta, dict)
    ):
        raise Unreachable("the API server answered a list request with something else")
    return [item for item in items or () if isinstance(item, dict)], str(meta.get("resourceVersion") or "")
