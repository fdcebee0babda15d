"""When the kubelet's PodResources may be listed: never between the calls of one admission.

A listing makes the kubelet forget the ids that it has handed to an Allocate and not yet booked (it would
offer them twice). Only the question that opens an admission may ask for one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from gpu_manager.ports.clock import Clock

T = TypeVar("T")

QUIET_SECONDS = 2.0  # after the last call of an admission, before the kubelet may be asked for a listing


class AdmissionWindow:
    """Counts the kubelet's calls in progress; thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # In this order, where both are held: a question or a listing, the count.
        self._asking, self._lock = threading.Lock(), threading.Lock()
        self._in_flight = 0
        self.registered_at = self._last = clock.monotonic()

    def registered(self) -> None:
        """The kubelet restarted: it lists its pods one by one again, so absence proves nothing yet.

        An agent that was killed may have left an admission half done.
        """
        self.registered_at = self._last = self._clock.monotonic()

    @contextmanager
    def question(self) -> Iterator[None]:
        """GetPreferredAllocation begins: waits for a listing that :meth:`when_idle` has begun."""
        with self._asking:
            self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    @contextmanager
    def answer(self) -> Iterator[None]:
        """Allocate begins: waits for nothing."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def when_idle(self, ask: Callable[[], T]) -> T | None:
        """Call ``ask`` unless an admission is in progress; a GetPreferredAllocation meanwhile waits for its
        end.
        """
        with self._asking:
            with self._lock:
                if self._in_flight or self._clock.monotonic() - self._last < QUIET_SECONDS:
                    return None
            return ask()

    def _count(self, by: int) -> None:
        with self._lock:
            self._in_flight += by
            if by < 0:
                self._last = self._clock.monotonic()  # the next call may come at once
