"""Memory of cards that processes of no pod hold: a desktop's, a daemon's, or a person's program.

It is withdrawn from what pods are offered, by number. Processes of pods are left to the accounts of their
containers, and what the driver keeps for itself is in the card's reserve: nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.resources import MIB
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.processes import OutsideProcesses
from gpu_manager.services.cards.health import Health
from gpu_manager.services.enforcement.usage_sample import Sample

log = structlog.get_logger(__name__)

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
        return held if self._processes.in_no_pod(1) is not None else {}
