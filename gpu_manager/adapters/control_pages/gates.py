"""The gates of cards on disk: what the watcher writes, and best-effort containers read.

``<pages>/gates/<the card's UUID as 32 hex digits>`` is mounted read-only in a best-effort container. Tenants
cannot write it. A new gate is open.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpu_manager.adapters.control_pages import tenant_files as files
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.gates import GateReading
from vcuda.page.gate import GATE_SIZE, build_gate, read_gate
from vcuda.page.layout import PageError, uuid_bytes

DIRECTORY: Final = "gates"
GATE_MODE: Final = 0o644  # a container may run as any user; its mount is read-only
_NS: Final = 1e-9


class FileGates:
    """:class:`gpu_manager.ports.gates.Gates` below the directory of the control pages."""

    def __init__(self, pages: Path, *, label: bytes | None = None) -> None:
        """``label`` is SELinux's, for files that containers share: :mod:`gpu_manager.adapters.selinux`."""
        self._root = pages / DIRECTORY
        self._label = label

    def path(self, card: CardUuid) -> Path:
        """Return where the card's gate lies. Raises NodeUnready for a name that is no UUID."""
        with _errors(self._root / card):
            return self._root / uuid_bytes(card).hex()

    def ensure(self, card: CardUuid) -> None:
        """Create the card's gate, open, if it is absent or no gate. Idempotent.

        Raises:
            NodeUnready: it cannot be written.
        """
        path = self.path(card)
        with _errors(path):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            here = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                page = files.open_page(here, path.name)
                if page is not None and _is_gate(page):
                    os.close(page)
                    return
                if page is not None:
                    os.close(page)
                os.close(files.create_page(here, path.name, build_gate(), GATE_SIZE, GATE_MODE, self._label))
            finally:
                os.close(here)

    def read(self, card: CardUuid) -> GateReading:
        """Return how often and for how long the gate was closed since it was made.

        Raises:
            NodeUnready: there is no such gate.
        """
        path = self.path(card)
        with _errors(path):
            gate = read_gate(path.read_bytes())
        return GateReading(gate.closings, gate.closed_ns * _NS)


def _is_gate(page: int) -> bool:
    try:
        read_gate(files.read(page, GATE_SIZE))
    except PageError:
        return False
    return os.fstat(page).st_size == GATE_SIZE


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except PageError as error:
        raise NodeUnready(f"the gate {path} cannot be used: {error}") from error
    except OSError as error:
        raise NodeUnready(
            f"the gate {path} cannot be used: {error.strerror or error}; check that the directory of the "
            "control pages is there, writable and not full"
        ) from error
