"""Has the gates of cards watched while protected and best-effort containers share them, and publishes the
share that each container has meanwhile.

Costs nothing on a node whose containers are all normal. The watcher closes and opens the gates: it is a
separate program (``vcuda/lib/watcher``), because an interpreter cannot respond within a millisecond.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.enforcement.protection import CardMember, GatedCard, Granted, gated_cards
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.priority import Priority
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.control_pages import Correction, Gates, GateWatch, GateWatcher, WatchedTenant
from gpu_manager.services.allocation.books import Grant, Key
from gpu_manager.services.allocation.grant import limits_of
from gpu_manager.services.enforcement.usage_sample import Sample, unread
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

PERIOD_SECONDS: Final = 1.0
REST_SECONDS: Final = 10.0
"""Where all containers are normal."""
_STEP: Final = 1.0
"""Percent: a smaller change of a share is not told."""
_NOTHING: Final = Granted(0.0)


class CorrectedPages(Protocol):
    """Control pages to which corrections are published."""

    def publish(self, name: str, heartbeat_ns: int, corrections: Mapping[CardUuid, Correction]) -> None:
        """See :class:`gpu_manager.ports.control_pages.ActivityPages`."""


@dataclass(frozen=True, slots=True)
class CardProtection:
    """The state of a card with both classes: how long a protected launch may wait for work in flight, and for
    how long its gate was closed in total (None: unknown), both in seconds; and whether a normal container,
    which does not make way, is on the card.
    """

    wait: float
    closed: float | None
    beside_normal: bool


@dataclass(eq=False, repr=False)
class CardGates:
    """Grants shares and runs the watcher. One thread calls ``look``, after each :attr:`pause` and when
    ``due`` is set, as by each change of what is granted; any may read ``told``.
    """

    grants: Callable[[], Mapping[Key, Grant]]
    sample: Callable[[], Sample]
    pages: CorrectedPages
    gates: Gates
    watcher: GateWatcher
    clock: Clock
    metrics: ServiceMetrics

    def __post_init__(self) -> None:
        self.due = threading.Event()
        self._granted: dict[tuple[str, CardUuid], Granted] = {}
        self._failed = ""
        self._without_gates: Mapping[Key, Grant] | None = None
        """Grants that need no gate; they are never changed in place."""
        self.told: Mapping[CardUuid, CardProtection] = {}

    def look(self) -> None:
        """Grant the shares due now, and have the right gates watched."""
        grants = self.grants()
        if grants is self._without_gates:
            return
        members = _members(grants, self.sample())
        cards = gated_cards(members)
        self._grant(members, cards)
        self._watch(cards)
        self.told = {c.card: CardProtection(c.wait_seconds, self._closed(c.card), c.normal) for c in cards}
        self._without_gates = None if members or self._failed else grants

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        return PERIOD_SECONDS if self._without_gates is None else REST_SECONDS

    def close(self) -> None:
        """End the watcher, which opens all gates."""
        self.watcher.close()

    def _grant(self, members: Sequence[CardMember], cards: Sequence[GatedCard]) -> None:
        due = {
            (m.name, m.card): _NOTHING for m in members if m.priority is not Priority.NORMAL
        }  # includes containers that are alone by now, or whose page an earlier agent has written
        for card in cards:
            due |= {(name, card.card): told for name, told in card.granted().items()}
        self._granted = {place: told for place, told in self._granted.items() if place in due}
        for place, told in due.items():
            before = self._granted.get(place)
            if before is not None and _is_near(before, told):
                continue
            name, uuid = place
            try:
                now_ns = int(self.clock.monotonic() * 1e9)
                self.pages.publish(name, now_ns, {uuid: Correction(granted=told.share, beside=told.beside)})
            except NodeUnready as error:
                self.metrics.scrape_errors.labels("pages").inc()
                log.debug("share_not_granted", directory=name, reason=str(error))
                continue
            self._granted[place] = told

    def _watch(self, cards: Sequence[GatedCard]) -> None:
        try:
            for card in cards:
                self.gates.ensure(card.card)
            self.watcher.watch([GateWatch(c.card, _told(c.protected), _told(c.best_effort)) for c in cards])
        except NodeUnready as error:
            self.metrics.scrape_errors.labels("gates").inc()
            if str(error) != self._failed:
                log.error("gates_not_watched", reason=str(error))
            self._failed = str(error)
            return
        self._failed = ""

    def _closed(self, card: CardUuid) -> float | None:
        try:
            return self.gates.read(card).closed_seconds
        except NodeUnready:
            return None


def _is_near(before: Granted, now: Granted) -> bool:
    pairs = ((before.share, now.share), (before.beside, now.beside))
    return all(bool(then) == bool(told) and abs(then - told) < _STEP for then, told in pairs)


def _told(members: Sequence[CardMember]) -> tuple[WatchedTenant, ...]:
    return tuple(WatchedTenant(member.name, member.index, member.cores) for member in members)


def _members(grants: Mapping[Key, Grant], sample: Sample) -> Sequence[CardMember]:
    """The containers with a page, on cards with a protected or best-effort container; empty if all are
    normal. A container counts from its grant on, before its page is first read, so its first launches find
    the card's gate watched.
    """
    if all(grant.allocation.priority is Priority.NORMAL for grant in grants.values()):
        return ()
    uses = {use.place: use for use in sample.shares}
    members = []
    for key, grant in grants.items():
        for index, limit in enumerate(limits_of(grant)):
            share = next(s for s in grant.allocation.shares if s.card == limit.card)
            use = uses.get((key, limit.card)) or unread(grant, share)
            if use.enforcement == "active":
                members.append(
                    CardMember(
                        grant.directory,
                        limit.card,
                        index,
                        limit.cores,
                        limit.ceiling,
                        limit.priority,
                        used=100 * (use.core or 0.0),
                        longest=use.longest,
                    )
                )
    return members
