"""Holds the plugin's registration while the agent is killed and started again.

The kubelet fails for good what it admits while a plugin's stream is cut, even for a moment. So this process,
the agent's parent, owns the plugin's sockets: it shows the kubelet the devices that the agent sent last,
forwards its calls, and lets them wait while the agent is away. The agent registers here as with a kubelet.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, Final

import grpc
from prometheus_client import CollectorRegistry

from gpu_manager.adapters.kubelet.client import unix_target
from gpu_manager.domain.contract import KUBELET_SOCKET
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from gpu_manager.runtime import threads
from gpu_manager.runtime.program import Ending, Supervised
from gpu_manager.servers.device_plugin import ANSWERED, DECIDED
from gpu_manager.servers.plugin_registration import LENDING, SOCKETS, HeldServer, PluginRegistration
from gpu_manager.services.metrics import ServiceMetrics

HELD_IN: Final = "VCUDA_REGISTRATION_HELD_IN"  # the directory in which the agent, a child, registers
_END_SECONDS: Final = 30.0
_TAKEN_SECONDS: Final = 5.0  # for one side to take what the other says


class AgentSide:
    """What the agent serves of one resource. ``changed`` guards and announces all that it says."""

    def __init__(self, changed: threading.Condition, seconds: float) -> None:
        """``seconds`` that the agent may be away before its devices are withdrawn."""
        self.changed, self.seconds = changed, seconds
        self.channel: grpc.Channel | None = None  # None while it is away
        self.away_since = time.monotonic()
        self._preferred: tuple[frozenset[str], str] = frozenset(), ""  # the last answer, and whom it is for
        self.options, self.devices = api_pb2.DevicePluginOptions(), api_pb2.ListAndWatchResponse()

    def left(self) -> float:
        """Seconds that calls wait for the agent, which is away; 0 once that is over."""
        return max(0.0, self.away_since + self.seconds - time.monotonic())

    def connect(self, socket: Path) -> None:
        """Follow the agent that serves there. Raises RpcError."""
        channel = grpc.insecure_channel(unix_target(socket), (("grpc.use_local_subchannel_pool", 1),))
        stub = api_pb2_grpc.DevicePluginStub(channel)
        options = stub.GetDevicePluginOptions(api_pb2.Empty(), timeout=_TAKEN_SECONDS)
        first = next(stream := stub.ListAndWatch(api_pb2.Empty()))
        with self.changed:
            self.options, self.devices, self.channel = options, first, channel
            self.changed.notify_all()
        threads.once("held-devices", lambda: self._follow(stream, channel)).start()

    def call(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        """Forward the call to the agent; if it is killed meanwhile the call is repeated once it is back."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.channel, self.left())
                channel = self.channel
            if channel is None:
                context.abort(grpc.StatusCode.UNAVAILABLE, f"the agent is away for {self.seconds:g} s")
            try:
                ask = getattr(api_pb2_grpc.DevicePluginStub(channel), method)
                answer, done = ask.with_call(request, metadata=self._memo(method, request))
                if method == "GetPreferredAllocation":
                    decided = dict(done.trailing_metadata() or ()).get(DECIDED, "")
                    self._preferred = _ids(answer.container_responses, "deviceIDs"), str(decided)
                return answer
            except (grpc.RpcError, ValueError) as error:  # the latter: the channel was closed meanwhile
                if isinstance(error, grpc.RpcError) and not _lost(error):
                    context.abort(error.code(), error.details() or "")
            self._lose(channel)

    def _memo(self, method: str, request: Any) -> tuple[tuple[str, str], ...]:
        """What the agent decided for these ids: its successor, which knows nothing of it, may book them."""
        ids, decided = self._preferred
        known = method == "Allocate" and ids == _ids(request.container_requests, "devices_ids")
        return ((DECIDED, decided),) if known else ()

    def _follow(self, stream: Iterator[api_pb2.ListAndWatchResponse], channel: grpc.Channel) -> None:
        with contextlib.suppress(grpc.RpcError):
            for devices in stream:
                with self.changed:
                    self.devices = devices if self.channel is channel else self.devices
                    self.changed.notify_all()
        self._lose(channel)

    def _lose(self, channel: grpc.Channel) -> None:
        with self.changed:
            if self.channel is channel:
                self.channel, self.away_since = None, time.monotonic()
                self.changed.notify_all()
        channel.close()


