"""Each of the doctor's checks: what it finds, and what it lets pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_manager.domain.contract import CORE, EVICT, RESIZE, EvictionMark, encode_eviction_mark
from gpu_manager.domain.doctor import CHECKS, CLUSTER_CHECKS, examine
from gpu_manager.domain.doctor.facts import AgentPods, DoctorNode, Facts, PodFacts, Severity
from gpu_manager.domain.resize.judgement import NamespaceLimits
from tests.fakes.doctor_facts import (
    BY_CLAIMS,
    CLUSTER,
    DAY,
    DRIVER,
    GOOD,
    HOOK,
    NODE,
    NOW,
    a_pod,
    agent,
    claims,
    cluster,
    driver,
    hooks,
    inventory,
    kubelet,
    node,
    runtime,
)

TAKEN = inventory(
    healthy=False, reason="another device plugin of this node offers the card as nvidia.com/gpu"
)
RESIZED_POD = a_pod("r")
RESIZED_POD = replace(
    RESIZED_POD,
    annotations={**RESIZED_POD.annotations, RESIZE: '{"v":1,"containers":{"c":{"cores":80}}}'},
)
_CORES = "requests.tencent.com/vcuda-core"
PAST = NamespaceLimits([{"spec": {"hard": {_CORES: 60}}, "status": {"used": {_CORES: 60}}}])
BARE = DoctorNode("n2", None, None, None, hinted="1 nvidia.com/gpu", labels={"old": ""})
TWO_WAYS = (
    (("enable", "In", frozenset({"on", "yes"})),),
    (("present", "In", frozenset({"true"})), ("old", "DoesNotExist", frozenset[str]())),
)
MARK = encode_eviction_mark(EvictionMark("uid-p", "its card is lost", 0))
TWO_OF_60 = (PodFacts(a_pod()), PodFacts(a_pod("q")))
FOUND = [
    ("no-card", driver(pci_cards=0, nvml_cards=None), "shows no NVIDIA card"),
    ("driver-not-loaded", driver(kernel=None, nvml_cards=None), "no NVIDIA kernel module"),
    ("enforced-elsewhere", driver(enforcers=("NVIDIA's MPS",)), "NVIDIA's MPS runs here, and holds programs"),
    ("driver-library-missing", driver(library=None, library_problem="no libcuda.so.1"), "no libcuda.so.1"),
    ("driver-mismatch", driver(kernel="535.1.2"), "535.1.2, the libraries on disk are 550.54.15"),
    ("nvml-unusable", driver(nvml_problem="libnvidia-ml.so.1 was not found"), "libnvidia-ml.so.1"),
    ("card-not-driven", driver(nvml_cards=1), "the driver 1"),
    ("device-node-missing", driver(devices=DRIVER.devices - {"nvidia-uvm"}), "/dev/nvidia-uvm is missing"),
    ("device-node-missing", driver(devices=DRIVER.devices - {"nvidia1"}), "2 cards, 1 file"),
    ("driver-upgraded", driver(in_use={"535.1.2": 1}), "1 process has libcuda 535.1.2 open"),
    ("runtime-not-found", runtime(sockets=(), config=""), "no socket and no configuration"),
    ("cri-socket-wrong", runtime(cri="/run/docker.sock"), "there is /run/containerd/containerd.sock"),
    ("runtime-binary-missing", runtime(runtimes={"nvidia": "/x"}, missing=frozenset({"nvidia"})), "is /x"),
    ("default-runtime-wrong", runtime(default_runtime="nvidia"), "default_runtime_name is nvidia"),
    ("cdi-off", runtime(cdi=False, strategy="direct", why="enable_cdi is false"), "by direct instead"),
    ("devices-allow", runtime(default_runtime="nvidia", toolkit=(1, 3, 1)), "devices.allow: no such file"),
    ("devices-lost-on-reload", runtime(strategy="nvidia"), "daemon-reload"),
    ("cards-by-variable", runtime(strategy="nvidia"), "every card that NVIDIA_VISIBLE_DEVICES names"),
    (
        "cards-by-variable",
        runtime(strategy="cdi", by_variable=True, default_runtime="nvidia", runtimes={"nvidia": ""}),
        "the NVIDIA runtime nvidia, the default, shows a container every card",
    ),
    ("kubelet-socket-absent", kubelet(socket=False), "kubelet.sock is not there"),
    ("pod-resources-absent", kubelet(pod_resources=False), "pod-resources/kubelet.sock"),
    (
        "topology-policy-differs",
        kubelet(numa_policy="restricted", told_policy="none"),
        "the kubelet's topologyManagerPolicy restricted is not what the agent was told (none)",
    ),
    ("plugin-not-registered", kubelet(registered=frozenset({CORE})), "vcuda-memory (the agent's socket"),
    ("plugin-not-registered", kubelet(registered=frozenset(), own_sockets=frozenset()), "no agent's socket"),
    ("agent-silent", kubelet(agent_problem="no agent answers"), "no agent answers"),
    (
        "two-plugins",
        kubelet(others=frozenset({"volcano.sh/vgpu-number"})),
        "and volcano.sh/vgpu-number of the",
    ),
    ("static-pod", kubelet(static_pods=("kube-system/s (/etc/s.yaml)",)), "static pod kube-system/s"),
    ("cgroup-v1", kubelet(cgroups=1), "failCgroupV1"),
    ("card-whole-only", agent(whole_only=("card 0 (GPU-a): compute mode",)), "card 0 (GPU-a): compute mode"),
    ("memory-outside", agent(outside={"0 (GPU-a)": 13 << 30}), "card 0 (GPU-a): 13 GiB are held by"),
    ("claims-without-cdi", claims(cdi=False, config="/etc/c.toml"), "/etc/c.toml has CDI off"),
    ("claims-without-cdi", claims(cdi=False), "the runtime has CDI off"),
    ("cgroup-driver-differs", kubelet(cgroup_driver="cgroupfs"), "uses systemd"),
    ("agent-not-ready", agent(ready={"registered": False}, why="no kubelet"), "registered does not hold: no"),
    ("enforcement-off", agent(enforced={"default/a c": "tampered"}), "default/a c: enforcement is tampered"),
    (
        "enforcement-unknown",
        agent(enforced={"default/a c": "unknown"}),
        "default/a c: whether its limits hold",
    ),
    ("evading", agent(evading=("default/a c: memory",)), "default/a c: memory"),
    ("runtime-config-broken", runtime(broken="b is of version 4, above the 2 of a"), "above the 2 of a"),
    ("stranded-containers", agent(stranded=2), "2 containers cannot be started again once ended"),
    ("not-injected", agent(not_injected=("default/a c",)), "default/a c runs without the mounts"),
    ("library-trouble", agent(notes={"cuda-refused": 3}), "refused CUDA, 3 times"),
    (
        "accounts-unwitnessed",
        agent(unwitnessed=(("0", "host-pid"),)),
        "card 0: the agent runs without hostPID",
    ),
    ("evasion-detection-blind", agent(blind=("host-pid",)), "without hostPID"),
    ("card-closed", agent(closed=("card 0 (GPU-a) is cordoned",)), "is cordoned"),
    ("objects-unreadable", agent(unreadable={"pods": 1}), "one of the pods could not be read, once since"),
    ("objects-unreadable", agent(unreadable={"nodes": 0, "pods": 3}), "3 times since the agent's start"),
    ("kubelet-unverified", agent(kubelet_unverified=True), "certificate of the node's kubelet"),
    ("pages-on-run", agent(pages_among_others=2), "the pages of 2 containers can fill"),
    ("evicts-itself", agent(evicts_itself=True), "may evict the pods of every node"),
    ("sample-old", agent(sample_age_seconds=61.0), "61 s ago"),
    ("no-gpu-node", node(inventory=None, core=None), "of 1 node none publishes"),
    ("inventory-unreadable", node(inventory_unreadable=True), "node n1"),
    ("node-offers-nothing", node(core=0), "has 1 card and offers 0"),
    ("node-offers-nothing", node(core=None), "offers no tencent.com/vcuda-core"),
    ("claims-old-runtime", node(labels=BY_CLAIMS, runtime="containerd://1.6.31"), "runs containerd 1.6.31"),
    ("claims-old-runtime", node(labels=BY_CLAIMS, runtime="docker://24.0.7"), "runs docker 24.0.7"),
    ("agent-absent", cluster(agents=None), "no DaemonSet"),
    ("agent-absent", cluster(agents=replace(CLUSTER.agents, ready={"n1": False})), "on node n1 is not ready"),
    (
        "agent-not-serving",
        node(inventory=replace(inventory(), serving=False)),
        "node n1: its agent is starting",
    ),
    ("agent-gone", cluster(agents=replace(CLUSTER.agents, ready={})), "node n1 publishes cards"),
    (
        "node-label-missing",
        cluster(
            nodes=(DoctorNode("n2", None, None, None, hinted="label nvidia.com/gpu.present"),),
            agents=replace(CLUSTER.agents, ready={}),
        ),
        "not the label pool=gpu",
    ),
    (
        "node-label-missing",
        cluster(nodes=(BARE,), agents=replace(CLUSTER.agents, ready={}, selector={}, affinity=TWO_WAYS)),
        "not the label enable=on|yes or present=true and no old",
    ),
    ("model-label-missing", node(labels={}), "neither tencent.com/gpu-model"),
    ("model-label-wrong", node(labels={"tencent.com/gpu-model": "H100"}), "gpu-model=H100, its cards are"),
    (
        "units-differ",
        cluster(nodes=(NODE, replace(NODE, inventory=replace(inventory(), unit=1)))),
        "1 in 1 B",
    ),
    ("two-plugins-on-node", node(gpu=1, inventory=TAKEN), "offers 1 nvidia.com/gpu beside 100"),
    (
        "shared-elsewhere",
        node(labels={**NODE.labels, "gpu-fractioning.kai.scheduler/nvidia-driver-version.major": "615"}),
        "node n1 has the label gpu-fractioning.kai.scheduler/nvidia-driver-version.major=615 of gpu-fractioning",
    ),
    (
        "shared-elsewhere",
        node(labels={**NODE.labels, "nvidia.com/gpu.sharing-strategy": "mps"}),
        "nvidia.com/gpu.sharing-strategy=mps of NVIDIA's plugin, with MPS",
    ),
    (
        "shared-elsewhere",
        cluster(given_elsewhere={"n1": ("a/p has a part of a card by HAMi",), "n7": ("a/q",)}),
        "node n1: pod a/p has a part of a card by HAMi",
    ),
    ("left-over-capacity", node(gpu=8), "node n1 shows 8 nvidia.com/gpu, and no plugin offers them"),
    (
        "node-gone",
        cluster(nodes=(replace(NODE, name="n2"),)),
        "node n1, on which 1 pod with tencent.com/vcuda-core run, is gone from the API",
    ),
    ("card-unhealthy", node(inventory=inventory(healthy=False)), "card 0 (GPU-a)"),
    ("card-over-committed", cluster(pods=TWO_OF_60), "120 of 100 cores of card GPU-a"),
    ("webhook-missing", cluster(webhooks=(HOOK,)), "no validating webhook"),
    ("webhook-certificate", hooks(expires=NOW + 2 * DAY), "expires in 2.0 days"),
    ("webhook-certificate", hooks(expires=NOW - DAY), "expired 1.0 days ago"),
    ("webhook-certificate", hooks(expires=None), "holds no certificate"),
    ("webhook-certificate", cluster(serving_expires=NOW + DAY), "the certificate of the admission service"),
    ("webhook-down", cluster(services_ready={}), "service kube-system/a has no ready pod"),
    ("webhook-fails-open", hooks(policy="Ignore"), "gpu/validate: failurePolicy is Ignore"),
    ("scheduler-without-extender", cluster(schedulers=()), "no KubeSchedulerConfiguration"),
    (
        "scheduler-without-extender",
        cluster(pods=(PodFacts(a_pod(scheduler="")),)),
        "scheduler default-scheduler, which 1 pod with tencent.com/vcuda-core came to, has no extender",
    ),
    ("pod-without-card", cluster(pods=(PodFacts(a_pod(annotations={})),)), "on no card that is said"),
    (
        "pod-without-card",
        cluster(pods=(PodFacts(a_pod(node="n9")),), nodes=(NODE, DoctorNode("n9", None, None, None))),
        "which publishes no cards",
    ),
    (
        "pod-stranded",
        cluster(nodes=(replace(NODE, inventory=replace(inventory(), stranded=("uid-p", "uid-gone"))),)),
        "pod default/p on node n1 cannot start a container again",
    ),
    (
        "pod-marked",
        cluster(pods=(PodFacts(a_pod(annotations={**a_pod().annotations, EVICT: MARK})),)),
        "pod default/p on node n1 is to be evicted: its card is lost",
    ),
    (
        "pod-refused",
        cluster(
            pods=(PodFacts(a_pod(phase="Failed"), refused="Pod was rejected: no healthy devices present"),)
        ),
        "pod default/p on node n1: Pod was rejected: no healthy devices present",
    ),
    (
        "resized-past-limits",
        cluster(pods=(PodFacts(RESIZED_POD),), limits={"default": PAST}),
        "pods come to 80",
    ),
    ("static-pod-in-cluster", cluster(pods=(PodFacts(a_pod(), static=True),)), "is static"),
    ("runtime-class-missing", cluster(pods=(PodFacts(a_pod(), runtime_class="x"),)), "runtimeClass x"),
]


def test_a_good_machine_in_a_good_cluster_shows_nothing() -> None:
    report = examine(GOOD)
    assert (report.findings, report.skipped) == ((), ())
    assert report.healthy
    assert len(report.passed) == len(CHECKS)


@pytest.mark.parametrize(("name", "facts", "text"), FOUND, ids=[f"{f[0]}-{i}" for i, f in enumerate(FOUND)])
def test_a_fault_is_found_with_its_values_and_judged_by_its_severity(
    name: str, facts: Facts, text: str
) -> None:
    report = examine(facts)
    found = [finding for finding in report.findings if finding.check.id == name]
    assert text in " ".join(finding.text for finding in found)
    assert found[0].check.cure
    trouble = any(f.check.severity is Severity.TROUBLE for f in report.findings)
    assert report.healthy is not trouble


def test_every_check_has_a_fault_in_this_table_and_a_name_of_its_own() -> None:
    assert {name for name, _, _ in FOUND} == {check.id for check in CHECKS}
    assert len({check.id for check in CHECKS}) == len(CHECKS)


hostile = st.text(st.characters(codec="utf-8"), max_size=30)


@given(hostile, hostile)
def test_names_that_others_chose_cannot_move_the_cursor(name: str, label: str) -> None:
    bad = replace(NODE, name=name, core=0, gpu=1, inventory_unreadable=True, labels={"pool": label})
    pod = a_pod(namespace=name, name=label, node=name, scheduler=label)
    facts = cluster(
        nodes=(bad,),
        pods=(PodFacts(pod, static=True, runtime_class=name), PodFacts(pod)),
        agents=AgentPods("a", {label: name}, {name: False}),
        webhooks=(replace(HOOK, configuration=name, name=label, expires=None, service=name),),
    )
    for finding in examine(facts, CLUSTER_CHECKS).findings:
        assert finding.text.isprintable()


def test_a_node_that_one_of_the_agents_alternatives_lets_in_lacks_no_label() -> None:
    for labels in ({"enable": "on"}, {"present": "true"}):
        agents = replace(CLUSTER.agents, selector={}, affinity=TWO_WAYS)
        facts = cluster(nodes=(NODE, replace(BARE, labels=labels)), agents=agents)
        assert "node-label-missing" in examine(facts, CLUSTER_CHECKS).passed


def test_many_cases_of_one_fault_are_counted_not_listed() -> None:
    many = tuple(replace(NODE, name=f"n{i}", gpu=1, inventory=TAKEN) for i in range(500))
    found = [f for f in examine(cluster(nodes=many)).findings if f.check.id == "two-plugins-on-node"]
    assert len(found) == 11
    assert found[-1].text == "and 490 more like these"


def test_the_page_of_the_docs_names_every_check() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert [line[4:] for line in page.splitlines() if line.startswith("### ")] == [c.id for c in CHECKS]
