"""By which front a node's cards are offered: device plugin, ResourceClaims, or both, card by card. Composed.

The front of the settings comes into force at a start, and only once nothing is held by the other; until then
the node keeps the one that it had, is not ready, and says why.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from gpu_manager.agent.config import Config
from gpu_manager.agent.dra_front import DraFront
from gpu_manager.domain.dra.sides import Front, NodeFront
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.runtime import threads
from gpu_manager.servers.device_plugin import DevicePlugin
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

_HOLDERS_SHOWN = 5


class Fronts:
    """``in_force`` is the front that the node has, ``kept_because`` why it is not the one of the settings."""

    def __init__(
        self,
        config: Config,
        state: NodeState,
        plugin: DevicePlugin,
        dra: DraFront,
        metrics: ServiceMetrics,
        restart: Callable[[], None],
    ) -> None:
        """``restart`` ends the agent, to be started anew with the front of the settings."""
        self._config = config
        self._state = state
        self._plugin = plugin
        self._dra = dra
        self._metrics = metrics
        self._restart = restart
        self.in_force, self.kept_because = config.front, ""

    @property
    def trouble(self) -> str:
        """Why cards are not offered as configured; empty if they are."""
        return "; ".join(filter(None, (self.kept_because, self._dra.trouble)))

    @property
    def _by_plugin(self) -> bool:
        return self.in_force is not Front.DRA

    @property
    def _by_claims(self) -> bool:
        return self.in_force is not Front.PLUGIN

    def settle(self) -> None:
        """Find the front in force, from recovered books, before anything is offered.

        Raises:
            NodeUnready: the books cannot be written.
        """
        try:
            now = self._dra.in_force()
        except NodeUnready as error:  # no card is given until it is known by whom
            now = NodeFront(Front.SPLIT, {}, str(error))
        self.in_force, self.kept_because = now.front, now.kept_because
        self._metrics.expect_registrations(self.in_force)
        if now.sides != self._state.view.sides:
            self._state.set_sides(now.sides)
        if self.kept_because:
            holders = sorted({allocation.pod_key for allocation in self._state.view.ledger})
            log.error("front_not_changed", reason=self.kept_because, holders=holders[:_HOLDERS_SHOWN])

    def threads(self) -> list[threading.Thread]:
        """The threads of the fronts in force, to be started."""
        return [
            *(self._dra.threads() if self._by_claims else []),
            *([threads.forever("device-plugin", self._plugin.run)] if self._by_plugin else []),
        ]

    def registered(self) -> bool:
        """True once the kubelet knows every front in force."""
        return (not self._by_claims or self._dra.plugin.registered.is_set()) and (
            not self._by_plugin or self._plugin.registered.is_set()
        )

    def offering(self) -> bool:
        """True if the node's inventory may be published: the kubelet knows its devices."""
        return not self._by_plugin or self._plugin.offering()

    def announce(self) -> None:
        """Offer the cards as they are now; returns at once."""
        if self._by_claims:
            self._dra.announce()
        if self._by_plugin:
            self._plugin.announce()

    def books_changed(self) -> None:
        """Publish again what a booking changes: claims always, the plugin's ids if they depend on it."""
        if self._by_claims:
            self._dra.announce()
        if self._config.lending or self._state.withdrawing:
            self._plugin.announce()

    def look(self) -> None:
        """Start again once the node can be as the settings say, or has a new card, which is nobody's."""
        now = self._dra.in_force()
        if (self.kept_because or now.sides != self._state.view.sides) and not now.kept_because:
            log.info("front_changes", front=now.front.value)
            self._restart()

    def wake(self) -> None:
        """Have the threads notice that the agent ends."""
        self._plugin.wake()
        self._dra.announce()
