"""What the doctor reads of the chart's own objects: nodes that the DaemonSet passes over, cards under two names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_manager.adapters.diagnosis.cluster import gather_cluster
from gpu_manager.adapters.kube.connection import connect
from gpu_manager.domain.doctor import CLUSTER_CHECKS, examine
from gpu_manager.domain.doctor.facts import Facts
from sandbox.api import StandInApi
from tests.deploy.chart import the


@pytest.fixture
def api() -> Iterator[StandInApi]:
    with StandInApi() as running:
        yield running


def found(api: StandInApi, values: str, **labels: str) -> dict[str, str]:
    """Check → text, for a node with NVIDIA's plugin on it in a cluster with that chart."""
    api.create(the(values, "DaemonSet", "gpu-manager-daemonset"))
    meta = {"name": "n1", "labels": labels}
    status = {"allocatable": {"nvidia.com/gpu": "4"}}
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status})
    connection = connect(url=api.url)
    try:
        facts = Facts(now=0.0, cluster=gather_cluster(connection))
    finally:
        connection.close()
    return {finding.check.id: finding.text for finding in examine(facts, CLUSTER_CHECKS).findings}


def test_a_node_with_cards_that_none_of_the_charts_labels_lets_in_is_named(api: StandInApi) -> None:
    said = found(api, "defaults")["node-label-missing"]
    assert said.startswith(
        "node n1 has cards (4 nvidia.com/gpu), but not the label nvidia-device-enable=enable"
    )


def test_a_webhook_that_only_warns_about_templates_may_fail_open(api: StandInApi) -> None:
    for values, wanted in (("defaults", False), ("terms", True)):  # terms: failurePolicy Ignore
        for kind in ("Mutating", "Validating"):
            api.create(the(values, f"{kind}WebhookConfiguration", "gpu-quota-admission"))
        assert ("webhook-fails-open" in found(api, values)) is wanted
        for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            api.delete(plural, "gpu-quota-admission", None)
        api.delete("nodes", "n1", None)
        api.delete("daemonsets", "gpu-manager-daemonset", "kube-system")


def test_the_label_is_enough(api: StandInApi) -> None:
    assert "node-label-missing" not in found(api, "defaults", **{"nvidia-device-enable": "enable"})


def test_where_every_node_is_wanted_none_lacks_a_label(api: StandInApi) -> None:
    assert "node-label-missing" not in found(api, "simulated")
