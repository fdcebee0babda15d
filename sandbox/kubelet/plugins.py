"""The kubelet's side of the device plugin API: takes registrations, dials back, follows ListAndWatch.

It keeps the kubelet's habits: a stream that ended is never dialled again, and a client is looked up by
its resource's name when its stream ends, so that an old plugin's end disconnects its successor.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Never, TypeVar

import grpc

from gpu_manager.domain.contract import KUBELET_SOCKET
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from gpu_manager.runtime import threads
from sandbox.kubelet.books import DeviceBooks
from sandbox.kubelet.serving import SocketServer
from sandbox.kubelet.values import Device, is_extended

VERSION: Final = "v1beta1"
DIAL_SECONDS: Final = 10.0
PRE_START_SECONDS: Final = 30.0

_Answer = TypeVar("_Answer")


class Client:
    """One connection to one plugin; also its :class:`~sandbox.kubelet.values.Endpoint`."""

    def __init__(self, resource: str, socket: Path, books: DeviceBooks, pre_start_seconds: float) -> None:
        self.resource = resource
        self._socket = socket
        self._books = books
        self._pre_start_seconds = pre_start_seconds
        # The receive limit is gRPC's default of 4 MiB, as the kubelet's is.
        self._channel = grpc.insecure_channel(
            f"unix://{socket.absolute()}",
            options=(("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)),
        )
        self._stub = api_pb2_grpc.DevicePluginStub(self._channel)
        self.options = api_pb2.DevicePluginOptions()
        self._closed = threading.Event()

    def connect(self, timeout: float = DIAL_SECONDS) -> None:
        """Dial and learn the options. Raises NodeUnready."""
        ends = time.monotonic() + timeout
        while not _listens(self._socket):
            if time.monotonic() > ends or self._closed.wait(0.02):
                raise NodeUnready(f"failed to dial device plugin: {self._socket} does not answer")
        try:
            self.options = self._rpc(
                lambda: self._stub.GetDevicePluginOptions(api_pb2.Empty(), wait_for_ready=True)
            )
        except NodeUnready as error:
            raise NodeUnready(f"failed to get device plugin options: {error}") from error
        self._books.connected(self.resource, self)

    def follow(self) -> None:
        """Pass on ListAndWatch until the stream ends, for whatever reason."""
        try:
            for message in self._stub.ListAndWatch(api_pb2.Empty()):
                devices = [
                    Device(d.ID, d.health == "Healthy", tuple(node.ID for node in d.topology.nodes))
                    for d in message.devices
                ]
                self._books.update(self.resource, devices)
        except (grpc.RpcError, ValueError):
            return  # ended by the plugin, or the channel was closed here

    def close(self) -> None:
        """End the connection and every call on it."""
        self._closed.set()
        self._channel.close()

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> frozenset[str]:
        request = api_pb2.PreferredAllocationRequest(
            container_requests=[
                api_pb2.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
                )
            ]
        )
        try:
            answer = self._rpc(lambda: self._stub.GetPreferredAllocation(request))
        except NodeUnready as error:
            raise NodeUnready(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from error
        return frozenset(answer.container_responses[0].deviceIDs if answer.container_responses else ())

    def allocate(self, ids: Sequence[str]) -> api_pb2.AllocateResponse:
        request = api_pb2.AllocateRequest(
            container_requests=[api_pb2.ContainerAllocateRequest(devices_ids=ids)]
        )
        answer: api_pb2.AllocateResponse = self._rpc(lambda: self._stub.Allocate(request))
        return answer

    def pre_start(self, ids: Sequence[str]) -> None:
        request = api_pb2.PreStartContainerRequest(devices_ids=ids)
        try:
            self._rpc(lambda: self._stub.PreStartContainer(request, timeout=self._pre_start_seconds))
        except NodeUnready as error:
            raise NodeUnready(f"device plugin PreStartContainer rpc failed with err: {error}") from error

    def _rpc(self, call: Callable[[], _Answer]) -> _Answer:
        try:
            return call()
        except grpc.RpcError as error:
            code = "".join(part.capitalize() for part in error.code().name.split("_"))
            raise NodeUnready(f"rpc error: code = {code} desc = {error.details()}") from error
        except ValueError as error:
            raise NodeUnready(f"endpoint {self.resource} has been stopped") from error


class ForeignPlugin:
    """Another vendor's plugin, without a process: its devices are numbers, its answers empty."""

    def __init__(self) -> None:
        self.options = api_pb2.DevicePluginOptions()

    def preferred(
        self, _available: Sequence[str], _must_include: Sequence[str], _size: int
    ) -> frozenset[str]:
        return frozenset()

    def allocate(self, _ids: Sequence[str]) -> api_pb2.AllocateResponse:
        return api_pb2.AllocateResponse(container_responses=[api_pb2.ContainerAllocateResponse()])

    def pre_start(self, ids: Sequence[str]) -> None:
        """Never asked for."""


