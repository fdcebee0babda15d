"""Shared by agent and admission: log, memory unit, the predecessor's flags, termination signals, a child
that is started again whenever it is killed, and the garbage collector of a service with many objects.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog

from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.runtime import threads

KLOG_FLAGS: Final = {
    "logtostderr": False,
    "alsologtostderr": False,
    "stderrthreshold": True,
    "vmodule": True,
    "log-backtrace-at": True,
    "log-dir": True,
    "v": True,
}
"""Flags of klog, which the predecessor's programs used; the value says whether an argument follows."""

log = structlog.get_logger(__name__)


def configure_log(level: str) -> None:
    """Log one line per event on stderr: readable on a terminal, else JSON. Accepts klog's level numbers.

    Raises:
        RequestInvalid: the level does not exist.
    """
    names = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
    number = names.get(level.lower())
    if number is None:
        if not level.isdecimal():
            raise RequestInvalid(f"--log-level is {level!r}: use debug, info, warning or error")
        number = logging.DEBUG if int(level) >= 5 else logging.INFO
    renderer: Any = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # looked up when the line is written
    )


def raise_open_files_limit() -> None:
    """Raise the soft limit of open files, often 1,024, to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tell_started() -> None:
    """Notify systemd that the program serves, if systemd has started it and waits for that."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel, suppress(OSError):
            channel.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)


class Ending:
    """Catches SIGTERM and SIGINT from its creation on, for the main thread to wait for.

    A Python signal handler runs only at the main thread's next instruction. If the signal arrives just before
    the thread blocks on a lock (also of an Event or a queue), the handler would never run. So the C handler
    writes into a socket, and :meth:`wait` reads from it.
    """

    def __init__(self) -> None:
        self._reading, self._writing = socket.socketpair()
        self._writing.settimeout(0)  # a signal handler must not block
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, lambda *_: None)

    def wait(self) -> None:
        """Block until a signal has arrived, even before this call."""
        self._reading.recv(1)


def pass_over_old_flags(arguments: Sequence[str], known: Mapping[str, bool], program: str) -> None:
    """Accept the predecessor's flags without effect, with one warning, so that an old manifest starts.

    ``known`` says for each flag whether a value follows; ``EXTRA_FLAGS`` of the environment count too.

    Raises:
        RequestInvalid: neither program has this argument.
    """
    rest = [*arguments, *os.environ.get("EXTRA_FLAGS", "").split()]
    ignored, at = [], 0
    while at < len(rest):
        name, _, value = rest[at].lstrip("-").replace("_", "-").partition("=")
        if not rest[at].startswith("-") or name not in known:
            raise RequestInvalid(f"unknown argument {rest[at]!r}: {program} --help lists what there is")
        ignored.append(f"--{name}")
        follows = known[name] and not value and at + 1 < len(rest) and not rest[at + 1].startswith("-")
        at += 2 if follows else 1
    if ignored:
        log.warning("predecessor_flags_ignored", flags=ignored)


_LONGEST_PAUSE: Final = 5.0  # between two starts of a program that is killed at once
_YOUNG_SECONDS: Final = 10.0
_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG
OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
SPARED: Final = "-1000"  # the kernel's memory killer leaves it alive, also where it ends a whole container
_OWN_SCORE: Final = "VCUDA_OOM_SCORE_ADJ"  # what the parent had, for its child


def child_of(variable: str) -> str:
    """The value by which the parent marked this process, empty if it has no such parent.

    It ends with its parent, and the memory killer may choose it although it spares that.
    """
    if value := os.environ.get(variable, ""):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        not_spared(os.environ)
    return value


def spared(score: Path = OOM_SCORE) -> dict[str, str]:
    """Have the kernel's memory killer spare this process. Returns what its child needs, not to be spared too.

    ``score`` is the process's ``oom_score_adj``. It takes CAP_SYS_RESOURCE: without it nothing changes.
    """
    try:
        own = score.read_text("ascii").strip()
        score.write_text(SPARED, "ascii")
    except OSError as error:
        log.info("memory_killer_spares_nobody", reason=str(error))
        return {}
    return {_OWN_SCORE: own}


def not_spared(variables: Mapping[str, str], score: Path = OOM_SCORE) -> None:
    """Have the memory killer judge this process as it judged its parent before :func:`spared`."""
    if own := variables.get(_OWN_SCORE, ""):
        score.write_text(own, "ascii")


class Supervised:
    """This very command as a child. What ends by itself has its reason, and is not started again.

    The kernel's memory killer takes the child alone, also where it ends a container as a whole (cgroup v2).
    """

    def __init__(self, variable: str, value: str, told: Callable[[], object]) -> None:
        """The child has a variable of that value; ``told`` returns once this process is to end."""
        self._environment = {**os.environ, variable: value, **spared()}
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


_YOUNG: Final = 5_000  # new objects before they are looked at: most of a call's are gone by then
_NEVER: Final = 1 << 30  # collections of the middle generation before the oldest is collected too


def spare_pauses() -> None:
    """Freeze long-lived objects. Call once the first lists are read, and every 10 seconds or so after.

    A million objects of 5,000 nodes cost a full collection 0.35 s, in which no call is answered; objects
    created since the last call cost 25 ms. They hold no cycles, so reference counting frees them whether the
    collector knows them or not. So the collector examines only young objects.
    """
    gc.set_threshold(_YOUNG, gc.get_threshold()[1], _NEVER)
    gc.collect(1)
    gc.freeze()
