"""What the kubelet asks of a DRA driver: two sockets, one by which it finds us and one for its calls.

The kubelet looks for sockets in ``plugins_registry``, after its own restart too, and dials what GetInfo says.
Where a socket is taken away, both are made anew, and the kubelet registers the driver again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import InitVar, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import structlog

from gpu_manager.domain.card import CardState
from gpu_manager.domain.contract import DRA_DRIVER, DRA_REGISTRY_SOCKET, DRA_SOCKET
from gpu_manager.domain.dra.device import device_names
from gpu_manager.domain.errors import NodeUnready, VcudaError
from gpu_manager.pb.dra.v1 import api_pb2, api_pb2_grpc
from gpu_manager.pb.drahealth.v1 import api_pb2 as health_pb2
from gpu_manager.pb.drahealth.v1 import api_pb2_grpc as health_grpc
from gpu_manager.pb.drahealth.v1alpha1 import api_pb2 as health_alpha_pb2
from gpu_manager.pb.drahealth.v1alpha1 import api_pb2_grpc as health_alpha_grpc
from gpu_manager.pb.pluginregistration.v1 import api_pb2 as registration_pb2
from gpu_manager.pb.pluginregistration.v1 import api_pb2_grpc as registration_grpc
from gpu_manager.servers.plugin_registration import listen_at
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.claims.prepare import ClaimPreparer
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

# gRPC services by the names under which the kubelet knows them; of health it takes the newest that it knows.
SERVICES: Final = ("v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
HEALTH_SECONDS: Final = 10.0  # between two reports; the kubelet forgets a health after 30 s
_LOOK_SECONDS: Final = 0.5  # for sockets that were taken away
_AGAIN_SECONDS: Final = 2.0  # after sockets could not be made
_CURE: Final = (
    "is the kubelet's directory mounted and writable? The chart has it with agent.front dra or split"
)
_LONGEST_ERROR: Final = 4096
_LONGEST_MESSAGE: Final = 1024  # of a device's health


@dataclass(eq=False, repr=False)
class PluginCalls(api_pb2_grpc.DRAPluginServicer):
    """NodePrepareResources and NodeUnprepareResources: each claim is judged by itself."""

    preparer: ClaimPreparer
    metrics: ServiceMetrics
    changed: Callable[[], object] = lambda: None

    def NodePrepareResources(  # noqa: N802  # the API's name
        self, request: api_pb2.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> api_pb2.NodePrepareResourcesResponse:
        answers = {claim.uid: self._prepared(claim) for claim in request.claims}
        self.changed()
        return api_pb2.NodePrepareResourcesResponse(claims=answers)

    def NodeUnprepareResources(  # noqa: N802
        self, request: api_pb2.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> api_pb2.NodeUnprepareResourcesResponse:
        answers = {}
        for claim in request.claims:
            answer = answers[claim.uid] = api_pb2.NodeUnprepareResourceResponse()
            try:
                self.preparer.unprepare(claim.namespace, claim.uid, claim.name)
            except VcudaError as error:
                log.info("claim_not_released", claim=f"{claim.namespace}/{claim.name}", reason=str(error))
                answer.error = str(error)[:_LONGEST_ERROR]
        self.changed()
        return api_pb2.NodeUnprepareResourcesResponse(claims=answers)

    def _prepared(self, claim: api_pb2.Claim) -> api_pb2.NodePrepareResourceResponse:
        started = time.monotonic()
        try:
            devices = self.preparer.prepare(claim.namespace, claim.uid, claim.name)
        except VcudaError as error:
            return api_pb2.NodePrepareResourceResponse(error=str(error)[:_LONGEST_ERROR])
        finally:
            self.metrics.prepare_seconds.observe(time.monotonic() - started)
        return api_pb2.NodePrepareResourceResponse(
            devices=[
                api_pb2.Device(
                    request_names=[one.request],
                    pool_name=one.pool,
                    device_name=one.device,
                    cdi_device_ids=one.cdi,
                    share_id=one.share_id or None,
                )
                for one in devices
            ]
        )


class _HealthMessages(Protocol):
    """The messages of one version of the health API."""

    NodeWatchResourcesResponse: Any
    DeviceHealth: Any
    DeviceIdentifier: Any
    HEALTHY: Any
    UNHEALTHY: Any


class _Health(health_grpc.DRAResourceHealthServicer, health_alpha_grpc.DRAResourceHealthServicer):
    """The health of the cards, in the messages of one version."""

    def __init__(self, messages: _HealthMessages, state: NodeState) -> None:
        self._messages = messages
        self._state = state
        self._news = threading.Condition()
        self._stopped = False

    def announce(self) -> None:
        """Cards may have changed."""
        with self._news:
            self._news.notify_all()

    def stop(self) -> None:
        """End the streams."""
        with self._news:
            self._stopped = True
            self._news.notify_all()

    def NodeWatchResources(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> Iterator[Any]:
        """Report the health of all cards now, whenever it changes, and every few seconds."""
        context.add_callback(self.announce)
        while context.is_active() and not self._stopped:
            cards = self._state.node.cards
            yield self._report(cards)
            with self._news:
                self._news.wait_for(partial(self._is_news, context, cards), HEALTH_SECONDS)

    def _is_news(self, context: grpc.ServicerContext, told: tuple[CardState, ...]) -> bool:
        return self._stopped or not context.is_active() or self._state.node.cards != told

    def _report(self, cards: tuple[CardState, ...]) -> Any:
        names, messages = device_names([state.card for state in cards]), self._messages
        return messages.NodeWatchResourcesResponse(
            devices=[
                messages.DeviceHealth(
                    device=messages.DeviceIdentifier(
                        pool_name=self._state.node.name, device_name=names[state.card.uuid]
                    ),
                    health=messages.HEALTHY if _is_healthy(state) else messages.UNHEALTHY,
                    last_updated_time=int(time.time()),
                    message=state.reason[:_LONGEST_MESSAGE],
                )
                for state in cards
                if state.card.undivided
            ]
        )


def _is_healthy(state: CardState) -> bool:
    return state.healthy and not state.missing


class _Registration(registration_grpc.RegistrationServicer):
    """Who we are, and whether the kubelet takes us."""

    def __init__(self, endpoint: Path, registered: threading.Event, metrics: ServiceMetrics) -> None:
        self._endpoint = endpoint
        self._registered = registered
        self._metrics = metrics
        self.count = 0  # how often it was taken

    def GetInfo(  # noqa: N802
        self, request: registration_pb2.InfoRequest, context: grpc.ServicerContext
    ) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(
            type="DRAPlugin", name=DRA_DRIVER, endpoint=str(self._endpoint), supported_versions=SERVICES
        )

    def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration_pb2.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration_pb2.RegistrationStatusResponse:
        if request.plugin_registered:
            log.info("registered", driver=DRA_DRIVER)
            self._metrics.registrations.labels(DRA_DRIVER).inc()
            self.count += 1
            self._registered.set()
        else:
            log.error("registration_refused", driver=DRA_DRIVER, reason=request.error)
            self._metrics.registration_failures.inc()
            self._registered.clear()
        return registration_pb2.RegistrationStatusResponse()


@dataclass(eq=False, repr=False)
class DraPlugin:
    """The driver, from start to stop. ``registered`` is set while the kubelet has taken it.

    ``kubelet`` is the kubelet's directory; ``changed`` is called when the books may have changed.
    """

    kubelet: InitVar[Path]
    state: NodeState
    preparer: ClaimPreparer
    metrics: ServiceMetrics
    stop: threading.Event
    changed: Callable[[], object] = lambda: None

    def __post_init__(self, kubelet: Path) -> None:
        self._found_by = (kubelet / DRA_REGISTRY_SOCKET).absolute()
        self._endpoint = (kubelet / DRA_SOCKET).absolute()
        self._health: tuple[_Health, ...] = ()
        self.trouble = ""
        """Why the kubelet cannot find the driver; empty if nothing is wrong here."""
        self.registered = threading.Event()
        self._registration = _Registration(self._endpoint, self.registered, self.metrics)

    def registrations(self) -> int:
        """Return how often the kubelet has taken the driver; 0 while it has not."""
        return self._registration.count if self.registered.is_set() else 0

    def announce(self) -> None:
        """Cards may have changed."""
        for one in self._health:
            one.announce()

    def run(self) -> None:
        """Serve until stopped."""
        while not self.stop.is_set():
            try:
                self.run_once()
            except NodeUnready as error:
                log.error("registration_failed", reason=str(error))
                self.trouble = str(error)
                self.metrics.registration_failures.inc()
                self.stop.wait(_AGAIN_SECONDS)
            finally:
                self.registered.clear()

    def run_once(self) -> None:
        """Serve both sockets until stopped, or until one of them is taken away.

        Raises:
            NodeUnready: a socket cannot be made.
        """
        with ExitStack() as undo:
            # The kubelet dials the endpoint as soon as it sees the other.
            listen_at(self._endpoint, _CURE, partial(self._add_calls, undo), undo)
            found = partial(registration_grpc.add_RegistrationServicer_to_server, self._registration)
            listen_at(self._found_by, _CURE, found, undo)
            sockets = {path: _inode(path) for path in (self._endpoint, self._found_by)}
            self.trouble = ""
            while not self.stop.wait(_LOOK_SECONDS):
                if any(_inode(path) != made for path, made in sockets.items()):
                    log.warning("own_socket_gone", driver=DRA_DRIVER)
                    return

    def _add_calls(self, undo: ExitStack, server: grpc.Server) -> None:
        self._health = (_Health(health_pb2, self.state), _Health(health_alpha_pb2, self.state))
        newest, alpha = self._health
        api_pb2_grpc.add_DRAPluginServicer_to_server(
            PluginCalls(self.preparer, self.metrics, self.changed), server
        )
        health_grpc.add_DRAResourceHealthServicer_to_server(newest, server)
        health_alpha_grpc.add_DRAResourceHealthServicer_to_server(alpha, server)
        for one in self._health:
            undo.callback(one.stop)  # before the end of their server


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  # device and inode
    except OSError:
        return None
    return found.st_dev, found.st_ino
