"""Pods of every shape get exactly what was decided for them, and every book says the same."""

from __future__ import annotations

import pytest
import yaml

from gpu_manager.domain.contract import CARDS, CORE
from tests.cluster import auditor, product
from tests.cluster.cluster import Cluster
from tests.cluster.parts import ROOT
from tests.cluster.pods import Pods, cards_of, container, pod, run_client, sidecar


def test_the_readmes_pod_runs_as_it_is_written(cluster: Cluster, pods: Pods) -> None:
    manifest = yaml.safe_load((ROOT / "docs/examples/nginx.yaml").read_text("utf-8"))
    pods.run(manifest)
    auditor.settled(cluster)
    assert len(cards_of(pods.get("nginx"), "nginx")) == 1
    cluster.wait(
        lambda: any("30 cores, 5 GiB of card" in line for line in pods.events("nginx")),
        10,
        "no Event of success",
    )


def test_fractions_fill_one_card_before_the_next(cluster: Cluster, pods: Pods) -> None:
    found = pods.run(*(pod(f"part-{i}", container("c", 25, 10)) for i in range(4)))
    auditor.settled(cluster)
    assert (
        len(
            {card for p in map(pods.get, [p["metadata"]["name"] for p in found]) for card in cards_of(p, "c")}
        )
        == 1
    )


@pytest.mark.case(28)
def test_each_container_of_a_pod_gets_its_own_share(cluster: Cluster, pods: Pods) -> None:
    pods.run(pod("pair", container("a", 40, 32), container("b", 20, 8)))
    auditor.settled(cluster)
    limits = {h.name: auditor.limits_in_force(h) for h in auditor.containers(cluster)}
    assert {next(iter(s))[1:] for s in limits.values() if s} == {(40, 32 << 28), (20, 8 << 28)}


@pytest.mark.case(29)
@pytest.mark.parametrize(("init", "app"), [((50, 20), (30, 10)), ((30, 10), (50, 20)), ((30, 10), (30, 10))])
def test_an_init_container_and_its_app_share_a_card(
    cluster: Cluster, pods: Pods, init: tuple[int, int], app: tuple[int, int]
) -> None:
    done = container("prepare", *init, args=("vcuda-client", "info"))
    pods.run(pod("staged", container("main", *app), init=[done]))
    auditor.settled(cluster)
    said = pods.log("staged", "prepare")
    assert f"{init[1] * 256}MiB" in said, said
    found = pods.get("staged")
    assert cards_of(found, "prepare") == cards_of(found, "main")


@pytest.mark.case(30)
def test_a_sidecar_keeps_its_share_beside_the_app(cluster: Cluster, pods: Pods) -> None:
    pods.run(pod("flanked", container("main", 30, 10), init=[sidecar("log", 10, 4)]))
    auditor.settled(cluster)
    assert {h.name for h in auditor.containers(cluster)} == {"main", "log"}


def test_init_sidecar_and_two_apps_in_one_pod(cluster: Cluster, pods: Pods) -> None:
    init = [container("first", 60, 20, args=("true",)), sidecar("log", 5, 2)]
    pods.run(pod("many", container("a", 30, 10), container("b", 20, 6), init=init))
    auditor.settled(cluster)


def test_whole_cards_are_exclusive(cluster: Cluster, pods: Pods) -> None:
    pods.run(pod("two", container("c", 200)), pod("part", container("c", 10, 4)))
    auditor.settled(cluster)
    whole, part = cards_of(pods.get("two"), "c"), cards_of(pods.get("part"), "c")
    assert len(whole) == 2
    assert not set(whole) & set(part)


def test_mixed_sizes_at_once(cluster: Cluster, pods: Pods) -> None:
    sizes = [
        (10, 4),
        (70, 100),
        (100, 0),
        (30, 20),
        (50, 80),
        (90, 8),
        (20, 60),
        (100, 0),
        (60, 30),
        (40, 40),
    ]
    pods.run(*(pod(f"mixed-{i}", container("c", *size)) for i, size in enumerate(sizes)))
    auditor.settled(cluster)


def test_a_container_has_halves_of_two_cards(cluster: Cluster, pods: Pods) -> None:
    """Tensor parallelism of two: one container, a limit on each card, and what is left goes to others."""
    pods.run(pod("ring", container("c", 100, 40), annotations={CARDS: "2"}))
    auditor.settled(cluster)
    [ring] = auditor.containers(cluster)
    limits = auditor.limits_in_force(ring) or frozenset()
    assert len(limits) == 2
    assert {share[1:] for share in limits} == {(50, 20 << 28)}
    said = run_client(pods, "ring", "info")
    assert ", 2 cards\n" in said, said
    assert said.count("/   5120MiB") == 2, said
    for card in ("0", "1"):
        said = run_client(pods, "ring", "alloc-to-limit", "--card", card)
        assert "5120" in said, said
    pods.run(*(pod(f"half-{i}", container("c", 50, 20)) for i in range(2)))
    auditor.settled(cluster)
    both = {card for i in range(2) for card in cards_of(pods.get(f"half-{i}"), "c")}
    assert both == set(cards_of(pods.get("ring"), "c")), "its halves are the fullest rooms that fit"
    product.kill_held_agent(cluster)
    auditor.settled(cluster)
    pods.delete("ring")
    auditor.settled(cluster, 90)


@pytest.mark.case(36)
def test_equal_pods_bound_to_different_cards_in_another_order(cluster: Cluster, pods: Pods) -> None:
    """Case 36. Bindings carry the cards; the pods' age, the order of binding and the cards all differ."""
    names = [f"equal-{i}" for i in range(8)]
    pods.create(*(pod(n, container("c", 30, 10), schedulerName="by-hand") for n in names))
    wanted = {name: cluster.cards[(3 * i + 5) % 8].uuid for i, name in enumerate(names)}
    for name in sorted(names, key=lambda n: (int(n[-1]) * 5) % 8):
        pods.bind(name, {"c": [(wanted[name], 30, 10 << 28)]})
    for name in names:
        pods.wait_running(name)
    auditor.settled(cluster)
    assert {name: cards_of(pods.get(name), "c") for name in names} == {n: [u] for n, u in wanted.items()}


@pytest.mark.case(34)
def test_a_pod_that_fits_no_card_is_refused_with_the_arithmetic(cluster: Cluster, pods: Pods) -> None:
    """Case 34. Nine tenths of each card are taken; one fifth is left in the kubelet's sum, on no card."""
    pods.run(*(pod(f"full-{i}", container("c", 90, 10)) for i in range(8)))
    pods.create(pod("late", container("c", 20, 4), nodeName="n1"))  # past the scheduler, which would keep it
    failed = pods.wait_phase("late", "Failed")
    assert failed["status"]["reason"] == "UnexpectedAdmissionError"
    assert "20 cores" in failed["status"]["message"], failed["status"]["message"]
    pods.run(pod("small", container("c", 10, 4)))
    auditor.settled(cluster)


def test_the_kubelet_lists_what_the_ledger_has(cluster: Cluster, pods: Pods) -> None:
    """Case 52, by the kubelet's checkpoint; and the node's sums stay what they were."""
    before = product.allocatable(cluster)
    pods.run(pod("one", container("c", 30, 10)), pod("two", container("c", 100)))
    auditor.settled(cluster)
    held = {key: ids for (uid, name, key), (ids, _) in auditor.checkpoint_of(cluster).items() if name == "c"}
    assert held[CORE]
    assert product.allocatable(cluster) == before
