"""Registers a plugin with the kubelet, and detects when it must register again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

import grpc

from gpu_manager import threads
from gpu_manager.adapters.kubelet.client import unix_target
from gpu_manager.domain.contract import KUBELET_SOCKET
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc

API_VERSION: Final = "v1beta1"
# The kubelet may take 10 s to dial back, and then asks for our options before it answers.
REGISTER_SECONDS: Final = 15.0
_ABANDON_SECONDS: Final = 0.05  # within which an abandoned call ends
POLL_SECONDS: Final = 0.25  # above 1 s, pods that a restarted kubelet re-admits find no plugin and fail


def register(
    directory: Path,
    resource: str,
    endpoint: str,
    options: api_pb2.DevicePluginOptions,
    *,
    timeout: float = REGISTER_SECONDS,
    abandon: threading.Event | None = None,
) -> None:
    """Tell the kubelet of ``directory`` that ``resource`` is served on the socket ``directory/endpoint``.

    The plugin must already serve there, on threads of its own: the kubelet calls back before it answers.
    ``options`` should be what GetDevicePluginOptions answers; ``timeout`` is in seconds. Once ``abandon`` is
    set the answer is not waited for: a kubelet that has deleted the plugin's socket dials it for 10 s.

    Raises:
        NodeUnready: the kubelet is away, did not answer in time, or refused (its words are in the text); or
            the call was abandoned.
    """
    socket = directory / KUBELET_SOCKET
    request = api_pb2.RegisterRequest(
        version=API_VERSION, endpoint=endpoint, resource_name=resource, options=options
    )
    channel = grpc.insecure_channel(
        unix_target(socket),
        options=(("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)),
    )
    try:
        call = api_pb2_grpc.RegistrationStub(channel).Register.future(request, timeout=timeout)
        answered = threading.Event()
        call.add_done_callback(lambda _: answered.set())
        while not answered.wait(_ABANDON_SECONDS):
            if abandon is not None and abandon.is_set():
                call.cancel()
                raise NodeUnready(f"the registration of {resource} was abandoned: a socket was replaced")
        call.result()
    except grpc.RpcError as error:
        code, details = error.code(), error.details() or "no details"
        if code is grpc.StatusCode.UNAVAILABLE:
            text = f"the kubelet does not answer at {socket}: {details}"
        elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
            text = (
                f"the kubelet did not answer the registration of {resource} at {socket} within {timeout:g} s"
            )
        else:
            text = f"the kubelet refused to register {resource}: {details} ({code.name})"
        raise NodeUnready(text) from error
    finally:
        channel.close()


_MISSING: Final = (0, 0, 0)  # of an own socket at the start, where there should be one


class SocketChange(Enum):
    """Why a plugin has to serve and register anew."""

    KUBELET = "the kubelet made its socket anew"
    OWN = "our own socket is gone"


class SocketWatch:
    """Calls ``changed`` from a thread of its own whenever a plugin has to serve and register anew.

    Make it once the own sockets have been made and before registering, so that a kubelet that restarts in
    between is seen; one that is missing already has been deleted by such a kubelet, and counts as a change. A
    kubelet that only goes away is no change: there is nobody to register with. ``own`` are file names in
    ``directory``; ``interval`` is in seconds. After a change the watch goes on from there.
    """

    def __init__(
        self,
        directory: Path,
        own: Sequence[str],
        changed: Callable[[SocketChange], None],
        *,
        interval: float = POLL_SECONDS,
    ) -> None:
        self._kubelet = str(directory / KUBELET_SOCKET)
        self._own = [str(directory / name) for name in own]
        self._changed = changed
        self._interval = interval
        self._seen = _state(self._kubelet)
        self._ours: list[tuple[int, int, int] | None] = [_state(path) or _MISSING for path in self._own]
        self._end = threading.Event()
        self._thread = threads.forever("kubelet-watch", self._run)

    def start(self) -> None:
        """Begin to look, every ``interval``."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it; callable from ``changed`` too."""
        self._end.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(self._interval):
            now = _state(self._kubelet)
            if now is not None and now != self._seen:
                self._seen = now
                self._changed(SocketChange.KUBELET)
            ours = [_state(path) for path in self._own]
            if any(now != before for now, before in zip(ours, self._ours, strict=True) if before is not None):
                self._changed(SocketChange.OWN)
            self._ours = ours


def kubelet_socket(directory: Path) -> tuple[int, int, int] | None:
    """What tells the kubelet's socket from its successor; None while there is none."""
    return _state(str(directory / KUBELET_SOCKET))


def _state(path: str) -> tuple[int, int, int] | None:
    """What tells a socket file from its successor (an inode number alone is soon re-used); None if absent."""
    try:
        stat = os.stat(path)  # noqa: PTH116  # four times a second for ever: half the cost of Path.stat
    except OSError:
        return None
    return (stat.st_ino, stat.st_ctime_ns, stat.st_mtime_ns)
