"""Whose names a caller of the agent's pages may hear: asked of the API server in a thread of its own.

The pages are answered by one thread that must not wait, so a question about a token that is not remembered is
put into a queue, and the request is answered once the verdict is there.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.clock import Clock
from gpu_manager.runtime import threads
from gpu_manager.runtime.access import AccessCheck, AccessVerdict

_MOST_WAITING: Final = 16  # questions; anybody may send tokens
FAILED_SECONDS: Final = 2.0  # for which the API server is not asked the same again after it gave no answer
_Question = tuple[str, str]  # the header's value, namespace


class PageAccess:
    """Thread-safe. ``answered`` is called whenever a question has its answer."""

    def __init__(self, check: AccessCheck, clock: Clock) -> None:
        self._check = check
        self._clock = clock
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._asked: set[_Question] = set()
        self._failed: dict[_Question, tuple[float, str]] = {}
        self.answered: Callable[[], object] = lambda: None
        self._thread = threads.forever("page-access", self._run)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """End; a question under way is waited for."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def may(self, authorization: str, namespace: str) -> AccessVerdict | None:
        """May the owner of the token get pods in the namespace (empty: all)? None: that is being asked.

        Raises:
            RequestInvalid: no namespace can have that name.
            NodeUnready: nobody can say now.
        """
        known = self._check.known(authorization, namespace)
        if known is not None:
            return known
        question = (authorization, namespace)
        with self._lock:
            until, why = self._failed.get(question, (0.0, ""))
            if self._clock.monotonic() < until:
                raise NodeUnready(why)
            if question in self._asked:
                return None
            if len(self._asked) >= _MOST_WAITING:
                raise NodeUnready("too many tokens are being looked at: try again")
            self._asked.add(question)
        self._queue.put(question)
        return None

    def _run(self) -> None:
        while (question := self._queue.get()) is not None:
            failed = ""
            try:
                self._check.may(*question)
            except NodeUnready as error:
                failed = f"whether pods may be named cannot be asked now: {error}"
            finally:
                self._note(question, failed)

    def _note(self, question: _Question, failed: str) -> None:
        now = self._clock.monotonic()
        with self._lock:
            self._asked.discard(question)
            self._failed = {key: kept for key, kept in self._failed.items() if kept[0] > now}
            if failed:
                self._failed[question] = now + FAILED_SECONDS, failed
        self.answered()
