"""Cards that fail: what the node offers, what pods on them are told, what comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_manager.domain.contract import CORE, MEMORY
from tests.cluster import auditor, product
from tests.cluster.cluster import Cluster
from tests.cluster.parts import minor
from tests.cluster.pods import Pods, cards_of, container, pod

FULL = (800, 1256)


@pytest.fixture(autouse=True)
def _healed(cluster: Cluster) -> Iterator[None]:
    yield
    product.order_cards(cluster, {})
    cluster.wait(lambda: product.allocatable(cluster) == FULL, 30, "the cards do not come back")


@pytest.mark.case(15)
def test_a_failed_card_is_no_longer_offered_and_comes_back(cluster: Cluster, pods: Pods) -> None:
    """Case 15: allocatable falls by the card for both resources, capacity stays."""
    product.order_cards(cluster, {3: {"healthy": False, "reason": "XID 79"}})
    cluster.wait(lambda: product.allocatable(cluster) == (700, 1256 - 157), 30, "still offered")
    assert product.allocatable(cluster, "capacity") == FULL
    product.order_cards(cluster, {})
    cluster.wait(lambda: product.allocatable(cluster) == FULL, 30, "not back")


@pytest.mark.case(18)
def test_pods_on_a_failed_card_are_told_and_others_are_not(cluster: Cluster, pods: Pods) -> None:
    if minor() < 36:
        pytest.skip("kubelets tell the health of a pod's devices since 1.36")
    pods.run(pod("ill", container("c", 60, 10)), pod("well", container("c", 60, 10)))
    auditor.settled(cluster)
    card = next(c for c in cluster.cards if c.uuid == cards_of(pods.get("ill"), "c")[0])
    assert cards_of(pods.get("well"), "c") != [card.uuid]
    product.order_cards(cluster, {card.index: {"healthy": False, "reason": "XID 79"}})
    cluster.wait(lambda: health(pods, "ill") == {"Unhealthy"}, 30, "the pod's status does not tell")
    assert health(pods, "well") == {"Healthy"}


def test_no_pod_is_put_on_a_failed_card(cluster: Cluster, pods: Pods) -> None:
    product.order_cards(cluster, {i: {"healthy": False, "reason": "XID 79"} for i in range(7)})
    cluster.wait(lambda: product.allocatable(cluster)[0] == 100, 30, "still offered")
    pods.run(pod("one", container("c", 60, 10)), pod("two", container("c", 40, 10)))
    auditor.settled(cluster)
    found = {card for name in ("one", "two") for card in cards_of(pods.get(name), "c")}
    assert found == {cluster.cards[7].uuid}


def health(pods: Pods, name: str) -> set[str]:
    """What the pod's status says of its devices."""
    [status] = pods.get(name)["status"]["containerStatuses"]
    rows = [r for r in status.get("allocatedResourcesStatus", ()) if r["name"].split("/", 1)[-1] in _NAMES]
    return {device["health"] for row in rows for device in row["resources"]}


_NAMES = {name.split("/", 1)[-1] for name in (CORE, MEMORY)}
