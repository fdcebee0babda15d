"""Pods that something else than the cards holds: who it is, and the Event or the silence that docs promise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gpu_manager.domain.contract import EVENT_NOT_PLACED
from tests.cluster import auditor, product
from tests.cluster.cluster import Cluster
from tests.cluster.pods import Pods, container, pod
from tests.cluster.test_admission import quota
from tests.cluster.test_operations import explain
from tests.cluster.workloads import Workload

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
SHARE = container("c", 30, 20)
TOLD_SECONDS = 20  # docs/troubleshooting


def held(cluster: Cluster, name: str) -> tuple[str, str]:
    """Who holds a pod by ``kubectl vcuda explain``, and its words."""
    _, answer = explain(cluster, name)
    return str(answer["held"]), str(answer["line"])


def counted(cluster: Cluster, by: str) -> float:
    """``vcuda_pods_held`` of that holder, by the admission service."""
    found = product.agent_pod(cluster, product.ADMISSION)
    name = found["metadata"]["name"] if found else "none"
    path = f"/api/v1/namespaces/{product.NAMESPACE}/pods/https:{name}:9443/proxy/metrics"
    text = cluster.api.get(path, text=True)
    lines = (line for line in text.splitlines() if line.startswith(f'vcuda_pods_held{{by="{by}"}}'))
    return float(next(lines).rpartition(" ")[2])


def told(pods: Pods, name: str) -> list[str]:
    """The Events of ours that say why the pod has no node."""
    return [text for text in pods.events(name) if text.startswith(f"{EVENT_NOT_PLACED}:")]


def is_held(cluster: Cluster, pods: Pods, name: str, by: str) -> str:
    """Wait until explain and the metric say who holds the pod; explain's words."""
    cluster.wait(lambda: held(cluster, name)[0] == by, 30, f"{name} is not held by {by}")
    cluster.wait(lambda: counted(cluster, by) == 1, 30, f"{name} is not counted")
    return held(cluster, name)[1]


@pytest.fixture
def late_volume(cluster: Cluster) -> Iterator[str]:
    """A claim whose volume is bound with its first pod, and that no volume is there for."""
    meta = {"name": "cluster-test-late"}
    cluster.api.post(
        CLASSES,
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": meta,
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    )
    spec = {
        "storageClassName": meta["name"],
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Mi"}},
    }
    cluster.api.post(
        CLAIMS, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}
    )
    yield meta["name"]
    cluster.api.delete(f"{CLAIMS}/{meta['name']}")
    cluster.api.delete(f"{CLASSES}/{meta['name']}")


def silent(cluster: Cluster, pods: Pods, manifest: Mapping[str, Any], by: str) -> str:
    """A pod that somebody else holds, and a later one that waits for cards: the second is told why it waits, so
    the first one's time has passed, and nothing was said of it. Explain's words of the first.
    """
    [name] = pods.create(manifest)
    line = is_held(cluster, pods, name, by)
    pods.create(pod("waits", container("c", 900)))
    cluster.wait(lambda: told(pods, "waits"), TOLD_SECONDS, "who waits for cards is not told why")
    assert told(pods, name) == []
    return line


def test_a_gated_pod_is_held_by_its_gate_and_runs_once_it_is_off(cluster: Cluster, pods: Pods) -> None:
    gate = "example.com/approval"
    line = silent(cluster, pods, pod("gated", SHARE, schedulingGates=[{"name": gate}]), "gate")
    assert gate in line
    cluster.api.patch("/api/v1/namespaces/default/pods/gated", {"spec": {"schedulingGates": []}})
    pods.wait_running("gated")
    auditor.settled(cluster)


def test_a_pod_of_a_scheduler_that_asks_nobody_is_held_by_it(cluster: Cluster, pods: Pods) -> None:
    line = silent(cluster, pods, pod("other", SHARE, schedulerName="other-scheduler"), "scheduler")
    assert "other-scheduler" in line


def test_a_pod_whose_volume_is_not_there_is_held_by_it(
    cluster: Cluster, pods: Pods, late_volume: str
) -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": late_volume}}
    line = silent(cluster, pods, pod("unbound", SHARE, volumes=[volume]), "volume")
    assert "persistent volumes" in line


def test_a_pod_of_a_spent_quota_is_told_the_sums_and_runs_once_it_grows(cluster: Cluster, pods: Pods) -> None:
    with quota(cluster, {"default": {"quota": {"*": 1}}}):
        pods.run(pod("first", container("c", 100)))
        pods.create(pod("second", SHARE))
        line = is_held(cluster, pods, "second", "quota")
        cluster.wait(lambda: told(pods, "second"), TOLD_SECONDS, "nobody is told")
        assert "quota" in line
        assert line in told(pods, "second")[0]
    pods.wait_running("second")


def test_a_rolling_update_that_its_own_pods_hold_up_is_told_so(cluster: Cluster, pods: Pods) -> None:
    shape = container("c", 100)
    strategy = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    with Workload(cluster, "Deployment", "rolled", shape, replicas=8, strategy=strategy) as rolled:
        rolled.wait_ready(8)
        before = {one["metadata"]["name"] for one in rolled.pods()}
        rolled.patch(
            {"template": {"spec": {"containers": [{**shape, "env": [{"name": "V", "value": "2"}]}]}}}
        )
        cluster.wait(lambda: len(rolled.pods()) == 9, 30, "no pod of the new template")
        [late] = {one["metadata"]["name"] for one in rolled.pods()} - before
        line = is_held(cluster, pods, late, "owner")
        assert "older template" in line
        cluster.wait(lambda: told(pods, late), TOLD_SECONDS, "nobody is told")