def _ids(parts: Iterable[Any], field: str) -> frozenset[str]:
    return frozenset(device for part in parts for device in getattr(part, field))


def _lost(error: Any) -> bool:
    lost = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    return lost and all(key != ANSWERED for key, _ in error.trailing_metadata() or ())


class RegistrationHolder(PluginRegistration, api_pb2_grpc.RegistrationServicer):
    """Both sides: what the kubelet sees of the plugin, and what the agent sees of the kubelet."""

    def __init__(self, directory: Path, door: Path, sockets: Mapping[str, str], seconds: float) -> None:
        """``door`` is the socket at which the agent registers; nobody else may write in its directory."""
        super().__init__(directory, sockets, ServiceMetrics(CollectorRegistry()), Event())
        self._door_path = door
        self._door = grpc.server(ThreadPoolExecutor(1))
        self._changed = threading.Condition()
        self._sides = {resource: AgentSide(self._changed, seconds) for resource in sockets}

    def look(self) -> None:
        """Withdraw the devices of an agent that is away for too long; to be called now and then."""
        if not all(side.channel or side.left() for side in self._sides.values()):
            for server in self._servers:
                server.ended()

    def Register(self, request: Any, context: Any) -> api_pb2.Empty:  # noqa: N802
        """The agent registers a resource; answered once the kubelet has the devices of all."""
        try:
            self._sides[request.resource_name].connect(self._door_path.with_name(request.endpoint))
        except (grpc.RpcError, StopIteration) as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, f"the agent does not serve: {error}")
        if all(side.channel for side in self._sides.values()):
            self.registered.wait(_TAKEN_SECONDS)
            with self._changed:
                if not self._changed.wait_for(self.offering, _TAKEN_SECONDS):
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the kubelet has not taken the devices yet")
        return api_pb2.Empty()

    def prepare(self) -> None:
        """Have the agent register anew, as a kubelet that restarts does, and wait for one that is away."""
        self._door.stop(0).wait()  # which removes its socket
        self._door = grpc.server(ThreadPoolExecutor(4, thread_name_prefix="held-door"))
        api_pb2_grpc.add_RegistrationServicer_to_server(self, self._door)
        self._door_path.unlink(missing_ok=True)
        self._door.add_insecure_port(f"unix://{self._door_path.absolute()}")
        self._door.start()
        with self._changed:
            while not (all(side.channel for side in self._sides.values()) or self.stopped.is_set()):
                self._changed.wait(1.0)

    def serve(self, resource: str) -> HeldServer:
        """See :meth:`PluginRegistration.serve`."""
        return HeldServer(resource, self._sides[resource], self._woken)


def hold(kubelet: Path, state: Path, seconds: float, *, lending: bool) -> int:
    """Run this command as the agent, again whenever it is killed. Returns its exit code."""
    ending, agents = Ending(), state / "plugin"
    agents.mkdir(mode=0o700, parents=True, exist_ok=True)
    sockets = LENDING if lending else SOCKETS
    holder = RegistrationHolder(kubelet / "device-plugins", agents / KUBELET_SOCKET, sockets, seconds)
    running = threads.forever("held-registration", holder.run)
    running.start()
    threads.every(1.0, "held-look", holder.look, holder.stopped).start()
    code = Supervised(HELD_IN, str(agents), ending.wait).run()
    holder.stopped.set()
    holder.wake()
    running.join(_END_SECONDS)
    return code
