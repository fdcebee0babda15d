"""The DRA front of a node, composed: the driver that the kubelet asks, the slice that it publishes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

import structlog

from gpu_manager.adapters.kube.claims import KubeClaims, KubeSlices
from gpu_manager.adapters.kube.connection import Connection
from gpu_manager.agent.config import Config
from gpu_manager.domain.dra.device import device_names
from gpu_manager.domain.dra.sides import Front, NodeFront, front_in_force
from gpu_manager.ports.api_server import Pods
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.containers import Injector, Processes
from gpu_manager.ports.control_pages import ControlPages
from gpu_manager.runtime import threads
from gpu_manager.servers.dra_plugin import DraPlugin
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.claims import prepare_again
from gpu_manager.services.claims.prepare import ClaimPreparer
from gpu_manager.services.claims.prepare_again import PrepareAgain
from gpu_manager.services.claims.slices import SlicePublisher
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
            threads.every(prepare_again.LOOK_SECONDS, "prepare-again", self._again.look, self._stop),
        ]
