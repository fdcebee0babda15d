"""A program that the sandbox keeps alive: a process of its own, started again whenever it dies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.runtime import threads
from sandbox.processes import ProcessTable

log = structlog.get_logger(__name__)

FIRST_PAUSE: Final = 0.3  # seconds before it is started again; doubled while it dies young
LONGEST_PAUSE: Final = 10.0
YOUNG_SECONDS: Final = 10.0
# What a deployment says by environment: whoever runs the sandbox may have it set for another reason.
_NOT_OURS: Final = ("EXTRA_FLAGS", "POD_NAME", "POD_NAMESPACE", "POD_UID")


class KeptProcess:
    """Keeps one command line alive. ``name`` is its word in the log; ``starts`` counts its processes."""

    def __init__(
        self, processes: ProcessTable, name: str, argv: Sequence[str], log_file: Path, directory: Path
    ) -> None:
        self._processes = processes
        self._what = name
        self._argv = list(argv)
        self._log_file = log_file
        self._directory = directory
        self._stop = threading.Event()
        self._died = threading.Event()
        self._name = ""
        self.pid = 0
        self.starts = 0
        self.code: int | None = None
        self._thread = threads.forever(f"{name}-keeper", self._run)

    def start(self) -> None:
        """Start it, and the thread that watches over it."""
        self._thread.start()

    def kill(self) -> None:
        """SIGKILL, as the kernel's memory killer does."""
        self._processes.signal(self._name, signal.SIGKILL)

    def stop(self, seconds: float = 2.0) -> None:
        """SIGTERM, then SIGKILL after ``seconds``; it is not started again. Idempotent."""
        self._stop.set()
        self._processes.signal(self._name, signal.SIGTERM)
        if not self._died.wait(seconds):
            self._processes.signal(self._name, signal.SIGKILL)
        if self._thread.is_alive():
            self._thread.join(2)

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._stop.is_set():
            self._died.clear()
            try:
                self._begin()
            except NodeUnready as error:
                log.error("program_not_started", program=self._what, reason=str(error))
                self._died.set()
            young = self._died.wait(YOUNG_SECONDS)
            self._died.wait()
            if self._stop.is_set():
                return
            pause = min(LONGEST_PAUSE, 2 * pause) if young and self.starts > 1 else FIRST_PAUSE
            log.warning(
                "program_died",
                program=self._what,
                code=self.code,
                again_in_seconds=pause,
                log=str(self._log_file),
            )
            self._stop.wait(pause)

    def _begin(self) -> None:
        self.starts += 1
        self._name = f"{self._what}-{self.starts}"
        self.pid = self._processes.spawn(
            self._name,
            self._argv,
            env={**{k: v for k, v in os.environ.items() if k not in _NOT_OURS}, "PYTHONUNBUFFERED": "1"},
            cwd=self._directory,
            log=self._log_file,
            ended=self._ended,
        )

    def _ended(self, code: int) -> None:
        self.code, self.pid = code, 0
        self._died.set()
