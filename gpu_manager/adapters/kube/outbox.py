"""Background writes to the API server: a bounded queue with retries and one entry for each subject."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog

from gpu_manager.adapters.kube.connection import Refused
from gpu_manager.adapters.kube.reflector import Pause
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.clock import Clock
from gpu_manager.runtime import threads

log = structlog.get_logger(__name__)
# Answers that a retry cannot change. 409, and 422 to a patch: another pod has the name now.
FINAL = frozenset({400, 404, 405, 409, 410, 413, 415, 422})


class Task(Protocol):
    """One write; immutable. A waiting task is merged with a newer one of the same key."""

    @property
    def key(self) -> Hashable:
        """The subject: at most one task of a key waits."""

    @property
    def expendable(self) -> bool:
        """True if it is dropped first when the queue is full."""

    @property
    def patient(self) -> bool:
        """True if it is sent after every task that another component waits for."""

    def over(self, older: Task) -> Task:
        """This task merged over ``older``."""

    def run(self) -> float | None:
        """Do the write, or return the seconds to wait because of a rate limit. Raises NodeUnready."""

    def final(self, refusal: Refused) -> bool:
        """True if this answer makes a retry useless."""


@dataclass(slots=True)
class _Entry:
    task: Task
    due: float
    failures: int = 0
    sending: Task | None = None


def _turn(entry: _Entry, now: float) -> tuple[bool, bool, float]:
    """When it is its turn: what others wait for is not kept behind hundreds of Events of a busy node."""
    return entry.due > now, entry.due <= now and entry.task.patient, entry.due


class Outbox:
    """One thread that sends due tasks, the patient ones last and the oldest first. :meth:`put` never
    blocks.
    """

    def __init__(self, clock: Clock, pause: Pause | None = None, room: int = 512) -> None:
        self._clock = clock
        self._pause = pause or Pause(0.2, 30.0)
        self._room = room
        self._changed = threading.Condition()
        self._entries: dict[Hashable, _Entry] = {}
        self._stopped = False
        self._quiet_until = 0.0  # no task is tried before this time, because the server did not answer
        self._away = 0
        self._thread = threads.forever("outbox", self._run)
        self.dropped = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, task: Task, delay: float = 0.0) -> None:
        """Queue the task, merged over a waiting one of its key; a new key waits ``delay`` seconds."""
        with self._changed:
            self._enter(task, delay)
            self._changed.notify()

    def waiting(self, key: Hashable) -> bool:
        """True while a task of this key is unsent."""
        with self._changed:
            return key in self._entries

    def cancel(self, key: Hashable) -> bool:
        """Drop the task of this key, which may be in flight; False if there is none."""
        with self._changed:
            return self._entries.pop(key, None) is not None

    def close(self, seconds: float = 1.0) -> None:
        """Stop after the current write, within ``seconds``. Waiting tasks are dropped and logged."""
        with self._changed:
            self._stopped = True
            left = len(self._entries)
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)
        if left:
            log.info("writes_unsent", count=left)

    def _enter(self, task: Task, delay: float) -> None:
        entry = self._entries.get(task.key)
        if entry is not None:
            # A task in flight is merged only after it fails: sent twice, an event would count twice.
            entry.task = task if entry.task is entry.sending else task.over(entry.task)
            if entry.failures == 0:
                entry.due = min(entry.due, self._clock.monotonic() + delay)
            return
        if len(self._entries) >= self._room:
            keys = [k for k, e in self._entries.items() if e.sending is None]
            victim = next((k for k in keys if self._entries[k].task.expendable), None)
            self.dropped += 1
            if victim is None and task.expendable:
                return
            lost = self._entries.pop(victim if victim is not None else keys[0])
            log.warning(
                "write_dropped", subject=str(lost.task.key), reason="too many writes wait", room=self._room
            )
        self._entries[task.key] = _Entry(task, self._clock.monotonic() + delay)

    def _take(self) -> _Entry | None:
        """Wait for a due entry; None once closed."""
        with self._changed:
            while not self._stopped:
                now = self._clock.monotonic()
                entry = min(self._entries.values(), key=partial(_turn, now=now), default=None)
                due = max(entry.due, self._quiet_until) if entry else None
                if entry is not None and due is not None and due <= now:
                    entry.sending = entry.task
                    return entry
                self._changed.wait(None if due is None else due - now)
            return None

    def _run(self) -> None:
        while (entry := self._take()) is not None:
            task = entry.task if entry.sending is None else entry.sending
            try:
                later = task.run()
            except NodeUnready as error:
                self._failed(entry, task, error)
            except Exception:  # noqa: BLE001 - a run loop: one write must not end all others
                threads.failed("write_failed", subject=str(task.key))
                self._done(entry, task)
            else:
                self._away = 0
                if later is None:
                    self._done(entry, task)
                else:
                    self._put_off(entry, task, later, failures=0)

    def _done(self, entry: _Entry, task: Task) -> None:
        with self._changed:
            entry.sending, entry.failures = None, 0
            if entry.task is task:  # otherwise a newer task was queued meanwhile
                self._entries.pop(task.key, None)

    def _put_off(self, entry: _Entry, task: Task, seconds: float, failures: int) -> None:
        with self._changed:
            entry.sending, entry.failures = None, failures
            if entry.task is not task:
                entry.task = entry.task.over(task)
            entry.due = self._clock.monotonic() + seconds

    def _failed(self, entry: _Entry, task: Task, error: NodeUnready) -> None:
        if not isinstance(error, Refused):
            self._away += 1
            pause = self._pause.seconds(self._away)
            self._quiet_until = self._clock.monotonic() + pause
            if self._away == 1:
                log.warning("writes_wait", reason=str(error))
            self._put_off(entry, task, 0.0, entry.failures)
            return
        self._away = 0
        if task.final(error):
            log.info("write_refused", subject=str(task.key), reason=str(error))
            self._done(entry, task)
            return
        if entry.failures == 0:
            log.warning("write_put_off", subject=str(task.key), reason=str(error))
        wait = max(error.retry_after, self._pause.seconds(entry.failures + 1))
        self._put_off(entry, task, wait, entry.failures + 1)
