"""What keeps whole cards, or part of their memory, from being offered: another plugin, other programs, the
driver.

- A card that another device plugin of this node offers too is closed here: two ledgers know nothing of each
  other, and would give one card out twice. The kubelet is asked which devices it may hand out, under whatever
  name, only while the socket of another plugin is there.
- Memory that processes of no pod hold (a desktop, a daemon, a person's program) is withdrawn from what pods
  are offered, by number. Processes of pods are left to the accounts of their containers, and what the driver
  keeps for itself is in the card's reserve: nothing is counted twice.
- Where no container can be injected, no card is offered, and pods wait with the reason. A driver that is
  replaced under the node, or a device node that is made late, would fail each pod for good at its admission,
  and a controller would make the next one at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import EVENT_OTHER_PLUGIN
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.other_plugins import offered_elsewhere
from gpu_manager.domain.resources import MIB
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.containers import Injectable, InjectionProbe, OutsideProcesses
from gpu_manager.services.cards.health import Health
from gpu_manager.services.enforcement.usage_sample import Sample
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

PERIOD_SECONDS: Final = 0.5
# A plugin that is restarted is away for a moment, and so are all when the kubelet restarts.
REOPEN_SECONDS: Final = 15.0


@dataclass(eq=False, repr=False)
class OtherPlugins:
    """What other plugins offer of our cards. One thread calls :meth:`look`; any may read.

    ``ask``: resource → device ids of other plugins, as the kubelet has them; raises NodeUnready. ``rest``
    waits so many seconds or, if true and no other plugin is there, until one may have come. ``event``
    records a reason and a message about the node.
    """

    ask: Callable[[], Mapping[str, Collection[str]]]
    health: Health
    event: Callable[[str, str], None]
    clock: Clock
    rest: Callable[[float, bool], object]

    def __post_init__(self) -> None:
        self._seen: dict[CardUuid, tuple[str, float]] = {}  # resource, and when it was last offered
        self._unasked = ""

    @property
    def offers(self) -> Mapping[CardUuid, str]:
        """Card → the resource under which another plugin offers it, now or moments ago."""
        return {uuid: resource for uuid, (resource, _) in self._seen.items()}

    @property
    def trouble(self) -> str:
        """In words, for /readyz; empty while every card is ours alone."""
        resources = sorted(set(self.offers.values()))
        if not resources:
            return ""
        return (
            f"{len(self.offers)} cards are offered by another device plugin as {', '.join(resources)}, and "
            "not by this agent while that lasts: remove that plugin from this node, or this agent"
        )

    def round(self) -> None:
        """Look, and wait until there may be something else to see."""
        try:
            self.look()
        finally:
            self.rest(PERIOD_SECONDS, not self._seen and not self._unasked)

    def look(self) -> None:
        """Ask the kubelet, and have the cards closed and opened accordingly."""
        try:
            offers = self.ask()
        except NodeUnready as error:  # what was seen last holds
            if self._unasked != str(error):
                log.info("other_plugins_unasked", reason=str(error))
            self._unasked = str(error)
            return
        self._unasked = ""
        now = self.clock.monotonic()
        before = self.offers
        found = offered_elsewhere(offers, [state.card for state in self.health.states()])
        kept = {uuid: seen for uuid, seen in self._seen.items() if now - seen[1] < REOPEN_SECONDS}
        self._seen = kept | {uuid: (resource, now) for uuid, resource in found.items()}
        if self.offers != before:
            self.health.offered_elsewhere(self.offers)
            self._tell()

    def _tell(self) -> None:
        if self.trouble:
            log.warning("cards_offered_elsewhere", cards=self.offers)
            self.event(EVENT_OTHER_PLUGIN, self.trouble)
        else:
            log.info("cards_ours_alone")


LEAST_BYTES: Final = 256 * MIB  # less is what a small tool holds for a moment
CLOSING_SECONDS: Final = 10.0
OPENING_SECONDS: Final = 30.0


@dataclass(slots=True)
class _Taken:
    """``bytes`` are withdrawn; ``since`` when more, or less, was first seen, and ``most`` what was since."""

    bytes: int = 0
    since: float | None = None
    rising: bool = False
    most: int = 0

    def see(self, held: int, now: float) -> None:
        """Note what is held now, in steps. What changes back before its time is up changes nothing."""
        held = -(-held // LEAST_BYTES) * LEAST_BYTES if held > LEAST_BYTES else 0
        if held == self.bytes:
            self.since = None
            return
        rising = held > self.bytes
        if self.since is None or rising is not self.rising:
            self.since, self.rising, self.most = now, rising, held
        self.most = max(self.most, held)
        if now - self.since >= (CLOSING_SECONDS if rising else OPENING_SECONDS):
            self.bytes, self.since = held if rising else self.most, None


class MemoryOutside:
    """:meth:`look` is called with each sample, by one thread; any thread may read :attr:`held`."""

    def __init__(self, processes: OutsideProcesses, health: Health, clock: Clock) -> None:
        self._processes = processes
        self._health = health
        self._clock = clock
        self._cards: dict[CardUuid, _Taken] = {}
        self._told: Mapping[CardUuid, int] = {}
        self._sees = False  # the node's processes; that does not change back
        self.held: Mapping[CardUuid, int] = {}
        """Bytes by card; a card is left out if the driver, or a missing hostPID, hides its processes."""

    def look(self, sample: Sample) -> None:
        """Take in a sample, and withdraw or offer memory accordingly. A silent card stays as it is."""
        self.held = self._held(sample)
        now = self._clock.monotonic()
        for card, held in self.held.items():
            self._cards.setdefault(card, _Taken()).see(held, now)
        taken = {card: one.bytes for card, one in self._cards.items() if one.bytes}
        if taken != self._told:
            log.warning("memory_taken_outside", cards=taken)
            self._told = taken
            self._health.taken_outside(taken)

    def _held(self, sample: Sample) -> dict[CardUuid, int]:
        pods = {(use.uuid, use.pid) for found in sample.processes.values() for use in found}
        held = {uuid: 0 for uuid, use in sample.cards.items() if use.lists_processes}
        for use in sample.listed:
            if use.uuid not in held or use.memory is None or (use.uuid, use.pid) in pods:
                continue
            outside = self._processes.in_no_pod(use.pid)
            if outside is None:
                return {}
            held[use.uuid] += use.memory * outside
        self._sees = self._sees or self._processes.in_no_pod(1) is not None
        return held if self._sees else {}


class InjectionWatch:
    """Thread-safe."""

    def __init__(self, probe: InjectionProbe, health: Health, metrics: ServiceMetrics) -> None:
        self._probe = probe
        self._health = health
        self._metrics = metrics
        self._lock = threading.Lock()
        self._found = Injectable()

    @property
    def why(self) -> str:
        """Why no container can be given a card, with the cure; empty if one can."""
        return self._found.why

    def look(self) -> None:
        """Probe, and have cards closed and opened accordingly."""
        with self._lock:
            self._look()

    def why_not(self, cards: Collection[CardUuid]) -> str:
        """Why no container can use these cards now, with the cure; empty if one can. It looks anew."""
        self.look()
        found = self._found
        return found.why or next(filter(None, map(found.cards.get, cards)), "")

    def _look(self) -> None:
        found = self._probe.probe([s for s in self._health.states() if not s.missing])
        self._metrics.injection_possible.set(not found.why)
        if found == self._found:
            return
        if found.why:
            log.error("injection_impossible", reason=found.why)
        elif found.cards:
            log.error("cards_without_device_node", cards=found.cards)
        else:
            log.info("injection_possible", after=self._found.why)
        self._found = found
        self._health.injectable(found)
