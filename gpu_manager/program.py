"""What both programs share: the log, the memory unit, the predecessor's flags, how they are told to end."""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.resources import parse_quantity

KLOG_FLAGS: Final = {
    "logtostderr": False,
    "alsologtostderr": False,
    "stderrthreshold": True,
    "vmodule": True,
    "log-backtrace-at": True,
    "log-dir": True,
    "v": True,
}
"""What klog took, with which both of the predecessor's programs logged; whether a value follows."""

log = structlog.get_logger(__name__)


def configure_log(level: str) -> None:
    """One line an event on stderr: for people on a terminal, else JSON. klog's numbers are understood.

    Raises:
        RequestInvalid: no such level.
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
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # as it is when the line is written
    )


def raise_open_files_limit() -> None:
    """Take as many open files as the container's hard limit grants; its soft limit is often 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Ending:
    """SIGTERM and SIGINT, from its making on, for the main thread to wait for.

    A handler in Python runs when the main thread is at its next instruction. A signal that comes when it is
    about to wait for a lock (of an Event or a queue, too) would be seen when that is given, which is never;
    so the C handler writes into a socket, and that is waited for.
    """

    def __init__(self) -> None:
        self._reading, self._writing = socket.socketpair()
        self._writing.settimeout(0)  # a handler waits for nobody
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, lambda *_: None)

    def wait(self) -> None:
        """Until one has come, be it before this call."""
        self._reading.recv(1)


def pass_over_old_flags(arguments: Sequence[str], known: Mapping[str, bool], program: str) -> None:
    """Accept the predecessor's flags that mean nothing any more, with one warning, so that an old manifest
    starts. ``known`` says of each whether a value follows; ``EXTRA_FLAGS`` of the environment count too.

    Raises:
        RequestInvalid: an argument that neither knew.
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
        log.warning("flags of the predecessor ignored", flags=ignored)


def unit_bytes(text: str) -> int:
    """The bytes of one unit of memory, as ``--memory-unit`` gives them.

    Raises:
        RequestInvalid: not whole, or absurd.
    """
    wrong = RequestInvalid(f"--memory-unit is {quoted(text)}: use whole bytes from 1Mi to 1Ti, such as 256Mi")
    try:
        unit = parse_quantity(text)
    except RequestInvalid as error:
        raise wrong from error
    if unit.denominator != 1 or not 1 << 20 <= unit <= 1 << 40:
        raise wrong
    return int(unit)
