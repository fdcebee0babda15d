"""Registers a plugin with the kubelet, and detects when it must register again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

import grpc

from gpu_manager.adapters.kubelet.client import LOOK_SECONDS, DirectoryWatch, Stamp, stamp_of, unix_target
from gpu_manager.domain.contract import KUBELET_SOCKET
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from gpu_manager.runtime import threads

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
    """Register a plugin: ``resource`` is served on the socket ``directory/endpoint``.

    The plugin must already serve there, in other threads: the kubelet calls it before it answers.
    ``options`` must be those of GetDevicePluginOptions; ``timeout`` is in seconds. Once ``abandon`` is
    set the answer is not waited for: a kubelet that has deleted the plugin's socket dials it for 10 s.

    Raises:
        NodeUnready: the kubelet is not running, did not answer in time, or refused (the text has its
            reason); or the call was abandoned.
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
    """Why a plugin must serve and register again."""

    KUBELET = "the kubelet made its socket anew"
    OWN = "our own socket is gone"


class SocketWatch:
    """Calls ``changed``, from a separate thread, whenever a plugin must serve and register again.

    Create it after the plugin's sockets and before registering, so that a restart of the kubelet in between
    is noticed: a plugin's socket that is already missing was deleted by the kubelet and counts as a change. A
    kubelet that stops is no change. ``own`` are file names in ``directory``; ``interval`` (seconds) is the
    time between checks if the kernel reports no changes. The watch continues after a change.
    """

    def __init__(
        self,
        directory: Path,
        own: Sequence[str],
        changed: Callable[[SocketChange], None],
        *,
        interval: float = POLL_SECONDS,
    ) -> None:
        self._directory = DirectoryWatch(directory)
        self._kubelet = str(directory / KUBELET_SOCKET)
        self._own = [str(directory / name) for name in own]
        self._changed = changed
        self._interval = interval
        self._seen = stamp_of(self._kubelet)
        self._ours: list[Stamp | None] = [stamp_of(path) or _MISSING for path in self._own]
        self._end = threading.Event()
        self._thread = threads.forever("kubelet-watch", self._run)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it; may be called from ``changed``."""
        self._end.set()
        self._directory.wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._end.is_set():
            watched = self._directory.arm()
            self._look()
            self._directory.wait(LOOK_SECONDS if watched else self._interval)
        self._directory.close()

    def _look(self) -> None:
        now = stamp_of(self._kubelet)
        if now is not None and now != self._seen:
            self._seen = now
            self._changed(SocketChange.KUBELET)
        ours = [stamp_of(path) for path in self._own]
        if any(now != before for now, before in zip(ours, self._ours, strict=True) if before is not None):
            self._changed(SocketChange.OWN)
        self._ours = ours


def kubelet_socket(directory: Path) -> Stamp | None:
    """Return the identity of the kubelet's socket, which changes at a restart; None while there is none."""
    return stamp_of(str(directory / KUBELET_SOCKET))
