"""Driver calls that may never return, made in threads that can be abandoned.

A card that hangs blocks every thread that queries it, for good or for minutes. Each call about a card runs in
a thread of this module. If it does not return in time the thread is abandoned, and further calls about that
card fail at once until it has returned: so one card delays the others by one wait at most.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from gpu_manager.runtime import threads

T = TypeVar("T")

TIMEOUT: Final = 10  # NVML's code for an answer that did not come in time
PATIENCE_SECONDS: Final = 3.0  # a busy driver answers within some 100 ms
_IDLE_SECONDS: Final = 30.0  # after which a thread without a call ends


class DriverHangsError(Exception):
    """The driver has not answered a call about this card."""


@dataclass(slots=True)
class _Call:
    work: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None


class Patience:
    """Thread-safe."""

    def __init__(self, seconds: float = PATIENCE_SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[_Call]] = []
        self._stuck: dict[Hashable, _Call] = {}

    @property
    def hangs(self) -> bool:
        """True while a call that was left behind has not returned."""
        return any(not call.done.is_set() for call in list(self._stuck.values()))

    def call(self, about: Hashable, work: Callable[[], T]) -> T:
        """Call ``work`` in a thread that can be abandoned; returns its result or raises its error.

        Raises:
            DriverHangsError: ``work``, or an earlier call about the same card, has not returned in time.
        """
        with self._lock:
            stuck = self._stuck.get(about)
            if stuck is not None and not stuck.done.is_set():
                raise DriverHangsError
            self._stuck.pop(about, None)
            worker = self._idle.pop() if self._idle else None
        call = _Call(work)
        if worker is None:
            worker = queue.SimpleQueue()
            threads.forever("nvml-calls", lambda: self._work(worker)).start()
        worker.put(call)
        if not call.done.wait(self._seconds):
            with self._lock:
                self._stuck[about] = call
            raise DriverHangsError
        if call.error is not None:
            raise call.error
        result: T = call.result
        return result

    def _work(self, calls: queue.SimpleQueue[_Call]) -> None:
        while True:
            try:
                call = calls.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if calls in self._idle:
                        self._idle.remove(calls)
                        return
                continue  # a call is on its way
            try:
                call.result = call.work()
            except BaseException as error:  # noqa: BLE001 - it is raised again where the call was made
                call.error = error
            with self._lock:
                self._idle.append(calls)
            call.done.set()
