"""Runs a sandbox's processes and ends them all when the sandbox ends, in whatever way that happens.

A program of its own (``python -I shim.py``): one thread, the standard library alone. Orders come as JSON
lines on standard input, reports leave as JSON lines on standard output::

    {"spawn": "c1", "argv": ["sleep", "9"], "env": {}, "cwd": "/", "log": "/tmp/c1.log"}
    {"signal": "c1", "number": 15}                     # to its whole process group
    {"id": "c1", "pid": 4711}                          # it runs
    {"id": "c1", "error": "…"}                         # it could not be started
    {"id": "c1", "code": 137}                          # it ended: exit code, or 128 + signal

An empty ``argv`` is a container of which only the image is known: a process that waits, as ``pause`` does.
When the first process of a container ends, what it left behind is killed, as a PID namespace would. The end
of standard input is the end of the sandbox: everything is killed. If this program itself is killed, the
kernel kills the first processes (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

ID_VARIABLE = "SANDBOX_CONTAINER"  # in every process's environment: whose it is
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_END_SECONDS = 3.0
_libc = ctypes.CDLL(None, use_errno=True)


class Shim:
    """The loop and its processes."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._pids: dict[str, int] = {}
        self._wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)

    def run(self) -> None:
        """Until standard input ends."""
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        pending = b""
        while True:
            ready, _, _ = select.select([0, self._wake], [], [])
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._reap()
            if 0 in ready:
                data = os.read(0, 1 << 16)
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
        self._end()

    def _obey(self, order: dict[str, Any]) -> None:
        if "spawn" in order:
            self._spawn(order)
        elif (pid := self._pids.get(order["signal"])) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, order["number"])

    def _spawn(self, order: dict[str, Any]) -> None:
        name = order["spawn"]
        told, tell = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            os.close(told)
            self._child(order, tell)
        os.close(tell)
        error = os.read(told, 4096).decode(errors="replace")  # ends when the child execs, or says why not
        os.close(told)
        if error:
            os.waitpid(pid, 0)
            _report({"id": name, "error": error})
            return
        self._names[pid], self._pids[name] = name, pid
        _report({"id": name, "pid": pid})

    def _child(self, order: dict[str, Any], tell: int) -> NoReturn:
        parent = os.getppid()
        try:
            os.setsid()
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(137)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            for fd, source in ((0, empty), (1, log), (2, log)):
                os.dup2(source, fd)
            os.chdir(order["cwd"])
            argv = order["argv"]
            if argv:
                os.execvpe(argv[0], argv, order["env"])  # noqa: S606  # a container has no shell
            _wait_for_end(tell, self._wake)
        except OSError as error:
            what = f"{order['argv'][0]}: " if order["argv"] else ""
            os.write(tell, f"{what}{error.strerror or error}".encode())
        except BaseException as error:  # noqa: BLE001  # a fork must never return into the loop
            os.write(tell, repr(error).encode())
        finally:
            os._exit(128)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            name = self._names.pop(pid, None)
            if name is None:
                continue  # an orphan that we had adopted
            del self._pids[name]
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            self._kill_orphans(name)
            code = os.waitstatus_to_exitcode(status)
            _report({"id": name, "code": code if code >= 0 else 128 - code})

    def _kill_orphans(self, name: str) -> None:
        """Processes of a container that left its group (setsid) before its first process ended."""
        mark = f"{ID_VARIABLE}={name}".encode()
        for pid in _children() - set(self._names):
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)

    def _end(self) -> None:
        """Kill children until none is left: as their subreaper, we get their own children in turn."""
        ends = time.monotonic() + _END_SECONDS
        while time.monotonic() < ends:
            for pid in _children():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.01)


def _wait_for_end(tell: int, wake: int) -> NoReturn:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    os.close(wake)
    os.close(tell)
    while True:
        signal.pause()


def _children() -> set[int]:
    """Our children's ids."""
    me, found = os.getpid(), set()
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = Path(entry.path, "stat").read_bytes()
                if int(text[text.rindex(b")") + 2 :].split()[1]) == me:
                    found.add(int(entry.name))
    return found


def _report(report: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(report).encode() + b"\n")


if __name__ == "__main__":
    Shim().run()
    sys.exit(0)
