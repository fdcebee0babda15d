"""The sandbox's hold on its processes: every one runs under one :mod:`~sandbox.shim`."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.runtime import threads
from sandbox import shim

_START_SECONDS: Final = 20.0
_KILLED: Final = 137


@dataclass(slots=True)
class _Process:
    ended: Callable[[int], None]
    told: threading.Event = field(default_factory=threading.Event)
    pid: int = 0
    error: str = ""
    code: int | None = None


class ProcessTable:
    """Starts, signals and hears of processes; ``close`` ends them all. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: dict[str, _Process] = {}
        self._closed = False
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(shim.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us; we tell it
        )
        self._reader = threads.forever("shim-reports", self._read)
        self._reader.start()

    def spawn(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        ended: Callable[[int], None],
    ) -> int:
        """Start a process (an empty ``argv`` only waits) and return its id; its group is its own.

        ``ended`` is called once, with its exit code, from a thread of ours.

        Raises:
            NodeUnready: it cannot be started, with the reason.
        """
        process = _Process(ended)
        with self._lock:
            self._processes[name] = process
        self._send(
            {
                "spawn": name,
                "argv": list(argv),
                "env": {**env, shim.ID_VARIABLE: name},
                "cwd": str(cwd),
                "log": str(log),
            }
        )
        if not process.told.wait(_START_SECONDS):
            raise NodeUnready(f"no process for {name} within {_START_SECONDS:g} s")
        if process.error:
            raise NodeUnready(process.error)
        return process.pid

    def signal(self, name: str, number: int) -> None:
        """Send a signal to the process's group; nothing if it has ended."""
        with contextlib.suppress(NodeUnready):
            self._send({"signal": name, "number": number})

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self.signal(name, signal.SIGKILL)

    @property
    def pid(self) -> int:
        """The shim's own."""
        return self._child.pid

    def close(self) -> None:
        """Kill everything that still runs and wait for it. Idempotent."""
        with self._lock:
            self._closed = True
        assert self._child.stdin is not None  # noqa: S101  # opened above
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._reader.join(5)
        if self._child.stdout is not None:
            self._child.stdout.close()

    def _send(self, order: Mapping[str, Any]) -> None:
        line = json.dumps(order).encode() + b"\n"
        assert self._child.stdin is not None  # noqa: S101  # opened above
        with self._lock:
            if self._closed or self._child.poll() is not None:
                raise NodeUnready("the sandbox is ending: it starts no more processes")
            try:
                self._child.stdin.write(line)
                self._child.stdin.flush()
            except OSError as error:
                raise NodeUnready(f"the sandbox's process runner is gone: {error.strerror}") from error

    def _read(self) -> None:
        assert self._child.stdout is not None  # noqa: S101  # opened above
        for line in self._child.stdout:
            report = json.loads(line)
            with self._lock:
                process = self._processes.get(report["id"])
                if process is None:
                    continue
                if "pid" in report:
                    process.pid = report["pid"]
                else:
                    del self._processes[report["id"]]
                    process.error = report.get("error", "")
            process.told.set()
            if "code" in report:
                process.ended(report["code"])
        self._lost()

    def _lost(self) -> None:
        """The shim is gone, and all processes with it."""
        with self._lock:
            lost, self._processes = list(self._processes.values()), {}
        for process in lost:
            if process.told.is_set():
                process.ended(_KILLED)
            else:
                process.error = "the sandbox's process runner is gone"
                process.told.set()
