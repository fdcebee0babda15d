"""Simulated cards: a node's cards from a profile, with load, faults and health that change at run time.

They change through methods, or through a control file (:mod:`gpu_manager.adapters.simulated_control`) that
another program replaces atomically; what the file says of a card overrides the methods. A card's sensors
report what a card of its power would report under its load.
"""

from __future__ import annotations

import threading
import time
import uuid as uuids
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from gpu_manager.adapters import profiles
from gpu_manager.adapters.profiles import CardKind, InstanceKind, Profile
from gpu_manager.adapters.simulated_control import CardOrder, DriverOrder, Load, parse_control
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.mig import MigInstance, number_of
from gpu_manager.domain.topology import SELF, Link, LinkKind, Topology
from gpu_manager.ports.cards import (
    NO_SENSORS,
    CardEvent,
    CardSensors,
    CardUse,
    HealthChange,
    ProcessUse,
    XidError,
)
from gpu_manager.runtime import threads

log = structlog.get_logger(__name__)


_POLL_SECONDS = 0.2


class SimulatedCards:
    """:class:`gpu_manager.ports.cards.Cards` of a profile. UUIDs depend on profile, index and node name
    alone.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        node: str = "node",
        control: Path | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        instances: Callable[[], bool] = lambda: False,
    ) -> None:
        """``control`` is watched from the start; it need not exist. While ``instances`` is true, MIG
        instances are cards too.
        """
        self._profile, self._node, self._control = profile, node, control
        self._instances = instances
        self._cards = {c.uuid: c for c in (self._card(i, k) for i, k in enumerate(profile.cards))}
        self._links = {
            (a, b): profile.topology.links[self._cards[a].index][self._cards[b].index]
            for a in self._cards
            for b in self._cards
        }
        self._monotonic = monotonic
        self._sensors = {
            card.uuid: SimulatedSensors(kind.watts, monotonic())
            for card, kind in zip(self._cards.values(), profile.cards, strict=True)
            if kind.watts is not None
        }
        self._turn = threading.Condition()
        self._ordered: dict[CardUuid, CardOrder] = {}
        self._filed: dict[CardUuid, CardOrder] = {}
        self._driver, self._driver_filed = "", DriverOrder()
        self._stamp: tuple[int, int, int] | None = None
        self._told = dict.fromkeys(self._cards, (True, ""))
        self._xids_told: Counter[tuple[CardUuid, int]] = Counter()
        self._news: list[CardEvent] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        with self._turn:
            self._refresh()

    @classmethod
    def named(
        cls,
        name: str,
        *,
        node: str = "node",
        control: Path | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        instances: Callable[[], bool] = lambda: False,
    ) -> SimulatedCards:
        """A shipped profile by name, or one by the path of its file. Raises RequestInvalid."""
        return cls(profiles.load(name), node=node, control=control, monotonic=monotonic, instances=instances)

    @classmethod
    def from_topology(
        cls,
        path: Path,
        *,
        node: str = "node",
        control: Path | None = None,
        model: str = profiles.DEFAULT_MODEL,
    ) -> SimulatedCards:
        """As many cards of ``model`` as a file of `nvidia-smi topo -m` shows. Raises RequestInvalid."""
        return cls(profiles.read_matrix(path, model), node=node, control=control)

    # The port.

    def list(self) -> Sequence[CardState]:
        """Every card that is there, by index. Raises NodeUnready while the driver is ordered away."""
        with self._turn:
            self._refresh()
            self._ask_driver()
            states = []
            for card in self._present():
                healthy, reason = self._health(card)
                states.append(CardState(card, healthy=healthy, reason=reason))
            return tuple(states)

    def topology(self) -> Topology:
        """The profile's links among the cards that are there."""
        with self._turn:
            self._refresh()
            self._ask_driver()
            present, far = [c.uuid for c in self._present()], Link(LinkKind.SYS)
            return Topology(
                tuple(
                    tuple(SELF if a == b else self._links.get((a, b), far) for b in present) for a in present
                )
            )

    def usage(self) -> tuple[Sequence[CardUse], Sequence[ProcessUse]]:
        """Return the current loads, without failing cards."""
        with self._turn:
            self._refresh()
            self._ask_driver()
            cards: list[CardUse] = []
            processes: list[ProcessUse] = []
            for card in self._present():
                order = self._order(card.uuid)
                if order.error:
                    continue
                memory = sum(load.memory or 0 for load in order.load)
                busy = min(100.0, sum(load.utilisation or 0.0 for load in order.load))
                sensors = self._sensors.get(card.uuid)
                seen = sensors.read(self._monotonic(), busy) if sensors else NO_SENSORS
                timed = card.instance is None  # the driver has no figures of time of an instance
                cards.append(
                    CardUse(card.uuid, memory, busy if timed else None, samples_processes=timed, sensors=seen)
                )
                processes += (
                    ProcessUse(card.uuid, x.pid, x.memory, x.utilisation if timed else None)
                    for x in order.load
                )
            return cards, processes

    def watch(self, told: Callable[[CardEvent], None]) -> None:
        """Report health changes and XIDs from a thread of its own, until :meth:`close`."""
        with self._turn:
            if self._thread is None and not self._closed:
                self._thread = threads.forever("simulated-health", lambda: self._tell(told))
                self._thread.start()

    def close(self) -> None:
        """End the thread."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # Orders.

    def set_health(self, uuid: CardUuid, healthy: bool, reason: str = "") -> None:  # noqa: FBT001 - the port's word
        """Close or open a card."""
        self._change(uuid, lambda order: replace(order, healthy=healthy, reason=reason, error=""))

    def fail(self, uuid: CardUuid, error: str) -> None:
        """The card stays listed, unhealthy, and answers nothing, until :meth:`set_health`."""
        self._change(uuid, lambda order: replace(order, error=error or "the card does not answer"))

    def set_load(
        self, uuid: CardUuid, pid: int, memory: int | None = None, utilisation: float | None = None
    ) -> None:
        """Set the load of a process on a card; both None remove it."""
        gone = memory is None and utilisation is None

        def change(order: CardOrder) -> CardOrder:
            others = tuple(load for load in order.load if load.pid != pid)
            return replace(order, load=others if gone else (*others, Load(pid, memory, utilisation)))

        self._change(uuid, change)

    def remove(self, uuid: CardUuid) -> None:
        """Remove the card from the list."""
        self._change(uuid, lambda order: replace(order, removed=True))

    def add(self, uuid: CardUuid | None = None) -> CardUuid:
        """Bring a removed card back; without a UUID, plug in one more card like the profile's last."""
        if uuid is not None:
            self._change(uuid, lambda order: replace(order, removed=False))
            return uuid
        with self._turn:
            card = self._card(max(c.index for c in self._cards.values()) + 1, self._profile.cards[-1])
            for other in self._cards:
                self._links[card.uuid, other] = self._links[other, card.uuid] = Link(LinkKind.SYS)
            self._links[card.uuid, card.uuid] = SELF
            self._cards[card.uuid] = card
            self._told[card.uuid] = (True, "")
            self._news.append(HealthChange(card.uuid, healthy=True, reason="a new card"))
            self._turn.notify_all()
        return card.uuid

    def set_driver(self, error: str = "") -> None:
        """Take the driver away, with a reason, or bring it back."""
        with self._turn:
            self._driver = error

    # Internals; all but _tell run under the lock.

    def _card(self, index: int, kind: CardKind) -> Card:
        name = f"gpu-manager/simulated/{self._profile.name}/{index}/{self._node}"
        return Card(
            index=index,
            uuid=CardUuid(f"GPU-{uuids.uuid5(uuids.NAMESPACE_URL, name)}"),
            model=kind.model,
            memory=kind.memory,
            reserved=kind.reserved,
            numa=kind.numa,
            minor=index,
            pci_bus_id=f"0000:{0x10 + index:02x}:00.0",
            mig=kind.mig,
        )

    def _present(self) -> Sequence[Card]:
        modes = ((card, self._order(card.uuid).mig) for card in self._cards.values())
        cards = [card if mode is None else replace(card, mig=mode) for card, mode in modes]
        cards.sort(key=lambda c: c.index)
        cards += [part for card in cards for part in self._parts(card)] if self._instances() else []
        return [c for c in cards if not self._order(c.uuid).removed]

    def _parts(self, card: Card) -> Sequence[Card]:
        """The instances of a card. Their UUIDs depend on card, place and profile, as the driver's do."""
        if not card.mig or self._order(card.uuid).removed:
            return ()
        layout = self._order(card.uuid).instances
        kinds = self._profile.cards[min(card.index, len(self._profile.cards) - 1)].instances
        return [
            replace(
                card,
                index=number_of(card.index, place),
                uuid=_instance_uuid(card, kind),
                model=f"{card.model}-MIG-{kind.profile}",
                memory=kind.memory,
                reserved=0,
                mig=False,
                instance=MigInstance(card.uuid, kind.gi, 0),
            )
            for place, kind in enumerate(kinds if layout is None else layout)
        ]

    def _known(self) -> Mapping[CardUuid, Card]:
        return self._cards | {part.uuid: part for card in self._cards.values() for part in self._parts(card)}

    def _health(self, card: Card) -> tuple[bool, str]:
        """Healthy, and why not; an instance is no better than its parent."""
        parent = self._order(CardUuid(card.instance.parent)).health if card.instance else (True, "")
        return self._order(card.uuid).health if parent[0] else parent

    def _order(self, uuid: CardUuid) -> CardOrder:
        return self._filed.get(uuid) or self._ordered.get(uuid) or CardOrder()

    def _ask_driver(self) -> None:
        while self._driver_filed.hangs and not self._closed:
            self._turn.wait(_POLL_SECONDS)
            self._refresh()
        error = self._driver_filed.error or self._driver
        if error:
            raise NodeUnready(error)

    def _change(self, uuid: CardUuid, change: Callable[[CardOrder], CardOrder]) -> None:
        with self._turn:
            if uuid not in self._known():
                raise RequestInvalid(f"there is no card {uuid}: the cards are {', '.join(self._cards)}")
            self._ordered[uuid] = change(self._ordered.get(uuid, CardOrder()))
            self._note()

    def _note(self) -> None:
        """Queue what has changed since the last time."""
        for uuid in self._cards:
            health = self._order(uuid).health
            if health != self._told[uuid]:
                self._told[uuid] = health
                told = (uuid, *(part.uuid for part in self._parts(self._cards[uuid])))
                self._news += [HealthChange(one, healthy=health[0], reason=health[1]) for one in told]
            for xid, count in self._order(uuid).xids.items():
                event = XidError(uuid, xid, closes=not health[0])
                self._news += [event] * (count - self._xids_told[uuid, xid])
                self._xids_told[uuid, xid] = max(count, self._xids_told[uuid, xid])
        if self._news:
            self._turn.notify_all()

    def _refresh(self) -> None:
        """Read the control file if it was replaced. A malformed one is logged and changes nothing."""
        if self._control is None:
            return
        try:
            seen = self._control.stat()
            stamp = (seen.st_mtime_ns, seen.st_ino, seen.st_size)
        except OSError:
            stamp = None
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._driver_filed, self._filed = parse_control(self._control, self._known())
        except RequestInvalid as error:
            log.warning("control_file_refused", why=str(error))
            return
        self._note()

    def _tell(self, told: Callable[[CardEvent], None]) -> None:
        while True:
            with self._turn:
                self._refresh()
                if not self._news and not self._closed:
                    self._turn.wait(_POLL_SECONDS if self._control is not None else None)
                    self._refresh()
                if self._closed:
                    return
                news, self._news = self._news, []
            for change in news:
                told(change)


