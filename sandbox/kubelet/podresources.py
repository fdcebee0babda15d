"""The PodResources API (v1) over the stand-in's books, behind the kubelet's one limiter for all callers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Never

import grpc

from gpu_manager.domain.contract import KUBELET_SOCKET
from gpu_manager.domain.kube.pod import ContainerKind
from gpu_manager.pb.podresources.v1 import api_pb2, api_pb2_grpc
from sandbox.kubelet.books import DeviceBooks
from sandbox.kubelet.serving import SocketServer
from sandbox.kubelet.values import Asked

RATE: Final = 100.0
BURST: Final = 10


class Limiter:
    """A token bucket: ``rate`` calls a second, ``burst`` at once. It runs on the machine's own time."""

    def __init__(self, rate: float = RATE, burst: int = BURST) -> None:
        self._rate, self._burst = rate, float(burst)
        self._lock = threading.Lock()
        self._tokens, self._then = self._burst, time.monotonic()

    def allow(self) -> bool:
        """Take a token if there is one."""
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._then) * self._rate)
            self._then = now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


@dataclass(frozen=True, slots=True)
class ActivePod:
    """An active pod, as far as PodResources shows one."""

    uid: str
    namespace: str
    name: str
    containers: Sequence[Asked]


class PodResourcesServer:
    """Serves ``directory/kubelet.sock``. ``active`` tells the active pods."""

    def __init__(
        self,
        directory: Path,
        books: DeviceBooks,
        active: Callable[[], Sequence[ActivePod]],
        limiter: Limiter,
    ) -> None:
        self._directory = directory
        self._books = books
        self._active = active
        self._limiter = limiter
        add = partial(api_pb2_grpc.add_PodResourcesListerServicer_to_server, self)
        self._server = SocketServer("kubelet-podresources", add)
        self.calls: Counter[str] = Counter()  # "List", "Get", …, and "refused"

    def start(self) -> None:
        """Listen."""
        self._server.start(self._directory / KUBELET_SOCKET)

    def stop(self, *, leave: bool = False) -> None:
        """End the server and every call; ``leave`` the socket's file."""
        self._server.stop(leave=leave)

    def List(  # noqa: N802  # the service's name
        self, _request: api_pb2.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> api_pb2.ListPodResourcesResponse:
        """All active pods. Frees what ended pods held first, even in the middle of an Allocate."""
        self._count("List", context)
        pods = self._active()
        self._books.collect()
        return api_pb2.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in pods])

    def Get(  # noqa: N802  # the service's name
        self, request: api_pb2.GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> api_pb2.GetPodResourcesResponse:
        """One active pod by name."""
        self._count("Get", context)
        namespace, name = request.pod_namespace, request.pod_name
        pod = next((p for p in self._active() if (p.namespace, p.name) == (namespace, name)), None)
        if pod is None:
            # A plain error of the Go server: it is no NOT_FOUND.
            _abort(context, grpc.StatusCode.UNKNOWN, f"pod {name} in namespace {namespace} not found")
        return api_pb2.GetPodResourcesResponse(pod_resources=self._pod(pod))

    def GetAllocatableResources(  # noqa: N802  # the service's name
        self, _request: api_pb2.AllocatableResourcesRequest, context: grpc.ServicerContext
    ) -> api_pb2.AllocatableResourcesResponse:
        """All healthy devices, given away or not."""
        self._count("GetAllocatableResources", context)
        parts = [
            part
            for resource, devices in self._books.healthy_devices().items()
            for part in _parts(resource, ((d.id, d.nodes) for d in devices))
        ]
        return api_pb2.AllocatableResourcesResponse(devices=parts)

    def _count(self, name: str, context: grpc.ServicerContext) -> None:
        if not self._limiter.allow():
            self.calls["refused"] += 1
            _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self.calls[name] += 1

    def _pod(self, pod: ActivePod) -> api_pb2.PodResources:
        containers = [
            api_pb2.ContainerResources(
                name=container.name,
                devices=[
                    part
                    for resource, grant in self._books.held(pod.uid, container.name).items()
                    for part in _parts(resource, grant.ids.items())
                ],
            )
            for container in pod.containers
            if container.kind is not ContainerKind.INIT
        ]
        return api_pb2.PodResources(name=pod.name, namespace=pod.namespace, containers=containers)


def _parts(resource: str, ids: Iterable[tuple[str, tuple[int, ...]]]) -> list[api_pb2.ContainerDevices]:
    """One entry for each set of NUMA nodes."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for one, nodes in ids:
        groups.setdefault(nodes, []).append(one)
    return [_part(resource, nodes, some) for nodes, some in groups.items()]


def _part(resource: str, nodes: tuple[int, ...], ids: Sequence[str]) -> api_pb2.ContainerDevices:
    topology = api_pb2.TopologyInfo(nodes=[api_pb2.NUMANode(ID=n) for n in nodes]) if nodes else None
    return api_pb2.ContainerDevices(resource_name=resource, device_ids=ids, topology=topology)


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> Never:
    context.abort(code, text)
    raise AssertionError("abort raises")
