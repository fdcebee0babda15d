"""Knative Serving's webhook, by its own manifests: whether a Service whose pods ask for shares passes it.

Its controller is not here: the pod is made of the template that the webhook let pass, as the controller would.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from gpu_manager.domain.contract import CORE, MEMORY
from tests.cluster import auditor
from tests.cluster.api import ApiError
from tests.cluster.cluster import Cluster
from tests.cluster.controllers.programs import KNATIVE
from tests.cluster.pods import Pods, cards_of, container, pod

SPACE: Final = "knative-serving"
SERVICES: Final = "/apis/serving.knative.dev/v1/namespaces/default/services"
DEPLOYMENT: Final = f"/apis/apps/v1/namespaces/{SPACE}/deployments/webhook"
PUBLISHED: Final = "ko://knative.dev/serving/cmd/webhook"
BEFORE: Final = (
    "100-namespace.yaml",
    "200-serviceaccount.yaml",
    "200-roles",
    "300-resources",
    "configmaps",
    "webhooks/secret.yaml",
    "deployments/webhook.yaml",
)
HOOKS: Final = (
    "webhooks/defaulting.yaml",
    "webhooks/resource-validation.yaml",
    "webhooks/configmap-validation.yaml",
)


@pytest.fixture(scope="module")
def webhook(cluster: Cluster) -> Iterator[Cluster]:
    """The webhook and the kinds that it judges; nothing of them afterwards."""
    KNATIVE.load(cluster)
    before, hooks = _text(*BEFORE).replace(PUBLISHED, KNATIVE.image), _text(*HOOKS)
    try:
        for text in (before, hooks):
            cluster.kubectl("apply", "--server-side", "-f", "-", given=text)
        cluster.wait(lambda: _ready(cluster), 180, "the webhook is not ready")
        cluster.wait(lambda: _judges(cluster), 60, "the webhook does not judge")
        yield cluster
    finally:
        for text in (hooks, before):  # what it no longer answers would keep its kinds from going
            cluster.kubectl("delete", "--ignore-not-found", "-f", "-", given=text)


def _text(*names: str) -> str:
    root = KNATIVE.source / "config/core"
    files: list[Path] = []
    for name in names:
        files += sorted((root / name).glob("*.yaml")) if (root / name).is_dir() else [root / name]
    return "\n---\n".join(file.read_text(encoding="utf-8") for file in files)


def _ready(cluster: Cluster) -> bool:
    return bool(cluster.api.get(DEPLOYMENT)["status"].get("readyReplicas") == 1)


def _judges(cluster: Cluster) -> bool:
    """True once it denies a Service without an image; until it has its certificate it cannot be called."""
    try:
        cluster.api.post(SERVICES, service("nothing", {"name": "c"}))
    except ApiError as error:
        return "denied the request" in str(error)
    cluster.api.delete(f"{SERVICES}/nothing")
    return False


def service(name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A Knative Service of these containers."""
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": list(containers), **spec}}},
    }


@pytest.fixture
def services(webhook: Cluster) -> Iterator[list[str]]:
    """Names of Services that are deleted."""
    names: list[str] = []
    yield names
    for name in names:
        webhook.api.delete(f"{SERVICES}/{name}")


def test_a_service_with_a_share_passes_its_webhook_and_ours(
    webhook: Cluster, pods: Pods, services: list[str]
) -> None:
    webhook.api.post(SERVICES, service("infers", container("model", 30, 20)))
    services.append("infers")
    [kept] = webhook.api.get(f"{SERVICES}/infers")["spec"]["template"]["spec"]["containers"]
    assert kept["resources"]["limits"] == {CORE: "30", MEMORY: "20"}
    kept.pop("readinessProbe", None)  # on a port that the controller would fill in
    pods.run(pod("infers-00001", kept))
    assert len(cards_of(pods.get("infers-00001"), "model")) == 1
    auditor.settled(webhook)


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"kubernetes.io/arch": "amd64"}},
        {"schedulerName": "gpu-scheduler"},
        {"runtimeClassName": "any"},
        {"tolerations": [{"operator": "Exists"}]},
    ],
    ids=lambda spec: next(iter(spec)),
)
def test_fields_behind_its_flags_are_refused(webhook: Cluster, spec: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match=next(iter(spec))):
        webhook.api.post(SERVICES, service("placed", container("model", 30, 20), **spec))
