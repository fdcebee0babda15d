"""Threads that do not die unseen.

An unexpected error ends a thread without a word to those who rely on it. So each thread of the programs is
made here: its error is logged, counted by the thread's name, and what is to run for ever is run again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping

import structlog

log = structlog.get_logger(__name__)

AGAIN_SECONDS = 1.0  # from an error to the next try

_lock = threading.Lock()
_failures: Counter[str] = Counter()


def failures() -> Mapping[str, int]:
    """Unexpected errors since the program's start, by the name of the thread."""
    with _lock:
        return dict(_failures)


def failed(event: str, **fields: object) -> None:
    """Count and log what was caught: for a loop that has more to do about it than to go on."""
    name = threading.current_thread().name
    with _lock:
        _failures[name] += 1
    log.error(event, thread=name, exc_info=True, **fields)  # noqa: LOG014 - the caller is one


def forever(
    name: str, loop: Callable[[], object], *, again_seconds: float = AGAIN_SECONDS
) -> threading.Thread:
    """A thread, to be started, that runs ``loop`` until it returns: again after an unexpected error."""

    def run() -> None:
        pause = threading.Event()  # never set: it only waits
        while not ran(loop):
            pause.wait(again_seconds)

    return threading.Thread(target=run, name=name, daemon=True)


def once(name: str, job: Callable[[], object]) -> threading.Thread:
    """A thread, to be started, that does one job; an unexpected error ends it, logged and counted."""
    return threading.Thread(target=lambda: ran(job), name=name, daemon=True)


def every(
    seconds: float | Callable[[], float],
    name: str,
    step: Callable[[], object],
    stop: threading.Event,
    *,
    at_once: bool = False,
    due: threading.Event | None = None,
) -> threading.Thread:
    """A thread, to be started, that takes a ``step`` every so many seconds until stopped; the first
    ``at_once``, or after them; a function is asked for them after each step. It also takes one when ``due``
    is set, which must be set to stop it, too. An unexpected error costs one round.
    """

    def stopped(pause: float) -> bool:
        if due is None:
            return stop.wait(pause)
        due.wait(pause)
        due.clear()
        return stop.is_set()

    def loop() -> None:
        period = seconds if callable(seconds) else lambda: seconds
        pause = 0.0 if at_once else period()
        while not stopped(pause):
            ran(step)
            pause = period()

    return forever(name, loop)


def rounds(
    seconds: float | Callable[[], float],
    name: str,
    steps: Mapping[str, Callable[[], object]],
    count: Callable[[str], object],
    stop: threading.Event,
    *,
    due: threading.Event | None = None,
) -> threading.Thread:
    """A thread, to be started, that takes these steps in a row, every so many seconds until stopped, and when
    ``due`` is set (:func:`every`).

    An unexpected error of one does not keep the next from its turn: it is given to ``count`` by its name.
    """

    def once_round() -> None:
        for step_name, step in steps.items():
            if not ran(step):
                count(step_name)

    return every(seconds, name, once_round, stop, due=due)


def ran(job: Callable[[], object]) -> bool:
    """Do it; False after an unexpected error, which is logged and counted."""
    try:
        job()
    except Exception:  # noqa: BLE001 - that is what this file is for
        failed("thread_failed")
        return False
    return True
