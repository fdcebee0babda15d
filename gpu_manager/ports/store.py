"""The ledger on disk."""

from __future__ import annotations

from typing import Protocol


class Store(Protocol):
    """The ledger on disk."""

    def load(self) -> bytes | None:
        """Return the last complete state, verified; None without one. Raises NodeUnready if it is torn.

        Files of another format are kept aside before.
        """

    def set_aside(self, why: str) -> tuple[str, ...]:
        """Keep the files under other names, which end in ``why``, and return these: the store is empty."""

    def aside(self) -> tuple[str, ...]:
        """Return the names under which files of another format were kept by the last :meth:`load`."""

    def save(self, state: bytes) -> None:
        """Replace the state atomically and durably. Raises NodeUnready (disk full, read-only)."""
