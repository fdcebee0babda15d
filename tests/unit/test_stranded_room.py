"""What a shrink gives back: charged as the agent says, and no room for a new pod without device ids."""

from __future__ import annotations

import json

import pytest
from prometheus_client import CollectorRegistry

from admission.console.cluster_page import graph
from admission.extender.cluster_metrics import ClusterFigures, ClusterMetrics
from admission.extender.feasibility import Fit, Unfit
from admission.extender.refusal_lines import why
from admission.quota.quota_book import QuotaBook
from gpu_manager.domain.cluster.node_json import node_text
from gpu_manager.domain.contract import ALLOCATION, ASSIGNED, CORE, MEMORY, RESIZE, RESIZED
from gpu_manager.domain.kube.constraints import host_of_node, host_of_pod
from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount
from gpu_manager.domain.rules.pod_request import judged_request
from tests.fakes.extender import node, pod
from tests.fakes.resize_answers import Cluster

UNIT = DEFAULT_UNIT


@pytest.fixture
def world() -> Cluster:
    """One card of 16 GiB: a pod of 60 cores and 40 units that has shrunk to 10 and 8, and one of 30 and 4."""
    cluster = Cluster(node=node("n1", cards=1))
    cluster.run("small", 60, 40)
    cluster.run("other", 30, 4)
    cluster.ask("small", cores=10, memory="2Gi")
    cluster.agent("small", 10, 8)
    return cluster


def verdict(world: Cluster, core: int, memory: int) -> tuple[Fit | Unfit, str]:
    """Of a pod that waits, on the node; and in words."""
    name = f"late-{core}-{memory}"
    world.create(pod(name, core, memory))
    snapshot = world.cluster.snapshot()
    occupant = world.cluster.named("default", name)
    assert occupant is not None
    check = world.judge.ask(occupant, judged_request(occupant.pod, UNIT), snapshot, None)
    view = snapshot.nodes["n1"]
    return check.on(view), why(check, view)


def test_the_agents_figure_counts_below_the_spec(world: Cluster) -> None:
    assert sorted(world.booked("n1")) == [(40, 12)]
    used = world.cluster.snapshot().used["default"]
    assert list(used.values()) == [Amount(40, 12 * UNIT)]


def test_nobody_is_charged_less_than_his_spec_without_an_answer_and_the_agents_word() -> None:
    cluster = Cluster(node=node("n1", cards=1))
    cluster.run("one", 60, 40)
    cluster.agent("one", 10, 8)
    assert cluster.booked("n1") == [(60, 40)], "no size was answered"
    cluster.ask("one", cores=10, memory="2Gi")
    cluster.annotate("one", {ASSIGNED: "false"})
    assert cluster.booked("n1") == [(60, 40)], "not the agent's figure"
    cluster.annotate("one", {ASSIGNED: "true", ALLOCATION: None})
    assert cluster.booked("n1") == [(60, 40)], "no figure at all"


def test_a_pod_that_the_cards_could_hold_waits_for_device_ids_and_is_told_so(world: Cluster) -> None:
    fit, words = verdict(world, 11, 4)
    assert fit is Unfit.ROOM
    assert words.startswith("no device ids for it: 11 cores, 1 GiB asked, 10 cores, 5 GiB left. ")
    assert "90 cores, 11 GiB of ids for 40 cores, 3 GiB booked" in words
    assert verdict(world, 5, 21)[0] is Unfit.ROOM, "nor of memory"
    assert isinstance(verdict(world, 10, 20)[0], Fit)
    assert "no card has room for 61 cores" in verdict(world, 61, 4)[1], (
        "where the cards refuse, they are told"
    )


def test_growth_takes_what_a_shrink_gave_back(world: Cluster) -> None:
    answer = world.ask("other", cores=80)
    assert answer is not None
    assert (answer.refused, answer.sizes) == ("", {"main": Amount(80, 4 * UNIT)})


def test_the_ids_come_back_with_their_pod(world: Cluster) -> None:
    """So that preemption and explain name the one whose end helps."""
    world.create(pod("late", 40, 4))
    snapshot, occupant = world.cluster.snapshot(), world.cluster.named("default", "late")
    assert occupant is not None
    check = world.judge.ask(occupant, judged_request(occupant.pod, UNIT), snapshot, None)
    view, uids = snapshot.nodes["n1"], {o.pod.name: uid for uid, o in snapshot.nodes["n1"].bound.items()}
    assert check.without(view, [PodUid(uids["small"])]) is not None
    assert check.without(view, [PodUid(uids["other"])]) is not None
    world.create(pod("large", 50, 4))
    occupant = world.cluster.named("default", "large")
    assert occupant is not None
    check = world.judge.ask(occupant, judged_request(occupant.pod, UNIT), snapshot, None)
    assert check.without(view, [PodUid(uids["other"])]) is None, "its 30 ids are too few"
    assert check.without(view, [PodUid(uids["small"])]) is not None


def test_what_if_counts_the_kubelets_ids() -> None:
    there = host_of_node({"status": {"allocatable": {CORE: "100", MEMORY: "64"}}})
    there -= host_of_pod(pod("one", 90, 44))
    assert there.lacks_ids(host_of_pod(pod("two", 11, 4))) == (
        f"has 10 device ids of {CORE} left, and the pod asks for 11"
    )
    assert there.lacks_ids(host_of_pod(pod("two", 10, 21))).startswith(f"has 20 device ids of {MEMORY} left")
    assert there.lacks_ids(host_of_pod(pod("two", 10, 20))) == ""


def test_the_answer_of_another_pod_lowers_nothing(world: Cluster) -> None:
    """A copied pod brings the annotations of the one it was copied from."""
    copied = world.there("small")["metadata"]["annotations"]
    other = json.loads(world.there("other")["metadata"]["annotations"][ALLOCATION])
    world.annotate("other", {RESIZED: copied[RESIZED], RESIZE: copied[RESIZE]})
    assert parse_pod(world.there("other")).uid == other["pod"]
    world.agent("other", 5, 1)
    assert world.booked("n1") == [(40, 12)]


def test_what_is_stranded_is_told_of_its_node(world: Cluster) -> None:
    ids = world.cluster.snapshot().nodes["n1"].ids
    assert ids is not None
    assert ids.stranded == Amount(50, 32 * UNIT)
    drawn = graph(world.cluster.snapshot().nodes["n1"])
    assert drawn["stranded"] == {"cores": 50, "memory": 32 * UNIT}
    assert node_text(drawn).startswith("n1: 1 cards; 50 cores, 8 GiB free without device ids: ")
    shown = ClusterFigures(world.cluster, QuotaBook(), lambda: True, dict, dict)
    registry = CollectorRegistry()
    ClusterMetrics(registry).show(shown)
    assert registry.get_sample_value("vcuda_admission_core_stranded_ratio", {"node": "n1"}) == 0.5
    assert registry.get_sample_value("vcuda_admission_stranded_cores", {"node": "n1"}) == 50
    assert registry.get_sample_value("vcuda_admission_stranded_memory_bytes", {"node": "n1"}) == 32 * UNIT
    world.ask("small", cores=60, memory="10Gi")
    world.agent("small", 60, 40)
    assert registry.get_sample_value("vcuda_admission_stranded_cores", {"node": "n1"}) is None
    assert "stranded" not in graph(world.cluster.snapshot().nodes["n1"])
