"""What a priority is worth where its pod lies: said by explain, Events and a metric, and part of a node's price."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from admission.extender.cluster_metrics import _protected
from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.verbs import Extender
from gpu_manager.adapters.kube.reading import cluster_of
from gpu_manager.domain.cluster.node_json import node_json, node_text
from gpu_manager.domain.cluster.usage_json import NodeUsage, longest_beside, read_usage, ungated_beside
from gpu_manager.domain.contract import INVENTORY, PLACEMENT, PRIORITY, decode_inventory, encode_inventory
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.explain import (
    explain_priority,
    explain_unprotected,
    explain_wait,
    is_protected,
)
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.score.scorer import BESIDE, with_neighbours
from tests.fakes.extender import World, node, pod

PROTECTED, NORMAL, BEST_EFFORT = Priority
RIGHT = {"default": {"protected": {"*": 100}}}
EARLIER = (
    "Priority {} counts in placement alone: the agent of the node makes no tenant wait"
    " (it is of an earlier release, or cannot)"
)


def gated(name: str, cards: int = 2) -> dict[str, Any]:
    """A node whose agent makes best-effort tenants wait."""
    return node(name, cards)


def earlier(name: str, cards: int = 2) -> dict[str, Any]:
    """A node whose agent is of an earlier release."""
    made = node(name, cards)
    inventory = decode_inventory(made["metadata"]["annotations"][INVENTORY])
    assert inventory is not None
    text = encode_inventory(replace(inventory, gates=False))
    assert "gates" not in text
    made["metadata"]["annotations"][INVENTORY] = text
    return made


def of(priority: str, name: str, core: int = 30, **more: Any) -> dict[str, Any]:
    notes = {PRIORITY: priority, **more.pop("annotations", {})}
    return pod(name, core, 4, annotations=notes, **more)


@pytest.mark.parametrize(
    ("priority", "beside", "gates", "said"),
    [
        (NORMAL, [], True, ""),
        (NORMAL, [NORMAL, BEST_EFFORT], False, ""),
        (NORMAL, [PROTECTED], False, "Priority normal: 1 protected tenant beside it has no protection from it"),
        (PROTECTED, [], True, "Priority protected: no other tenant is beside it"),
        (PROTECTED, [BEST_EFFORT] * 2, True, "Priority protected: 2 best-effort tenants beside it wait for it"),
        (PROTECTED, [BEST_EFFORT], True, "Priority protected: 1 best-effort tenant beside it waits for it"),
        (NORMAL, [PROTECTED] * 2, True, "Priority normal: 2 protected tenants beside it have no protection from it"),
        (PROTECTED, [BEST_EFFORT], False, EARLIER.format("protected")),
        (PROTECTED, [NORMAL, PROTECTED, PROTECTED], True, ("Priority protected, but not from 1 normal tenant and "
         "2 protected tenants beside it: best-effort tenants alone wait")),
        (PROTECTED, [NORMAL], False, ("Priority protected, but not from 1 normal tenant beside it: "
         "best-effort tenants alone wait")),
        (BEST_EFFORT, [NORMAL], True, "Priority best-effort: waits for protected tenants; none is beside it"),
        (BEST_EFFORT, [PROTECTED], True, "Priority best-effort: waits for 1 protected tenant"),
        (BEST_EFFORT, [PROTECTED], False, EARLIER.format("best-effort")),
    ],
)  # fmt: skip
def test_a_sentence_says_who_waits_and_from_whom_nothing_protects(
    priority: Priority, beside: list[Priority], gates: bool, said: str
) -> None:
    there = Counter(beside)
    assert explain_priority(priority, there, gates=gates) == said
    broken = priority is PROTECTED and not is_protected(there)
    assert bool(explain_unprotected(priority, there)) == (
        broken or (priority is NORMAL and PROTECTED in beside)
    )


def test_a_node_says_whether_its_agent_makes_tenants_wait_and_one_of_before_does_not() -> None:
    for made, gates in ((gated("n1"), True), (earlier("n1"), False)):
        (books,) = cluster_of([made], []).nodes
        assert books.node.gates is gates


def test_kubectl_and_the_extender_say_the_same_of_a_bound_pod() -> None:
    nodes = [gated("n1", 1)]
    pods = [
        of("protected", "p", on="n1"),
        of("normal", "n", on="n1", core=10),
        of("best-effort", "b", on="n1", core=5),
    ]
    world, books = World(nodes, pods), cluster_of(nodes, pods).nodes[0]
    view = world.cluster.snapshot().nodes["n1"]
    for obj in pods:
        occupant = world.cluster.named("default", obj["metadata"]["name"])
        assert occupant is not None
        assert view.explain_priority(occupant.pod) == books.explain_priority(occupant.pod)
    occupant = world.cluster.named("default", "p")
    assert occupant is not None
    assert view.explain_priority(occupant.pod).startswith("Priority protected, but not from 1 normal tenant")


def test_a_graph_shows_priorities() -> None:
    nodes, pods = [node("n1", 1)], [of("protected", "p", on="n1"), pod("n", 10, 4, on="n1")]
    (books,) = cluster_of(nodes, pods).nodes
    graph = node_json(
        "n1",
        books.node.cards,
        books.node.topology,
        books.ledger,
        lambda *_: {"planned": False, "ended": False},
    )
    assert [h["priority"] for h in graph["cards"][0]["holders"]] == ["normal", "protected"]
    assert "default/p main: 30 cores, 1 GiB, protected\n" in node_text(graph)
    assert "default/n main: 10 cores, 1 GiB\n" in node_text(graph)


def test_a_metric_counts_the_pods_that_nothing_protects_from_a_neighbour() -> None:
    pods = [
        of("protected", "alone", on="n1"), of("best-effort", "beside", on="n1"),
        of("protected", "p", 40, on="n2", namespace="a"), of("normal", "n", 70, on="n2"), of("normal", "m", 50, on="n2"),
        of("protected", "q", on="n3"),
    ]  # fmt: skip
    world = World([gated("n1"), gated("n2"), earlier("n3"), gated("n4")], pods)
    every, broken = _protected(world.cluster.snapshot().nodes.values())
    figures = [{s.labels["namespace"]: s.value for s in family.samples} for family in (every, broken)]
    assert figures == [{"a": 1, "default": 2}, {"a": 1, "default": 1}]


@pytest.mark.parametrize("policy", ["binpack", "spread", "topology"])
def test_the_extender_takes_the_node_on_which_protection_holds(policy: str) -> None:
    nodes = [gated("n1", 1), gated("n2", 1), gated("n3", 1)]
    pods = [
        of("normal", "n", 50, on="n1"),
        of("best-effort", "b", 50, on="n2"),
        of("protected", "p", 50, on="n3"),
    ]
    for asked, where in (("protected", "n2"), ("best-effort", "n3"), ("normal", ("n1", "n2"))):
        world = scored(nodes, pods)
        obj = of(asked, "new", 20, annotations={PLACEMENT: policy})
        world.create(obj)
        assert world.schedule(obj) in where


def scored(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> World:
    world = World(nodes, pods, quota=RIGHT)
    policy = LeastFragmentation(world.cluster, aside=lambda job: job())
    world.extender = Extender(world.cluster, world.quota, world.judge, policy, world.binder)
    return world


def test_a_neighbour_that_does_not_suit_has_a_price_and_no_priority_has_none() -> None:
    assert with_neighbours((3.0, 1), 0) == (3.0, 1)
    assert with_neighbours((3.0, 1), 2) == (3.0 + 2 * BESIDE, 1)
    assert with_neighbours((3.0, 1), -1) == (3.0 - BESIDE, 1)


def test_what_filter_finds_bind_takes_and_the_agent_would_choose_too() -> None:
    nodes = [gated("n1", 3)]
    world = scored(nodes, [of("normal", "n", 50, on="n1"), of("best-effort", "b", 60, on="n1")])
    obj = of("protected", "p", 20)
    world.create(obj)
    assert world.schedule(obj) == "n1"
    view = world.cluster.snapshot().nodes["n1"]
    assert view.explain_priority(view.charges["uid-default-p"].pod).startswith("Priority protected: ")


@pytest.mark.parametrize(("longest", "said"), [
    (None, ""), (0.05, ""),
    (0.312, ("A best-effort tenant beside it has run a kernel or graph of 0.31 s, and none is interrupted: "
     "a launch may wait that long")),
])  # fmt: skip
def test_a_kernel_beside_it_that_is_too_long_is_said(longest: float | None, said: str) -> None:
    assert explain_wait(longest) == said


@pytest.mark.parametrize(("ungated", "said"), [
    (1, "1 best-effort tenant beside it was made before the agent knew priorities and waits for nobody"),
    (2, "2 best-effort tenants beside it were made before the agent knew priorities and wait for nobody"),
])  # fmt: skip
def test_a_neighbour_without_a_gate_is_said(ungated: int, said: str) -> None:
    assert explain_wait(None, ungated) == said
    assert explain_wait(0.2, ungated).startswith(f"{said}. A best-effort tenant beside it")


def test_a_neighbour_without_a_gate_is_one_that_its_agent_has_booked_as_normal() -> None:
    pods = [
        of("protected", "p", on="n1"),
        of("best-effort", "b", on="n1"),
        of("best-effort", "c", 20, on="n1"),
    ]
    (books,) = cluster_of([gated("n1", 1)], pods).nodes

    def used(**priority: str) -> NodeUsage:
        return read_usage({"usage": {f"uid-default-{name}": {"stat": {"main": {"dev": [
            {"uuid": "GPU-n1-0", "priority": one},
        ]}}} for name, one in priority.items()}})  # fmt: skip

    ask = partial(ungated_beside, ledger=books.ledger, pod=PodUid("uid-default-p"))
    assert ask(used(p="normal", b="best-effort", c="odd")) == 0, "an agent that tells none is not doubted"
    assert ask(used(p="protected", b="normal", c="best-effort")) == 1


def test_the_longest_kernel_is_that_of_best_effort_tenants_on_the_same_card() -> None:
    nodes = [gated("n1", 1), gated("n2", 1)]
    pods = [
        of("protected", "p", on="n1"), of("best-effort", "b", on="n1"), of("best-effort", "c", 20, on="n1"),
        of("normal", "n", 10, on="n1"), of("best-effort", "far", on="n2"),
    ]  # fmt: skip
    books = next(one for one in cluster_of(nodes, pods).nodes if one.name == "n1")

    def used(**longest: float) -> NodeUsage:
        return read_usage({"usage": {f"uid-default-{name}": {"stat": {"main": {"dev": [
            {"uuid": f"GPU-{'n2' if name == 'far' else 'n1'}-0", "longest": seconds},
        ]}}} for name, seconds in longest.items()}})  # fmt: skip

    ask = partial(longest_beside, ledger=books.ledger, pod=PodUid("uid-default-p"))
    assert ask(used(p=9.0, n=9.0, far=9.0)) is None
    assert ask(used(p=9.0, b=0.2, c=0.4)) == 0.4
