"""Starts and instructs the native watcher, ``vcuda-gates``, which ships beside the library.

It ends, with all gates open, when its standard input does: an agent that is killed leaves no gate closed.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from gpu_manager.adapters.control_pages.page_directory import USAGE
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.control_pages import GateWatch

log = structlog.get_logger(__name__)

_END_SECONDS: Final = 2.0
_STEPS: Final = 256  # of a core limit's percent


class NativeGateWatcher:
    """:class:`gpu_manager.ports.control_pages.GateWatcher` as a child process. Used by one thread."""

    def __init__(self, program: Path | None, pages: Path, gate: Callable[[CardUuid], Path]) -> None:
        """``program`` is None where the package came without it; ``gate`` says where a card's gate lies."""
        self._program = program
        self._pages = pages
        self._gate = gate
        self._process: subprocess.Popen[bytes] | None = None
        self._told = b""

    def watch(self, cards: Sequence[GateWatch]) -> None:
        """Watch exactly these cards; without any the watcher ends. A dead one is restarted.

        Raises:
            NodeUnready: it cannot be started, or does not respond.
        """
        if not cards:
            self.close()
            return
        wanted = self._instructions(cards)
        alive = self._process is not None and self._process.poll() is None
        if alive and wanted == self._told:
            return
        if not alive:
            self._start()
        process = self._process
        try:
            if process is not None and process.stdin is not None:
                process.stdin.write(wanted)
                process.stdin.flush()
        except OSError as error:
            self.close()
            raise NodeUnready(
                f"{self._program} does not listen: {error.strerror}; it is started again"
            ) from error
        self._told = wanted

    def close(self) -> None:
        """End it; its last act is to open all gates."""
        process, self._process, self._told = self._process, None, b""
        if process is None:
            return
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        if self._process is not None:
            log.warning("gate_watcher_ended", code=self._process.returncode)
            self.close()
        if self._program is None:
            raise NodeUnready(
                "this package has no vcuda-gates, so that protected containers are not protected: install "
                "the wheel of this machine's architecture"
            )
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, by its whole path
                [str(self._program)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise NodeUnready(
                f"{self._program} cannot be started: {error.strerror}; protected containers are not "
                "protected until it can"
            ) from error
        log.info("gate_watcher_started", pid=self._process.pid)

    def _instructions(self, cards: Sequence[GateWatch]) -> bytes:
        lines = []
        for watched in cards:
            lines.append(f"card {self._gate(watched.card)}")
            lines += [
                f"tenant {t.index} {t.cores * _STEPS} {self._pages / t.name / USAGE}" for t in watched.tenants
            ]
            lines += [f"beside {t.index} {self._pages / t.name / USAGE}" for t in watched.beside]
        return "".join(f"{line}\n" for line in [*lines, "go"]).encode()
