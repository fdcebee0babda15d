"""Checks of the kubelet of one machine, and of its settings against the runtime's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpu_manager.domain.contract import CORE, CORE_SOCKET, MEMORY, MEMORY_SOCKET, NVIDIA, NVIDIA_SOCKET
from gpu_manager.domain.doctor.facts import DoctorCheck, KubeletFacts, RuntimeFacts, Severity, Unseen
from gpu_manager.domain.errors import printable


def _cgroup_v1(kubelet: KubeletFacts, _: float) -> Iterator[str]:
    if kubelet.cgroups is None:
        raise Unseen("/sys/fs/cgroup cannot be read")
    if kubelet.cgroups == 1:
        more = (
            ""
            if kubelet.fail_cgroup_v1 is False
            else "; kubelets from 1.35 on refuse it unless failCgroupV1 is false"
        )
        yield f"the node has cgroup v1: the driver's own memory limit (dmem) needs v2{more}"


def _no_kubelet_socket(kubelet: KubeletFacts, _: float) -> Iterator[str]:
    if not kubelet.socket:
        yield "device-plugins/kubelet.sock is not there: nobody to register with"


def _no_pod_resources(kubelet: KubeletFacts, _: float) -> Iterator[str]:
    if not kubelet.pod_resources:
        where = f"{kubelet.root}/" if kubelet.root else ""
        yield f"{where}pod-resources/kubelet.sock is not there: whose an Allocate is cannot be asked"


def _topology_policy(kubelet: KubeletFacts, _: float) -> Iterator[str]:
    if not kubelet.told_policy:
        return
    if kubelet.numa_policy is None:
        raise Unseen("neither command line nor configuration of the kubelet can be seen")
    if kubelet.numa_policy != kubelet.told_policy:
        seen = printable(kubelet.numa_policy)
        told = f"what the agent was told ({kubelet.told_policy})"
        yield f"the kubelet's topologyManagerPolicy {seen} is not {told}"


def _not_registered(kubelet: KubeletFacts, _: float) -> Iterator[str]:
    if kubelet.registered is None:
        raise Unseen("the kubelet's checkpoint cannot be read: run as root")
    if kubelet.claims:
        return  # cards are given by claims, and no resource is offered
    for resource, socket in ((CORE, CORE_SOCKET), (MEMORY, MEMORY_SOCKET)):
        if resource not in kubelet.registered:
            told = (
                "the agent's socket is there" if socket in kubelet.own_sockets else "no agent's socket either"
            )
            yield f"the kubelet does not know {resource} ({told})"


def _two_plugins(kubelet: KubeletFacts, _: float) -> Iterator[str]:
    if kubelet.registered is None:
        raise Unseen("the kubelet's checkpoint cannot be read: run as root")
    ours = {NVIDIA} if NVIDIA_SOCKET in kubelet.own_sockets else set()
    for resource in sorted(kubelet.others - ours) if CORE in kubelet.registered else ():
        yield f"the kubelet gives both {CORE} and {printable(resource)} of the same cards"


def _agent_silent(kubelet: KubeletFacts, _: float) -> Iterator[str]:
    if kubelet.agent_problem:
        yield kubelet.agent_problem


def _no_runtime(pair: tuple[KubeletFacts, RuntimeFacts], _: float) -> Iterator[str]:
    runtime = pair[1]
    if not runtime.sockets and not runtime.config:
        yield "no socket and no configuration of containerd, CRI-O or cri-dockerd was found"


def _cgroup_drivers(pair: tuple[KubeletFacts, RuntimeFacts], _: float) -> Iterator[str]:
    kubelet, runtime = pair
    if not kubelet.cgroup_driver or runtime.systemd_cgroup is None:
        raise Unseen("the cgroup drivers of kubelet and runtime are not both known")
    runs = "systemd" if runtime.systemd_cgroup else "cgroupfs"
    if kubelet.cgroup_driver != runs:
        yield f"the kubelet uses the cgroup driver {kubelet.cgroup_driver}, {runtime.config} uses {runs}"


def _claims_without_cdi(pair: tuple[KubeletFacts, RuntimeFacts], _: float) -> Iterator[str]:
    kubelet, runtime = pair
    if not kubelet.claims:
        return
    if runtime.cdi is None:
        raise Unseen("no configuration shows whether the runtime reads CDI specs")
    if not runtime.cdi:
        yield f"the agent gives its cards by claims, and {runtime.config or 'the runtime'} has CDI off"


def _static_pods(kubelet: KubeletFacts, _: float) -> Iterator[str]:
    if kubelet.static_pods is None:
        raise Unseen("the directory of static pods cannot be read")
    for name in kubelet.static_pods:
        yield f"static pod {name} asks for {CORE}"


KUBELET: Final = (
    DoctorCheck(
        id="kubelet-socket-absent",
        group="kubelet",
        severity=Severity.TROUBLE,
        what="The agent registers at the kubelet's device-plugin socket.",
        cure=(
            "Start the kubelet; where its directory is not /var/lib/kubelet, name it with "
            "`--kubelet-dir` and mount it into the agent as a directory, not as a socket."
        ),
        judge=_no_kubelet_socket,
    ),
    DoctorCheck(
        id="pod-resources-absent",
        group="kubelet",
        severity=Severity.TROUBLE,
        what="The agent asks the kubelet's PodResources API which container holds what.",
        cure=(
            "Mount the directory pod-resources into the agent; kubelets from 1.20 on serve it, below their "
            "`--root-dir` (`--pod-resources-socket`, chart value `agent.kubeletRootDir`)."
        ),
        judge=_no_pod_resources,
    ),
    DoctorCheck(
        id="topology-policy-differs",
        group="kubelet",
        severity=Severity.TROUBLE,
        what="Agent and scheduler place by another NUMA policy than the kubelet's, which then fails pods.",
        cure=(
            "Leave `--topology-manager-policy` (chart value `agent.topologyManagerPolicy`) at `auto`: the "
            "agent reads the kubelet's own setting when it starts. Restart the agent once that was changed."
        ),
        judge=_topology_policy,
    ),
    DoctorCheck(
        id="plugin-not-registered",
        group="kubelet",
        severity=Severity.TROUBLE,
        what="The resources were never registered with the kubelet, so the node offers none.",
        cure=(
            "`gpu-manager status` says what the agent waits for; after a restart of the kubelet the "
            "agent registers again within a second."
        ),
        judge=_not_registered,
    ),
    DoctorCheck(
        id="agent-silent",
        group="kubelet",
        severity=Severity.TROUBLE,
        what="A kubelet runs here, but no agent answers, so the cards are not offered.",
        cure=(
            "Look at the pod of gpu-manager-daemonset on this node (`kubectl vcuda doctor` says if there "
            "is one); name its address with `--url`, its token with `--token`."
        ),
        judge=_agent_silent,
    ),
    DoctorCheck(
        id="two-plugins",
        group="kubelet",
        severity=Severity.TROUBLE,
        what="Two device plugins offer the same cards: pods of one ignore the limits of the other.",
        cure=(
            "Take the other plugin off this node (NVIDIA's with the GPU operator: label "
            "`nvidia.com/gpu.deploy.device-plugin=false`)."
        ),
        judge=_two_plugins,
    ),
    DoctorCheck(
        id="static-pod",
        group="kubelet",
        severity=Severity.WARNING,
        what=(
            "Static pods are unsupported: they pass neither webhook nor scheduler, and one started "
            "before the plugin registers runs without any card."
        ),
        cure="Run it as a Deployment or DaemonSet.",
        judge=_static_pods,
    ),
    DoctorCheck(
        id="cgroup-v1",
        group="kubelet",
        severity=Severity.WARNING,
        what="Kubernetes ends its support for cgroup v1; the library's limits work on it nevertheless.",
        cure=(
            "Boot the node with `systemd.unified_cgroup_hierarchy=1`, as newer distributions do by default."
        ),
        judge=_cgroup_v1,
    ),
)
BOTH: Final = (
    DoctorCheck(
        id="runtime-not-found",
        group="kubelet+runtime",
        severity=Severity.TROUBLE,
        what="A kubelet runs here, but no container runtime was recognised.",
        cure=(
            "Start containerd or CRI-O; where its files lie elsewhere, say how cards are injected with "
            "`--device-injection`."
        ),
        judge=_no_runtime,
    ),
    DoctorCheck(
        id="claims-without-cdi",
        group="kubelet+runtime",
        severity=Severity.TROUBLE,
        what=(
            "Devices of claims reach a container by CDI alone: pods stay at ContainerCreating with "
            "`unresolvable CDI devices`."
        ),
        cure=(
            "Upgrade to containerd 2, or set `enable_cdi = true` in containerd 1.7 and restart it; or go "
            "back to `--front plugin`."
        ),
        judge=_claims_without_cdi,
    ),
    DoctorCheck(
        id="cgroup-driver-differs",
        group="kubelet+runtime",
        severity=Severity.TROUBLE,
        what=(
            "Kubelet and runtime must use the same cgroup driver, or containers are killed and processes "
            "cannot be mapped to containers."
        ),
        cure=(
            "Set `SystemdCgroup = true` for runc in the runtime's configuration and `cgroupDriver: "
            "systemd` in the kubelet's, and restart both."
        ),
        judge=_cgroup_drivers,
    ),
)
