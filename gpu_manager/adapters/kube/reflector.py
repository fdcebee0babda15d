"""A reflector: lists a resource, then watches it, and recovers from every failure of the API server.

:class:`WatchedObjects` is the common part of adapters that mirror a resource by one watch.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import structlog

from gpu_manager.adapters.kube.connection import Connection, Refused, Unreachable
from gpu_manager.adapters.kube.objects import Obj, Told, Unreadable, named, unheard
from gpu_manager.adapters.kube.streams import Meanwhile, Pages, WatchStream
from gpu_manager.adapters.kube.streams import watch as open_watch
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.untrusted import mapping
from gpu_manager.runtime import threads

Replaced = Callable[[Iterator[Obj], Callable[[Obj], None]], None]
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pause:
    """Exponential backoff in seconds; up to a half is random, so that nodes do not retry in step."""

    first: float = 0.2
    most: float = 10.0

    def seconds(self, failures: int) -> float:
        """The pause after this many failures in a row (1 or more)."""
        whole = min(self.most, self.first * float(2 ** min(failures - 1, 20)))
        return whole * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing


SLICE_SECONDS = 0.003  # of work on a list, after which other threads have their turn
_REST_SECONDS = 0.001
_REFUSALS = 5  # of a watch, after which a list is tried instead
_NOT_FOR_THE_VERSION = (401, 403, 429, 503, 504)  # refusals that a list would meet, too
_CHANGES = ("ADDED", "MODIFIED", "DELETED")
_MOST_SPOILED = 100  # names of objects that could not be read


class Reflector:
    """One thread. ``replaced`` gets every full list, ``changed`` each (object, gone) after it.

    Both are called from that thread. A list is given as an iterator that reads it from the API server, in
    slices between which other threads have their turn, together with what takes in one of its objects by
    ``changed``. If the list breaks, the iterator raises and a new list is read.

    An object that cannot be read, or at which ``changed`` fails, costs itself: it is counted, and
    ``unreadable`` is told once of each version. Of one whose end cannot be read, ``changed`` gets the name.

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
        replaced: Replaced,
        changed: Callable[[Obj, bool], None],
        unreadable: Told = unheard,
        pause: Pause | None = None,
        watch_selector: str | None = None,
    ) -> None:
        self._connection = connection
        self._name = name
        self._path = path
        self._pages = Pages(connection, f"list {name}", path, _selected_by(selector), self.spoil)
        self._watched = _selected_by(selector if watch_selector is None else watch_selector)
        self._replaced = replaced
        self._changed = changed
        self._unreadable = unreadable
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
        self._awaited: tuple[int, float] | None = None  # a version, and as of when all is known once it came
        self.listed: float | None = None  # monotonic: as of when all is known, by a list or :meth:`catch_up`
        self.heard: float | None = None  # monotonic: when the API server last sent anything
        self.spoiled_now: dict[str, Unreadable] = {}  # since the last list began, for this thread
        self.unreadable = 0  # how often an object could not be read
        self.spoiled: Mapping[str, Unreadable] = {}  # the last of them by name; replaced, never changed

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

    def catch_up(self, version: str, since: float) -> None:
        """Set ``listed`` to ``since`` once the watch has shown this version, or a later one.

        A change made after ``since`` has the version: a watch shows the changes of its resource in order.
        Kubernetes promises that versions are numbers. Raises NodeUnready: this one is not.
        """
        if not version.isdecimal():
            raise NodeUnready(f"the resourceVersion {version!r} of {self._name} is no number")
        with self._lock:
            self._awaited = int(version), since
        self._note_caught_up()

    def _note_caught_up(self) -> None:
        with self._lock:
            shown, awaited = self._version or "", self._awaited
            if awaited and shown.isdecimal() and int(shown) >= awaited[0]:
                self._awaited = None
                self.listed = max(self.listed or awaited[1], awaited[1])

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
                    if self._failures % _REFUSALS == 0 and error.code not in _NOT_FOR_THE_VERSION:
                        self._version = None
            except NodeUnready as error:
                if not self._again.is_set():  # otherwise relist or close ended the watch
                    self._wait(str(error))
            except Exception as error:  # noqa: BLE001 - a run loop: a fresh list is the cure
                threads.failed("watch_failed", resource=self._name)
                self._version = None
                self._wait(str(error))

    def _round(self) -> None:
        if self._again.is_set():
            self._again.clear()
            self._version = None
        if self._version is None:
            self._version = self._list()
            self._note_caught_up()
            self._synced.set()
        with self._lock:
            if self._stopped.is_set() or self._again.is_set():
                return
        watch = self._open(self._version, self.spoil)
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

    def _open(self, version: str, told: Told) -> WatchStream:
        query = {**self._watched, "resourceVersion": version}
        return open_watch(self._connection, f"watch {self._name}", self._path, query, told)

    def _list(self) -> str:
        """Read a full list, and what changes meanwhile; returns the version up to which all is known."""
        began = time.monotonic()
        self.spoiled_now.clear()
        news = Meanwhile(self._name, self._open, self.spoil)
        objects = self._in_slices(news)
        try:
            self._replaced(objects, lambda obj: self._tell(obj, gone=False))
            for _ in objects:  # whoever takes less of it wants no more
                pass
        finally:
            news.close()
        self.spoiled = {key: one for key, one in self.spoiled.items() if key in self.spoiled_now}
        self.listed, self.heard = began, time.monotonic()
        return news.version or self._pages.version

    def _in_slices(self, news: Meanwhile) -> Iterator[Obj]:
        """Each object of a list, and in between those that have changed since it began, which the list has as
        they were then.
        """
        began, changed = time.monotonic(), set[str]()
        for obj in self._pages.read(news.begin):
            if not changed or _key(obj) not in changed:
                yield obj
            now = time.monotonic()
            if now - began >= SLICE_SECONDS:
                if self._stopped.wait(_REST_SECONDS):
                    raise Unreachable(f"stopped to list {self._name}")
                began = self.heard = now
                yield from self._changed_since(news, changed)
        yield from self._changed_since(news, changed)

    def _changed_since(self, news: Meanwhile, changed: set[str]) -> Iterator[Obj]:
        for kind, obj in news.events():
            news.version = str(_metadata(obj).get("resourceVersion") or news.version)
            if kind in _CHANGES:
                changed.add(_key(obj))
                if kind == "DELETED":
                    self._tell(obj, gone=True)
                else:
                    yield obj

    def _take(self, kind: str, obj: Obj) -> None:
        self.heard = time.monotonic()
        if kind in _CHANGES:
            self._tell(obj, gone=kind == "DELETED")
        version = _metadata(obj).get("resourceVersion")
        if version:
            self._version = str(version)
            if self._awaited is not None:
                self._note_caught_up()
        self._failures = 0

    def _tell(self, obj: Obj, *, gone: bool) -> None:
        try:
            self._changed(obj, gone)
        except Exception as error:  # noqa: BLE001 - a run loop: one object's fault is not the others'
            threads.failed("object_failed", resource=self._name)
            more = gone and len(obj) > 1  # than a name
            self.spoil(named(_metadata(obj), f"{type(error).__name__}: {error}", deleted=more))
        else:
            if self.spoiled:
                self._mend(_key(obj))

    def spoil(self, found: Unreadable) -> None:
        """Count and name an object that could not be read; for this thread and threads that read for it."""
        self.unreadable += 1
        known = self.spoiled.get(found.key)
        if found.deleted and found.name:
            log.warning("object_unreadable", resource=self._name, object=found.key, reason=found.reason)
            self.spoiled_now.pop(found.key, None)
            self._tell(found.left, gone=True)
            return
        self.spoiled_now[found.key] = found
        self.spoiled = {**dict(list(self.spoiled.items())[1 - _MOST_SPOILED :]), found.key: found}
        if known is None or known.version != found.version:
            log.warning("object_unreadable", resource=self._name, object=found.key, reason=found.reason)
            self._unreadable(found)

    def _mend(self, key: str) -> None:
        if key in self.spoiled:
            self.spoiled = {name: one for name, one in self.spoiled.items() if name != key}

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


def _metadata(obj: Obj) -> Obj:
    return mapping(obj.get("metadata"))


def _key(obj: Obj) -> str:
    return named(_metadata(obj), "").key


class WatchedObjects:
    """Starts, awaits and stops the reflector that the adapter provides."""

    def __init__(self, reflector: Reflector) -> None:
        self._reflector = reflector

    def start(self) -> None:
        """Start the watch."""
        self._reflector.start()

    def wait(self, seconds: float) -> bool:
        """Wait for the first complete list, which may be empty; False if it takes longer."""
        return self._reflector.wait(seconds)

    @property
    def error(self) -> str | None:
        """Why the contents may be stale; None while the watch is up."""
        return self._reflector.error

    @property
    def unreadable(self) -> int:
        """How often an object could not be read."""
        return self._reflector.unreadable

    @property
    def spoiled(self) -> int:
        """Number of objects that cannot be read at present."""
        return len(self._reflector.spoiled)

    def close(self) -> None:
        """Stop watching (within about a second)."""
        self._reflector.close()
