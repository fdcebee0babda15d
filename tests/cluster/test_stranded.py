"""A kubelet that lost its checkpoint: what cannot start again is named, and evicted as budgets let it go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_manager.domain.contract import EVENT_EVICTED, EVICT
from tests.cluster import auditor, lost_checkpoint, processes, product, views
from tests.cluster.cluster import Cluster
from tests.cluster.pods import Pods, container, pod
from tests.cluster.workloads import LABEL, Workload

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def test_who_is_stranded_is_named_within_ten_seconds_and_replaced(cluster: Cluster, pods: Pods) -> None:
    found = lost_checkpoint.measure(cluster, 1, owned=2)
    assert (found.pods, found.late, found.wrongly, found.stayed) == (3, 0, 0, 0), found


def test_a_container_without_its_record_does_not_start_again(cluster: Cluster, pods: Pods) -> None:
    """As the Event had said while it ran. A new pod gets all of its share."""
    manifest = pod("bare", container("c", 60, 100), restartPolicy="Always")
    [found] = pods.run(manifest)
    auditor.settled(cluster)
    lost_checkpoint.lose(cluster)
    cluster.wait(
        lambda: found["metadata"]["uid"] in lost_checkpoint.named(cluster), 10, "the pod is not named"
    )
    cluster.wait(lambda: views.total(cluster, "vcuda_stranded_containers") == 1, 10, "it is not counted")
    [held] = auditor.containers(cluster)
    for pid in auditor.processes_of(held):
        processes.end(pid)
    cluster.wait(lambda: waiting(pods) == "CreateContainerConfigError", 60, "the container does start again")
    pods.clear()
    pods.run(manifest)
    auditor.settled(cluster)


def waiting(pods: Pods) -> str:
    """Why the bare pod's container waits; empty if it does not."""
    [status] = pods.get("bare")["status"]["containerStatuses"]
    return str(status["state"].get("waiting", {}).get("reason", ""))


@pytest.fixture
def budget(cluster: Cluster) -> Iterator[str]:
    """A budget by which no pod of the workload may be evicted."""
    path = f"{BUDGETS}/kept"
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {LABEL: "kept"}}}
    cluster.api.post(
        BUDGETS,
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "kept"},
            "spec": spec,
        },
    )
    yield path
    cluster.api.delete(path)


def test_the_evictor_waits_for_a_disruption_budget(cluster: Cluster, pods: Pods, budget: str) -> None:
    """429 of the real Eviction API: the pod stays, marked, and goes once the budget lets it."""
    with Workload(cluster, "Deployment", "kept", container("c", 30, 20), replicas=1) as kept:
        kept.wait_ready(1)
        [found] = kept.pods()
        name, uid = found["metadata"]["name"], found["metadata"]["uid"]
        auditor.settled(cluster)
        lost_checkpoint.lose(cluster)
        cluster.wait(lambda: put_off(cluster, name), 30, "no eviction was refused")
        [found] = kept.pods()
        assert found["metadata"]["uid"] == uid
        assert "deletionTimestamp" not in found["metadata"]
        assert EVICT in found["metadata"]["annotations"]
        cluster.api.delete(budget)
        cluster.wait(lambda: uid not in {one["metadata"]["uid"] for one in kept.pods()}, 90, "it stays")
        assert any(text.startswith(EVENT_EVICTED) for text in pods.events(name))
        kept.wait_ready(1)
        auditor.settled(cluster)


def put_off(cluster: Cluster, name: str) -> bool:
    """True once the evictor's log has that an eviction of the pod was refused for its budget."""
    return any(
        line["event"] == "eviction_put_off" and name in str(line["pod"]) and "budget" in line["reason"]
        for line in product.told(cluster, product.EVICTOR)
    )
