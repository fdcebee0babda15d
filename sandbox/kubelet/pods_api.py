"""The kubelet's Pods API (v1alpha1, on from Kubernetes 1.37) over the stand-in's pods.

As the kubelet's own server (pkg/kubelet/apis/pods/server.go of 1.36.3): every pod that it was told of,
admitted or not, sorted by UID, each with the status that the kubelet knows, in Kubernetes' protobuf form.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict

from gpu_manager.domain.contract import PODS_API_SOCKET
from gpu_manager.pb.corepod.v1 import pod_pb2
from gpu_manager.pb.pods.v1alpha1 import api_pb2, api_pb2_grpc
from sandbox.kubelet.serving import SocketServer


class PodsApiServer(api_pb2_grpc.PodsServicer):
    """Serves what ``pods`` returns, below ``directory``, which is as ``/var/lib/kubelet``."""

    def __init__(self, directory: Path, pods: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        self.socket = directory / PODS_API_SOCKET
        self._pods = pods
        self.calls = 0

    def start(self) -> None:
        """Listen.

        Raises:
            NodeUnready: the socket cannot be made.
        """
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self._server = SocketServer(
            "kubelet-pods-api", partial(api_pb2_grpc.add_PodsServicer_to_server, self)
        )
        self._server.start(self.socket)

    def stop(self, *, leave: bool = False) -> None:
        """End the server; ``leave`` the socket's file, as a kubelet does that is killed."""
        self._server.stop(leave=leave)

    def ListPods(  # noqa: N802  # the service's name
        self, _request: api_pb2.ListPodsRequest, _context: grpc.ServicerContext
    ) -> api_pb2.ListPodsResponse:
        """All pods."""
        self.calls += 1
        shown = sorted(self._pods(), key=lambda pod: str(pod["metadata"].get("uid", "")))
        return api_pb2.ListPodsResponse(pods=[encode_pod(pod) for pod in shown])


def encode_pod(pod: Mapping[str, Any]) -> bytes:
    """Write a pod in Kubernetes' protobuf form; fields that no caller here reads are left out."""
    obj = copy.deepcopy(dict(pod))
    for part, names in (("metadata", ("creationTimestamp", "deletionTimestamp")), ("status", ("startTime",))):
        held = obj.get(part) or {}
        for name in names:
            if held.get(name):
                moment = datetime.fromisoformat(held[name])
                held[name] = {"seconds": int(moment.timestamp())}
    spec = obj.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        for kind in ("limits", "requests"):
            amounts = resources.get(kind) or {}
            resources[kind] = {name: {"string": str(amount)} for name, amount in amounts.items()}
    message = ParseDict(obj, pod_pb2.Pod(), ignore_unknown_fields=True)
    return bytes(message.SerializeToString())
