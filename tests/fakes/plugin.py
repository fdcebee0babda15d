"""The smallest device plugin that serves over gRPC, for tests of the kubelet stand-in and of its clients."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from gpu_manager.adapters.kubelet.registration import register
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc

CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"


def device(name: str, *, healthy: bool = True, nodes: Sequence[int] = ()) -> api_pb2.Device:
    topology = api_pb2.TopologyInfo(nodes=[api_pb2.NUMANode(ID=n) for n in nodes]) if nodes else None
    return api_pb2.Device(ID=name, health="Healthy" if healthy else "Unhealthy", topology=topology)


def devices(prefix: str, count: int) -> list[api_pb2.Device]:
    return [device(f"{prefix}{i:04}") for i in range(count)]


class Plugin:
    """Answers what its fields say; errors are raised by them. Every call is noted in ``calls``."""

    def __init__(self, resource: str, offered: Sequence[api_pb2.Device], *, endpoint: str = "") -> None:
        self.resource = resource
        self.endpoint = endpoint or resource.rpartition("/")[2] + ".sock"
        self.options = api_pb2.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=True
        )
        self.offered = list(offered)
        self.prefer: Callable[[api_pb2.ContainerPreferredAllocationRequest], Sequence[str]] = (
            lambda _request: ()
        )
        self.answer: Callable[[Sequence[str]], api_pb2.ContainerAllocateResponse | None] = lambda ids: (
            api_pb2.ContainerAllocateResponse(envs={f"IDS_{resource[-6:]}": ",".join(sorted(ids))})
        )
        self.start: Callable[[Sequence[str]], None] = lambda _ids: None
        self.describe: Callable[[], api_pb2.DevicePluginOptions] = lambda: self.options
        self.calls: list[tuple[str, object]] = []
        self.ended = threading.Event()  # a ListAndWatch stream has ended
        self._streams: list[queue.Queue[list[api_pb2.Device] | None]] = []
        self._server: grpc.Server | None = None

    def serve(self, directory: Path) -> Plugin:
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=10, thread_name_prefix=f"plugin {self.endpoint}")
        )
        api_pb2_grpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix://{directory / self.endpoint}")
        self._server.start()
        return self

    def register(self, directory: Path) -> None:
        register(directory, self.resource, self.endpoint, self.options)

    def send(self, offered: Sequence[api_pb2.Device]) -> None:
        self.offered = list(offered)
        for stream in self._streams:
            stream.put(self.offered)

    def stop(self) -> None:
        if self._server is not None:
            for stream in self._streams:
                stream.put(None)
            self._server.stop(grace=None).wait()
            self._server = None

    def asked(self, name: str) -> list[object]:
        return [request for call, request in self.calls if call == name]

    def GetDevicePluginOptions(self, request, context):  # noqa: N802  # the service's name
        return self.describe()

    def ListAndWatch(self, request, context) -> Iterator[api_pb2.ListAndWatchResponse]:  # noqa: N802  # as above
        stream: queue.Queue[list[api_pb2.Device] | None] = queue.Queue()
        context.add_callback(self.ended.set)
        context.add_callback(lambda: stream.put(None))
        self._streams.append(stream)
        now: list[api_pb2.Device] | None = self.offered
        while now is not None:
            yield api_pb2.ListAndWatchResponse(devices=now)
            now = stream.get()

    def GetPreferredAllocation(self, request, context):  # noqa: N802  # the service's name
        (one,) = request.container_requests
        self.calls.append(("P", one))
        answer = api_pb2.ContainerPreferredAllocationResponse(deviceIDs=self.prefer(one))
        return api_pb2.PreferredAllocationResponse(container_responses=[answer])

    def Allocate(self, request, context):  # noqa: N802  # the service's name
        (one,) = request.container_requests
        self.calls.append(("A", frozenset(one.devices_ids)))
        answer = self.answer(one.devices_ids)
        return api_pb2.AllocateResponse(container_responses=[] if answer is None else [answer])

    def PreStartContainer(self, request, context):  # noqa: N802  # the service's name
        self.calls.append(("S", frozenset(request.devices_ids)))
        self.start(request.devices_ids)
        return api_pb2.PreStartContainerResponse()
