"""Simulated cards: a node's cards from a profile, with load, faults and health that change at run time.

They change through methods, or through a control file that another program replaces atomically; what the file
says of a card overrides the methods. A card's sensors report what a card of its power would report under its
load.

The control file is YAML::

    driver: ""                         # not empty: the driver cannot be asked, with this reason
    hangs: false                       # true: the driver does not answer, and whoever asks it waits
    cards:
      3:                               # an index or a UUID
        healthy: false
        reason: "XID 79: fallen off the bus"
        error: the card does not answer    # it is listed, unhealthy, and tells no figures
        xids: {31: 2}                  # how often the driver has reported each XID so far
        removed: true                  # gone from the list
        mig: true                      # MIG mode is on; else as in the profile
        instances: [[1g.18gb, 18432Mi, 9]]   # the layout of a card in MIG mode
        load:
        - {pid: 4711, memory: 5Gi, utilisation: 30}
"""

from __future__ import annotations

import os
import threading
import time
import uuid as uuids
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog
import yaml

from gpu_manager.adapters import profiles
from gpu_manager.adapters.profiles import CardKind, InstanceKind, Profile
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.mig import MigInstance, number_of
from gpu_manager.domain.resources import parse_quantity
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

_LARGEST = 1 << 20  # bytes of a control file


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one process on a card: bytes, SM percent."""

    pid: int
    memory: int | None = None
    utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class CardOrder:
    """The desired state of a card; the default is a healthy idle card."""

    healthy: bool = True
    reason: str = ""
    error: str = ""
    removed: bool = False
    xids: Mapping[int, int] = field(default_factory=dict)
    load: tuple[Load, ...] = ()
    mig: bool | None = None  # None: as in the profile
    instances: tuple[InstanceKind, ...] | None = None  # as above

    @property
    def health(self) -> tuple[bool, str]:
        """Healthy, and why not."""
        if self.removed:
            return False, "the card was removed"
        if self.error:
            return False, self.error
        return self.healthy, "" if self.healthy else self.reason or "closed by order"


@dataclass(frozen=True, slots=True)
class DriverOrder:
    """The desired state of the driver: why it cannot be asked, empty if it can; whether it hangs."""

    error: str = ""
    hangs: bool = False


def parse_control(
    path: Path, cards: Mapping[CardUuid, Card]
) -> tuple[DriverOrder, dict[CardUuid, CardOrder]]:
    """The order for the driver, and for each card that the file names; the defaults if there is no file.

    Raises:
        RequestInvalid: it is malformed; the text names file, key and value.
    """
    if not path.exists():
        return DriverOrder(), {}
    data = _load_control(path)
    unknown = set(data) - {"driver", "hangs", "cards"}
    if unknown:
        raise RequestInvalid(f"{path}: unknown key {unknown.pop()!r}: it takes driver, hangs and cards")
    entries = data.get("cards") or {}
    if not isinstance(entries, dict):
        raise RequestInvalid(f"{path}: cards: {entries!r} is no mapping of cards")
    by_key = {str(c.index): uuid for uuid, c in cards.items()} | {str(uuid): uuid for uuid in cards}
    orders = {}
    for key, value in entries.items():
        if str(key) not in by_key:
            raise RequestInvalid(f"{path}: cards: there is no card {key!r}: give an index or a UUID")
        orders[by_key[str(key)]] = _parse_order(value, f"{path}: cards: {key}")
    return DriverOrder(str(data.get("driver") or ""), bool(data.get("hangs"))), orders


def write_control(
    path: Path, cards: Mapping[str, Mapping[str, Any]], driver: str = "", *, hangs: bool = False
) -> None:
    """Replace a control file atomically. ``cards``: index or UUID → healthy, reason, error, removed, xids,
    load.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    orders = {"driver": driver, "hangs": hangs, "cards": {k: dict(v) for k, v in cards.items()}}
    text = yaml.safe_dump(orders, sort_keys=False)
    try:
        fresh.write_text(text, "utf-8")
        fresh.replace(path)
    except OSError as error:
        raise NodeUnready(f"cannot write the control file {path}: {error.strerror}") from None


def read_control(path: Path) -> dict[str, dict[str, Any]]:
    """The cards of a control file as :func:`write_control` takes them; empty if there is none."""
    if not path.exists():
        return {}
    cards = _load_control(path).get("cards") or {}
    return {str(key): dict(value or {}) for key, value in cards.items()}


def _load_control(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = yaml.safe_load(file.read(_LARGEST))
    except OSError as error:
        raise RequestInvalid(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: dates, bad UTF-8
        raise RequestInvalid(f"{path} is no YAML: {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise RequestInvalid(f"{path}: {data!r} is no mapping: it takes driver, hangs and cards")
    return data


def _parse_order(value: object, where: str) -> CardOrder:
    fields = value if value is not None else {}
    if not isinstance(fields, dict):
        raise RequestInvalid(f"{where}: {value!r} is no mapping")
    kinds = {"healthy": bool, "reason": str, "error": str, "removed": bool, "xids": dict, "load": list}
    kinds |= {"instances": list, "mig": bool}
    for key, entry in fields.items():
        if key not in kinds:
            raise RequestInvalid(f"{where}: unknown key {key!r}: it takes {', '.join(kinds)}")
        if not isinstance(entry, kinds[key]):
            raise RequestInvalid(f"{where}: {key}: {entry!r} is no {kinds[key].__name__}")
    for number in (n for pair in fields.get("xids", {}).items() for n in pair):
        if type(number) is not int or number < 0:
            raise RequestInvalid(f"{where}: xids: {number!r} is no whole number: it takes XID: how often")
    load = tuple(_parse_load(entry, f"{where}: load") for entry in fields.get("load", ()))
    layout = fields.get("instances")
    instances = None if layout is None else profiles.parse_layout(layout, where, "instances")
    return CardOrder(**{**fields, "load": load, "instances": instances})


def _parse_load(value: object, where: str) -> Load:
    if not isinstance(value, dict) or not set(value) <= {"pid", "memory", "utilisation"}:
        raise RequestInvalid(
            f"{where}: {value!r} is not of the form {{pid: 1, memory: 5Gi, utilisation: 30}}"
        )
    pid, utilisation = value.get("pid"), value.get("utilisation")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        raise RequestInvalid(f"{where}: pid: {pid!r} is no process id")
    if utilisation is not None and (
        not isinstance(utilisation, int | float)
        or isinstance(utilisation, bool)
        or not 0 <= utilisation <= 100
    ):
        raise RequestInvalid(f"{where}: utilisation: {utilisation!r} is no percentage")
    try:
        memory = None if value.get("memory") is None else int(parse_quantity(value["memory"]))
    except RequestInvalid as error:
        raise RequestInvalid(f"{where}: memory: {error}") from None
    return Load(pid, memory, None if utilisation is None else float(utilisation))


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
