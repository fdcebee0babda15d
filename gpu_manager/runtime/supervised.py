"""A program that is started again whenever it is killed, by a parent that has nothing else to lose."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

from gpu_manager.runtime import threads

log = structlog.get_logger(__name__)

_LONGEST_PAUSE: Final = 5.0  # between two starts of a program that is killed at once
_YOUNG_SECONDS: Final = 10.0
_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG


def child_of(variable: str) -> str:
    """The value by which the parent marked this process, empty if it has no such parent; it ends with it."""
    if value := os.environ.get(variable, ""):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    return value


class Supervised:
    """This very command as a child. What ends by itself has its reason, and is not started again."""

    def __init__(self, variable: str, value: str, told: Callable[[], object]) -> None:
        """The child has a variable of that value; ``told`` returns once this process is to end."""
        self._environment = {**os.environ, variable: value}
        self._told = told
        self._ended = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run it until it ends by itself, or as it is told to. Returns its exit code."""
        threads.once("supervised-end", self._end).start()
        pause = 0.0
        while True:
            started = time.monotonic()
            self._child = subprocess.Popen(sys.orig_argv, env=self._environment, process_group=0)  # noqa: S603
            if self._ended.is_set():
                self._child.terminate()
            code = self._child.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)  # what it had started
            if code >= 0 or self._ended.is_set():
                return code if code >= 0 else 128 - code
            at_once = time.monotonic() - started > _YOUNG_SECONDS
            pause = 0.0 if at_once else min(_LONGEST_PAUSE, max(1.0, pause * 2))
            log.error("killed_and_started_again", signal=-code, after_seconds=pause)
            self._ended.wait(pause)

    def _end(self) -> None:
        self._told()
        self._ended.set()
        if self._child is not None:
            self._child.terminate()
