"""KubeRay's operator, by its own manifests: a RayCluster whose workers have shares of cards.

Ray itself is not here: the containers print the command that the operator made for them, and wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from tests.cluster import auditor
from tests.cluster.cluster import Cluster
from tests.cluster.controllers.programs import KUBERAY
from tests.cluster.pods import PATH, Pods, cards_of, container, pod
from tests.cluster.test_held import held, told

CLUSTERS: Final = "/apis/ray.io/v1/namespaces/default/rayclusters"
DEPLOYMENT: Final = "/apis/apps/v1/namespaces/default/deployments/kuberay-operator"
PUBLISHED: Final = f"quay.io/kuberay/operator:{KUBERAY.version}"
# The image has no Ray and no bash: neither what waits for Ray's store nor what asks its health can run.
BARE: Final = ("ENABLE_INIT_CONTAINER_INJECTION=false", "ENABLE_PROBES_INJECTION=false")
MADE: Final = (
    "/bin/sh",
    "-c",
    "trap 'exit 0' TERM; echo $KUBERAY_GEN_RAY_START_CMD; sleep 1000000 & wait",
)


@pytest.fixture(scope="module")
def operator(cluster: Cluster) -> Iterator[Cluster]:
    """The operator and its kinds; nothing of them afterwards."""
    KUBERAY.load(cluster)
    text = cluster.kubectl("kustomize", str(KUBERAY.source / "config/default"))
    assert PUBLISHED in text
    text = text.replace(PUBLISHED, KUBERAY.image)
    cluster.kubectl("apply", "--server-side", "-f", "-", given=text)
    try:
        cluster.kubectl("set", "env", "deployment/kuberay-operator", *BARE)
        cluster.wait(lambda: _ready(cluster), 180, "the operator is not ready")
        yield cluster
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", given=text)


def _ready(cluster: Cluster) -> bool:
    found = cluster.api.get(DEPLOYMENT)
    status, newest = found["status"], found["metadata"]["generation"]
    counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")]
    return status.get("observedGeneration") == newest and counts == [1] * 3


def template(cores: int = 0, units: int = 0) -> Mapping[str, Any]:
    """Of a group's pods."""
    made = container("ray", cores, units, args=MADE, command=["/entry"])
    return {
        "spec": {
            "containers": [made],
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
        }
    }


def ray(name: str, workers: int, cores: int) -> dict[str, Any]:
    """A RayCluster with a head without a card and one group of workers, each of which Ray takes for one GPU."""
    group = {
        "groupName": "shares",
        "replicas": workers,
        "minReplicas": 0,
        "maxReplicas": 16,
        "rayStartParams": {"num-gpus": "1"},
        "template": template(cores, 20),
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "annotations": {"ray.io/overwrite-container-cmd": "true"}},
        "spec": {
            "rayVersion": "2.46.0",
            "headGroupSpec": {"rayStartParams": {}, "template": template()},
            "workerGroupSpecs": [group],
        },
    }


@pytest.fixture
def made(operator: Cluster) -> Iterator[list[str]]:
    """Names of RayClusters that are deleted with their pods."""
    names: list[str] = []
    yield names
    for name in names:
        operator.api.delete(f"{CLUSTERS}/{name}")
        operator.wait(lambda name=name: not of(operator, name), 90, f"pods of {name} stay")


def of(cluster: Cluster, name: str, kind: str = "") -> list[dict[str, Any]]:
    """Its pods; ``kind``: head or worker."""
    more = f",ray.io/node-type={kind}" if kind else ""
    return list(cluster.api.get(PATH, labelSelector=f"ray.io/cluster={name}{more}")["items"])


def status(cluster: Cluster, name: str) -> Mapping[str, Any]:
    """What the operator says of it."""
    return dict(cluster.api.get(f"{CLUSTERS}/{name}").get("status", {}))


def test_workers_get_their_shares_and_ray_is_told_its_gpus_by_the_group(
    operator: Cluster, pods: Pods, made: list[str]
) -> None:
    operator.api.post(CLUSTERS, ray("shared", 3, 30))
    made.append("shared")
    operator.wait(
        lambda: status(operator, "shared").get("readyWorkerReplicas") == 3, 120, "not three workers"
    )
    workers = of(operator, "shared", "worker")
    assert all(len(cards_of(one, "ray")) == 1 for one in workers)
    for one in workers:
        assert "--num-gpus=1" in pods.log(one["metadata"]["name"])
    # The operator sums names that end in gpu: of ours it knows nothing.
    assert status(operator, "shared").get("desiredGPU", "0") == "0"
    auditor.settled(operator)


def test_a_group_grows_and_shrinks_and_what_has_no_card_is_told(
    operator: Cluster, pods: Pods, made: list[str]
) -> None:
    pods.run(*(pod(f"full-{i}", container("c", 60, 10)) for i in range(7)))
    operator.api.post(CLUSTERS, ray("grown", 1, 50))
    made.append("grown")
    operator.wait(lambda: status(operator, "grown").get("readyWorkerReplicas") == 1, 120, "no worker")
    grown = ray("grown", 3, 50)
    operator.api.patch(f"{CLUSTERS}/grown", {"spec": grown["spec"]})
    operator.wait(lambda: len(of(operator, "grown", "worker")) == 3, 60, "the group does not grow")

    def waiting() -> list[str]:
        return [
            one["metadata"]["name"]
            for one in of(operator, "grown", "worker")
            if one["status"].get("phase") == "Pending" and "nodeName" not in one["spec"]
        ]

    operator.wait(lambda: len(waiting()) == 1 and told(pods, waiting()[0]), 60, "nobody is told why it waits")
    assert held(operator, waiting()[0])[0] == ""
    pods.delete("full-0")
    operator.wait(lambda: status(operator, "grown").get("readyWorkerReplicas") == 3, 60, "not three workers")
    operator.api.patch(f"{CLUSTERS}/grown", {"spec": ray("grown", 0, 50)["spec"]})
    operator.wait(lambda: not of(operator, "grown", "worker"), 60, "the group does not shrink")
    auditor.settled(operator)
