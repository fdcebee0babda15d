"""By which front a node's cards are offered: device plugin, ResourceClaims, or both, card by card. Composed.

The front of the settings comes into force at a start, and only once nothing is held by the other; until then
the node keeps the one that it had, is not ready, and says why.

The DRA front is the driver that the kubelet calls and the slice that it publishes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog

from gpu_manager.adapters.kube.claims import KubeClaims, KubeSlices
from gpu_manager.adapters.kube.connection import Connection
from gpu_manager.agent.config import Config
from gpu_manager.domain.dra.device import device_names
from gpu_manager.domain.dra.sides import Front, NodeFront, front_in_force
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.api_server import Pods
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.containers import Injector, Processes
from gpu_manager.ports.control_pages import ControlPages
from gpu_manager.runtime import threads
from gpu_manager.servers.device_plugin import DevicePlugin
from gpu_manager.servers.dra_plugin import DraPlugin
from gpu_manager.services.allocation.node_state import NodeState, StateView
from gpu_manager.services.claims import upkeep
from gpu_manager.services.claims.prepare import ClaimPreparer
from gpu_manager.services.claims.upkeep import PrepareAgain, SlicePublisher
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)


class DraFront:
    """Built with every agent, and does nothing before :meth:`threads` are started."""

    def __init__(
        self,
        config: Config,
        state: NodeState,
        connection: Connection,
        pods: Pods,
        pages: ControlPages,
        injector: Injector,
        processes: Processes,
        clock: Clock,
        metrics: ServiceMetrics,
        stop: threading.Event,
        changed: Callable[[], object],
    ) -> None:
        self._config = config
        self._stop = stop
        self._state = state
        self._news = threading.Event()
        self._reclaim_seconds = config.reclaim_seconds
        self._claims = claims = KubeClaims(connection, config.unit)
        self.preparer = ClaimPreparer(state, claims, pods, pages, injector, processes, metrics)
        self.plugin = DraPlugin(config.pod_resources.parent, state, self.preparer, metrics, stop, changed)
        self._again = PrepareAgain(self.plugin.registrations, self.preparer.is_prepared, claims, pods, clock)
        slices = KubeSlices(connection, config.node)
        self.slices = SlicePublisher(state, slices, clock, metrics, config.minimum_cores)
        self._allocated: Collection[str] | None = None

    def announce(self) -> None:
        """Note that cards or bookings may have changed; returns at once."""
        self.plugin.announce()
        self._news.set()

    @property
    def trouble(self) -> str:
        """Why cards are not published; empty if nothing is wrong."""
        return self.plugin.trouble or self.slices.trouble

    def in_force(self) -> NodeFront:
        """Return the front that the node has, by what is held now.

        Raises:
            NodeUnready: the books of a node that is to be split know no sides, and the API server does not
                say of which cards claims are allocated.
        """
        view, config = self._state.view, self._config
        by_claims = set()
        if config.front is Front.SPLIT and view.sides is None and not view.ledger.claims:
            if self._allocated is None:  # asked once: nothing is given by claims before the node is split
                self._allocated = self._claims.allocated(config.node).keys()
            names = device_names([state.card for state in view.node.cards])
            by_claims = {uuid for uuid, name in names.items() if name in self._allocated}
        return front_in_force(
            config.front, config.claim_cards, view.node.cards, view.ledger, view.sides, by_claims
        )

    def threads(self) -> list[threading.Thread]:
        """Make what the booked claims need, and return the threads of the front, to be started."""
        self.preparer.restore()
        return [
            threads.forever("dra-plugin", self.plugin.run),
            threads.forever("slices", lambda: self.slices.run(self._stop, self._news)),
            threads.every(self._reclaim_seconds, "claims", self.preparer.round, self._stop),
            threads.every(upkeep.LOOK_SECONDS, "prepare-again", self._again.look, self._stop),
        ]


_HOLDERS_SHOWN = 5


@dataclass(eq=False, repr=False)
class Fronts:
    """``in_force`` is the front that the node has, ``kept_because`` why it is not the one of the settings.

    ``restart`` ends the agent, to be started anew with the front of the settings.
    """

    config: Config
    state: NodeState
    plugin: DevicePlugin
    dra: DraFront
    metrics: ServiceMetrics
    restart: Callable[[], None]

    def __post_init__(self) -> None:
        self.in_force, self.kept_because = self.config.front, ""
        self._settled_by: StateView | None = None

    @property
    def trouble(self) -> str:
        """Why cards are not offered as configured; empty if they are."""
        return "; ".join(filter(None, (self.kept_because, self.dra.trouble)))

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
            now = self.dra.in_force()
        except NodeUnready as error:  # no card is given until it is known by whom
            now = NodeFront(Front.SPLIT, {}, str(error))
        self.in_force, self.kept_because = now.front, now.kept_because
        self.metrics.expect_registrations(self.in_force)
        if now.sides != self.state.view.sides:
            self.state.set_sides(now.sides)
        if self.kept_because:
            holders = sorted({allocation.pod_key for allocation in self.state.view.ledger})
            log.error("front_not_changed", reason=self.kept_because, holders=holders[:_HOLDERS_SHOWN])

    def threads(self) -> list[threading.Thread]:
        """The threads of the fronts in force, to be started."""
        return [
            *(self.dra.threads() if self._by_claims else []),
            *([threads.forever("device-plugin", self.plugin.run)] if self._by_plugin else []),
        ]

    def registered(self) -> bool:
        """True once the kubelet knows every front in force."""
        return (not self._by_claims or self.dra.plugin.registered.is_set()) and (
            not self._by_plugin or self.plugin.registered.is_set()
        )

    def offering(self) -> bool:
        """True if the node's inventory may be published: the kubelet knows its devices."""
        return not self._by_plugin or self.plugin.offering()

    def announce(self) -> None:
        """Offer the cards as they are now; returns at once."""
        if self._by_claims:
            self.dra.announce()
        if self._by_plugin:
            self.plugin.announce()

    def books_changed(self) -> None:
        """Publish again what a booking changes: claims always, the plugin's ids if they depend on it."""
        if self._by_claims:
            self.dra.announce()
        if self.config.lending or self.state.withdrawing:
            self.plugin.announce()

    def look(self) -> None:
        """Start again once the node can be as the settings say, or has a new card, which is nobody's."""
        view = self.state.view
        if view is self._settled_by:  # all else that it follows from is fixed while an agent runs
            return
        now = self.dra.in_force()
        if (self.kept_because or now.sides != view.sides) and not now.kept_because:
            log.info("front_changes", front=now.front.value)
            self.restart()
        else:
            self._settled_by = view

    def wake(self) -> None:
        """Have the threads notice that the agent ends."""
        self.plugin.wake()
        self.dra.announce()
