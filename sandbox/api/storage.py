"""What the stand-in remembers: objects, one rising version, and the changes watchers have yet to see.

A stored object is never changed in place, so whoever holds one may read it without a lock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sandbox.api.kinds import Resource
from sandbox.api.status import ApiError
from sandbox.api.verbatim import written

Key = tuple[str, str]  # namespace ("" for cluster-wide objects), name


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of one object. ``write`` makes its JSON text; what it makes is not kept."""

    obj: Mapping[str, Any]
    version: int
    write: Callable[[], bytes]

    @property
    def text(self) -> bytes:
        """Its JSON text."""
        return self.write()


@dataclass(frozen=True, slots=True)
class Change:
    """One step of an object's life. ``at`` is monotonic seconds; ``new`` is the last state if ``gone``."""

    version: int
    old: Stored | None
    new: Stored
    gone: bool
    at: float


class Storage:
    """All objects. ``lock`` guards everything here; hold it over read, judge and write."""

    def __init__(self, history: int = 10_000, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.lock = threading.RLock()
        self.version = 1
        self._history = history
        self._monotonic = monotonic
        self._objects: dict[Resource, dict[Key, Stored]] = {}
        self._changes: dict[Resource, deque[Change]] = {}
        self._floor: dict[Resource, int] = {}
        self.compacted = 0  # no list is as of a version before that
        self._news: dict[Resource, threading.Condition] = {}

    def get(self, resource: Resource, key: Key) -> Stored | None:
        """The newest version, or None."""
        with self.lock:
            return self._objects.get(resource, {}).get(key)

    def all(self, resource: Resource) -> tuple[list[Stored], int]:
        """Every object in key order, and the version at which this was true."""
        with self.lock:
            objects = self._objects.get(resource, {})
            return [objects[key] for key in sorted(objects)], self.version

    def put(self, resource: Resource, key: Key, obj: dict[str, Any]) -> Stored:
        """Store ``obj`` (taken over, with its new resource version written in)."""
        with self.lock:
            objects = self._objects.setdefault(resource, {})
            old = objects.get(key)
            new = self._stamp(obj)
            objects[key] = new
            self._publish(resource, Change(new.version, old, new, gone=False, at=self._monotonic()))
            return new

    def put_written(
        self, resource: Resource, key: Key, obj: dict[str, Any], write: Callable[[int], bytes]
    ) -> None:
        """Store ``obj``, whose text ``write`` makes of its resource version each time that it is sent."""
        with self.lock:
            objects = self._objects.setdefault(resource, {})
            self.version += 1
            version = self.version
            obj["metadata"]["resourceVersion"] = str(version)
            old, new = objects.get(key), Stored(obj, version, lambda: write(version))
            objects[key] = new
            self._publish(resource, Change(version, old, new, gone=False, at=self._monotonic()))

    def remove(self, resource: Resource, key: Key, last: dict[str, Any] | None = None) -> Stored:
        """Take the object out; returns its ``last`` state (default: as stored) at the version of its end."""
        with self.lock:
            old = self._objects[resource].pop(key)
            new = self._stamp(last or {**old.obj, "metadata": dict(old.obj["metadata"])})
            self._publish(resource, Change(new.version, old, new, gone=True, at=self._monotonic()))
            return new

    def since(self, resource: Resource, version: int) -> list[Change]:
        """Changes newer than ``version``, oldest first.

        Raises:
            ApiError: 410, some of them have been compacted away.
        """
        with self.lock:
            if version < self._floor.get(resource, 0):
                message = f"too old resource version: {version} ({self._floor[resource]})"
                raise ApiError(410, "Expired", message)
            found = []
            for change in reversed(self._changes.get(resource, ())):
                if change.version <= version:
                    break
                found.append(change)
            return found[::-1]

    def news(self, resource: Resource) -> threading.Condition:
        """Notified (under ``lock``) whenever the resource changes."""
        with self.lock:
            return self._news.setdefault(resource, threading.Condition(self.lock))

    def wake(self) -> None:
        """Make every watcher look again."""
        with self.lock:
            for condition in self._news.values():
                condition.notify_all()

    def compact(self) -> None:
        """Forget all changes: a watch or a further page that begins at an older version gets 410."""
        with self.lock:
            self.compacted = self.version
            for resource in {*self._changes, *self._objects}:
                self._changes.get(resource, deque()).clear()
                self._floor[resource] = self.version

    def _stamp(self, obj: dict[str, Any]) -> Stored:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        text = written(obj)
        return Stored(obj, self.version, lambda: text)

    def _publish(self, resource: Resource, change: Change) -> None:
        changes = self._changes.setdefault(resource, deque())
        changes.append(change)
        if len(changes) > self._history:
            self._floor[resource] = changes.popleft().version
        self.news(resource).notify_all()
