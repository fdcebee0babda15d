"""What the doctor reads of a good machine in a good cluster, and the same with one thing changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import ALLOCATION, CORE, MEMORY, Assignment, Inventory, encode_assignment
from gpu_manager.domain.doctor.facts import (
    AgentFacts,
    AgentPods,
    ClusterFacts,
    DoctorNode,
    DriverFacts,
    Facts,
    KubeletFacts,
    PodFacts,
    RuntimeFacts,
    SchedulerFacts,
    Webhook,
)
from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod, PodUid
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.domain.topology import Link, Topology

NOW = 1_800_000_000.0
DAY = 86_400.0
DRIVER = DriverFacts(
    pci_cards=2,
    kernel="550.54.15",
    library="550.54.15",
    nvml_problem="",
    nvml_cards=2,
    devices=frozenset({"nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"}),
    enforcers=(),
    in_use={"550.54.15": 3},
)
RUNTIME = RuntimeFacts(
    strategy="cdi",
    why="/etc/containerd/config.toml: enable_cdi is true",
    config="/etc/containerd/config.toml",
    default_runtime="runc",
    runtimes={"runc": ""},
    systemd_cgroup=True,
    cdi=True,
    sockets=("/run/containerd/containerd.sock",),
    cri="/run/containerd/containerd.sock",
    toolkit=(1, 14, 3),
    cgroups=2,
)
KUBELET = KubeletFacts(
    socket=True,
    pod_resources=True,
    registered=frozenset({CORE, MEMORY}),
    own_sockets=frozenset({"vcore.sock", "vmemory.sock"}),
    cgroup_driver="systemd",
    cgroups=2,
    static_pods=(),
)
AGENT = AgentFacts(
    "http://127.0.0.1:5678",
    "0.1.0",
    {"registered": True},
    enforced={"default/a c": "active", "default/b c": "exclusive", "ml/w w/gpu": "admin"},
    evading=(),
    not_injected=(),
    stranded=0,
    unreadable={"pods": 0, "nodes": 0},
    kubelet_unverified=False,
    pages_among_others=0,
    evicts_itself=False,
    blind=(),
    unwitnessed=(),
    notes={"memory-refused": 4},
    sample_age_seconds=0.4,
    outside={"0 (GPU-a)": 3 << 20},
)


def inventory(**states: Any) -> Inventory:
    card = CardState(Card(0, CardUuid("GPU-a"), "V100", 16 * GIB), **states)
    return Inventory(256 << 20, (card,), Topology.uniform(1, Link.parse("SYS")))


NODE = DoctorNode("n1", inventory(), 100, 64, labels={"pool": "gpu", "tencent.com/gpu-model": "V100"})


def a_pod(name: str = "p", **more: Any) -> Pod:
    containers = (Container("c", ContainerKind.APP, core=60, memory_units=1),)  # type: ignore[arg-type]
    uid = PodUid(f"uid-{name}")
    shares = {"c": ((CardUuid("GPU-a"), Amount(60, GIB)),)}
    said = {ALLOCATION: encode_assignment(Assignment("n1", uid, shares))}
    base = Pod(uid, "default", name, containers, "n1", "Running", said, scheduler="gpu-scheduler")
    return replace(base, **more)


HOOK = Webhook("gpu", "mutate", mutating=True, policy="Fail", expires=NOW + 90 * DAY, service="kube-system/a")
CLUSTER = ClusterFacts(
    nodes=(NODE,),
    pods=(PodFacts(a_pod()),),
    agents=AgentPods("kube-system/gpu-manager-daemonset", {"pool": "gpu"}, {"n1": True}),
    agents_known=True,
    webhooks=(HOOK, replace(HOOK, name="validate", mutating=False)),
    services_ready={"kube-system/a": 2},
    serving_expires=NOW + 60 * DAY,
    schedulers=(SchedulerFacts("kube-system/s", ("gpu-scheduler",), extender=True),),
    runtime_classes=frozenset({"nvidia"}),
)
GOOD = Facts(NOW, DRIVER, RUNTIME, KUBELET, AGENT, CLUSTER)


def driver(**changed: Any) -> Facts:
    return replace(GOOD, driver=replace(DRIVER, **changed))


def runtime(**changed: Any) -> Facts:
    return replace(GOOD, runtime=replace(RUNTIME, **changed))


def kubelet(**changed: Any) -> Facts:
    return replace(GOOD, kubelet=replace(KUBELET, **changed))


def claims(**changed: Any) -> Facts:
    """A node whose cards are given by claims, and its runtime."""
    return replace(
        GOOD,
        runtime=replace(RUNTIME, **{"config": "", **changed}),
        kubelet=replace(KUBELET, registered=frozenset(), own_sockets=frozenset(), claims=True),
    )


def agent(**changed: Any) -> Facts:
    return replace(GOOD, agent=replace(AGENT, **changed))


def cluster(**changed: Any) -> Facts:
    return replace(GOOD, cluster=replace(CLUSTER, **changed))


def node(**changed: Any) -> Facts:
    return cluster(nodes=(replace(NODE, **changed),))


def hooks(**changed: Any) -> Facts:
    return cluster(webhooks=tuple(replace(hook, **changed) for hook in CLUSTER.webhooks or ()))


BY_CLAIMS = {**NODE.labels, "tencent.com/vcuda-front": "dra"}
