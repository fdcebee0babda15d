"""An explanation minds what kube-scheduler minds of nodes before it asks an extender: cordons, taints, labels, host CPU."""

from __future__ import annotations

import json
from typing import Any

import pytest

from admission.cluster.pod_view import pod_view, read_pod_view
from admission.cluster.snapshot import NODES
from admission.cluster.trim import slim_node, slim_pod
from admission.config import ClusterTerms
from admission.explain.drafts import read_draft
from admission.explain.explain_api import as_json, as_text
from admission.explain.explanation import Explanation, explain
from gpu_manager.domain.contract import NVIDIA
from gpu_manager.domain.kube.pod import parse_pod
from tests.fakes.extender import Obj, World, node, pod

CORDON: Obj = {"unschedulable": True}
TAINT: Obj = {"taints": [{"key": "team", "value": "ml", "effect": "NoSchedule"}]}
TOLERATION = {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}


def closed(name: str, spec: Obj, **more: Any) -> Obj:
    return {**node(name, **more), "spec": spec}


def wants(obj: Obj, **spec: Any) -> Obj:
    return {**obj, "spec": {**obj["spec"], **spec}}


def why(world: World, obj: Obj) -> Explanation:
    view = pod_view(parse_pod(obj), obj)
    return explain(view, world.cluster.snapshot(), world.quota.current, world.judge)


@pytest.mark.parametrize(
    ("there", "says"),
    [
        (closed("n1", CORDON), "is cordoned"),
        (closed("n1", TAINT), 'has the taint "team=ml:NoSchedule", which the pod does not tolerate'),
    ],
)
def test_a_node_with_room_that_keeps_the_pod_off_is_not_promised_and_says_why(there: Obj, says: str) -> None:
    told = why(World([there]), pod("a"))
    assert told.counts == {"barred": 1}
    assert told.line == (
        f'waits: of 1 node, 1 keeps it off ("n1" {says}). '
        f"Smallest change: open node n1 to it: it has room, but {says}"
    )
    assert f"n1: has room for it, but {says}" in as_text(told)
    assert as_json(told)["nodes"][0]["barred"] == says


def test_what_the_pod_tolerates_and_selects_decides() -> None:
    world = World([closed("n1", TAINT), node("n2", labels={"zone": "a"})])
    assert why(world, wants(pod("a"), tolerations=[TOLERATION])).counts == {"fits": 2}
    told = why(world, wants(pod("a"), nodeSelector={"zone": "a"}, tolerations=[TOLERATION]))
    assert told.counts == {"fits": 1, "barred": 1}
    assert told.line.endswith('. Not counted: "n1" lacks what the pod selects: "zone=a"')
    required = {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    }
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    told = why(world, wants(pod("a"), affinity=affinity, tolerations=[TOLERATION]))
    assert [(one.node, one.outcome) for one in told.nodes] == [("n1", "fits"), ("n2", "barred")]


def test_no_change_is_advised_for_a_node_that_keeps_the_pod_off() -> None:
    held = [pod("x", 80, 4, on="n1"), pod("y", 75, 4, on="n2")]
    told = why(World([closed("n1", CORDON, cards=1), node("n2", cards=1)], held), pod("a", 30, 4))
    assert told.counts == {"room": 1, "barred": 1}
    assert told.change.startswith("ask 25 cores, 1 GiB instead of 30 cores")
    assert "(then node n2 takes it)" in told.change
    assert not told.nodes[1].victims


def test_a_small_change_of_its_own_goes_before_opening_a_node_and_a_large_one_after() -> None:
    def change(held: int) -> str:
        nodes = [closed("n1", CORDON, cards=1), node("n2", cards=1)]
        return why(World(nodes, [pod("y", held, 4, on="n2")]), pod("a", 30, 4)).change

    assert change(75).startswith("ask 25 cores")
    assert change(95) == "open node n1 to it: it has room, but is cordoned"


def test_a_node_that_could_never_hold_it_is_told_of_as_such() -> None:
    told = why(World([closed("n1", CORDON), closed("n2", CORDON, cards=0)]), pod("a", 400, None))
    assert told.counts == {"never": 1, "node": 1}
    assert "n1: no room, even if it were empty, and is cordoned" in as_text(told)


