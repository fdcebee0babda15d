"""What the agent keeps about the node's cards while it runs: their links, what happened to their health, and
the XIDs that the driver reported.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.topology import SELF, Link, LinkKind, NumaPolicy, Topology
from gpu_manager.ports.cards import XidError

_UNKNOWN = Link(LinkKind.SYS)  # the weakest link


class KnownLinks:
    """The last known link of each pair of cards. Thread-safe."""

    def __init__(self, numa_policy: NumaPolicy = NumaPolicy.NONE) -> None:
        """Without any links. ``numa_policy``: the one of the node's kubelet."""
        self._numa_policy = numa_policy
        self._lock = threading.Lock()
        self._links: dict[tuple[CardUuid, CardUuid], Link] = {}
        self._noted: frozenset[tuple[CardUuid, bool]] | None = None

    def stale(self, states: Sequence[CardState]) -> bool:
        """True if the present or the healthy cards have changed since the links were last read."""
        return self._noted != _who(states)

    def note(self, states: Sequence[CardState], topology: Topology) -> None:
        """Take in a topology in the order of ``states``. Ignored if a card came or went in between."""
        if topology.size != len(states):
            return
        with self._lock:
            for i, a in enumerate(states):
                for j, b in enumerate(states):
                    pair = (a.card.uuid, b.card.uuid)
                    if (a.healthy and b.healthy) or pair not in self._links:
                        self._links[pair] = topology.links[i][j]
            self._noted = _who(states)

    def of(self, states: Sequence[CardState]) -> Topology:
        """The links of these cards, in their order; SYS where none was ever read."""
        uuids = [state.card.uuid for state in states]
        with self._lock:
            return Topology(
                tuple(
                    tuple(SELF if a == b else self._links.get((a, b), _UNKNOWN) for b in uuids) for a in uuids
                ),
                self._numa_policy,
            )


def _who(states: Sequence[CardState]) -> frozenset[tuple[CardUuid, bool]]:
    return frozenset((state.card.uuid, state.healthy) for state in states)


MOST_EVENTS: Final = 20  # of one card; the one that was last seen longest ago goes

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


@dataclass(frozen=True, slots=True)
class CardXids:
    """The XIDs of one card since the start: how many closed it, how many did not, the last one's number."""

    closing: int = 0
    others: int = 0
    last: int | None = None

    def and_(self, error: XidError) -> CardXids:
        """With one more."""
        return CardXids(self.closing + error.closes, self.others + (not error.closes), error.number)
