"""The scheduler stand-in's queue: whose turn it is, and when a pod that found no place is tried again.

As kube-scheduler's: pods in the order of priority, then age; after each failure a pause that doubles from 1 s
to 10 s; a pod that no node took waits for an event in the cluster, or five minutes. Who has nothing else to
do does not wait for a pause to end, but for one after an error. Pure: time is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 10.0
FLUSH_SECONDS: Final = 300.0


@dataclass(slots=True)
class QueuedPod:
    """A pod that waits. ``age`` orders pods of one priority, ``version`` is of what a scheduler looks at."""

    uid: str
    priority: int
    age: tuple[str, int]
    version: str
    failures: int = 0
    due: float = 0.0  # its pause lasts until then
    erred: bool = False  # it failed by an error
    parked: float | None = None  # since when it waits for an event
    taken: int = -1  # events counted when it was taken; -1 while it lies here


class Queue:
    """Not thread-safe: its scheduler holds a lock."""

    def __init__(self) -> None:
        self._entries: dict[str, QueuedPod] = {}
        self._events = 0

    def __contains__(self, uid: str) -> bool:
        return uid in self._entries

    def offer(self, uid: str, priority: int, age: tuple[str, int], version: str) -> None:
        """A pod waits. One that has changed since is tried again."""
        known = self._entries.get(uid)
        if known is None:
            self._entries[uid] = QueuedPod(uid, priority, age, version)
        elif known.version != version:
            known.version, known.parked = version, None

    def keep(self, uids: set[str]) -> None:
        """Forget every pod that waits no more."""
        for uid in [uid for uid in self._entries if uid not in uids]:
            del self._entries[uid]

    def event(self) -> None:
        """Something happened that may have made room."""
        self._events += 1
        for entry in self._entries.values():
            entry.parked = None

    def take(self, now: float) -> str | None:
        """The pod whose turn it is; it lies here no more until :meth:`failed`."""
        here = [e for e in self._entries.values() if e.taken < 0 and _since(e, now)]
        if ready := [e for e in here if e.due <= now]:
            first = min(ready, key=lambda e: (-e.priority, e.age))
        elif pausing := [e for e in here if not e.erred]:
            first = min(pausing, key=lambda e: e.due)
        else:
            return None
        first.taken = self._events
        return first.uid

    def failed(self, uid: str, now: float, *, error: bool = False) -> None:
        """It found no place: after a pause it waits for an event. One that failed by ``error`` does not."""
        entry = self._entries.get(uid)
        if entry is None:
            return
        entry.failures += 1
        entry.erred = error
        entry.due = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(entry.failures - 1, 20))
        missed = entry.taken != self._events  # something happened while it was being tried
        entry.parked = None if error or missed else now
        entry.taken = -1

    def next_due(self, now: float) -> float:
        """Seconds until somebody's turn may come, if nothing happens."""
        dues = [
            e.parked + FLUSH_SECONDS if e.parked is not None else e.due if e.erred else now
            for e in self._entries.values()
            if e.taken < 0
        ]
        return max(0.0, min(dues, default=now + FLUSH_SECONDS) - now)


def _since(entry: QueuedPod, now: float) -> bool:
    return entry.parked is None or now - entry.parked >= FLUSH_SECONDS
