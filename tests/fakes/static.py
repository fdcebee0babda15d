"""A static pod as its two sides show it: the kubelet, and the API with the mirror."""

from __future__ import annotations

from typing import Any

from tests.fakes.node import NODE, container, pod

DIGEST = "0123456789abcdef0123456789abcdef"
MIRROR = "5d0e4c4e-7b5c-4b7e-9a55-1f2f3a4b5c6d"


def static(name: str = f"web-{NODE}", core: int = 30) -> dict[str, Any]:
    """As the kubelet reads it from its directory of manifests."""
    annotations = {"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": DIGEST}
    return pod(name, container("c", core, 8), uid=DIGEST, annotations=annotations)


def mirror_of(obj: dict[str, Any], **annotations: str) -> dict[str, Any]:
    """As the kubelet copies it into the API."""
    meta = obj["metadata"]
    written = {**meta["annotations"], "kubernetes.io/config.mirror": DIGEST, **annotations}
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "controller": True}
    return {**obj, "metadata": {**meta, "uid": MIRROR, "annotations": written, "ownerReferences": [owner]}}
