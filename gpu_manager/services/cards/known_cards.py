"""The cards that this node has had, kept on the disk: one that is gone after a reboot is missed, not unseen.

A card leaves the list when :class:`gpu_manager.services.cards.health.Health` forgets it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import structlog

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.store import Store

log = structlog.get_logger(__name__)


class KnownCards:
    """Loads the list at the start; writes it whenever a card came, was forgotten, or changed its number."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: bytes | None = None

    def load(self) -> tuple[Card, ...]:
        """The cards of the list; none where it cannot be read, which is logged."""
        try:
            self._kept = self._store.load()
            return decode_cards(self._kept) if self._kept is not None else ()
        except NodeUnready as error:
            log.error("known_cards_lost", reason=str(error))
            return ()

    def cards_changed(self, states: Sequence[CardState]) -> None:
        """The cards as they are now, vanished ones included. One that never told its size is not kept."""
        text = encode_cards(state.card for state in states if state.card.memory)
        if text == self._kept:
            return
        try:
            self._store.save(text)
        except NodeUnready as error:
            log.warning("known_cards_not_saved", reason=str(error))
            return
        self._kept = text


def encode_cards(cards: Iterable[Card]) -> bytes:
    """One JSON row a card."""
    rows = [[c.index, c.uuid, c.model, c.memory, c.reserved, c.numa, c.minor, c.pci_bus_id] for c in cards]
    return json.dumps(rows, separators=(",", ":")).encode()


def decode_cards(text: bytes) -> tuple[Card, ...]:
    """The inverse of :func:`encode_cards`. Raises NodeUnready if it is not ours to read."""
    try:
        return tuple(
            Card(
                int(index),
                CardUuid(str(uuid)),
                str(model),
                int(memory),
                int(reserved),
                None if numa is None else int(numa),
                None if minor is None else int(minor),
                str(bus),
            )
            for index, uuid, model, memory, reserved, numa, minor, bus in json.loads(text)
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise NodeUnready(f"the list of known cards is not readable: {error}") from None