class PluginServer:
    """The Registration service on ``directory/kubelet.sock``, and all plugins that came through it."""

    def __init__(
        self,
        directory: Path,
        books: DeviceBooks,
        registrations: Counter[str],
        *,
        dial_seconds: float = DIAL_SECONDS,
        pre_start_seconds: float = PRE_START_SECONDS,
    ) -> None:
        self._directory = directory
        self._books = books
        self._dial_seconds = dial_seconds
        self._pre_start_seconds = pre_start_seconds
        self._registrations = registrations
        self._ended = False
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}
        self._all: list[tuple[Client, threading.Thread]] = []
        add = partial(api_pb2_grpc.add_RegistrationServicer_to_server, self)
        self._server = SocketServer("kubelet-registration", add)

    def start(self) -> None:
        """Remove every socket of the directory, the plugins' too, then listen."""
        for path in self._directory.iterdir():
            if path.is_socket():
                path.unlink(missing_ok=True)
        self._server.start(self._directory / KUBELET_SOCKET)

    def stop(self, *, leave: bool = False) -> None:
        """End every connection and the server, and wait for their threads; ``leave`` the socket's file."""
        with self._lock:
            self._ended = True
            followed, self._all = self._all, []
            dialled, self._clients = self._clients, {}
        for client in {*dialled.values(), *(client for client, _ in followed)}:
            client.close()
        self._server.stop(leave=leave)
        for _, thread in followed:
            thread.join()

    def cut(self, resource: str) -> None:
        """Break the connection to a plugin, as a fault of the transport would."""
        with self._lock:
            client = self._clients.get(resource)
        if client is not None:
            client.close()

    def Register(self, request: api_pb2.RegisterRequest, context: grpc.ServicerContext) -> api_pb2.Empty:  # noqa: N802  # the service's name
        """Dial the plugin back and take its options before answering."""
        name = request.resource_name
        with self._lock:
            self._registrations[name] += 1
        if request.version != VERSION:
            _refuse(
                context,
                f'requested API version "{request.version}" is not supported by kubelet. '
                f'Supported version is ["{VERSION}"]',
            )
        if not is_extended(name):
            _refuse(context, f'the ResourceName "{name}" is invalid')
        client = Client(name, self._directory / request.endpoint, self._books, self._pre_start_seconds)
        with self._lock:
            self._clients[name] = client  # the former one stays open, but is no longer found
        try:
            client.connect(self._dial_seconds)
            self._watch(client)
        except NodeUnready as error:
            with self._lock:
                self._clients.pop(name, None)
            client.close()
            _refuse(context, str(error))
        return api_pb2.Empty()

    def _watch(self, client: Client) -> None:
        name = f"watch {client.resource}"
        thread = threads.once(name, lambda: self._follow(client))
        with self._lock:
            if self._ended:
                raise NodeUnready("the kubelet is stopping")
            self._all = [(c, t) for c, t in self._all if t.is_alive()] + [(client, thread)]
            thread.start()

    def _follow(self, client: Client) -> None:
        client.follow()
        with self._lock:
            current = self._clients.pop(client.resource, None)  # by name: perhaps its successor
        if current is not None:
            current.close()
            self._books.disconnected(client.resource)
        client.close()


def _listens(path: Path) -> bool:
    """True if somebody takes connections there (a channel can tell too, but is then slow to close)."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _refuse(context: grpc.ServicerContext, text: str) -> Never:
    context.abort(grpc.StatusCode.UNKNOWN, text)  # what a Go server makes of a plain error
    raise AssertionError("abort raises")
