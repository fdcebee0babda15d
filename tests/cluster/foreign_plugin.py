"""Another vendor's device plugin, ``example.test/nic``: four devices, and it runs out.

It makes the kubelet reject pods between two calls of ours.
``foreign_plugin.py DIRECTORY [faulty | CDI_DEVICE | gpus UUID …]``: a faulty one has no answer to
GetDevicePluginOptions, and prints what the kubelet says to that; with a CDI device it gives that to each container;
with ``gpus`` it is one for NVIDIA's cards instead, ``nvidia.com/gpu``.
"""

# ruff: noqa: N802 - the names are the protocol's

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from gpu_manager.adapters.kubelet.registration import register
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc

RESOURCE = "example.test/nic"
SOCKET = "nic.sock"
COUNT = 4
GPU_RESOURCE, GPU_SOCKET = "nvidia.com/gpu", "nvidia-gpu.sock"
REFUSED = "not registered"
DIRECTORY = "/var/lib/kubelet/device-plugins"


def command(*words: str) -> list[str]:
    """The program, to be run inside the cluster."""
    here = Path(__file__).resolve()
    return ["env", f"PYTHONPATH={here.parents[2]}", sys.executable, str(here), DIRECTORY, *words]


class _Plugin(api_pb2_grpc.DevicePluginServicer):
    def __init__(self, what: str, ids: Sequence[str]) -> None:
        self._ids = ids
        self._faulty = what == "faulty"
        self._cdi = [api_pb2.CDIDevice(name=what)] if "=" in what else []

    def GetDevicePluginOptions(
        self, request: object, context: grpc.ServicerContext
    ) -> api_pb2.DevicePluginOptions:
        if self._faulty:
            context.abort(grpc.StatusCode.INTERNAL, "no options today")
        return api_pb2.DevicePluginOptions()

    def ListAndWatch(self, request: object, context: object):  # type: ignore[no-untyped-def] # generated base
        devices = [api_pb2.Device(ID=one, health="Healthy") for one in self._ids]
        yield api_pb2.ListAndWatchResponse(devices=devices)
        threading.Event().wait()

    def Allocate(self, request: api_pb2.AllocateRequest, context: object) -> api_pb2.AllocateResponse:
        answers = [
            api_pb2.ContainerAllocateResponse(cdi_devices=self._cdi) for _ in request.container_requests
        ]
        return api_pb2.AllocateResponse(container_responses=answers)


def main() -> None:
    """Serve and register; until killed."""
    directory, words = Path(sys.argv[1]), sys.argv[2:]
    ids, resource, socket = [f"nic-{i}" for i in range(COUNT)], RESOURCE, SOCKET
    if words[:1] == ["gpus"]:
        ids, resource, socket, words = words[1:], GPU_RESOURCE, GPU_SOCKET, []
    (directory / socket).unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(8))
    api_pb2_grpc.add_DevicePluginServicer_to_server(_Plugin("".join(words), ids), server)
    server.add_insecure_port(f"unix://{directory}/{socket}")
    server.start()
    try:
        register(directory, resource, socket, api_pb2.DevicePluginOptions())
    except NodeUnready as error:
        sys.stderr.write(f"{REFUSED}: {error}\n")
        sys.stderr.flush()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