def test_what_is_written_on_a_node_changes_the_answer_and_nothing_of_its_books() -> None:
    world = World([node("n1", labels={"kubernetes.io/hostname": "n1"})])
    before = world.cluster.snapshot().nodes["n1"]
    world.cluster.apply(NODES, "MODIFIED", slim_node(closed("n1", CORDON)))
    after = world.cluster.snapshot().nodes["n1"]
    assert why(world, pod("a")).counts == {"barred": 1}
    assert (after.kind, after.state, after.node) == (before.kind, before.state, before.node)
    world.cluster.apply(NODES, "MODIFIED", slim_node(closed("n1", CORDON)))
    assert world.cluster.snapshot().nodes["n1"] is after, "a heartbeat changes nothing"


def test_what_is_kept_of_a_pod_that_waits_has_its_constraints() -> None:
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    whole = wants(
        pod("a"),
        nodeSelector={"zone": "a"},
        tolerations=[TOLERATION],
        affinity={**affinity, "podAffinity": {"x": 1}},
    )
    slim, seen = slim_pod(whole), read_pod_view(whole)
    assert slim is not None
    assert seen is not None
    kept = read_pod_view(slim)
    assert kept is not None
    assert kept.constraints == seen.constraints
    assert kept.constraints.selector
    assert "podAffinity" not in str(slim)


def test_a_pod_is_not_woken_for_room_on_a_node_that_keeps_it_off() -> None:
    world = World([closed("n1", CORDON)])
    waiting = pod_view(parse_pod(pod("a")), pod("a"))
    assert not world.extender.has_room(waiting, 0)
    world.cluster.apply(NODES, "MODIFIED", node("n1"))
    assert world.extender.has_room(waiting, 0)


def test_whole_cards_under_nvidias_name_are_not_counted_on_a_node_that_keeps_the_pod_off() -> None:
    limits = {"limits": {NVIDIA: "1"}}
    asks = pod("a", containers=[{"name": "main", "resources": limits}])
    world = World([closed("n1", CORDON, lends=True), node("n2", lends=True, cards=1)])
    told = why(world, asks)
    assert told.counts == {"fits": 1, "barred": 1}
    assert told.line.endswith('. Not counted: "n1" is cordoned')
    assert "n1: 2 of 2" not in told.line


def test_a_node_whose_cards_all_go_by_claims_is_not_waited_for() -> None:
    """The Event says so where the kubelet offers none of them, and kube-scheduler does not even ask us."""
    told = why(World([node("n1", claimed=[0, 1])]), pod("a"))
    assert told.counts == {"node": 1}
    assert told.line == (
        "waits: of 1 node, 1 has no cards for it (its cards are given by ResourceClaims alone). "
        "No change of its amounts helps"
    )
    split = why(World([node("n1", claimed=[0])]), pod("a"))
    assert split.counts == {"fits": 1}


def with_cpu(obj: Obj, cpu: str) -> Obj:
    allocatable = {**obj["status"].get("allocatable", {}), "cpu": cpu}
    return {**obj, "status": {**obj["status"], "allocatable": allocatable}}


def asks_cpu(obj: Obj, cpu: str) -> Obj:
    [one] = obj["spec"]["containers"]
    resources = {**one["resources"], "requests": {"cpu": cpu}}
    return wants(obj, containers=[{**one, "resources": resources}])


def test_a_node_without_the_host_cpu_that_the_pod_asks_for_keeps_it_off() -> None:
    nodes = [with_cpu(node("n1"), "4"), with_cpu(node("n2"), "8")]
    world = World(nodes, [asks_cpu(pod("x", 10, 1, on="n2"), "6500m")])
    assert why(world, asks_cpu(pod("a"), "4")).counts == {"fits": 1, "barred": 1}
    told = why(world, asks_cpu(pod("a"), "5"))
    says = "has less host CPU free than the 5 that the pod asks for"
    assert told.counts == {"barred": 2}
    assert told.line == (
        f'waits: of 2 nodes, 2 keep it off ("n1" {says} (and 1 more node)). '
        "Smallest change: ask 4 of host CPU instead of 5 (then node n1 takes it)"
    )
    full = World([with_cpu(node("n1"), "4")], [asks_cpu(pod("x", 10, 1, on="n1"), "4")])
    end = "wait for pods to end: no node whose cards have room for it has host CPU left"
    assert why(full, asks_cpu(pod("a"), "1")).change == end
    assert why(full, pod("a")).counts == {"fits": 1}


def test_the_host_cpu_of_a_manifest_counts() -> None:
    manifest = {"kind": "Pod", **asks_cpu(pod("a"), "4500m")}
    assert read_draft(json.dumps(manifest).encode(), ClusterTerms()).view.host.cpu == 4500
