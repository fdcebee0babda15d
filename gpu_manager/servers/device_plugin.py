"""What the kubelet talks to: one server per resource, and the lifecycle that keeps both registered.

``run_once`` serves, registers and watches; whatever ends it ends all of it, and ``run`` is the only retry.
A kubelet restart is the ordinary end of a run. The kubelet finds a plugin's connection by resource name
alone: the own old server is closed before registering again, or its end would disconnect the new one.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

import grpc
import structlog

from gpu_manager.adapters.kubelet import SocketChange, SocketWatch, register
from gpu_manager.adapters.kubelet.registration import kubelet_socket
from gpu_manager.domain.contract import (
    CARRIERS,
    CORE,
    CORE_SOCKET,
    KUBELET_SOCKET,
    MEMORY,
    MEMORY_SOCKET,
    NVIDIA,
    NVIDIA_SOCKET,
)
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid, VcudaError
from gpu_manager.domain.injection import Injection
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from gpu_manager.services.allocation.allocator import Allocator
from gpu_manager.services.allocation.node_cards import KubeletOffer
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.allocation.prestart import PreStart
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

SOCKETS: Final = {CORE: CORE_SOCKET, MEMORY: MEMORY_SOCKET}
LENDING: Final = {**SOCKETS, NVIDIA: NVIDIA_SOCKET}  # where whole cards go by NVIDIA's name too
_WORKERS: Final = 16  # each open ListAndWatch stream occupies one for its life
_BACK_OFF: Final = (1.0, 30.0)
_CUT_SECONDS: Final = 0.5  # from a cut stream to the new socket of a kubelet that restarts
_REST_POLL_SECONDS: Final = 0.1  # for a new kubelet, between attempts
LIST_SECONDS: Final = 1.0  # between two lists that differ in withdrawn ids alone
RESTARTED: Final = "kubelet restarted"
OWN_GONE: Final = "own socket gone"
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


class ResourceServer(api_pb2_grpc.DevicePluginServicer):
    """One resource. Each call is translated, done by the services, and timed."""

    def __init__(
        self,
        resource: str,
        state: NodeState,
        allocator: Allocator,
        proof: PreStart,
        metrics: ServiceMetrics,
        woken: threading.Event,
        *,
        lending: bool = False,
        lost: Callable[[], object] = lambda: None,
    ) -> None:
        """``woken`` is set when a stream ends that we did not end."""
        self.resource = resource
        self._woken = woken
        self._lending = lending
        self._lost = lost
        self.offered = False  # the kubelet has been sent the devices
        self.cut = threading.Event()  # a stream ended that we did not end: only a new registration helps
        self._state = state
        self._allocator = allocator
        self._proof = proof
        self._metrics = metrics
        self._news = threading.Condition()
        self._stopped = False
        self._told = False

    def announce(self) -> None:
        """Cards may have changed: look, and send the list if it differs."""
        with self._news:
            self._told = True
            self._news.notify_all()

    def _offer(self) -> KubeletOffer:
        """Without a second name for cards the node and the withdrawn ids alone count."""
        if self._lending:
            return self._state.offer
        withdrawn = self._state.offer.withdrawn if self._state.withdrawing else {}
        return KubeletOffer(self._state.node, withdrawn=withdrawn)

    def stop(self) -> None:
        """End the streams."""
        with self._news:
            self._stopped = True
            self._news.notify_all()

    def GetDevicePluginOptions(  # noqa: N802  # the API's name
        self, request: api_pb2.Empty, context: grpc.ServicerContext
    ) -> api_pb2.DevicePluginOptions:
        return options_of(self.resource)

    def ListAndWatch(  # noqa: N802
        self, request: api_pb2.Empty, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.ListAndWatchResponse]:
        """The list now and whenever it differs: the kubelet rewrites its checkpoint at each message."""
        context.add_callback(self._stream_ended)
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
                ids = self._allocator.prefer(
                    self.resource, one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size
                )
            except Exception:
                self._metrics.preferred_allocation_failures.labels(self.resource).inc()
                log.exception("preferred_allocation_failed", resource=self.resource)
            answers.append(api_pb2.ContainerPreferredAllocationResponse(deviceIDs=ids))
        self._metrics.preferred_seconds.labels(self.resource).observe(time.monotonic() - started)
        return api_pb2.PreferredAllocationResponse(container_responses=answers)

    def Allocate(  # noqa: N802
        self, request: api_pb2.AllocateRequest, context: grpc.ServicerContext
    ) -> api_pb2.AllocateResponse:
        started = time.monotonic()
        try:
            if not request.container_requests:
                raise RequestInvalid(f"{self.resource}: Allocate names no container")
            responses = [
                _response(self._allocator.allocate(self.resource, one.devices_ids))
                for one in request.container_requests
            ]
        except VcudaError as error:
            _abort(context, error)
        finally:
            self._metrics.allocate_seconds.labels(self.resource).observe(time.monotonic() - started)
        return api_pb2.AllocateResponse(container_responses=responses)

    def PreStartContainer(  # noqa: N802
        self, request: api_pb2.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> api_pb2.PreStartContainerResponse:
        if self.resource in CARRIERS:
            try:
                self._proof.prove(self.resource, request.devices_ids)
            except VcudaError as error:
                log.warning("prestart_failed", reason=str(error))
                _abort(context, error)
        return api_pb2.PreStartContainerResponse()

    def _stream_ended(self) -> None:
        if not self._stopped:
            self.cut.set()
            self._lost()
            self._woken.set()
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
    context.abort(_CODES.get(type(error), grpc.StatusCode.INTERNAL), str(error)[:4096])
    raise AssertionError  # abort raises; the type checker does not know


class DevicePlugin:
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
        back_off: tuple[float, float] = _BACK_OFF,
        lost: Callable[[], object] = lambda: None,
    ) -> None:
        """``back_off``: the first and the longest pause, in seconds, between registrations that fail.

        ``lost`` is called when the kubelet no longer listens to us.
        """
        self.sockets = LENDING if lending else SOCKETS
        self._directory = directory
        self._state = state
        self._allocator = allocator
        self._proof = proof
        self._metrics = metrics
        self._stop = stop
        self._back_off = back_off
        self._lost = lost
        self._servers: tuple[ResourceServer, ...] = ()
        self._woken = threading.Event()
        self.registered = threading.Event()

    def wake(self) -> None:
        """Wake ``run``, so that it sees the request to stop."""
        self._woken.set()

    def offering(self) -> bool:
        """True if the kubelet has every resource's devices: a pod that comes now finds them."""
        servers = self._servers
        return bool(servers) and all(one.offered and not one.cut.is_set() for one in servers)

    def announce(self) -> None:
        """Cards may have changed."""
        for server in self._servers:
            server.announce()

    def run(self) -> None:
        """Run until stopped, again and again: the kubelet comes and goes."""
        first, longest = self._back_off
        pause = first
        while not self._stop.is_set():
            started, before = time.monotonic(), kubelet_socket(self._directory)
            try:
                ended = self.run_once()
                log.info("registering_again", reason=ended)
                # Who takes our socket as often as we make it, a second agent, is not to be outrun.
                quick = ended == RESTARTED or (ended == OWN_GONE and time.monotonic() - started > longest)
            except NodeUnready as error:
                log.error("registration_failed", reason=str(error))
                self._metrics.registration_failures.inc()
                quick = False
            except Exception:
                log.exception("registration_failed")
                self._metrics.registration_failures.inc()
                quick = False
            finally:
                self.registered.clear()
            if quick or time.monotonic() - started > longest:
                pause = first
            if not quick:
                # Two agents that lose their sockets to each other must not come back at the same moment.
                spread = pause * random.uniform(0.5, 1.0)  # noqa: S311
                pause = first if self._rest(spread, before) else min(pause * 2, longest)

    def _rest(self, seconds: float, before: object) -> bool:
        """Wait for the next attempt; True at once when the kubelet makes its socket anew.

        A killed kubelet leaves its socket behind, so there is something to fail at all the while it is
        down; pods that it admits when it is back are lost if it finds no plugin within a second.
        """
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not self._stop.wait(_REST_POLL_SECONDS):
            now = kubelet_socket(self._directory)
            if now is not None and now != before:
                return True
        return False

    def run_once(self) -> str:
        """Serve and register both, then watch. Returns why it ended.

        Raises:
            NodeUnready: sockets cannot be bound, the kubelet refused, or the device list is too large.
        """
        self._state.node.ids.check_size()
        self._await_kubelet()
        if self._stop.is_set():
            return "stopped"
        with ExitStack() as undo:
            self._servers = tuple(self._serve(resource, undo) for resource in self.sockets)
            undo.callback(self._forget)
            changed = threading.Event()
            reasons: list[SocketChange] = []

            def note(change: SocketChange) -> None:
                reasons.append(change)
                changed.set()
                self._woken.set()

            watch = SocketWatch(self._directory, tuple(self.sockets.values()), note)
            undo.callback(watch.stop)
            watch.start()
            self._allocator.registered()
            for server in self._servers:
                if not self._stop.is_set():
                    try:
                        self._register(server, changed)
                    except NodeUnready:
                        if reasons:
                            return RESTARTED if SocketChange.KUBELET in reasons else OWN_GONE
                        raise
            self.registered.set()
            log.info("registered", resources=list(self.sockets))
            while not self._stop.is_set():
                self._woken.wait()
                self._woken.clear()
                if changed.is_set():
                    return RESTARTED if SocketChange.KUBELET in reasons else OWN_GONE
                if any(server.cut.is_set() for server in self._servers):
                    # A restarting kubelet cuts the streams a moment before its new socket is seen.
                    return RESTARTED if changed.wait(_CUT_SECONDS) else "stream cut"
            return "stopped"

    def _register(self, server: ResourceServer, changed: threading.Event) -> None:
        """Raises NodeUnready: refused, not answered, or ``changed`` was set meanwhile."""
        name = server.resource
        register(self._directory, name, self.sockets[name], options_of(name), abandon=changed)
        self._metrics.registrations.labels(name).inc()

    def _await_kubelet(self) -> None:
        socket = self._directory / KUBELET_SOCKET
        if not socket.exists():
            log.info("waiting_for_kubelet", socket=str(socket))
        while not socket.exists() and not self._stop.wait(0.1):
            pass

    def _serve(self, resource: str, undo: ExitStack) -> ResourceServer:
        path = self._directory / self.sockets[resource]
        servicer = ResourceServer(
            resource,
            self._state,
            self._allocator,
            self._proof,
            self._metrics,
            self._woken,
            lending=NVIDIA in self.sockets,
            lost=self._lost,
        )
        server = grpc.server(ThreadPoolExecutor(_WORKERS, thread_name_prefix=self.sockets[resource]))
        api_pb2_grpc.add_DevicePluginServicer_to_server(servicer, server)
        try:
            path.unlink(missing_ok=True)
            server.add_insecure_port(f"unix://{path.absolute()}")
        except IsADirectoryError as error:
            raise NodeUnready(
                f"cannot listen on {path}: a directory has that name, as a pod makes one that mounts the "
                "socket before it is there; remove it"
            ) from error
        except (RuntimeError, OSError) as error:
            raise NodeUnready(
                f"cannot listen on {path}: is the device-plugins directory mounted and writable? ({error})"
            ) from error
        server.start()

        def end() -> None:
            servicer.stop()
            server.stop(grace=0.5).wait(5)
            path.unlink(missing_ok=True)

        undo.callback(end)
        return servicer

    def _forget(self) -> None:
        self._servers = ()
