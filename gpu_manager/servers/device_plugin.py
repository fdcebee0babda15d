"""The device plugin's gRPC servers for the kubelet: one per resource."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from pathlib import Path
from typing import Final, NoReturn

import grpc
import structlog

from gpu_manager.domain.contract import CARRIERS, NVIDIA
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid, VcudaError
from gpu_manager.domain.injection import Injection
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2
from gpu_manager.servers.plugin_registration import (
    BACK_OFF,
    LENDING,
    SOCKETS,
    PluginRegistration,
    PluginStreams,
)
from gpu_manager.services.allocation.allocator import Allocator
from gpu_manager.services.allocation.books import KubeletOffer
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.allocation.prestart import PreStart
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

LIST_SECONDS: Final = 1.0  # between two lists that differ in withdrawn ids alone
ANSWERED: Final = (
    "vcuda-answered"  # trailing metadata of a refusal, by which it is told from a lost connection
)
DECIDED: Final = "vcuda-decided"  # metadata: for which container ids were preferred, should we be killed now
_CODES: Final = {
    RequestInvalid: grpc.StatusCode.INVALID_ARGUMENT,
    DoesNotFit: grpc.StatusCode.FAILED_PRECONDITION,
    NodeUnready: grpc.StatusCode.UNAVAILABLE,
}


def options_of(resource: str) -> api_pb2.DevicePluginOptions:
    """The kubelet believes GetDevicePluginOptions; Register repeats it."""
    return api_pb2.DevicePluginOptions(
        pre_start_required=resource in CARRIERS, get_preferred_allocation_available=True
    )


def devices_of(resource: str, offer: KubeletOffer) -> list[api_pb2.Device]:
    """The complete list for the kubelet: every card's ids, its health, its NUMA node where known."""
    devices = []
    withdrawn = offer.withdrawn.get(resource, frozenset())
    for state in offer.node.cards:
        health = "Healthy" if offer.healthy(resource, state) else "Unhealthy"
        topology = (
            api_pb2.TopologyInfo(nodes=[api_pb2.NUMANode(ID=state.card.numa)])
            if state.card.numa is not None
            else None
        )
        devices += [
            api_pb2.Device(
                ID=device, health="Unhealthy" if device in withdrawn else health, topology=topology
            )
            for device in offer.node.ids.of_card[resource][state.card.uuid]
        ]
    return devices


