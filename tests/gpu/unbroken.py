"""A run is not lost with its terminal: output that nobody reads any more, a hang-up, a case that never ends.

What is measured lies in the results file; what is printed is for whoever still looks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TextIO

_ENDS = (signal.SIGTERM, signal.SIGINT)


class Overtime(Exception):  # noqa: N818 - the case may be right, it only takes too long
    """A case did not end within its time."""


class Ended(BaseException):
    """Somebody ends the run: ``signal`` is the number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


def leave_terminal(end: Callable[[int], None] | None = None) -> None:
    """From now on no terminal can stop, hang up or answer this process or what it starts.

    Commands such as ``timeout`` run it in the background of its terminal, where reading stops a process.
    SIGTERM and SIGINT call ``end`` with their number; without it, the first one raises Ended.
    """
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for ignored in (signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(ignored, signal.SIG_IGN)
    for number in _ENDS:
        signal.signal(number, lambda number, _: (end or _end)(number))


def _end(number: int) -> None:
    for each in _ENDS:  # the next one, to the whole group perhaps, is not to break the clearing away
        signal.signal(each, signal.SIG_IGN)
    raise Ended(number)


def say(text: str, to: TextIO | None = None) -> None:
    """Print a line, by default on stdout; once nobody reads it, this and every later line is dropped."""
    stream = to or sys.stdout
    try:
        print(text, file=stream, flush=True)
    except OSError:
        with Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), stream.fileno())


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise Overtime in what runs longer, wherever it waits. For the main thread, and not nested."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Overtime(f"cut after {seconds:.3g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
