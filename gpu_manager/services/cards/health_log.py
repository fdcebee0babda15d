"""What happened to each card's health since the agent's start, for the console. Bounded; not thread-safe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from gpu_manager.domain.card import CardUuid

MOST_EVENTS: Final = 20  # of one card; the one that was last seen longest ago goes
XID: Final = "xid"  # of a program: the card stays open
CLOSING_XID: Final = "closing_xid"
_LONGEST_TEXT: Final = 200


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """``event``: ``card_closed``, ``card_opened``, ``xid``, …; ``text``: why, or the number of the XID.

    ``first`` and ``last``: seconds since 1970 at which an event with these words was seen, ``count`` times.
    """

    event: str
    text: str
    first: float
    last: float
    count: int = 1


class HealthLog:
    """The events of all cards, equal ones counted as one."""

    def __init__(self) -> None:
        self._cards: dict[CardUuid, dict[tuple[str, str], HealthEvent]] = {}

    def note(self, card: CardUuid, event: str, text: str, now: float) -> None:
        """It happened ``now``, in seconds since 1970."""
        events, key = self._cards.setdefault(card, {}), (event, text[:_LONGEST_TEXT])
        before = events.pop(key, None)
        events[key] = (
            replace(before, last=now, count=before.count + 1) if before else HealthEvent(*key, now, now)
        )
        if len(events) > MOST_EVENTS:
            del events[next(iter(events))]

    def of(self, card: CardUuid) -> tuple[HealthEvent, ...]:
        """The card's events, the newest first."""
        return tuple(reversed(self._cards.get(card, {}).values()))
