"""What controllers make: rolled out, rolled back, scaled and run to completion, and no pod of it fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster import auditor, product
from tests.cluster.api import ApiError
from tests.cluster.cluster import Cluster
from tests.cluster.pods import PATH, Pods, container, pod
from tests.cluster.test_admission import quota
from tests.cluster.watcher import Watcher
from tests.cluster.workloads import Workload


def test_a_deployment_is_rolled_out_and_back_on_a_full_node(cluster: Cluster, pods: Pods) -> None:
    """Sixteen pods fill the node; one of the old has to go before one of the new finds room."""
    shape = container("c", 50, 70)
    strategy = {"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 2}}
    with (
        Watcher(cluster) as watcher,
        Workload(cluster, "Deployment", "rolled", shape, replicas=16, strategy=strategy) as rolled,
    ):
        rolled.wait_ready(16)
        first = {one["metadata"]["uid"] for one in rolled.pods()}
        rolled.patch(
            {"template": {"spec": {"containers": [{**shape, "env": [{"name": "V", "value": "2"}]}]}}}
        )
        rolled.wait_ready(16, 240)
        second = {one["metadata"]["uid"] for one in rolled.pods() if _lives(one)}
        assert not first & second
        cluster.kubectl("rollout", "undo", "deployment/rolled")
        rolled.wait_ready(16, 240)
        assert rolled.failed() == []
        auditor.settled(cluster)
    assert watcher.looks.found == []


def _lives(found: dict[str, Any]) -> bool:
    return "deletionTimestamp" not in found["metadata"]


def test_a_statefulset_is_scaled_and_its_names_come_back_with_their_own_shares(
    cluster: Cluster, pods: Pods
) -> None:
    with Workload(
        cluster,
        "StatefulSet",
        "kept",
        container("c", 40, 30),
        replicas=4,
        serviceName="kept",
        podManagementPolicy="Parallel",
    ) as kept:
        for count in (4, 1, 6):
            kept.patch({"replicas": count})
            kept.wait_ready(count)
            auditor.settled(cluster)
        assert kept.failed() == []


def test_a_job_runs_to_completion_and_none_of_its_pods_fails(cluster: Cluster, pods: Pods) -> None:
    """With a backoffLimit of 0 one refused pod would end it. Ended pods free their cards for the rest."""
    shape = container("c", 100, args=("true",))
    with Workload(
        cluster, "Job", "counted", shape, completions=20, parallelism=10, backoffLimit=0
    ) as counted:
        cluster.wait(lambda: counted.status().get("succeeded") == 20, 240, "not 20 have succeeded")
        assert counted.status().get("failed", 0) == 0
        assert counted.failed() == []


def test_a_quota_is_exact_under_fifty_creations_at_once(cluster: Cluster, pods: Pods) -> None:
    """Three cards: fifteen pods of a fifth, whatever the order; what leaves makes room for as many."""
    names = [f"quota-{i}" for i in range(50)]
    with quota(cluster, {"default": {"quota": {"*": 3}}}):
        # The first that the quota refuses shows that it is in force.
        cluster.wait(lambda: _refused(cluster), 20, "the quota is not held")
        with ThreadPoolExecutor(25) as pool:
            list(pool.map(lambda name: pods.create(pod(name, container("c", 20, 10))), names))
        most = 0

        def bound() -> int:
            nonlocal most
            found = [name for name in names if "nodeName" in pods.get(name)["spec"]]
            most = max(most, len(found))
            return len(found)

        cluster.wait(lambda: bound() == 15, 120, "not fifteen are bound")
        waiting = next(name for name in names if "nodeName" not in pods.get(name)["spec"])
        cluster.wait(
            lambda: any("ExceedsGPUQuota" in text for text in pods.events(waiting)), 60, "nobody says why"
        )
        gone = [name for name in names if "nodeName" in pods.get(name)["spec"]][:5]
        pods.delete(*gone)
        names = [name for name in names if name not in gone]
        cluster.wait(lambda: bound() == 15, 120, "what has left makes no room")
        assert most == 15
        assert [name for name in names if pods.phase(name) == "Failed"] == []
    auditor.settled(cluster)


def _refused(cluster: Cluster) -> bool:
    try:
        cluster.api.post(f"{PATH}?dryRun=All", pod("large", container("c", 400)))
    except ApiError as error:
        return "ExceedsGPUQuota" in str(error)
    return False


@pytest.fixture
def upgraded(cluster: Cluster) -> Any:
    yield
    product.install(cluster, admission=True)


def test_a_release_is_upgraded_and_rolled_back_under_running_pods(
    cluster: Cluster, pods: Pods, upgraded: None
) -> None:
    """``helm rollback`` as users do it: the same books and limits before, between and after."""
    pods.run(pod("kept", container("c", 30, 10)))
    auditor.settled(cluster)
    [held], before = auditor.containers(cluster), auditor.ledger_of(cluster)
    product.install(cluster, admission=True, **{"agent.logLevel": "debug"})
    assert auditor.ledger_of(cluster) == before
    cluster.helm("rollback", "gpu-manager", "-n", product.NAMESPACE)
    cluster.wait(lambda: product.newest(cluster) and product.agent_ready(cluster), 180, "no agent after it")
    assert auditor.ledger_of(cluster) == before
    pods.run(pod("next", container("c", 70, 10)))
    auditor.settled(cluster)
    assert held.container_id in {one.container_id for one in auditor.containers(cluster)}
