"""Each part killed, alone and all together, while pods come and go and every book is compared each second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from tests.cluster import auditor, product
from tests.cluster.churn import Churn
from tests.cluster.cluster import Cluster
from tests.cluster.pods import AWAY, Pods, container, pod, why_failed
from tests.cluster.watcher import Watcher
from tests.cluster.workloads import Workload

SERVERS = ("kubelet", "containerd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
# The kubelet has nobody to ask while the agent is away, and fails a pod that is bound then: a controller makes
# another. With containerd the agent may be found dead for a moment.
COSTLY = {"agent", "containerd"}
# A killed kubelet takes back what it was asking the runtime for: a container that was just being started failed.
TAKEN_BACK = "StartError: failed to create containerd task: failed to create shim task: context canceled"
MOST_FAILED = 30  # made in 12 s: until the kubelet has started a killed agent again on a busy machine
MOST_REFUSED = 3  # by a killed kubelet alone

# What docs/operations.md gives a Job that its program's first failure is to end, and nothing else.
ONCE: Final[Mapping[str, Any]] = {
    "backoffLimit": 100,
    "podFailurePolicy": {
        "rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
            {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [128]}},
            {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}},
        ]
    },
}


def kill(cluster: Cluster, part: str) -> None:
    """SIGKILL; a server of the node is started again at once, the product's parts by the kubelet."""
    if part in SERVERS:
        cluster.restart(part)
    else:
        product.kill(cluster, {"agent": product.AGENT, "admission": product.ADMISSION}[part])


def ended(pods: Pods, name: str) -> str:
    """Empty once the pod runs; else why the kubelet would not admit it, or its container did not start."""
    found: dict[str, Any] = {}

    def decided() -> bool:
        found.update(pods.get(name)["status"])
        return found.get("phase") == "Failed" or _runs(found)

    pods.cluster.wait(decided, 90, f"{name} neither runs nor fails")
    return why_failed(found) if found["phase"] == "Failed" else ""


def _runs(status: Mapping[str, Any]) -> bool:
    statuses = status.get("containerStatuses", [])
    return status.get("phase") == "Running" and bool(statuses) and all(s["ready"] for s in statuses)


@pytest.mark.case(10, 45)
@pytest.mark.parametrize(
    "parts",
    [
        ("kubelet",),
        ("containerd",),
        ("kube-apiserver",),
        ("agent",),
        ("admission",),
        ("agent", "admission", *SERVERS),
    ],
    ids=lambda parts: parts[0] if len(parts) == 1 else "all",
)
def test_killed_while_pods_come_and_go(cluster: Cluster, pods: Pods, parts: tuple[str, ...]) -> None:
    pods.run(pod("kept", container("c", 30, 10)))
    auditor.settled(cluster)
    [kept], before = auditor.containers(cluster), auditor.ledger_of(cluster)
    with Watcher(cluster) as watcher:
        with Churn(cluster, pods) as churn:
            churn.more(6)
            for part in parts:
                kill(cluster, part)
            cluster.wait(cluster.node_ready, 60, "the node is not ready")
            cluster.wait(lambda: product.agent_ready(cluster), 90, "the agent is not ready")
            cluster.wait(lambda: product.admission_ready(cluster), 90, "admission is not ready")
            churn.more(6, 90)
        failed = churn.failed + [why for name in churn.alive if (why := ended(pods, name))]
    assert watcher.looks.found == []
    assert watcher.looks.containers > 0
    # A kubelet that starts judges anew at once what it had admitted and not started; on a busy machine our lists of
    # devices come half a second later.
    expected = (AWAY if COSTLY & set(parts) else ()) + ((TAKEN_BACK, AWAY[0]) if "kubelet" in parts else ())
    assert [why for why in failed if not why.startswith(expected)] == []
    assert len(failed) <= (MOST_FAILED if COSTLY & set(parts) else MOST_REFUSED), failed
    auditor.settled(cluster)
    after = {one.container_id: one for one in auditor.containers(cluster)}
    assert kept.container_id in after, "what ran was started anew"
    assert auditor.ledger_of(cluster)[kept.uid, "c"] == before[kept.uid, "c"]


def goes_on(cluster: Cluster, job: Workload) -> None:
    """Until some more of its pods have succeeded."""
    done = job.status().get("succeeded", 0)
    cluster.wait(lambda: job.status().get("succeeded", 0) > done + 8, 180, "it does not go on")


@pytest.mark.case(60)
def test_a_job_lives_through_kills_of_the_agents_pod_and_ends_at_its_programs_first_failure(
    cluster: Cluster, pods: Pods
) -> None:
    """Under backoffLimit 0 the first pod that the kubelet refuses would end it."""
    good = container("c", 10, 4, args=("/bin/sh", "-c", "sleep 1"))
    with Workload(cluster, "Job", "lives", good, completions=5000, parallelism=14, **ONCE) as job:
        goes_on(cluster, job)
        for _ in range(3):
            product.kill(cluster, product.AGENT)
            cluster.wait(lambda: not product.agent_ready(cluster), 60, "the kill is not noticed")
            cluster.wait(lambda: product.agent_ready(cluster), 90, "the agent is not ready")
            goes_on(cluster, job)
        assert "Failed" not in [one["type"] for one in job.status().get("conditions", [])]
        assert job.failed(), "nothing was refused: the kills fell between pods"
    bad = container("c", 10, 4, args=("/bin/sh", "-c", "exit 3"))
    with Workload(cluster, "Job", "ends", bad, completions=9, parallelism=1, **ONCE) as job:
        cluster.wait(
            lambda: [one["reason"] for one in job.status().get("conditions", []) if one["type"] == "Failed"],
            60,
            "its program's failure does not end it",
        )
        assert job.status()["failed"] == 1


@pytest.mark.case(60)
def test_admission_killed_again_and_again_overbooks_nothing(cluster: Cluster, pods: Pods) -> None:
    """Two fit on a card, so sixteen on the node: one more is one that somebody has forgotten."""
    names = [f"tight-{i}" for i in range(20)]
    with Watcher(cluster) as watcher:
        for at in range(0, len(names), 5):
            pods.create(*(pod(name, container("c", 45, 70)) for name in names[at : at + 5]))
            product.kill(cluster, product.ADMISSION)
        cluster.wait(lambda: product.admission_ready(cluster), 120, "admission does not come back")
        cluster.wait(
            lambda: [pods.phase(n) for n in names].count("Running") == 16, 90, "not sixteen of them run"
        )
    assert watcher.looks.found == []
    assert sorted(pods.phase(n) for n in names) == ["Pending"] * 4 + ["Running"] * 16
    auditor.settled(cluster)
