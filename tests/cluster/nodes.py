"""Further nodes for the scheduler: objects with cards and no kubelet. Pods are bound to them and never run."""

from __future__ import annotations

from typing import Any, Final

from gpu_manager.domain.contract import CORE, INVENTORY, MEMORY
from tests.cluster import layout
from tests.cluster.cluster import Cluster

LABEL: Final = "cluster-test/object"


def add(cluster: Cluster, name: str) -> None:
    """A node with cards like those of the real one, under UUIDs of its own."""
    real = cluster.api.get(f"/api/v1/nodes/{layout.NODE}")
    inventory = real["metadata"]["annotations"][INVENTORY]
    for card in cluster.cards:
        inventory = inventory.replace(
            card.uuid, f"{card.uuid[: -len(name)]}{name.encode().hex()[-len(name) :]}"
        )
    labels = {LABEL: "true", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    labels |= {key: value for key, value in real["metadata"]["labels"].items() if "gpu-model" in key}
    meta = {"name": name, "labels": labels, "annotations": {INVENTORY: inventory}}
    cluster.api.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": meta})
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "250", CORE: "800", MEMORY: "1256"}
    status: dict[str, Any] = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Object", "message": "no kubelet"}],
    }
    cluster.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    cluster.wait(lambda: _untainted(cluster, name), 30, f"{name} stays tainted")


def remove(cluster: Cluster, name: str) -> None:
    """Take it away, then the pods that were bound to it: a DaemonSet gives each node another pod.

    One that stays would count as unavailable, and hold up the DaemonSet's next rolling update.
    """
    cluster.api.delete(f"/api/v1/nodes/{name}")
    cluster.wait(lambda: not _bound(cluster, name), 30, f"pods stay on {name}")


def _bound(cluster: Cluster, name: str) -> int:
    """How many pods were still there; they are deleted: no kubelet will."""
    found = cluster.api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={name}")["items"]
    for pod in found:
        meta = pod["metadata"]
        cluster.api.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", 0)
    return len(found)


def _untainted(cluster: Cluster, name: str) -> bool:
    return not cluster.api.get(f"/api/v1/nodes/{name}")["spec"].get("taints")
