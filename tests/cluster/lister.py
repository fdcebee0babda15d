"""PodResources, asked from inside: prints JSON. ``lister.py SOCKET list | get NAMESPACE POD | hog SECONDS``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import grpc

from gpu_manager.adapters.kubelet.client import unix_target
from gpu_manager.pb.podresources.v1 import api_pb2, api_pb2_grpc


def main() -> None:
    """One question."""
    channel = grpc.insecure_channel(
        unix_target(Path(sys.argv[1])), options=(("grpc.default_authority", "localhost"),)
    )
    stub = api_pb2_grpc.PodResourcesListerStub(channel)
    try:
        if sys.argv[2] == "list":
            answer = stub.List(api_pb2.ListPodResourcesRequest(), timeout=10)
            out: object = [_pod(pod) for pod in answer.pod_resources]
        elif sys.argv[2] == "get":
            request = api_pb2.GetPodResourcesRequest(pod_namespace=sys.argv[3], pod_name=sys.argv[4])
            out = _pod(stub.Get(request, timeout=10).pod_resources)
        else:
            out = _hog(stub, float(sys.argv[3]))
    except grpc.RpcError as error:
        out = {"error": error.code().name, "details": error.details()}
    sys.stdout.write(json.dumps(out))


def _pod(pod: api_pb2.PodResources) -> dict[str, object]:
    containers: dict[str, dict[str, list[str]]] = {}
    for one in pod.containers:
        devices = containers.setdefault(one.name, {})
        for entry in one.devices:
            devices.setdefault(entry.resource_name, []).extend(entry.device_ids)
    return {"namespace": pod.namespace, "name": pod.name, "containers": containers}


def _hog(stub: api_pb2_grpc.PodResourcesListerStub, seconds: float) -> dict[str, int]:
    """As fast as it goes: the limiter refuses most of it."""
    ends, counts = time.monotonic() + seconds, {"accepted": 0, "refused": 0}
    while time.monotonic() < ends:
        try:
            stub.List(api_pb2.ListPodResourcesRequest(), timeout=10)
            counts["accepted"] += 1
        except grpc.RpcError:
            counts["refused"] += 1
    return counts


if __name__ == "__main__":
    main()
