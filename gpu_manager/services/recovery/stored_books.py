"""Loads the ledger from disk, and says what was done where it cannot be read."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from gpu_manager.domain.contract import EVENT_LEDGER_REBUILT
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.store import Store
from gpu_manager.services.allocation.books_format import decode, decode_sides
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

_REBUILT = "the books are rebuilt from the kubelet's checkpoint and the pods, and no pod loses its cards"


def load_books(store: Store, event: Callable[[str, str], None], metrics: ServiceMetrics) -> bytes | None:
    """The stored books; None if there are none, or none that this agent can read: then they are kept under
    another name for the agent that wrote them, and an Event on the node (``event``: reason, message) says so.
    """
    said = ""
    try:
        stored = store.load()
        if kept := store.aside():
            said = "the ledger on disk is of another agent's format"
            said += f"; its files are kept as {', '.join(kept)}"
    except NodeUnready as error:
        stored, said = None, str(error)
    if stored is not None:
        try:
            decode(stored)
            decode_sides(stored)
        except NodeUnready as error:
            stored, said = None, f"{error}{_kept(store)}"
    if said:
        metrics.recovery_disagreements.labels("store").inc()
        log.error("ledger_ignored", reason=said)
        event(EVENT_LEDGER_REBUILT, f"{said}; {_REBUILT}")
    return stored


def _kept(store: Store) -> str:
    try:
        return f"; its files are kept as {', '.join(store.set_aside('unread'))}"
    except NodeUnready as error:
        return f"; its files are written over: {error}"
