"""Watches from inside, ten times a second, which cards the kubelet may hand out under two names at once.

``offers_watch.py SOCKET``: a line of JSON at each look, how long the longest such time was, in seconds, and
since when which cards are on offer twice. Asks until killed.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path

import grpc

from gpu_manager.adapters.kubelet.client import unix_target
from gpu_manager.domain.contract import CORE
from gpu_manager.pb.podresources.v1 import api_pb2, api_pb2_grpc
from tests.cluster.foreign_plugin import GPU_RESOURCE

PERIOD_SECONDS = 0.1
_UUID_HEAD = slice(4, 12)  # of GPU-5fd4f087-…, which our ids begin with


def main() -> None:
    """Look until killed."""
    since: dict[str, float] = {}
    longest = 0.0
    while True:
        now = time.monotonic()
        doubles = _doubles(Path(sys.argv[1]))
        if doubles is not None:
            since = {card: since.get(card, now) for card in doubles}
            longest = max([longest, *(now - began for began in since.values())])
            sys.stdout.write(json.dumps({"longest": round(longest, 2), "cards": sorted(doubles)}) + "\n")
            sys.stdout.flush()
        time.sleep(PERIOD_SECONDS)


def _doubles(socket: Path) -> set[str] | None:
    """Cards that are healthy under our name and under NVIDIA's; None while the kubelet is away."""
    with contextlib.closing(grpc.insecure_channel(unix_target(socket))) as channel:
        stub = api_pb2_grpc.PodResourcesListerStub(channel)
        try:
            answer = stub.GetAllocatableResources(api_pb2.AllocatableResourcesRequest(), timeout=2)
        except grpc.RpcError:
            return None
    ids: dict[str, set[str]] = {CORE: set(), GPU_RESOURCE: set()}
    for part in answer.devices:
        if part.resource_name in ids:
            ids[part.resource_name].update(part.device_ids)
    ours = {one.partition("-")[0] for one in ids[CORE]}
    return ours & {one[_UUID_HEAD] for one in ids[GPU_RESOURCE]}


if __name__ == "__main__":
    main()
