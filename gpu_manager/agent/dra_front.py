"""The DRA front of a node, composed: the driver that the kubelet asks, the slice that it publishes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import structlog

from gpu_manager.adapters.kube.claims import KubeClaims, KubeSlices
from gpu_manager.adapters.kube.connection import Connection
from gpu_manager.agent.config import Config
from gpu_manager.domain.dra.sides import Front, cards_of_front, front_in_force
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.control_pages import ControlPages
from gpu_manager.ports.injector import Injector
from gpu_manager.ports.inventory import NodeStatus
from gpu_manager.ports.pods import Pods
from gpu_manager.ports.processes import Processes
from gpu_manager.runtime import threads
from gpu_manager.servers.dra_plugin import DraPlugin
from gpu_manager.services.allocation.node_state import NodeState, StateView
from gpu_manager.services.claims import prepare_again
from gpu_manager.services.claims.handover import PERIOD_SECONDS, CardHandover, in_claims
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
        status: NodeStatus,
    ) -> None:
        self._config = config
        self._stop = stop
        self._state = state
        self._news = threading.Event()
        self._reclaim_seconds = config.reclaim_seconds
        claims = KubeClaims(connection, config.unit)
        self.preparer = ClaimPreparer(
            state, claims, pods, pages, injector, processes, metrics, evict=config.evict
        )
        self.plugin = DraPlugin(config.pod_resources.parent, state, self.preparer, metrics, stop, changed)
        self._again = PrepareAgain(self.plugin.registrations, self.preparer.is_prepared, claims, pods, clock)
        slices = KubeSlices(connection, config.node)
        self.slices = SlicePublisher(state, slices, clock, metrics, config.minimum_cores)
        self._in_claims = partial(in_claims, claims, slices, config.node)
        self._make_handover = partial(
            CardHandover, state, claims, slices, self.slices, status, pods, clock, metrics
        )
        self._handover: CardHandover | None = None  # of a node that is split
        self._why_not = ""

    def announce(self) -> None:
        """Note that cards or bookings may have changed; returns at once."""
        self.plugin.announce()
        self._news.set()

    @property
    def trouble(self) -> str:
        """Why cards are not published, or their hand-over does not go on; empty if nothing is wrong."""
        return self.plugin.trouble or self.slices.trouble or self._why_not

    def in_force(self) -> tuple[Front, str]:
        """Return the front that the node has now, and why it is not the one of the settings."""
        view, config = self._state.view, self._config
        in_claims = config.leave_claims and self._may_be_in_claims(view)
        return front_in_force(config.front, view.ledger, view.sides, in_claims=in_claims)

    def _may_be_in_claims(self, view: StateView) -> bool:
        """True if cards of no known side may be given by claims: also while the API server does not say."""
        if all(state.card.uuid in (view.sides or {}) for state in view.node.cards):
            return False
        try:
            return self._in_claims()
        except NodeUnready as error:
            log.warning("claims_not_known", reason=str(error))
            return True

    def split(self) -> None:
        """Give cards by claims one by one; call it before anything is offered, and before :meth:`threads`.

        Raises:
            NodeUnready: the books cannot be written.
        """
        self._state.set_sides({})
        wanted = self._config.front
        cards = self._config.claim_cards if wanted is Front.SPLIT else cards_of_front(wanted)
        self._handover = self._make_handover(cards, self._config.settle_seconds)
        self._look()

    def threads(self) -> list[threading.Thread]:
        """Make what the booked claims need, and return the threads of the front, to be started."""
        self.preparer.restore()
        started = [
            threads.forever("dra-plugin", self.plugin.run),
            threads.forever("slices", lambda: self.slices.run(self._stop, self._news)),
            threads.every(self._reclaim_seconds, "claims", self.preparer.round, self._stop),
            threads.every(prepare_again.LOOK_SECONDS, "prepare-again", self._again.look, self._stop),
        ]
        if self._handover is not None:
            started.append(threads.every(PERIOD_SECONDS, "card-handover", self._look, self._stop))
        return started

    def _look(self) -> None:
        """A card that is nobody's meanwhile takes no harm: what fails is tried again."""
        if self._handover is None:
            return
        try:
            self._handover.look()
            self._why_not = ""
        except NodeUnready as error:
            if self._why_not != str(error):
                log.warning("cards_not_handed_over", reason=str(error))
            self._why_not = str(error)
