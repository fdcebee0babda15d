"""An API server stand-in with a cluster, in a process of its own: prints its URL, ends with its input."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import CORE, INVENTORY, MEMORY, Inventory, encode_inventory
from gpu_manager.domain.resources import DEFAULT_UNIT, GIB
from gpu_manager.domain.topology import Link, Topology
from sandbox.api import StandInApi

CARDS = 8
PARTS = ((10, 4), (20, 8), (30, 20), (50, 32), (70, 40), (100, 0))
MODELS = ("Tesla-T4", "NVIDIA-A100-SXM4-80GB", "Tesla-V100-SXM2-32GB")


def node(name: str, model: str) -> dict[str, Any]:
    """A node of 8 cards of 32 GiB, as its agent describes it."""
    states = tuple(
        CardState(Card(i, CardUuid(f"GPU-{name}-{i}"), model, 32 * GIB, numa=i // 4)) for i in range(CARDS)
    )
    text = encode_inventory(Inventory(DEFAULT_UNIT, states, Topology.uniform(CARDS, Link.parse("NV12"))))
    meta = {"name": name, "annotations": {INVENTORY: text}, "labels": {}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {}}


def pod(name: str, core: int, units: int) -> dict[str, Any]:
    """A pod of one container."""
    limits = {CORE: str(core), **({MEMORY: str(units)} if units else {})}
    container = {"name": "main", "image": "image", "resources": {"limits": limits}}
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}


def other(name: str, node_name: str) -> dict[str, Any]:
    """A pod without cards that runs there."""
    container = {
        "name": "main",
        "image": "image",
        "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}},
    }
    meta = {"name": name, "namespace": "default", "labels": {"app": "web", "pod-template-hash": "5d8f9c7b6"}}
    spec = {"containers": [container], "nodeName": node_name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running"}}


def main() -> None:
    """``NODES``, then on the input lines ``PREFIX PODS``: make so many, answer with the objects.

    With the prefix ``others`` they are pods without cards, on all nodes in turn; the answer is empty.
    """
    api = StandInApi(history=100_000)
    for n in range(int(sys.argv[1])):
        api.create(node(f"node-{n:05d}", MODELS[n % 3]))
    dice = random.Random(1)
    with api:
        print(api.url, flush=True)
        for line in sys.stdin:
            prefix, count = line.split()
            if prefix == "others":
                for n in range(int(count)):
                    api.create(other(f"web-{n}", f"node-{n % int(sys.argv[1]):05d}"))
                print("[]", flush=True)
                continue
            made = [api.create(pod(f"{prefix}-{n}", *dice.choice(PARTS))) for n in range(int(count))]
            print(json.dumps(made), flush=True)


if __name__ == "__main__":
    main()
