"""Whether containers can be injected now: where none can, no card is offered, and pods wait with the reason.

A driver that is replaced under the node, or a device node that is made late, would fail each pod for good at
its admission, and a controller would make the next one at once.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.ports.injector import Injectable, InjectionProbe
from gpu_manager.services.cards.health import Health
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)


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
