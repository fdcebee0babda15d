"""The inventory: passes the node's cards to the allocator, to the kubelet's streams and to the API server.

It combines the health of cards with the topology, and publishes the node's inventory annotation and labels
whenever they differ from the last ones. The cards that this node has had are kept on the disk, so that one
that is gone after a reboot is reported missing. A card leaves that list when
:class:`gpu_manager.services.cards.health.Health` forgets it.

:class:`MigInstances` decides whether MIG instances are listed as cards: the node's label counts before the
setting. What pods hold is not taken from under them: until they have left, a node on which instances are
turned off keeps listing them, closed, and is not ready.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import Final

import structlog

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import (
    DRA_DRIVER,
    EVENT_MIG_CHANGED,
    FRONT_LABEL,
    INVENTORY,
    NVIDIA,
    RELEASE_FEATURES,
    Inventory,
    encode_inventory,
    model_labels,
)
from gpu_manager.domain.dra.sides import Front
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.mig import is_instance, parse_place
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.ports.api_server import InventoryPublisher
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.records import Store
from gpu_manager.runtime import threads
from gpu_manager.services.allocation.allocator import Allocator
from gpu_manager.services.allocation.node_state import NodeState, StateView
from gpu_manager.services.allocation.reclaim import DepartedPods
from gpu_manager.services.cards.health import Health

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 5.0  # refusals leave the inventory within this time after their 30 s
ELSEWHERE_SECONDS = 300.0  # between two looks at the other nodes for cards that vanished here
STARTING_SECONDS = 0.25  # pods wait until it is published that the kubelet has our devices
STRANDED_MOST = 64  # pods named in an inventory; the next are, once these have been replaced
LINGERING_SECONDS = 1.0  # what deleted pods' processes held does, after the last of them has ended


@dataclass(eq=False, repr=False)
class InventoryService:
    """Thread-safe. ``run`` is its thread's loop; ``cards_changed`` is a listener of Health.

    ``offering``: the kubelet has our devices; while it has not, no pod may be bound here. With the
    ``front`` of DRA every card is held by it for those who place pods by extended resources; on a split
    node those are that pods cannot have. ``stranded``: the UIDs of pods that cannot start a container
    again. ``no_injection``: why no container can be given a card. ``gates``: best-effort containers wait
    for protected ones. ``injects_by``: the strategy by which containers get their cards.
    """

    state: NodeState
    allocator: Allocator
    departed: DepartedPods
    health: Health
    inventory: InventoryPublisher
    announce: Callable[[], None]
    labels: InitVar[Mapping[str, str]]
    clock: Clock
    offering: Callable[[], bool] = lambda: True
    front: Callable[[], Front] = lambda: Front.PLUGIN
    _: KW_ONLY
    stranded: Callable[[], tuple[str, ...]] = tuple
    no_injection: Callable[[], str] = str
    gates: bool = False
    injects_by: str = ""

    def __post_init__(self, labels: Mapping[str, str]) -> None:
        self._labels = dict(labels)
        self._inventory_told: Inventory | None = None
        self._published: tuple[str, Mapping[str, str | None]] | None = None
        self._news = threading.Event()
        self._period = PERIOD_SECONDS
        self._elsewhere_at = float("-inf")
        self._found_elsewhere: frozenset[CardUuid] = frozenset()
        self._leaving = False

    def leave(self) -> None:
        """Publish that this agent stops, so that schedulers bind no more pods here. Returns at once."""
        self._leaving = True
        self.changed()

    def told_leaving(self) -> bool:
        """True once the API server shows what :meth:`leave` has published."""
        told = self._inventory_told
        return self._leaving and told is not None and not told.serving and self.inventory.shown()

    def cards_changed(self, states: tuple[CardState, ...]) -> None:
        """Take in new card states."""
        self.state.refit(states, self.health.topology(states))
        self.announce()
        self.changed()

    def changed(self) -> None:
        """Note that something published may have changed; returns at once."""
        self._news.set()

    def publish(self) -> bool:
        """Publish the inventory if it differs from the last; True if it was sent."""
        node, lent = self.state.node, self.state.offer.lent
        front = self.front()
        by_claims = front is Front.DRA
        away = {s.card.uuid: DRA_DRIVER for s in node.cards} if by_claims else dict.fromkeys(lent, NVIDIA)
        cards = tuple(replace(s, held=away.get(s.card.uuid, s.held)) for s in node.cards)
        lingering, released = self.departed.told()
        # A kubelet that comes back refuses for good what it admits before it has our devices again, and its
        # node's status shows that only with its first report: what is bound until then would be lost.
        offering = self.offering()
        serving = offering and not self._leaving
        self._period = LINGERING_SECONDS if lingering else PERIOD_SECONDS
        if not offering:
            self._period = STARTING_SECONDS
        inventory = Inventory(
            node.unit,
            cards,
            node.topology,
            self.allocator.refused(),
            lingering,
            serving,
            released,
            stranded=self.stranded()[:STRANDED_MOST],
            no_injection=self.no_injection(),
            gates=self.gates,
            injects_by=self.injects_by,
            features=RELEASE_FEATURES,
        )
        if inventory == self._inventory_told:
            return False  # labels follow from the cards
        text = encode_inventory(inventory)
        labels: dict[str, str | None] = {**self._labels, **model_labels(node.cards)}
        labels[FRONT_LABEL] = None if front is Front.PLUGIN else front.value
        if self._published == (text, labels):
            return False
        self.inventory.publish({INVENTORY: text}, labels)
        self._published, self._inventory_told = (text, labels), inventory
        return True

    def forget_vanished(self) -> None:
        """Forget the vanished cards that nobody waits for: what the operator says is gone for good, what
        another card has taken the place of, and what another node has now. Never one that is held in part.
        """
        view, wanted = self.state.view, self.inventory.to_forget()
        if not view.node.cards:
            return  # nothing has been listed yet
        there = {s.card.uuid: s.card for s in view.node.cards if not s.missing}
        vanished = {s.card.uuid: s.card for s in view.node.cards if s.missing}
        idle = [uuid for uuid in vanished if not view.ledger.holders(uuid)]
        taken = {card.pci_bus_id for card in there.values() if card.pci_bus_id}
        replaced = {uuid for uuid in idle if vanished[uuid].pci_bus_id in taken}
        for uuid in idle:
            if uuid in wanted | replaced or uuid in self._elsewhere(idle):
                self.health.forget(uuid)
        held = vanished.keys() - idle
        if dealt_with := wanted - held:
            log.info("forgotten_by_order", cards=sorted(dealt_with & vanished.keys()))
            self.inventory.forgot(dealt_with)

    def _elsewhere(self, uuids: Sequence[CardUuid]) -> frozenset[CardUuid]:
        """Those of them that another node shows; asked anew every few minutes."""
        now = self.clock.monotonic()
        if now - self._elsewhere_at >= ELSEWHERE_SECONDS:
            self._elsewhere_at = now
            try:
                self._found_elsewhere = self.inventory.elsewhere(uuids)
            except NodeUnready as error:
                log.warning("other_nodes_not_asked", reason=str(error))
        return self._found_elsewhere

    def run(self, stop: threading.Event) -> None:
        """Publish changes, and check regularly for expired refusals and ended processes of deleted pods."""
        while not stop.is_set():
            self._news.wait(self._period)
            self._news.clear()
            if stop.is_set():
                return
            try:
                self.forget_vanished()
                self.publish()
            except NodeUnready as error:
                log.warning("inventory_not_published", reason=str(error))
            except Exception:  # noqa: BLE001 - a run loop: the next round publishes
                threads.failed("inventory_failed")

    def wake(self) -> None:
        """Wake ``run``, so that it sees the request to stop."""
        self._news.set()


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
    """One JSON row a card. An instance has its place behind the bus id, so that older agents can read it."""
    rows = [
        [c.index, c.uuid, c.model, c.memory, c.reserved, c.numa, c.minor, " ".join(_places(c))] for c in cards
    ]
    return json.dumps(rows, separators=(",", ":")).encode()


def _places(card: Card) -> tuple[str, ...]:
    return (card.pci_bus_id,) if card.instance is None else (card.pci_bus_id, card.instance.name)


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
                str(bus).partition(" ")[0],
                instance=parse_place(str(bus).partition(" ")[2]),
            )
            for index, uuid, model, memory, reserved, numa, minor, bus in json.loads(text)
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise NodeUnready(f"the list of known cards is not readable: {error}") from None


_SHOWN: Final = 5  # pods that a text names
_LABEL: Final = {"true": True, "false": False}


@dataclass(eq=False, repr=False)
class MigInstances:
    """MIG instances as cards. One thread calls :meth:`look`; all other methods may be called by any thread.

    ``label``: the value of the node's label, empty without one. ``event`` records a reason and a message
    about the node. ``relist``: have the cards listed anew, soon.
    """

    state: NodeState
    setting: bool
    label: Callable[[], str]
    event: Callable[[str, str], None]
    relist: Callable[[], object]

    def __post_init__(self) -> None:
        self._listed = False
        self.assumed = False
        """Instances are listed, until the books say whether pods hold some."""
        self._said = ""
        self._holders: tuple[StateView | None, Sequence[Allocation]] = (None, ())

    def given(self) -> bool:
        """True if instances are listed as cards: they are wanted, or pods hold some still."""
        self._listed = self.assumed or self._wanted() or bool(self._held())
        return self._listed

    @property
    def trouble(self) -> str:
        """Why instances are not turned off as wanted; empty if they are as wanted."""
        if self._wanted() or not (held := self._held()):
            return ""
        return (
            f"MIG instances stay listed though they are turned off: {_names(held)} still hold some: end "
            "these pods, or turn --mig-instances on again"
        )

    def look(self) -> None:
        """Say, once each, what pods have lost by a changed layout or mode, and who holds up the setting. Have
        a changed setting followed.
        """
        if self._listed != (self._wanted() or bool(self._held())):
            self.relist()
        said = "; ".join((*filter(None, (self.trouble,)), *self._lost()))
        if said != self._said:
            self._said = said
            if said:
                log.warning("mig_changed_under_pods", why=said)
                self.event(EVENT_MIG_CHANGED, said)

    def _wanted(self) -> bool:
        return _LABEL.get(self.label(), self.setting)

    def _held(self) -> Sequence[Allocation]:
        view, (before, held) = self.state.view, self._holders
        if view is not before:
            held = [a for a in view.ledger if any(map(is_instance, a.cards))]
            self._holders = view, held
        return held

    def _lost(self) -> Iterator[str]:
        view = self.state.view
        for state in view.node.cards:
            card = state.card
            holders = view.ledger.holders(card.uuid) if card.mig or (card.instance and state.missing) else ()
            if holders:
                now = "is in MIG mode now" if card.mig else f"({card.model}, {card.uuid}) has vanished"
                yield f"card {card.index} {now}, of which {_names(holders)} hold a part: end these pods"


def _names(allocations: Iterable[Allocation]) -> str:
    names = sorted({allocation.pod_key for allocation in allocations})
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
