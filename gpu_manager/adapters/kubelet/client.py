"""The kubelet's device assignments: PodResources over its socket, and its checkpoint file.

Changes of its files are awaited by inotify(7), or by the clock where no inotify instance can be had.
"""

from __future__ import annotations

import ctypes
import os
import random
import select
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import grpc
import structlog

from gpu_manager.adapters.kubelet.checkpoint import FILE_NAME, MAX_BYTES, parse_checkpoint
from gpu_manager.domain.contract import CORE, CORE_SOCKET, KUBELET_SOCKET, MEMORY, MEMORY_SOCKET
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.pb.podresources.v1 import api_pb2, api_pb2_grpc
from gpu_manager.ports.records import CheckpointEntry, PodResourcesEntry

# An answer without a fresh List can be wrong for the pod's whole life, and the question has no deadline: on a
# machine that stalled, 3 s were not enough.
DEADLINE_SECONDS: Final = 10.0
RETRY_SECONDS: Final = (0.005, 0.015)  # the kubelet's limiter gives one token every 10 ms
_OFFERS_SECONDS: Final = 2.0
_SOCKETS: Final = {CORE: CORE_SOCKET, MEMORY: MEMORY_SOCKET}
RECEIVE_BYTES: Final = 16 << 20  # as Kubernetes' own callers of this API

log = structlog.get_logger(__name__)


def unix_target(path: Path) -> str:
    """Return the gRPC target of a unix socket."""
    return f"unix://{path.absolute()}"


class _Connection:
    """A gRPC channel and the number of calls on it.

    gRPC crashes the process if a channel is closed while another thread starts a call on it, so the last
    call closes it.
    """

    def __init__(self, socket: Path) -> None:
        self.users = 0
        self.channel = grpc.insecure_channel(
            unix_target(socket),
            options=(
                ("grpc.default_authority", "localhost"),
                ("grpc.max_receive_message_length", RECEIVE_BYTES),
                # Otherwise a channel made after a failure inherits that failure's back-off.
                ("grpc.use_local_subchannel_pool", 1),
            ),
        )
        self.stub = api_pb2_grpc.PodResourcesListerStub(self.channel)


