"""``kubectl vcuda autoscaler``: what a node group without nodes must say, by a node that runs."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpu_manager.cli.kubectl.main import run
from gpu_manager.domain.contract import CORE, MEMORY, MODEL_LABEL
from sandbox.api import StandInApi

pytestmark = pytest.mark.usefixtures("kubectl_login")

TYPE = "node.kubernetes.io/instance-type"
TAG = "k8s.io/cluster-autoscaler/node-template"


def running(api: StandInApi, capacity: dict[str, str], **labels: str) -> None:
    meta = {"name": "n1", "labels": labels}
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": meta})
    api.patch("nodes", "n1", {"status": {"capacity": capacity}}, subresource="status")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run(["autoscaler", *words]) == 0
    return yaml.safe_load(capsys.readouterr().out)


def test_tags_are_those_of_the_provider(api: StandInApi, capsys: pytest.CaptureFixture[str]) -> None:
    running(api, {CORE: "800", MEMORY: "1280"}, **{MODEL_LABEL: "Tesla-T4"})
    aws = {
        f"{TAG}/resources/{CORE}": "800",
        f"{TAG}/resources/{MEMORY}": "1280",
        f"{TAG}/label/{MODEL_LABEL}": "Tesla-T4",
    }
    assert printed(capsys, "template", "node/n1") == aws
    azure = printed(capsys, "template", "n1", "--provider", "azure")
    assert azure == {tag.replace("/", "_"): value for tag, value in aws.items()}


def test_an_overlay_gives_the_instance_type_what_the_node_has(
    api: StandInApi, capsys: pytest.CaptureFixture[str]
) -> None:
    running(api, {CORE: "400", MEMORY: "356", "cpu": "48"}, **{TYPE: "g6.12xlarge"})
    assert printed(capsys, "overlay", "n1") == {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": "vcuda-g6-12xlarge"},
        "spec": {
            "requirements": [{"key": TYPE, "operator": "In", "values": ["g6.12xlarge"]}],
            "capacity": {CORE: "400", MEMORY: "356"},
        },
    }
    other = printed(capsys, "overlay", "n1", "--instance-type", "Standard_NC24")
    assert other["metadata"]["name"] == "vcuda-standard-nc24"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["overlay", "n1"], 2, "--instance-type"),
        (["template", "n2"], 2, "there is no node"),
        (["template", "pod/n1"], 2, "node"),
        (["other", "n1"], 2, "template"),
    ],
)
def test_what_cannot_be_printed_says_why(
    api: StandInApi, capsys: pytest.CaptureFixture[str], words: list[str], code: int, text: str
) -> None:
    running(api, {CORE: "400", MEMORY: "356"})
    assert run(["autoscaler", *words]) == code
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("capacity", [{}, {CORE: "0", MEMORY: "0"}, {CORE: "x", MEMORY: "5"}, {CORE: "100"}])
def test_a_node_without_devices_is_no_template(
    api: StandInApi, capsys: pytest.CaptureFixture[str], capacity: dict[str, str]
) -> None:
    running(api, capacity)
    assert run(["autoscaler", "template", "n1"]) == 1
    assert "kubectl vcuda doctor" in capsys.readouterr().out
