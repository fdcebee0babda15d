"""What the doctor says of facts that it cannot know, and what it accuses nobody of."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from gpu_manager.domain.contract import DRA_DRIVER, Inventory
from gpu_manager.domain.doctor import CHECKS, CLUSTER_CHECKS, NODE_CHECKS, examine
from gpu_manager.domain.doctor.facts import (
    AgentFacts,
    ClusterFacts,
    DriverFacts,
    Facts,
    KubeletFacts,
    RuntimeFacts,
)
from gpu_manager.domain.topology import Topology
from tests.fakes.doctor_facts import (
    BY_CLAIMS,
    CLUSTER,
    GOOD,
    KUBELET,
    NODE,
    NOW,
    RUNTIME,
    cluster,
    driver,
    inventory,
    node,
)


def test_what_was_not_looked_at_is_said_once_for_each_reason_and_is_no_trouble() -> None:
    report = examine(Facts(NOW, blind={"kubelet": "there is no kubelet"}))
    assert report.healthy
    assert report.passed == ()
    assert sum(len(skipped.checks) for skipped in report.skipped) == len(CHECKS)
    assert "there is no kubelet" in [skipped.why for skipped in report.skipped]
    assert len(report.skipped) == len({skipped.why for skipped in report.skipped})


def test_nothing_is_missing_from_a_machine_without_a_card() -> None:
    report = examine(replace(GOOD, driver=DriverFacts(pci_cards=0)), NODE_CHECKS)
    assert [finding.check.id for finding in report.findings] == ["no-card"]


@pytest.mark.parametrize("part", [f.name for f in fields(DriverFacts)])
def test_one_fact_of_the_driver_that_is_not_known_accuses_nobody_else(part: str) -> None:
    empty: Any = frozenset() if part == "devices" else "" if part == "library_problem" else None
    found = {finding.check.id for finding in examine(driver(**{part: empty}), NODE_CHECKS).findings}
    assert found <= {"driver-library-missing", "device-node-missing"}


def test_what_the_api_server_refuses_to_show_is_said_in_its_words() -> None:
    facts = cluster(nodes=None, refused={"nodes": "nodes: you lack this right"})
    report = examine(facts, CLUSTER_CHECKS)
    said = {skipped.why: skipped.checks for skipped in report.skipped}
    assert "no-gpu-node" in said["nodes: you lack this right"]


def test_whole_cards_that_the_agent_itself_lends_as_nvidias_are_no_second_plugin() -> None:
    ours = frozenset({"nvidia.com/gpu"})
    lends = replace(CLUSTER.agents, lends=True)  # type: ignore[type-var]  # not None here
    facts = cluster(nodes=(replace(NODE, gpu=1),), agents=lends)
    facts = replace(facts, kubelet=replace(KUBELET, others=ours, own_sockets=frozenset({"vnvidia.sock"})))
    assert examine(facts).findings == ()


@pytest.mark.parametrize("runtime", ["containerd://2.1.4", "containerd://1.7.28", "cri-o://1.36.0", ""])
def test_a_node_whose_cards_are_given_by_claims_offers_no_resource_and_lacks_nothing(runtime: str) -> None:
    here = replace(
        GOOD, cluster=replace(CLUSTER, nodes=(replace(NODE, core=0, labels=BY_CLAIMS, runtime=runtime),))
    )
    here = replace(
        here, kubelet=replace(KUBELET, registered=frozenset(), own_sockets=frozenset(), claims=True)
    )
    report = examine(here)
    assert (report.findings, report.skipped) == ((), ())
    given = replace(inventory(), cards=tuple(replace(s, held=DRA_DRIVER) for s in inventory().cards))
    split = {**NODE.labels, "tencent.com/vcuda-front": "split"}
    all_given = replace(NODE, core=0, labels=split, runtime=runtime, inventory=given)
    assert examine(replace(here, cluster=replace(CLUSTER, nodes=(all_given,)))).findings == ()
    blind = replace(here, runtime=replace(RUNTIME, cdi=None))
    assert "claims-without-cdi" in {name for one in examine(blind).skipped for name in one.checks}


def test_a_machine_that_is_no_node_is_told_so_and_what_to_run_instead() -> None:
    facts = replace(
        GOOD, driver=DriverFacts(pci_cards=0), kubelet=None, agent=None, blind={"kubelet": "none"}
    )
    report = examine(facts, NODE_CHECKS)
    (note,) = report.notes
    assert note.startswith("this machine is no Kubernetes node and shows no NVIDIA card")
    assert [f.check.id for f in report.findings] == ["no-card"]
    assert "are injected by" in examine(GOOD, NODE_CHECKS).notes[1]
    assert "would be injected by" in examine(replace(GOOD, agent=None), NODE_CHECKS).notes[1]


@pytest.mark.parametrize(
    "inventory_of_node",
    [None, replace(inventory(), serving=False), replace(inventory(), cards=(), topology=Topology(()))],
)
def test_whether_a_plugin_is_behind_nvidias_resource_an_agent_must_be_there_to_say(
    inventory_of_node: Inventory | None,
) -> None:
    found = [f.check.id for f in examine(node(gpu=8, inventory=inventory_of_node)).findings]
    assert "left-over-capacity" not in found
    assert "two-plugins-on-node" in found


@pytest.mark.parametrize(
    ("group", "unknown", "whys"),
    [
        (
            "agent",
            AgentFacts("http://127.0.0.1:5678", "0.1.0", {"registered": True}),
            {"the agent's metrics cannot be read"},
        ),
        (
            "kubelet",
            KubeletFacts(socket=True, pod_resources=True, told_policy="none"),
            {
                "neither command line nor configuration of the kubelet can be seen",
                "/sys/fs/cgroup cannot be read",
                "the kubelet's checkpoint cannot be read: run as root",
                "the directory of static pods cannot be read",
                "the cgroup drivers of kubelet and runtime are not both known",
            },
        ),
        (
            "runtime",
            RuntimeFacts("nvidia", "why", runtimes={"nvidia": ""}),
            {
                "the kubelet's configuration does not say which socket it uses",
                "no configuration shows whether the runtime reads CDI specs",
                "the version of libnvidia-container, or that of the cgroups, is not known",
            },
        ),
        ("cluster", ClusterFacts(nodes=(NODE,)), {"the API server did not show daemonsets"}),
    ],
)
def test_a_fact_that_is_not_known_is_said(group: str, unknown: Any, whys: set[str]) -> None:
    report = examine(replace(GOOD, **{group: unknown}))
    assert whys <= {skipped.why for skipped in report.skipped}
