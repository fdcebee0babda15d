"""Publishes the node's cards as the devices of its ResourceSlice, whenever they differ from the last ones.

What a card may give changes rarely, and is published at once. The order in which the scheduler takes the
cards follows each booking, and is published every few seconds at most.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import structlog

from gpu_manager.domain.dra.device import SharedDevice, published_devices
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.rules.request import PlacementPolicy
from gpu_manager.ports.api_server import Slices
from gpu_manager.ports.clock import Clock
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

ORDER_SECONDS = 5.0  # between two publications that differ in the order of the cards alone
RETRY_SECONDS = 5.0  # after an attempt that failed
REPAIR_SECONDS = 60.0  # between two looks at what others may have changed


class SlicePublisher:
    """``look`` is called by one thread; ``trouble`` may be read by any."""

    def __init__(
        self,
        state: NodeState,
        slices: Slices,
        clock: Clock,
        metrics: ServiceMetrics,
        minimum_cores: int,
        policy: PlacementPolicy = PlacementPolicy.BINPACK,
    ) -> None:
        """``minimum_cores`` is the smallest part of a card that the cluster gives, in hundredths."""
        self._state = state
        self._slices = slices
        self._clock = clock
        self._metrics = metrics
        self._minimum_cores = minimum_cores
        self._policy = policy
        self._told: tuple[SharedDevice, ...] | None = None
        self._told_at = self._failed_at = float("-inf")
        self.trouble = ""
        """Why the devices are not published, for /readyz; empty while they are."""

    def look(self) -> bool:
        """Publish the devices if it is time; True if the slice was written."""
        devices, now = self._devices(), self._clock.monotonic()
        if not self._due(devices, now):
            return False
        try:
            written = self._slices.publish(devices)
        except NodeUnready as error:
            self._metrics.slice_failures.inc()
            self._metrics.slice_unpublished.set(1)
            if self.trouble != str(error):
                log.error("slice_not_published", reason=str(error))
            self.trouble, self._failed_at = str(error), now
            return False
        self.trouble = ""
        self._metrics.slice_unpublished.set(0)
        self._told, self._told_at = devices, now
        if written:
            log.info("slice_published", devices=[device.name for device in devices])
        return written

    def run(self, stop: threading.Event, news: threading.Event, seconds: float = 1.0) -> None:
        """Publish until stopped: when there are ``news``, and every so many seconds."""
        while not stop.is_set():
            self.look()
            news.wait(seconds)
            news.clear()

    def _devices(self) -> tuple[SharedDevice, ...]:
        view = self._state.view
        used = {state.card.uuid: view.ledger.booked(state.card.uuid) for state in view.node.cards}
        return published_devices(
            view.node.cards, used, self._policy, view.node.unit, self._minimum_cores, sides=view.sides
        )

    def _due(self, devices: Sequence[SharedDevice], now: float) -> bool:
        if now - self._failed_at < RETRY_SECONDS:
            return False
        if self._told is None or now - self._told_at >= REPAIR_SECONDS:
            return True
        if tuple(devices) == self._told:
            return False
        return _by_name(devices) != _by_name(self._told) or now - self._told_at >= ORDER_SECONDS


def _by_name(devices: Sequence[SharedDevice]) -> dict[str, SharedDevice]:
    return {device.name: device for device in devices}
