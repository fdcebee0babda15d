"""The DRA front of a node, composed: the driver that the kubelet asks, the slice that it publishes."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpu_manager import threads
from gpu_manager.adapters.kube.claims import KubeClaims, KubeSlices
from gpu_manager.adapters.kube.connection import Connection
from gpu_manager.config import Config
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.control_pages import ControlPages
from gpu_manager.ports.injector import Injector
from gpu_manager.ports.pods import Pods
from gpu_manager.ports.processes import Processes
from gpu_manager.servers.dra_plugin import DraPlugin
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.claims.prepare import ClaimPreparer
from gpu_manager.services.claims.slices import SlicePublisher
from gpu_manager.services.metrics import ServiceMetrics


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
        self._stop = stop
        self._news = threading.Event()
        self._reclaim_seconds = config.reclaim_seconds
        claims = KubeClaims(connection, config.unit)
        self.preparer = ClaimPreparer(state, claims, pods, pages, injector, processes, metrics)
        self.plugin = DraPlugin(config.device_plugins.parent, state, self.preparer, metrics, stop, changed)
        slices = KubeSlices(connection, config.node)
        self.slices = SlicePublisher(state, slices, clock, metrics, config.minimum_cores)

    def announce(self) -> None:
        """Note that cards or bookings may have changed; returns at once."""
        self.plugin.announce()
        self._news.set()

    def threads(self) -> list[threading.Thread]:
        """Make what the booked claims need, and return the threads of the front, to be started."""
        self.preparer.restore()
        return [
            threads.forever("dra-plugin", self.plugin.run),
            threads.forever("slices", lambda: self.slices.run(self._stop, self._news)),
            threads.every(self._reclaim_seconds, "claims", self.preparer.round, self._stop),
        ]
