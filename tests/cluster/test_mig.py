"""MIG instances as cards on the real kubelet: simulated layouts, whole instances and parts, a layout that changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpu_manager.domain.contract import EVENT_MIG_CHANGED, GPU_MODEL, GPU_UUID
from gpu_manager.domain.resources import DEFAULT_UNIT
from tests.cluster import auditor, layout, product
from tests.cluster.cluster import DIVIDED, Cluster
from tests.cluster.pods import Pods, cards_of, container, pod, run_client

CORES = 1200  # of eleven instances, and the card that is not divided
ONE, THREE = {GPU_MODEL: "1g.18gb"}, {GPU_MODEL: "H200-MIG-3g.71gb"}


@pytest.fixture(scope="module")
def divided(cluster: Cluster) -> Iterator[Cluster]:
    """The node has divided cards, and gives their instances; afterwards what it had."""
    product.order_cards(cluster, {})
    values = {"cards.source": f"simulated:{DIVIDED}", "agent.migInstances": "true"}
    product.install(cluster, admission=True, **values)
    cluster.wait(lambda: offered(cluster) == CORES, 60, "the instances are not offered")
    yield cluster
    product.order_cards(cluster, {})
    product.install(cluster, admission=True)
    cluster.wait(lambda: offered(cluster) == 100 * len(cluster.cards), 90, "the cards are not offered again")


@pytest.fixture(autouse=True)
def _as_it_was(divided: Cluster) -> Iterator[None]:
    yield
    product.order_cards(divided, {})
    divided.wait(lambda: offered(divided) == CORES, 60, "the layout does not come back")


def offered(cluster: Cluster) -> int:
    """Cores that pods can get."""
    return product.allocatable(cluster)[0]


def named(cluster: Cluster, model: str) -> list[str]:
    """UUIDs of the cards whose model ends so, by number."""
    return [str(card.uuid) for card in cluster.divided if card.model.endswith(model)]


def test_pods_share_an_instance_and_keep_their_limits(divided: Cluster, pods: Pods) -> None:
    pods.run(
        pod("part", container("c", 30, 8), annotations=ONE),
        pod("beside", container("c", 60, 40), annotations=ONE),
        pod("whole", container("c", 100), annotations=THREE),
        pod("plain", container("c", 30, 8)),
    )
    auditor.settled(divided)
    [shared], [other] = (cards_of(pods.get(name), "c") for name in ("part", "beside"))
    assert shared == other
    assert shared in named(divided, "MIG-1g.18gb")
    assert cards_of(pods.get("whole"), "c") == named(divided, "MIG-3g.71gb")
    assert cards_of(pods.get("plain"), "c") == named(divided, "H200")[-1:], (
        "who names no instance gets a card"
    )
    for name, units in (("part", 8), ("beside", 40)):
        said = run_client(pods, name, "info")
        assert shared in said, said
        assert f"/ {units * DEFAULT_UNIT >> 20:6}MiB" in said, said
        said = run_client(pods, name, "alloc-to-limit")
        assert f"{units * DEFAULT_UNIT >> 20}" in said, said


def test_who_names_no_instance_waits_while_all_cards_are_divided(divided: Cluster, pods: Pods) -> None:
    pods.run(pod("last", container("c", 100)))
    pods.create(pod("late", container("c", 10, 4)))
    divided.wait(
        lambda: any("given to pods that name its profile" in line for line in pods.events("late")),
        30,
        "nothing is said of the instances",
    )
    pods.delete("last")
    pods.wait_running("late")
    auditor.settled(divided)


def test_a_layout_that_changes_under_a_pod_loses_nothing_and_is_named(divided: Cluster, pods: Pods) -> None:
    ones = named(divided, "MIG-1g.18gb")
    pods.run(pod("held", container("c", 30, 8), annotations={GPU_UUID: ones[1]}))
    auditor.settled(divided)
    before = auditor.ledger_of(divided)
    product.order_cards(divided, {0: {"instances": [["1g.18gb", "18432Mi", 7], ["1g.35gb", "35840Mi", 8]]}})
    divided.wait(lambda: offered(divided) == CORES - 600, 60, "instances that are gone are still offered")
    divided.wait(
        lambda: any(
            line.startswith(f"{EVENT_MIG_CHANGED}: ") and "default/held" in line
            for line in pods.events(layout.NODE)
        ),
        30,
        "the node does not say who holds a part of what is gone",
    )
    assert pods.phase("held") == "Running"
    assert auditor.ledger_of(divided) == before
    gone, new = card(divided, ones[1]), card(divided, model="MIG-1g.35gb")
    assert "the MIG layout or mode of its card has changed" in gone["reason"]
    assert [holder["pod"] for holder in gone["holders"]] == ["held"]
    assert f"pods still hold {ones[1]}" in new["reason"], "its device nodes would open the new instance"
    product.kill_held_agent(divided)
    assert [holder["pod"] for holder in card(divided, ones[1])["holders"]] == ["held"]
    product.order_cards(divided, {})
    divided.wait(lambda: card(divided, ones[1])["open"], 60, "an instance that comes back stays closed")
    auditor.settled(divided)


def test_a_held_instance_that_is_gone_is_let_go_with_its_pod(divided: Cluster, pods: Pods) -> None:
    ones = named(divided, "MIG-1g.18gb")
    pods.run(pod("held", container("c", 30, 8), annotations={GPU_UUID: ones[1]}))
    changed = {0: {"instances": [["1g.18gb", "18432Mi", 7], ["1g.35gb", "35840Mi", 8]]}}
    product.order_cards(divided, changed)
    divided.wait(lambda: offered(divided) == CORES - 600, 60, "instances that are gone are still offered")
    pods.delete("held")
    divided.wait(lambda: offered(divided) == CORES - 500, 90, "what came in its place stays closed")
    pods.run(pod("next", container("c", 100), annotations={GPU_MODEL: "1g.35gb"}))
    auditor.settled(divided)


def card(cluster: Cluster, uuid: str = "", model: str = "") -> dict[str, Any]:
    """A card of the agent's page, by UUID or by the end of its model."""
    found = product.ask_json(cluster, "/graph")["cards"]
    return next(one for one in found if uuid == one["uuid"] or (model and one["model"].endswith(model)))
