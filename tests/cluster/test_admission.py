"""The webhook over TLS, the policies, quota, and the real scheduler with the extender."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from gpu_manager.domain.contract import LIMITS_PATH
from tests.cluster import auditor, layout, nodes
from tests.cluster.api import ApiError
from tests.cluster.cluster import Cluster
from tests.cluster.images import WORKLOAD
from tests.cluster.pods import PATH, SLEEP, Pods, assignment, cards_of, container, pod

ADDED = "ephemeralContainerStatuses"
STRATEGIC = "application/strategic-merge-patch+json"
CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "a part of a card": (pod("case", container("c", 30, 20)), True),
    "two whole cards": (pod("case", container("c", 200)), True),
    "nothing of a card": (pod("case", container("c")), True),
    "a card and a half": (pod("case", container("c", 150, 20)), False),
    "memory without cores": (pod("case", container("c", 0, 20)), False),
    "a part without memory": (pod("case", container("c", 30)), False),
    "an init container and apps that fit one card": (
        pod("case", container("c", 30, 20), init=[container("i", 50, 20)]),
        True,
    ),
    "a privileged part": (
        pod("case", container("c", 30, 20, securityContext={"privileged": True})),
        False,
    ),
    "a ceiling below the share": (
        pod("case", container("c", 30, 20), annotations={"tencent.com/vcuda-core-limit": "20"}),
        False,
    ),
    "a ceiling above the share": (
        pod("case", container("c", 30, 20), annotations={"tencent.com/vcuda-core-limit": "60"}),
        True,
    ),
    "an unknown placement": (
        pod("case", container("c", 30, 20), annotations={"tencent.com/placement": "anywhere"}),
        False,
    ),
}


def verdict(cluster: Cluster, manifest: Mapping[str, Any], namespace: str) -> tuple[bool, str]:
    """Whether the API server would take it, and its words if not."""
    body = {**manifest, "spec": {**manifest["spec"]}}
    try:
        cluster.api.post(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)
    except ApiError as error:
        return False, str(error)
    return True, ""


@pytest.mark.case(63)
@pytest.mark.parametrize("name", CASES)
def test_webhook_and_policies_judge_alike(cluster: Cluster, pods: Pods, name: str) -> None:
    """Case 63. In kube-system the webhook is not asked, so that the policies judge alone."""
    manifest, legal = CASES[name]
    for namespace in ("default", "kube-system"):
        taken, words = verdict(cluster, manifest, namespace)
        assert taken is legal, f"{namespace}: {words}"


@pytest.mark.case(63)
def test_a_pod_whose_name_is_to_be_made_is_judged_like_any(cluster: Cluster, pods: Pods) -> None:
    for cores, legal in ((30, True), (150, False)):
        manifest = pod("", container("c", cores, 20))
        manifest["metadata"] = {"generateName": "made-"}
        taken, words = verdict(cluster, manifest, "default")
        assert taken is legal, words


@pytest.mark.case(63)
def test_a_container_added_for_debugging_leaves_the_others_share_alone(cluster: Cluster, pods: Pods) -> None:
    pods.run(pod("debugged", container("c", 30, 20)))
    auditor.settled(cluster)
    before = auditor.ledger_of(cluster)
    added = {"name": "look", "image": WORKLOAD, "imagePullPolicy": "Never", "targetContainerName": "c"}
    body = {"spec": {"ephemeralContainers": [{**added, "command": list(SLEEP)}]}}
    cluster.api.request("PATCH", f"{PATH}/debugged/ephemeralcontainers", body, STRATEGIC)
    cluster.wait(
        lambda: any("running" in s["state"] for s in pods.get("debugged")["status"].get(ADDED, ())),
        30,
        "it does not run",
    )
    auditor.settled(cluster)
    assert auditor.ledger_of(cluster) == before
    assert LIMITS_PATH not in pods.execute("debugged", "cat", "/proc/self/mountinfo", container="look")


def test_the_webhook_says_what_would_be_legal(cluster: Cluster, pods: Pods) -> None:
    _, words = verdict(cluster, pod("greedy", container("greedy", 150, 20)), "default")
    assert "must be multiple of 100" in words
    assert "100 or 200" in words, words


@pytest.mark.case(25, 58, 59)
def test_the_scheduler_binds_with_the_cards_in_the_same_write(cluster: Cluster, pods: Pods) -> None:
    """Case 59, and case 25: what the extender chose is what the container gets."""
    [found] = pods.run(pod("bound", container("c", 30, 20)))
    said = assignment(found)
    assert found["spec"]["schedulerName"] == "vcuda-scheduler"
    assert said is not None
    assert (said.node, said.pod) == (layout.NODE, found["metadata"]["uid"])
    auditor.settled(cluster)
    assert cards_of(pods.get("bound"), "c") == cards_of(found, "c")


def test_nobody_else_may_write_the_cards(cluster: Cluster, pods: Pods) -> None:
    pods.run(pod("owned", container("c", 30, 20)))
    with pytest.raises(ApiError, match="the scheduler and the agent alone may change it"):
        cluster.api.patch(
            f"{PATH}/owned", {"metadata": {"annotations": {"tencent.com/vcuda-allocation": "{}"}}}
        )


def test_a_pod_that_fits_no_card_waits_with_the_reason(cluster: Cluster, pods: Pods) -> None:
    """The scheduler keeps it; no kubelet ever refuses it. It runs once there is room."""
    pods.run(*(pod(f"full-{i}", container("c", 90, 10)) for i in range(8)))
    pods.create(pod("late", container("c", 20, 4)))
    cluster.wait(lambda: any("20 cores" in e for e in pods.events("late")), 30, "no reason is told")
    assert pods.phase("late") == "Pending"
    pods.delete("full-3")
    pods.wait_running("late")
    auditor.settled(cluster)


@pytest.fixture
def second(cluster: Cluster) -> Iterator[str]:
    nodes.add(cluster, "n2")
    yield "n2"
    nodes.remove(cluster, "n2")


def test_pods_spill_over_to_a_further_node(cluster: Cluster, pods: Pods, second: str) -> None:
    names = pods.create(*(pod(f"wide-{i}", container("c", 400)) for i in range(4)))
    cluster.wait(lambda: all("nodeName" in pods.get(n)["spec"] for n in names), 30, "not all are bound")
    places = [pods.get(n)["spec"]["nodeName"] for n in names]
    assert sorted(places) == [layout.NODE, layout.NODE, second, second]
    for name in names:
        said = assignment(pods.get(name))
        assert said is not None
        assert len({uuid for uuid, _ in said.containers["c"]}) == 4


@contextmanager
def quota(cluster: Cluster, namespaces: Mapping[str, Any]) -> Iterator[None]:
    """The quota's ConfigMap, there until the end of ``with``."""
    place = "/api/v1/namespaces/kube-system/configmaps"
    meta, data = {"name": "gpuquota"}, {"gpu_quota": json.dumps(namespaces)}
    cluster.api.post(place, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    try:
        yield
    finally:
        cluster.api.delete(f"{place}/gpuquota")


def test_a_namespaces_quota_is_held(cluster: Cluster, pods: Pods) -> None:
    model = cluster.cards[0].model
    with quota(cluster, {"default": {"quota": {model: 1, "*": 1}}}):
        cluster.wait(
            lambda: not verdict(cluster, pod("two", container("c", 200)), "default")[0],
            20,
            "the quota is not held",
        )
        assert "ExceedsGPUQuota" in verdict(cluster, pod("two", container("c", 200)), "default")[1]
        assert verdict(cluster, pod("one", container("c", 100)), "default")[0]
    cluster.wait(
        lambda: verdict(cluster, pod("two", container("c", 200)), "default")[0], 20, "the quota stays"
    )


@pytest.mark.case(64)
def test_a_killed_admission_blocks_pods_with_cards_alone(cluster: Cluster, pods: Pods) -> None:
    path = "/apis/apps/v1/namespaces/kube-system/deployments/gpu-quota-admission"
    cluster.api.patch(path, {"spec": {"replicas": 0}})
    try:
        cluster.wait(
            lambda: not verdict(cluster, CASES["a part of a card"][0], "default")[0], 30, "still judged"
        )
        assert verdict(cluster, CASES["nothing of a card"][0], "default")[0]
        assert verdict(cluster, CASES["a part of a card"][0], "kube-system")[0]
    finally:
        cluster.api.patch(path, {"spec": {"replicas": 1}})
    cluster.wait(
        lambda: verdict(cluster, CASES["a part of a card"][0], "default")[0], 60, "admission is not back"
    )
    pods.run(pod("after", container("c", 30, 20)))
    auditor.settled(cluster)
