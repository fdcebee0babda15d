"""Pods deleted by force whose processes run on: the API has forgotten them, their card has not."""

from __future__ import annotations

import time

import pytest

from gpu_manager.domain.contract import INVENTORY, TerminatingShare, decode_inventory
from tests.cluster import auditor, layout
from tests.cluster.cluster import Cluster
from tests.cluster.pods import STUBBORN, Pods, cards_of, container, pod

LIVES_SECONDS = 12  # after the deletion: the kubelet's patience with who ignores SIGTERM


def told(cluster: Cluster) -> tuple[TerminatingShare, ...]:
    """What the node says that deleted pods hold."""
    node = cluster.api.get(f"/api/v1/nodes/{layout.NODE}")
    inventory = decode_inventory(node["metadata"]["annotations"][INVENTORY])
    assert inventory is not None
    return inventory.lingering


def full_node_with(pods: Pods, shape: tuple[int, int], seconds: int) -> tuple[str, str]:
    """Every card but one is taken whole, that one by a pod that outlives itself: its UID and card."""
    pods.run(*(pod(f"held-{i}", container("c", 100)) for i in range(7)))
    ghost = container("c", *shape, args=STUBBORN)
    [found] = pods.run(pod("ghost", ghost, terminationGracePeriodSeconds=seconds))
    return str(found["metadata"]["uid"]), cards_of(found, "c")[0]


def processes(cluster: Cluster, uid: str) -> list[auditor.Running]:
    """The pod's containers that have processes."""
    return [one for one in auditor.running(cluster) if one.pod == uid]


@pytest.mark.case(50)
@pytest.mark.parametrize("shape", [(60, 80), (100, 0)], ids=["part", "whole"])
def test_a_card_waits_for_the_processes_of_a_pod_deleted_by_force(
    cluster: Cluster, pods: Pods, shape: tuple[int, int]
) -> None:
    uid, card = full_node_with(pods, shape, LIVES_SECONDS)
    cluster.api.delete("/api/v1/namespaces/default/pods/ghost", 0)
    cluster.wait(lambda: [one.pod for one in told(cluster)] == [uid], 5, "the node does not tell of it")
    pods.create(pod("next", container("c", *shape)))
    cluster.wait(
        lambda: any("whose processes still run" in text for text in pods.events("next")),
        LIVES_SECONDS,
        "nobody says why it waits",
    )
    while processes(cluster, uid):
        assert "nodeName" not in pods.get("next")["spec"], "it was placed beside processes that still run"
        time.sleep(0.2)
    found = pods.wait_running("next", 30)
    assert cards_of(found, "c") == [card]
    assert told(cluster) == ()
    auditor.settled(cluster)


def test_a_pod_created_at_once_waits_a_little_at_the_node(cluster: Cluster, pods: Pods) -> None:
    """The scheduler may be quicker than the node's word; then the agent has the kubelet wait."""
    uid, card = full_node_with(pods, (60, 80), 3)
    cluster.api.delete("/api/v1/namespaces/default/pods/ghost", 0)
    [next_] = pods.create(pod("next", container("c", 60, 80)))
    while processes(cluster, uid):
        assert all(one.pod == uid or card not in shares(one) for one in auditor.running(cluster))
        time.sleep(0.1)
    assert cards_of(pods.wait_running(next_, 30), "c") == [card]
    auditor.settled(cluster)


def shares(one: auditor.Running) -> set[str]:
    """The cards that a container has some of."""
    return {uuid for uuid, _, _ in one.shares}


def test_a_name_used_again_at_once_gets_its_own_share(cluster: Cluster, pods: Pods) -> None:
    """Another shape each time, while the namesake before it still runs."""
    for number, (cores, units) in enumerate([(20, 10), (40, 6), (30, 20), (50, 4)]):
        slow = container("c", cores, units, args=STUBBORN)
        pods.run(pod("again", slow, terminationGracePeriodSeconds=4))
        auditor.settled(cluster)
        if number < 3:
            cluster.api.delete("/api/v1/namespaces/default/pods/again", 0)
