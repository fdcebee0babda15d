"""Upgrades that the chart refuses, because they would leave pods with cards behind: asked of a cluster by Helm."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_manager.domain.contract import DRA_DRIVER, FRONT_LABEL, INVENTORY
from sandbox.api import StandInApi
from tests.deploy.chart import CHART, helm

Upgrade = Callable[..., str]


@pytest.fixture
def api() -> Iterator[StandInApi]:
    with StandInApi() as running:
        running.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
        yield running


@pytest.fixture
def upgrade(api: StandInApi, tmp_path: Path) -> Upgrade:
    """Returns what Helm says against the upgrade, by the chart's values and checks alone; empty if nothing."""
    small = tmp_path / "chart"
    (small / "templates").mkdir(parents=True)
    for name in ("Chart.yaml", "values.yaml", "values.schema.json", "templates/_helpers.tpl"):
        shutil.copy(CHART / name, small / name)
    (small / "templates" / "check.yaml").write_text('{{ include "vcuda.drained" . }}')
    login = api.kubeconfig(tmp_path / "config")

    def asked(*values: str) -> str:
        flags = ("-n", "kube-system", "--dry-run=server", "--kubeconfig", str(login))
        done = helm("template", "gpu-manager", str(small), *flags, *values)
        assert (done.returncode == 0) == (not done.stderr), done.stderr
        return done.stderr

    return asked


def allocate(api: StandInApi, name: str, node: str, *pods: str, driver: str = DRA_DRIVER) -> None:
    """A claim that has a card of the node, reserved for these pods."""
    api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "ml"},
            "spec": {"devices": {"requests": []}},
        }
    )
    result = {"request": "gpu", "driver": driver, "pool": node, "device": "gpu-0"}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods],
    }
    api.patch("resourceclaims", name, {"status": status}, "ml", subresource="status")


def older(api: StandInApi, *arguments: str, held: int, published: int) -> None:
    """A cluster of the release before, with one split node."""
    container = {"name": "gpu-manager", "args": list(arguments)}
    api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "gpu-manager-daemonset", "namespace": "kube-system"},
            "spec": {"template": {"spec": {"containers": [container]}}},
        }
    )
    cards: list[dict[str, Any]] = [{"i": n, "held": DRA_DRIVER} for n in range(held)]
    meta = {
        "name": "n1",
        "labels": {FRONT_LABEL: "split"},
        "annotations": {INVENTORY: json.dumps({"v": 1, "cards": [{"i": 7}, *cards]})},
    }
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": meta})
    devices = [{"name": f"gpu-{n}"} for n in range(published)]
    api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "n1-slice"},
            "spec": {"driver": DRA_DRIVER, "nodeName": "n1", "pool": {"name": "n1"}, "devices": devices},
        }
    )


def test_nodes_that_give_cards_by_claims_are_drained_before_they_stop(
    api: StandInApi, upgrade: Upgrade
) -> None:
    assert upgrade() == ""
    allocate(api, "other", "n9", "p", driver="gpu.nvidia.com")
    assert upgrade() == ""
    allocate(api, "a", "n1", "train-0", "train-1")
    allocate(api, "b", "n2")
    said = upgrade()
    assert "agent.front is plugin, and cards are still given by ResourceClaims" in said
    assert "(node n1: pod ml/train-0, pod ml/train-1; node n2: claim ml/b): drain these nodes" in said
    assert upgrade("--set=agent.front=dra") == upgrade("--set=agent.leaveClaims=true") == ""


@pytest.mark.parametrize("old", ["--dra-cards=2", "--leave-claims"])
def test_a_card_that_the_release_before_is_handing_over_holds_the_upgrade_up(
    api: StandInApi, upgrade: Upgrade, old: str
) -> None:
    older(api, "run", old, held=3, published=2)
    allocate(api, "a", "n1", "train-0")
    said = upgrade("--set=agent.front=split")
    assert "node n1: 1 cards are on their way between extended resources and claims" in said
    assert "held by pod ml/train-0)" in said
    assert "or drain the node" in said


@pytest.mark.parametrize(("old", "held"), [("--dra-cards=2", 2), ("--claim-cards=2", 3)])
def test_a_split_node_on_which_nothing_moves_is_upgraded(
    api: StandInApi, upgrade: Upgrade, old: str, held: int
) -> None:
    older(api, "run", old, held=held, published=2)
    assert upgrade("--set=agent.front=split") == ""