def _instance_uuid(card: Card, kind: InstanceKind) -> CardUuid:
    return CardUuid(f"MIG-{uuids.uuid5(uuids.NAMESPACE_URL, f'{card.uuid}/{kind.gi}/{kind.profile}')}")


SENSOR_SECONDS = 10.0  # between two readings, as of a real card
_COOL, _WARMER = 30.0, 45.0  # °C of an idle card, and what full load adds


class SimulatedSensors:
    """Temperature, power and energy of one card. The energy is that of the load between the readings."""

    def __init__(self, watts: tuple[float, float], now: float) -> None:
        """``watts``: the power of an idle card and at full load; ``now``: monotonic seconds."""
        self._idle, self._full = watts
        self._at = self._read_at = now
        self._joules = 0.0
        self._power = self._idle
        self._shown = NO_SENSORS

    def read(self, now: float, percent: float) -> CardSensors:
        """Return the figures, at most :data:`SENSOR_SECONDS` old; the load is ``percent`` from now on."""
        self._joules += self._power * max(0.0, now - self._at)
        self._at = now
        self._power = self._idle + (self._full - self._idle) * percent / 100
        if self._shown is NO_SENSORS or now - self._read_at >= SENSOR_SECONDS:
            self._read_at = now
            warmth = _COOL + _WARMER * percent / 100
            self._shown = CardSensors(temperature=warmth, power=self._power, energy=self._joules)
        return self._shown
