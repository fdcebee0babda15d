"""Health: which cards the node has and which of them are open to new shares, current within 1 s.

Four sources meet here: discovery (the cards are listed every few seconds), health events (the cards report
a fault when it happens), the operator's cordons, and what other device plugins of the node offer. A fault
closes a card at once; a card opens again after it has been well for a while, so that one that flaps does not
come and go at the kubelet. A card that vanishes stays, unhealthy, until somebody who knows that nobody waits
for it calls :meth:`Health.forget`.

The console shows what happened to each card's health since the agent's start: a bounded log.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from gpu_manager.domain.card import UNREAD_MODEL, Card, CardState, CardUuid
from gpu_manager.domain.errors import VcudaError
from gpu_manager.domain.mig import MigInstance, still_held
from gpu_manager.domain.other_plugins import OTHER_PLUGIN
from gpu_manager.domain.topology import NumaPolicy, Topology
from gpu_manager.ports.api_server import InventoryPublisher
from gpu_manager.ports.cards import CardEvent, Cards, XidError
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.containers import Injectable
from gpu_manager.runtime import threads
from gpu_manager.services.cards.card_history import CardXids, HealthEvent, HealthLog, KnownLinks

log = structlog.get_logger(__name__)

Listener = Callable[[tuple[CardState, ...]], None]

XID: Final = "xid"  # of a program: the card stays open
CLOSING_XID: Final = "closing_xid"
_TICK_SECONDS = 1.0  # cordons and ends of probations are noticed within this time
_STOP_SECONDS = 5.0  # a driver that hangs must not delay the agent's end further
VANISHED = "vanished: the driver no longer lists the card; reboot the node, or check its seat and power"
VANISHED_INSTANCE: Final = "vanished: the MIG layout or mode of its card has changed"


@dataclass(frozen=True, slots=True)
class HealthTimes:
    """Seconds. ``period``: between two looks at the cards. ``probation``: how long a card must be well before
    it opens, at least ``period`` (a look begun before a fault may still find the card well). ``grace``: how
    long the last look counts while the driver cannot be asked; cards that were closed for that alone open as
    soon as it can. ``retry_first`` … ``retry_last``: back-off.
    """

    period: float = 10.0
    probation: float = 15.0
    grace: float = 30.0
    retry_first: float = 1.0
    retry_last: float = 5.0


@dataclass(slots=True)
class _Entry:
    """One card: ``well_since`` is None while it has a fault; ``open`` is the published state."""

    card: Card
    well_since: float | None
    open: bool = True
    reason: str = ""
    missing: bool = False
    unasked: bool = False  # closed because the driver could not be asked, and for nothing else

    def bad(self, reason: str) -> None:
        self.well_since, self.open, self.reason, self.unasked = None, False, reason, False

    def good(self, now: float) -> None:
        if self.unasked:
            self.well_since, self.unasked = float("-inf"), False
        if self.well_since is None:
            self.well_since = now


@dataclass(slots=True)
class _Subscriber:
    listener: Listener
    seen: tuple[CardState, ...] | None = field(default=None)


class Health:
    """The current card states. Thread-safe; two threads run from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        cards: Cards,
        inventory: InventoryPublisher,
        clock: Clock,
        times: HealthTimes | None = None,
        numa_policy: NumaPolicy = NumaPolicy.NONE,
        no_instances: Callable[[], str] = str,
    ) -> None:
        """The caller closes ``cards`` after :meth:`stop`. ``numa_policy``: the one of the node's kubelet.
        ``no_instances``: why no more of any MIG instance is given; empty if it is.
        """
        self._no_instances = no_instances
        self._cards, self._inventory, self._clock = cards, inventory, clock
        self._times = times or HealthTimes()
        self._turn = threading.Condition()
        self._entries: dict[CardUuid, _Entry] = {}
        self._cordoned: frozenset[CardUuid] = frozenset()
        self._elsewhere: Mapping[CardUuid, str] = {}
        self._injectable = Injectable()
        self._outside: Mapping[CardUuid, int] = {}
        self._states: tuple[CardState, ...] | None = None  # None until the first look
        self._subscribers: list[_Subscriber] = []
        self._trouble, self._trouble_since, self._failures = "", 0.0, 0
        self._watching = self._news = self._look_now = self._stopping = False
        self._settling = threading.Lock()
        self._links = KnownLinks(numa_policy)
        self._remembered: tuple[Card, ...] = ()
        self._counts: Counter[str] = Counter()
        self._xids: dict[CardUuid, CardXids] = {}
        self._log = HealthLog()
        self.began = clock.now()
        """Seconds since 1970 since which events are told."""
        self._threads: list[threading.Thread] = []

    # Public, thread-safe.

    def states(self) -> tuple[CardState, ...]:
        """The present card states, by index; empty until the first listing."""
        with self._turn:
            return self._states or ()

    def topology(self, states: Sequence[CardState]) -> Topology:
        """How cards are joined, in the order of ``states`` (:meth:`states`, or what a listener was told);
        vanished cards keep the links that they had.
        """
        return self._links.of(states)

    @property
    def trouble(self) -> str:
        """Why the cards cannot be read at present, for /readyz and doctor; empty if they can."""
        with self._turn:
            return self._trouble

    def counts(self) -> Mapping[str, int]:
        """Counts of events since the start: card_closed, card_opened, listing_failed, …"""
        with self._turn:
            return dict(self._counts)

    def xids(self) -> Mapping[CardUuid, CardXids]:
        """The XIDs that the driver reported since the start, by card; a card without one is left out."""
        with self._turn:
            return dict(self._xids)

    def events(self, card: CardUuid) -> tuple[HealthEvent, ...]:
        """What happened to the card's health since :attr:`began`, the newest first."""
        with self._turn:
            return self._log.of(card)

    def subscribe(self, listener: Listener) -> None:
        """Call ``listener`` with all states, soon and after each change, from the service's thread."""
        with self._turn:
            self._subscribers.append(_Subscriber(listener))
            self._news = True
            self._turn.notify_all()

    def forget(self, uuid: CardUuid) -> bool:
        """Drop a vanished card. False if the card is there, or unknown."""
        with self._turn:
            entry = self._entries.get(uuid)
            if entry is None or not entry.missing:
                return False
            del self._entries[uuid]
            self._say("card_forgotten", entry.card)
            self._news = True
            self._turn.notify_all()
            return True

    def remember(self, cards: Iterable[Card]) -> None:
        """Cards that were here. Those that the first listing lacks have vanished: they are shown so until
        :meth:`forget`, as if we had been running when they went.
        """
        with self._turn:
            self._remembered = tuple(cards)

    def offered_elsewhere(self, offers: Mapping[CardUuid, str]) -> None:
        """Close the cards that another device plugin offers, each under that resource; open the others."""
        with self._turn:
            self._elsewhere = dict(offers)
            self._news = True
            self._turn.notify_all()

    def taken_outside(self, taken: Mapping[CardUuid, int]) -> None:
        """Withdraw what processes of no pod hold of these cards' memory, in bytes; of the others nothing."""
        with self._turn:
            self._outside = dict(taken)
            self._news = True
            self._turn.notify_all()

    def injectable(self, found: Injectable) -> None:
        """Close all cards while no container can be injected, or those that none can be given."""
        with self._turn:
            self._injectable = found
            self._news = True
            self._turn.notify_all()

    def look(self) -> None:
        """List the cards now instead of after the period."""
        with self._turn:
            self._look_now = True
            self._turn.notify_all()

    def start(self) -> None:
        """Start both threads."""
        for name, run in (
            ("health-discovery", self._discover_forever),
            ("health-settle", self._settle_forever),
        ):
            thread = threads.forever(name, run)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stop both threads; no listener is called after this returns."""
        with self._turn:
            self._stopping = True
            self._turn.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_STOP_SECONDS)

    # The steps that the threads repeat and that tests call.

    def discover(self) -> float:
        """List the cards once, and start to watch them. Returns the seconds until the next listing."""
        try:
            states = self._cards.list()
            if self._links.stale(states):
                self._links.note(states, self._cards.topology())
        except VcudaError as error:
            return self._failed(str(error))
        with self._turn:
            if self._trouble:
                log.info("cards_readable", after=self._trouble)
            self._trouble, self._failures = "", 0
            self._fold(states)
            self._states = self._states or ()
            self._news = True
            self._turn.notify_all()
        self._watch()
        return self._times.period

    def settle(self) -> None:
        """Compute the states, and notify listeners that have not seen them."""
        cordoned = self._ask_cordons()
        with self._settling:  # one notification at a time, so that listeners see states in their order
            with self._turn:
                self._news = False
                if self._states is None:
                    return
                self._age(self._clock.monotonic())
                self._note_cordons(cordoned)
                states = self._states = self._compose()
                due = [s for s in self._subscribers if s.seen != states]
            for subscriber in due:
                subscriber.seen = states
                self._tell(subscriber.listener, states)

    # Internals; under the lock unless said otherwise.

    def _hear(self, change: CardEvent) -> None:
        """A card reports a change or an XID (called from the cards' thread, without the lock)."""
        with self._turn:
            if isinstance(change, XidError):
                self._xids[change.uuid] = self._xids.get(change.uuid, CardXids()).and_(change)
                word = CLOSING_XID if change.closes else XID
                self._log.note(change.uuid, word, str(change.number), self._clock.now())
                return
            entry = self._entries.get(change.uuid)
            if entry is None or (entry.missing and change.healthy):
                self._look_now = True
            elif change.healthy:
                entry.good(self._clock.monotonic())
            else:
                self._close(entry, change.reason)
            self._news = True
            self._turn.notify_all()

    def _failed(self, reason: str) -> float:
        """Note a failed listing (called without the lock)."""
        with self._turn:
            self._counts["listing_failed"] += 1
            if not self._trouble:
                self._trouble_since = self._clock.monotonic()
            if reason != self._trouble:
                log.warning("cards_unreadable", why=reason)
            self._trouble = reason
            self._failures += 1
            return min(self._times.retry_last, self._times.retry_first * 2.0 ** min(self._failures - 1, 16))

    def _fold(self, states: Sequence[CardState]) -> None:
        now = self._clock.monotonic()
        for state in states:
            entry = self._entries.get(state.card.uuid)
            if entry is None:
                entry = self._entries[state.card.uuid] = _Entry(state.card, well_since=now)
                self._say("card_found", state.card)
            if state.card.whole_only != entry.card.whole_only:
                self._say("card_shared" if not state.card.whole_only else "card_whole_only", state.card)
            entry.card, entry.missing = state.card, False
            if state.healthy:
                entry.good(now)
            else:
                self._close(entry, state.reason)
        present = {state.card.uuid for state in states}
        lost = [card for card in self._remembered if card.uuid not in present | self._entries.keys()]
        self._entries |= {card.uuid: _Entry(card, well_since=None) for card in lost}
        self._remembered = ()
        for uuid, entry in list(self._entries.items()):
            if uuid in present or entry.missing:
                continue
            entry.missing = True
            self._close(entry, VANISHED_INSTANCE if entry.card.instance else VANISHED)
            if entry.card.model == UNREAD_MODEL:  # its size was never read, so no pod can hold any of it
                del self._entries[uuid]

    def _close(self, entry: _Entry, reason: str) -> None:
        if entry.open or entry.reason != reason:
            self._say("card_closed", entry.card, reason=reason)
        entry.bad(reason)

    def _age(self, now: float) -> None:
        """Apply what time alone changes: ends of probations, and a driver absent for too long."""
        if self._trouble and now - self._trouble_since >= self._times.grace:
            for entry in self._entries.values():
                if entry.missing:
                    continue
                unasked = entry.open or entry.unasked
                self._close(entry, f"the driver cannot be asked: {self._trouble}")
                entry.unasked = unasked
        for entry in self._entries.values():
            well = entry.well_since is not None and now - entry.well_since >= self._times.probation
            if well and not entry.open:
                self._say("card_opened", entry.card, was=entry.reason)
                entry.open, entry.reason = True, ""

    def _note_cordons(self, cordoned: frozenset[CardUuid]) -> None:
        for uuid in cordoned ^ self._cordoned:
            entry = self._entries.get(uuid)
            if entry is not None:
                self._say("card_cordoned" if uuid in cordoned else "card_uncordoned", entry.card)
        self._cordoned = cordoned

    def _compose(self) -> tuple[CardState, ...]:
        gone = [(e.card.uuid, e.card.instance) for e in self._entries.values() if e.missing]
        vanished = [(uuid, instance) for uuid, instance in gone if instance is not None]
        withheld = {uuid: self._withheld(e.card, vanished) for uuid, e in self._entries.items()}
        return tuple(
            CardState(
                self._shrunk(e.card),
                healthy=e.open and not withheld[e.card.uuid],
                cordoned=e.card.uuid in self._cordoned,
                reason=e.reason or withheld[e.card.uuid],
                missing=e.missing,
            )
            for e in sorted(self._entries.values(), key=lambda e: (e.card.index, e.card.uuid))
        )

    def _shrunk(self, card: Card) -> Card:
        taken = self._outside.get(card.uuid, 0)
        return replace(card, outside=taken) if taken else card

    def _withheld(self, card: Card, vanished: Sequence[tuple[CardUuid, MigInstance]]) -> str:
        """Why a card that is well is not offered; empty if it is. ``vanished``: instances that are gone."""
        if resource := self._elsewhere.get(card.uuid):
            return f"{OTHER_PLUGIN} offers the card as {resource}"
        held = vanished and still_held(card.uuid, card.instance, vanished)
        off = self._no_instances() if card.instance else ""
        return held or off or self._injectable.why or self._injectable.cards.get(card.uuid, "")

    def _say(self, event: str, card: Card, **more: str) -> None:
        self._counts[event] += 1
        self._log.note(card.uuid, event, "; ".join(more.values()), self._clock.now())
        log.info(event, uuid=card.uuid, card=card.index, model=card.model, **more)

    # Without the lock.

    def _watch(self) -> None:
        """Start to watch events, once; until that succeeds, listings alone find faults."""
        if self._watching:
            return
        try:
            self._cards.watch(self._hear)
            self._watching = True
        except VcudaError as error:
            log.warning("cards_unwatched", why=str(error))
            self._count("watch_failed")

    def _ask_cordons(self) -> frozenset[CardUuid]:
        """The operator's cordons, or the last known ones while they cannot be read."""
        try:
            return self._inventory.cordoned()
        except VcudaError as error:
            with self._turn:
                self._counts["cordons_unreadable"] += 1
                if self._counts["cordons_unreadable"] == 1:
                    log.warning("cordons_unreadable", why=str(error))
                return self._cordoned

    def _tell(self, listener: Listener, states: tuple[CardState, ...]) -> None:
        try:
            listener(states)
        except Exception:  # noqa: BLE001 - one listener's failure must not keep the news from the others
            threads.failed("health_listener_failed")
            self._count("listener_failed")

    def _count(self, event: str) -> None:
        with self._turn:
            self._counts[event] += 1

    def _discover_forever(self) -> None:
        while True:
            try:
                pause = self.discover()
            except Exception:  # noqa: BLE001 - a run loop: it logs, counts and goes on
                threads.failed("health_discovery_failed")
                self._count("discovery_failed")
                pause = self._times.period
            with self._turn:
                self._turn.wait_for(lambda: self._stopping or self._look_now, pause)
                self._look_now = False
                if self._stopping:
                    return

    def _settle_forever(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._stopping or self._news, _TICK_SECONDS)
                if self._stopping:
                    return
            try:
                self.settle()
            except Exception:  # noqa: BLE001 - a run loop: it logs, counts and goes on
                threads.failed("health_settling_failed")
                self._count("settling_failed")
