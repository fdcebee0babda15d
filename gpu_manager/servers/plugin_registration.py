"""The lifecycle of a device plugin: its sockets are served, registered with the kubelet, and watched.

``run_once`` serves, registers and watches; whatever ends it ends all of it, and ``run`` is the only retry.
A kubelet restart is the ordinary end of a run. The kubelet finds a plugin's connection by resource name
alone: the own old server is closed before registering again, or its end would disconnect the new one.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from gpu_manager.adapters.kubelet.registration import SocketChange, SocketWatch, kubelet_socket, register
from gpu_manager.domain.contract import (
    CORE,
    CORE_SOCKET,
    KUBELET_SOCKET,
    MEMORY,
    MEMORY_SOCKET,
    NVIDIA,
    NVIDIA_SOCKET,
)
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

SOCKETS: Final = {CORE: CORE_SOCKET, MEMORY: MEMORY_SOCKET}
LENDING: Final = {**SOCKETS, NVIDIA: NVIDIA_SOCKET}  # where whole cards go by NVIDIA's name too
_WORKERS: Final = 16  # each open ListAndWatch stream occupies one for its life
BACK_OFF: Final = (1.0, 30.0)
_CUT_SECONDS: Final = 0.5  # from a cut stream to the new socket of a kubelet that restarts
_REST_POLL_SECONDS: Final = 0.1  # for a new kubelet, between attempts
RESTARTED: Final = "kubelet restarted"
OWN_GONE: Final = "own socket gone"


class PluginStreams(api_pb2_grpc.DevicePluginServicer):
    """One resource, served to the kubelet from a registration to the end of it."""

    def __init__(self, resource: str, woken: threading.Event) -> None:
        """``woken`` is set when a stream ends that we did not end."""
        self.resource = resource
        self._woken = woken
        self.offered = False  # the kubelet has been sent the devices
        self.cut = threading.Event()  # a stream ended that we did not end: only a new registration helps
        self._news = threading.Condition()
        self._stopped = False

    def options(self) -> api_pb2.DevicePluginOptions:
        """The optional calls that the kubelet may make."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the streams."""
        with self._news:
            self._stopped = True
            self._news.notify_all()

    def GetDevicePluginOptions(self, request: Any, context: Any) -> api_pb2.DevicePluginOptions:  # noqa: N802
        return self.options()

    def ended(self) -> None:
        """A stream has ended, or must be taken for ended."""
        if not self._stopped:
            self.cut.set()
            self._woken.set()
        with self._news:
            self._news.notify_all()


class HeldServer(PluginStreams):
    """One resource whose plugin may come and go; ``agent`` has its ``options`` and its ``devices``, sets
    ``changed`` at each change, and answers by ``call``.
    """

    def __init__(self, resource: str, agent: Any, woken: threading.Event) -> None:
        super().__init__(resource, woken)
        self._agent: Any = agent
        self._news = agent.changed
        for method in ("GetPreferredAllocation", "Allocate", "PreStartContainer"):
            setattr(self, method, partial(agent.call, method))

    def options(self) -> api_pb2.DevicePluginOptions:
        """See :meth:`PluginStreams.options`."""
        found: api_pb2.DevicePluginOptions = self._agent.options
        return found

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[api_pb2.ListAndWatchResponse]:  # noqa: N802
        """The devices that the agent sent last, and each further list."""
        context.add_callback(self.ended)
        sent = None
        while not (self._stopped or self.cut.is_set()):
            with self._news:
                self.offered = sent is not None
                self._news.notify_all()
                while self._agent.devices is sent and not (self._stopped or self.cut.is_set()):
                    self._news.wait()
                devices = self._agent.devices
            if devices is not sent:
                sent = devices
                yield devices


def listen_at(path: Path, cure: str, add: Callable[[grpc.Server], object], undo: ExitStack) -> None:
    """Serve what ``add`` adds to a server on the socket ``path``, until ``undo`` ends it.

    Raises:
        NodeUnready: the socket cannot be made; the text has ``cure``.
    """
    server = grpc.server(ThreadPoolExecutor(_WORKERS, thread_name_prefix=path.stem))
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        server.add_insecure_port(f"unix://{path.absolute()}")
    except IsADirectoryError as error:
        raise NodeUnready(
            f"cannot listen on {path}: a directory has that name, as a pod makes one that mounts the "
            "socket before it is there; remove it"
        ) from error
    except (RuntimeError, OSError) as error:
        raise NodeUnready(f"cannot listen on {path}: {cure} ({error})") from error

    def end() -> None:
        server.stop(grace=0.5).wait(5)
        path.unlink(missing_ok=True)

    undo.callback(end)
    add(server)
    server.start()


