"""A cluster for ``kubectl vcuda`` on the API stand-in: nodes, pods that hold shares, an agent behind its proxy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import (
    ALLOCATION,
    CORE,
    INVENTORY,
    MEMORY,
    Assignment,
    Inventory,
    encode_assignment,
    encode_inventory,
)
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.domain.topology import Link, Topology
from sandbox.api import StandInApi
from tests.fakes.node import container, pod

ADMISSION = "/api/v1/namespaces/kube-system/services/https:gpu-quota-admission:443/proxy"
AGENT_POD = "/api/v1/namespaces/kube-system/pods/agent-1:5678/proxy"


MANIFEST = """apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  template:
    spec:
      containers: [{name: c, resources: {limits: {tencent.com/vcuda-core: %d, tencent.com/vcuda-memory: 8}}}]
"""


def a_node(api: StandInApi, name: str = "n1", cards: int = 2, **status: Any) -> None:
    states = tuple(CardState(Card(i, CardUuid(f"GPU-{i}"), "V100", 16 * GIB)) for i in range(cards))
    inventory = Inventory(256 << 20, states, Topology.uniform(cards, Link.parse("SYS")))
    annotations = {INVENTORY: encode_inventory(inventory)}
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": annotations,
                "labels": {"tencent.com/gpu-model": "V100"},
            },
            "status": {"allocatable": {CORE: str(100 * cards), MEMORY: "128", **status}},
        }
    )


def a_share(
    api: StandInApi, name: str, cores: int, card: str | None = "GPU-0", **meta: Any
) -> Mapping[str, Any]:
    """A pod that is bound; on that card, or on none that is said."""
    made = api.create(
        {**pod(name, container("c", cores, 8)), "metadata": {"name": name, "namespace": "default", **meta}}
    )
    if not made["spec"].get("nodeName"):
        api.bind(name, "n1", made["metadata"]["namespace"])
    if card is not None:
        shares = {"c": ((CardUuid(card), Amount(cores, 2 * GIB)),)}
        said = encode_assignment(Assignment("n1", made["metadata"]["uid"], shares))
        api.patch(
            "pods", name, {"metadata": {"annotations": {ALLOCATION: said}}}, made["metadata"]["namespace"]
        )
    return made


def an_agent(api: StandInApi, page: Any, code: int = 200) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "gpu-manager-daemonset", "uid": "u"}
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "agent-1", "namespace": "kube-system", "ownerReferences": [owner]},
            "spec": {"nodeName": "n1", "containers": [{"name": "agent", "image": "a"}]},
        }
    )
    api.patch("pods", "agent-1", {"status": {"phase": "Running"}}, "kube-system", subresource="status")
    api.serve_behind(AGENT_POD, lambda *_: (code, json.dumps(page).encode()))


def said(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capsys.readouterr()
    return captured.out, captured.err
