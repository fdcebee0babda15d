"""The kubelet's device assignments: PodResources over its socket, and its checkpoint file."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import grpc
import structlog

from gpu_manager.adapters.kubelet.checkpoint import FILE_NAME, MAX_BYTES, parse_checkpoint
from gpu_manager.domain.contract import CORE, CORE_SOCKET, KUBELET_SOCKET, MEMORY, MEMORY_SOCKET
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.pb.podresources.v1 import api_pb2, api_pb2_grpc
from gpu_manager.ports import CheckpointEntry, PodResourcesEntry

# An answer without a fresh List can be wrong for the pod's whole life, and the question has no deadline: on a
# machine that stalled, 3 s were not enough.
DEADLINE_SECONDS: Final = 10.0
RETRY_SECONDS: Final = (0.005, 0.015)  # the kubelet's limiter gives one token every 10 ms
_OFFERS_SECONDS: Final = 2.0
_SOCKETS: Final = {CORE: CORE_SOCKET, MEMORY: MEMORY_SOCKET}
RECEIVE_BYTES: Final = 16 << 20  # as Kubernetes' own callers of this API

log = structlog.get_logger(__name__)


def unix_target(path: Path) -> str:
    """The gRPC name of a unix socket."""
    return f"unix://{path.absolute()}"


class _Connection:
    """A channel and who is on it. gRPC crashes the process when a channel is closed under a thread that
    begins a call on it, so it is closed by the last to leave.
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
    """Implements :class:`gpu_manager.ports.Kubelet`.

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
        self._deadline = deadline
        self._sleep = sleep
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._read: tuple[tuple[int, int, int], tuple[CheckpointEntry, ...] | None] | None = None

    def listing(self) -> Mapping[tuple[str, str], Sequence[PodResourcesEntry]]:
        """PodResources List: (namespace, pod) → its app containers and sidecars, those without ids too.

        Waits out the kubelet's limiter (one bucket for all callers on the node) for at most 10 s.

        Raises:
            NodeUnready: the kubelet is away, refused for so long, or did not answer.
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
        """The checkpoint's entries of our resources; None if the file is absent or cannot be read.

        The same file (inode, size, change time) is parsed once.
        """
        try:
            with self._checkpoint.open("rb") as file:
                stat = os.fstat(file.fileno())
                state = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
                with self._lock:
                    if self._read is not None and self._read[0] == state:
                        return self._read[1]
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
        """PodResources GetAllocatableResources: resource → ids of the devices of other plugins.

        The kubelet is asked only while another plugin's socket lies in its directory.

        Raises:
            NodeUnready: the kubelet is away, or did not answer.
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

    def _others_there(self) -> bool:
        ours = {KUBELET_SOCKET, *self._own_sockets}
        try:
            with os.scandir(self._checkpoint.parent) as entries:
                return any(one.name.endswith(".sock") and one.name not in ours for one in entries)
        except OSError:  # no kubelet yet
            return False

    def close(self) -> None:
        """Let go of the connection when its calls have ended; the next :meth:`listing` makes a new one."""
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
        """A connection that failed once would answer from its back-off, not from the kubelet: nobody enters
        it again, and the last one to leave closes it.
        """
        with self._lock:
            if failed and self._connection is connection:
                self._connection = None
            connection.users -= 1
            last = connection.users == 0 and self._connection is not connection
        if last:
            connection.channel.close()

    def _may_retry(self, error: grpc.RpcError, left: float) -> bool:
        """True if another try may help, else NodeUnready is raised."""
        code, details = error.code(), error.details() or "no details"
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "rate limit" in details:
            if left > RETRY_SECONDS[1]:
                return True
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