class PluginRegistration:
    """All resources of a plugin, from start to stop. Subclasses define what is served."""

    def __init__(
        self,
        directory: Path,
        sockets: Mapping[str, str],
        metrics: ServiceMetrics,
        stop: threading.Event,
        back_off: tuple[float, float] = BACK_OFF,
    ) -> None:
        """``sockets``: resource → file name in ``directory``; ``back_off``: the first and the longest pause,
        in seconds, between registrations that fail.
        """
        self.sockets = sockets
        self._directory = directory
        self._metrics = metrics
        self.stopped = stop
        self._back_off = back_off
        self._servers: Sequence[PluginStreams] = ()
        self._woken = threading.Event()  # set when a stream ends that we did not end
        self.registered = threading.Event()

    def prepare(self) -> None:
        """Wait until there is something to serve. Raises NodeUnready: it cannot be served."""

    def serve(self, resource: str) -> PluginStreams:
        """Create the server of a resource."""
        raise NotImplementedError

    def wake(self) -> None:
        """Wake ``run``, so that it sees the request to stop."""
        self._woken.set()

    def offering(self) -> bool:
        """True if the kubelet has every resource's devices, so that a pod admitted now gets them."""
        servers = self._servers if self.registered.is_set() else ()
        return bool(servers) and all(one.offered and not one.cut.is_set() for one in servers)

    def run(self) -> None:
        """Run until stopped, again and again: the kubelet comes and goes."""
        first, longest = self._back_off
        pause = first
        while not self.stopped.is_set():
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
        while time.monotonic() < ends and not self.stopped.wait(_REST_POLL_SECONDS):
            now = kubelet_socket(self._directory)
            if now is not None and now != before:
                return True
        return False

    def run_once(self) -> str:
        """Serve and register both, then watch. Returns why it ended.

        Raises:
            NodeUnready: sockets cannot be bound, the kubelet refused, or the device list is too large.
        """
        self.prepare()
        self._await_kubelet()
        if self.stopped.is_set():
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
            for server in self._servers:
                if not self.stopped.is_set():
                    try:
                        self._register(server, changed)
                    except NodeUnready:
                        if reasons:
                            return RESTARTED if SocketChange.KUBELET in reasons else OWN_GONE
                        raise
            self.registered.set()
            log.info("registered", resources=list(self.sockets))
            while not self.stopped.is_set():
                self._woken.wait()
                self._woken.clear()
                if changed.is_set():
                    return RESTARTED if SocketChange.KUBELET in reasons else OWN_GONE
                if any(server.cut.is_set() for server in self._servers):
                    # A restarting kubelet cuts the streams a moment before its new socket is seen.
                    return RESTARTED if changed.wait(_CUT_SECONDS) else "stream cut"
            return "stopped"

    def _register(self, server: PluginStreams, changed: threading.Event) -> None:
        """Raises NodeUnready: refused, not answered, or ``changed`` was set meanwhile."""
        name = server.resource
        register(self._directory, name, self.sockets[name], server.options(), abandon=changed)
        self._metrics.registrations.labels(name).inc()

    def _await_kubelet(self) -> None:
        socket = self._directory / KUBELET_SOCKET
        if not socket.exists():
            log.info("waiting_for_kubelet", socket=str(socket))
        while not socket.exists() and not self.stopped.wait(0.1):
            pass

    def _serve(self, resource: str, undo: ExitStack) -> PluginStreams:
        servicer, path = self.serve(resource), self._directory / self.sockets[resource]
        add = partial(api_pb2_grpc.add_DevicePluginServicer_to_server, servicer)
        listen_at(path, "is the device-plugins directory mounted and writable?", add, undo)
        undo.callback(servicer.stop)  # before the end of its server
        return servicer

    def _forget(self) -> None:
        self._servers = ()