@dataclass(eq=False, repr=False)
class ResourceServer(PluginStreams):
    """One resource. Each call is translated, done by the services, and timed.

    ``lost`` is called when a stream ends that we did not end.
    """

    resource: InitVar[str]
    state: NodeState
    allocator: Allocator
    proof: PreStart
    metrics: ServiceMetrics
    woken: InitVar[threading.Event]
    _: KW_ONLY
    lending: bool = False
    lost: Callable[[], object] = lambda: None

    def __post_init__(self, resource: str, woken: threading.Event) -> None:
        super().__init__(resource, woken)
        self._told = False

    def announce(self) -> None:
        """Cards may have changed: send the device list if it differs."""
        with self._news:
            self._told = True
            self._news.notify_all()

    def _offer(self) -> KubeletOffer:
        """Without a second name for cards the node and the withdrawn ids alone count."""
        if self.lending:
            return self.state.offer
        withdrawn = self.state.offer.withdrawn if self.state.withdrawing else {}
        return KubeletOffer(self.state.node, withdrawn=withdrawn)

    def options(self) -> api_pb2.DevicePluginOptions:
        """See :meth:`PluginStreams.options`."""
        return options_of(self.resource)

    def ListAndWatch(  # noqa: N802
        self, request: api_pb2.Empty, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.ListAndWatchResponse]:
        """The list now and whenever it differs: the kubelet rewrites its checkpoint at each message."""
        context.add_callback(self.ended)
        sent: list[api_pb2.Device] | None = None
        looked: KubeletOffer | None = None
        sent_at = 0.0
        while context.is_active() and not self._stopped:
            offer = self._offer()
            if offer == looked:  # thousands of ids rest
                with self._news:
                    self._news.wait_for(lambda: self._stopped or self._told)
                    self._told = False
                continue
            if looked is not None and replace(offer, withdrawn=looked.withdrawn) == looked:
                # The kubelet rewrites its checkpoint at each list: withdrawn ids alone wait for their turn.
                rest = sent_at + LIST_SECONDS - time.monotonic()
                if rest > 0:
                    with self._news:
                        self._news.wait_for(lambda: self._stopped, rest)
                    continue
            looked = offer
            devices = devices_of(self.resource, offer)
            if devices == sent:
                continue
            log.info(
                "devices_sent",
                resource=self.resource,
                devices=len(devices),
                healthy=sum(d.health == "Healthy" for d in devices),
            )
            yield api_pb2.ListAndWatchResponse(devices=devices)
            sent, sent_at = devices, time.monotonic()
            self.offered = True  # the stream has taken it and asks for the next

    def GetPreferredAllocation(  # noqa: N802
        self, request: api_pb2.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> api_pb2.PreferredAllocationResponse:
        """Decides. Never fails: an error would reject the pod, an empty answer only loses the preference."""
        started = time.monotonic()
        answers = []
        for one in request.container_requests:
            ids: Sequence[str] = ()
            try:
                ids = self.allocator.prefer(
                    self.resource, one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size
                )
            except Exception:
                self.metrics.preferred_allocation_failures.labels(self.resource).inc()
                log.exception("preferred_allocation_failed", resource=self.resource)
            answers.append(api_pb2.ContainerPreferredAllocationResponse(deviceIDs=ids))
        context.set_trailing_metadata(((DECIDED, self.state.memo(self.resource)),))
        self.metrics.preferred_seconds.labels(self.resource).observe(time.monotonic() - started)
        return api_pb2.PreferredAllocationResponse(container_responses=answers)

    def Allocate(  # noqa: N802
        self, request: api_pb2.AllocateRequest, context: grpc.ServicerContext
    ) -> api_pb2.AllocateResponse:
        started = time.monotonic()
        try:
            memo = str(dict(context.invocation_metadata()).get(DECIDED, ""))
            if not request.container_requests:
                raise RequestInvalid(f"{self.resource}: Allocate names no container")
            responses = [
                _response(self.allocator.allocate(self.resource, one.devices_ids, memo))
                for one in request.container_requests
            ]
        except VcudaError as error:
            _abort(context, error)
        finally:
            self.metrics.allocate_seconds.labels(self.resource).observe(time.monotonic() - started)
        return api_pb2.AllocateResponse(container_responses=responses)

    def PreStartContainer(  # noqa: N802
        self, request: api_pb2.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> api_pb2.PreStartContainerResponse:
        if self.resource in CARRIERS:
            try:
                self.proof.prove(self.resource, request.devices_ids)
            except VcudaError as error:
                log.warning("prestart_failed", reason=str(error))
                _abort(context, error)
        return api_pb2.PreStartContainerResponse()

    def ended(self) -> None:
        """See :meth:`PluginStreams.ended`."""
        super().ended()
        if self.cut.is_set():
            self.lost()
        self.announce()


def _response(injection: Injection) -> api_pb2.ContainerAllocateResponse:
    return api_pb2.ContainerAllocateResponse(
        envs=injection.env,
        mounts=[
            api_pb2.Mount(container_path=m.container_path, host_path=m.host_path, read_only=m.read_only)
            for m in injection.mounts
        ],
        devices=[
            api_pb2.DeviceSpec(container_path=d.path, host_path=d.host_path, permissions=d.permissions)
            for d in injection.devices
        ],
        annotations=injection.annotations,
        cdi_devices=[api_pb2.CDIDevice(name=name) for name in injection.cdi],
    )


def _abort(context: grpc.ServicerContext, error: VcudaError) -> NoReturn:
    """The kubelet puts this text into the pod's status: it is written for people."""
    context.set_trailing_metadata(((ANSWERED, "1"),))
    context.abort(_CODES.get(type(error), grpc.StatusCode.INTERNAL), str(error)[:4096])
    raise AssertionError  # abort raises; the type checker does not know


class DevicePlugin(PluginRegistration):
    """All resources, from start to stop: both of ours, and with ``lending`` whole cards as NVIDIA's."""

    def __init__(
        self,
        directory: Path,
        state: NodeState,
        allocator: Allocator,
        proof: PreStart,
        metrics: ServiceMetrics,
        stop: threading.Event,
        *,
        lending: bool = False,
        back_off: tuple[float, float] = BACK_OFF,
        lost: Callable[[], object] = lambda: None,
    ) -> None:
        """``lost`` is called when the kubelet no longer listens to us."""
        super().__init__(directory, LENDING if lending else SOCKETS, metrics, stop, back_off)
        self._state = state
        self._allocator = allocator
        self._proof = proof
        self._lost = lost
        self._servers: tuple[ResourceServer, ...] = ()

    def announce(self) -> None:
        """Cards may have changed."""
        for server in self._servers:
            server.announce()

    def prepare(self) -> None:
        """See :meth:`PluginRegistration.prepare`."""
        self._state.node.ids.check_size()

    def serve(self, resource: str) -> ResourceServer:
        """See :meth:`PluginRegistration.serve`."""
        self._allocator.registered()
        return ResourceServer(
            resource,
            self._state,
            self._allocator,
            self._proof,
            self._metrics,
            self._woken,
            lending=NVIDIA in self.sockets,
            lost=self._lost,
        )