class KubeletClient:
    """Implements :class:`gpu_manager.ports.records.Kubelet`.

    ``device_plugins`` and ``pod_resources`` are the kubelet's directories; only ids of ``resources`` (our
    resources, each with the name of its socket) are reported. Call :meth:`listing` in GetPreferredAllocation,
    never in Allocate: the kubelet frees ended pods before it lists, and then offers ids again that are being
    granted at that moment.
    """

    def __init__(
        self,
        device_plugins: Path,
        pod_resources: Path,
        *,
        resources: Mapping[str, str] = _SOCKETS,
        deadline: float = DEADLINE_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._checkpoint = device_plugins / FILE_NAME
        self._socket = pod_resources / KUBELET_SOCKET
        self._resources = frozenset(resources)
        self._own_sockets = frozenset(resources.values())
        self._plugins = DirectoryWatch(device_plugins)
        self._deadline = deadline
        self._sleep = sleep
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._read: tuple[tuple[int, int, int], tuple[CheckpointEntry, ...] | None] | None = None

    def listing(self) -> Mapping[tuple[str, str], Sequence[PodResourcesEntry]]:
        """Call PodResources List: (namespace, pod) → its app containers and sidecars, also those without ids.

        Retries for at most 10 s while the kubelet's rate limiter, which all callers share, refuses.

        Raises:
            NodeUnready: the kubelet is not running, still refuses, or did not answer.
        """
        ends = time.monotonic() + self._deadline
        while True:
            left = ends - time.monotonic()
            connection = self._enter()
            failed = True
            try:
                answer = connection.stub.List(api_pb2.ListPodResourcesRequest(), timeout=max(left, 0.001))
                failed = False
                return _parse(answer, self._resources)
            except grpc.RpcError as error:
                failed = not self._may_retry(error, left)
            finally:
                self._leave(connection, failed=failed)
            self._sleep(random.uniform(*RETRY_SECONDS))  # noqa: S311  # spreads callers, keeps no secret

    def checkpoint(self) -> Sequence[CheckpointEntry] | None:
        """Return the checkpoint's entries of the vcuda resources; None if the file is absent or cannot be
        read.

        An unchanged file (inode, size, change time) is not parsed again.
        """
        try:
            state, read = _state_of(self._checkpoint.stat()), self._read
            if read is not None and read[0] == state:
                return read[1]
            with self._checkpoint.open("rb") as file:
                state = _state_of(os.fstat(file.fileno()))
                text = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return None  # a fresh node: the kubelet writes it with the first plugin
        except OSError as error:
            log.warning("checkpoint_unreadable", path=str(self._checkpoint), reason=error.strerror)
            return None
        entries = self._parse(text)
        with self._lock:
            self._read = (state, entries)
        return entries

    def other_offers(self) -> Mapping[str, Collection[str]]:
        """Call PodResources GetAllocatableResources: resource → device ids of other plugins.

        Only while there is another plugin's socket in the kubelet's directory; empty otherwise.

        Raises:
            NodeUnready: the kubelet is not running, or did not answer.
        """
        if not self._others_there():
            return {}
        connection = self._enter()
        failed = True
        try:
            request = api_pb2.AllocatableResourcesRequest()
            answer = connection.stub.GetAllocatableResources(request, timeout=_OFFERS_SECONDS)
            failed = False
        except grpc.RpcError as error:
            raise NodeUnready(
                f"the kubelet did not tell its devices at {self._socket}: {error.details()}"
            ) from error
        finally:
            self._leave(connection, failed=failed)
        offers: dict[str, set[str]] = {}
        for part in answer.devices:
            if part.resource_name not in self._resources:
                offers.setdefault(part.resource_name, set()).update(part.device_ids)
        return offers

    def rest(self, seconds: float, calm: bool) -> None:  # noqa: FBT001  # called by place
        """Wait so long; where it is ``calm`` and no other plugin's socket is there, until one may have
        come.
        """
        watched = self._plugins.arm()
        long = calm and watched and not self._others_there()
        self._plugins.wait(LOOK_SECONDS if long else seconds)

    def wake(self) -> None:
        """End :meth:`rest`."""
        self._plugins.wake()

    def _others_there(self) -> bool:
        ours = {KUBELET_SOCKET, *self._own_sockets}
        try:
            with os.scandir(self._checkpoint.parent) as entries:
                return any(one.name.endswith(".sock") and one.name not in ours for one in entries)
        except OSError:  # no kubelet yet
            return False

    def close(self) -> None:
        """Close the connection once its calls have ended; the next :meth:`listing` opens a new one."""
        self._leave(self._enter(), failed=True)

    def _parse(self, text: bytes) -> tuple[CheckpointEntry, ...] | None:
        reason = f"larger than {MAX_BYTES >> 20} MiB"
        if len(text) <= MAX_BYTES:
            try:
                return parse_checkpoint(text, self._resources)
            except ValueError as error:
                reason = str(error)
        log.warning("checkpoint_unreadable", path=str(self._checkpoint), reason=reason)
        return None

    def _enter(self) -> _Connection:
        with self._lock:
            if self._connection is None:
                self._connection = _Connection(self._socket)
            self._connection.users += 1
            return self._connection

    def _leave(self, connection: _Connection, *, failed: bool) -> None:
        """Leave a connection; the last call closes it if it is no longer in use.

        A connection that failed is not used again: gRPC would answer from its back-off, not from the kubelet.
        """
        with self._lock:
            if failed and self._connection is connection:
                self._connection = None
            connection.users -= 1
            last = connection.users == 0 and self._connection is not connection
        if last:
            connection.channel.close()

    def _may_retry(self, error: grpc.RpcError, left: float) -> bool:
        """Return True if another try may help. Raises NodeUnready otherwise."""
        code, details = error.code(), error.details() or "no details"
        limited = code is grpc.StatusCode.RESOURCE_EXHAUSTED and "rate limit" in details
        if limited and left > RETRY_SECONDS[1]:
            return True
        # Nothing but the limiter's refusals is tried again: a try with little time began after many of them.
        if limited or (code is grpc.StatusCode.DEADLINE_EXCEEDED and left < self._deadline / 2):
            raise NodeUnready(
                f"the kubelet's PodResources limiter refused for {self._deadline:g} s: another client of "
                f"{self._socket} uses it up; find and slow that client"
            ) from error
        if code is grpc.StatusCode.UNAVAILABLE:
            raise NodeUnready(f"the kubelet does not answer at {self._socket}: {details}") from error
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise NodeUnready(
                f"the kubelet did not list its pods within {self._deadline:g} s at {self._socket}"
            ) from error
        raise NodeUnready(
            f"the kubelet refused to list its pods at {self._socket}: {details} ({code.name})"
        ) from error


def _state_of(file: os.stat_result) -> tuple[int, int, int]:
    return file.st_ino, file.st_size, file.st_mtime_ns


def _parse(
    answer: api_pb2.ListPodResourcesResponse, resources: frozenset[str]
) -> dict[tuple[str, str], tuple[PodResourcesEntry, ...]]:
    listing: dict[tuple[str, str], tuple[PodResourcesEntry, ...]] = {}
    for pod in answer.pod_resources:
        containers = []
        for container in pod.containers:
            ids: dict[str, set[str]] = {}
            for part in container.devices:  # one part for each set of NUMA nodes
                if part.resource_name in resources:
                    ids.setdefault(part.resource_name, set()).update(part.device_ids)
            held = {resource: frozenset(some) for resource, some in ids.items()}
            containers.append(PodResourcesEntry(pod.namespace, pod.name, container.name, held))
        # A force-deleted pod and its successor of the same name may both be active for a moment.
        listing[pod.namespace, pod.name] = (*listing.get((pod.namespace, pod.name), ()), *containers)
    return listing


LOOK_SECONDS: Final = 5.0
"""A directory that has another in its place is seen within this time."""
_MASK: Final = 0x40 | 0x80 | 0x100 | 0x200  # IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE
_EVENTS_BYTES: Final = 65536
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

Stamp = tuple[int, int, int]


def stamp_of(path: str) -> Stamp | None:
    """Return the identity of a file; None if absent. Inode numbers alone are reused soon."""
    try:
        stat = os.stat(path)  # noqa: PTH116  # again and again for ever: half the cost of Path.stat
    except OSError:
        return None
    return (stat.st_ino, stat.st_ctime_ns, stat.st_mtime_ns)


class DirectoryWatch:
    """One directory, which may not be there yet or be made anew. One thread waits; any may wake it."""

    def __init__(self, directory: Path) -> None:
        self._directory = os.fsencode(directory)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._wake)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._inotify = -1
        self._give_back: weakref.finalize[[int], DirectoryWatch] | None = None

    def arm(self) -> bool:
        """Watch the directory that has the name now. What changes from here on ends :meth:`wait`; False if
        that cannot be had: a user has few inotify instances, and others may hold them all.
        """
        if self._inotify < 0:
            self._inotify = _LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            if self._inotify < 0:
                return False
            self._give_back = weakref.finalize(self, os.close, self._inotify)
            self._poll.register(self._inotify, select.POLLIN)
        return int(_LIBC.inotify_add_watch(self._inotify, self._directory, _MASK)) >= 0

    def wait(self, seconds: float) -> None:
        """Return after a change since the last call, when woken, or after so long."""
        for handle, _ in self._poll.poll(seconds * 1e3):
            os.read(handle, _EVENTS_BYTES)

    def wake(self) -> None:
        """End the wait."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Give the inotify instance back, by the thread that waits; the next :meth:`arm` takes another."""
        if self._give_back is not None:
            self._poll.unregister(self._inotify)
            self._give_back()
            self._inotify, self._give_back = -1, None
