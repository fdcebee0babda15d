"""Checks of the kubelet of one machine, and of its settings against the runtime's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpu_manager.domain.contract import CORE, CORE_SOCKET, MEMORY, MEMORY_SOCKET, NVIDIA, NVIDIA_SOCKET
from gpu_manager.domain.doctor.facts import CheckGroup, KubeletFacts, RuntimeFacts, Unseen, seen
from gpu_manager.domain.errors import printable

KUBELET: Final = CheckGroup("kubelet")
BOTH: Final = CheckGroup("kubelet+runtime")


@KUBELET.trouble(
    "kubelet-socket-absent",
    "The agent registers at the kubelet's device-plugin socket.",
    "Start the kubelet; where its directory is not /var/lib/kubelet, name it with `--kubelet-dir` and mount "
    "it into the agent as a directory, not as a socket.",
)
def _no_kubelet_socket(kubelet: KubeletFacts, _: float) -> Iterator[str]:
    if not kubelet.socket:
        yield "device-plugins/kubelet.sock is not there: nobody to register with"


@KUBELET.trouble(
    "pod-resources-absent",
    "The agent asks the kubelet's PodResources API which container holds what.",
    "Mount the directory pod-resources into the agent; kubelets from 1.20 on serve it, below their "
    "`--root-dir` (`--pod-resources-socket`, chart value `agent.kubeletRootDir`).",
)
def _no_pod_resources(kubelet: KubeletFacts, _: float) -> Iterator[str]:
    if not kubelet.pod_resources:
        where = f"{kubelet.root}/" if kubelet.root else ""
        yield f"{where}pod-resources/kubelet.sock is not there: whose an Allocate is cannot be asked"


@KUBELET.trouble(
    "topology-policy-differs",
    "Agent and scheduler place by another NUMA policy than the kubelet's, which then fails pods.",
    "Leave `--topology-manager-policy` (chart value `agent.topologyManagerPolicy`) at `auto`: the agent "
    "reads the kubelet's own setting when it starts. Restart the agent once that was changed.",
)
def _topology_policy(kubelet: KubeletFacts, _: float) -> Iterator[str]:
    if not kubelet.told_policy:
        return
    policy = seen(kubelet.numa_policy, "neither command line nor configuration of the kubelet can be seen")
    if policy != kubelet.told_policy:
        told = f"what the agent was told ({kubelet.told_policy})"
        yield f"the kubelet's topologyManagerPolicy {printable(policy)} is not {told}"


@KUBELET.trouble(
    "plugin-not-registered",
    "The resources were never registered with the kubelet, so the node offers none.",
    "`gpu-manager status` says what the agent waits for; after a restart of the kubelet the agent registers "
    "again within a second.",
)
def _not_registered(kubelet: KubeletFacts, _: float) -> Iterator[str]:
    registered = seen(kubelet.registered, "the kubelet's checkpoint cannot be read: run as root")
    if kubelet.claims:
        return  # cards are given by claims, and no resource is offered
    for resource, socket in ((CORE, CORE_SOCKET), (MEMORY, MEMORY_SOCKET)):
        if resource not in registered:
            told = (
                "the agent's socket is there" if socket in kubelet.own_sockets else "no agent's socket either"
            )
            yield f"the kubelet does not know {resource} ({told})"


@KUBELET.trouble(
    "agent-silent",
    "A kubelet runs here, but no agent answers, so the cards are not offered.",
    "Look at the pod of gpu-manager-daemonset on this node (`kubectl vcuda doctor` says if there is one); "
    "name its address with `--url`, its token with `--token`.",
)
def _agent_silent(kubelet: KubeletFacts, _: float) -> Iterator[str]:
    if kubelet.agent_problem:
        yield kubelet.agent_problem


@KUBELET.trouble(
    "two-plugins",
    "Two device plugins offer the same cards: pods of one ignore the limits of the other.",
    "Take the other plugin off this node (NVIDIA's with the GPU operator: label "
    "`nvidia.com/gpu.deploy.device-plugin=false`; docs/gpu-operator.md says what becomes of its validator).",
)
def _two_plugins(kubelet: KubeletFacts, _: float) -> Iterator[str]:
    registered = seen(kubelet.registered, "the kubelet's checkpoint cannot be read: run as root")
    ours = {NVIDIA} if NVIDIA_SOCKET in kubelet.own_sockets else set()
    for resource in sorted(kubelet.others - ours) if CORE in registered else ():
        yield f"the kubelet gives both {CORE} and {printable(resource)} of the same cards"


@KUBELET.warning(
    "static-pod",
    "Static pods are unsupported: they pass neither webhook nor scheduler, and one started before the "
    "plugin registers runs without any card.",
    "Run it as a Deployment or DaemonSet.",
)
def _static_pods(kubelet: KubeletFacts, _: float) -> Iterator[str]:
    for name in seen(kubelet.static_pods, "the directory of static pods cannot be read"):
        yield f"static pod {name} asks for {CORE}"


@KUBELET.warning(
    "cgroup-v1",
    "Kubernetes ends its support for cgroup v1; the library's limits work on it nevertheless.",
    "Boot the node with `systemd.unified_cgroup_hierarchy=1`, as newer distributions do by default.",
)
def _cgroup_v1(kubelet: KubeletFacts, _: float) -> Iterator[str]:
    cgroups = seen(kubelet.cgroups, "/sys/fs/cgroup cannot be read")
    if cgroups == 1:
        more = (
            ""
            if kubelet.fail_cgroup_v1 is False
            else "; kubelets from 1.35 on refuse it unless failCgroupV1 is false"
        )
        yield f"the node has cgroup v1: the driver's own memory limit (dmem) needs v2{more}"


@BOTH.trouble(
    "runtime-not-found",
    "A kubelet runs here, but no container runtime was recognised.",
    "Start containerd or CRI-O; where its files lie elsewhere, say how cards are injected with "
    "`--device-injection`.",
)
def _no_runtime(pair: tuple[KubeletFacts, RuntimeFacts], _: float) -> Iterator[str]:
    runtime = pair[1]
    if not runtime.sockets and not runtime.config:
        yield "no socket and no configuration of containerd, CRI-O or cri-dockerd was found"


@BOTH.trouble(
    "claims-without-cdi",
    "Devices of claims reach a container by CDI alone: pods stay at ContainerCreating with `unresolvable "
    "CDI devices`.",
    "Upgrade to containerd 2, or set `enable_cdi = true` in containerd 1.7 and restart it; or go back to "
    "`--front plugin`.",
)
def _claims_without_cdi(pair: tuple[KubeletFacts, RuntimeFacts], _: float) -> Iterator[str]:
    kubelet, runtime = pair
    if not kubelet.claims:
        return
    cdi = seen(runtime.cdi, "no configuration shows whether the runtime reads CDI specs")
    if not cdi:
        yield f"the agent gives its cards by claims, and {runtime.config or 'the runtime'} has CDI off"


@BOTH.trouble(
    "cgroup-driver-differs",
    "Kubelet and runtime must use the same cgroup driver, or containers are killed and processes cannot be "
    "mapped to containers.",
    "Set `SystemdCgroup = true` for runc in the runtime's configuration and `cgroupDriver: systemd` in the "
    "kubelet's, and restart both.",
)
def _cgroup_drivers(pair: tuple[KubeletFacts, RuntimeFacts], _: float) -> Iterator[str]:
    kubelet, runtime = pair
    if not kubelet.cgroup_driver or runtime.systemd_cgroup is None:
        raise Unseen("the cgroup drivers of kubelet and runtime are not both known")
    runs = "systemd" if runtime.systemd_cgroup else "cgroupfs"
    if kubelet.cgroup_driver != runs:
        yield f"the kubelet uses the cgroup driver {kubelet.cgroup_driver}, {runtime.config} uses {runs}"
