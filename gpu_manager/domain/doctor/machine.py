"""Checks of one machine: its NVIDIA driver, its kubelet, its container runtime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpu_manager.domain.contract import CORE, CORE_SOCKET, MEMORY, MEMORY_SOCKET, NVIDIA, NVIDIA_SOCKET
from gpu_manager.domain.doctor.facts import (
    CheckGroup,
    DriverFacts,
    KubeletFacts,
    RuntimeFacts,
    Unseen,
    counted,
    seen,
)
from gpu_manager.domain.errors import printable

# Checks of the NVIDIA driver of one machine.


_CONTROL_DEVICES: Final = ("nvidiactl", "nvidia-uvm")


DRIVER: Final = CheckGroup("driver")


@DRIVER.trouble(
    "no-card",
    "The machine has no NVIDIA card, or the hypervisor hides it.",
    "Nothing, if the node is to have none: keep the agent off it by its node selector. Else `lspci -d "
    "10de:` must show the card.",
)
def _no_card(driver: DriverFacts, _: float) -> Iterator[str]:
    pci_cards = seen(driver.pci_cards, "/sys/bus/pci cannot be read")
    if pci_cards == 0 and not driver.nvml_cards:
        yield "the PCI bus shows no NVIDIA card"


def _with_cards(driver: DriverFacts) -> int:
    """Return the number of cards. Raises Unseen if there is none: then nothing is missing."""
    count = max(driver.pci_cards or 0, driver.nvml_cards or 0)
    if not count:
        raise Unseen("this machine shows no NVIDIA card")
    return count


@DRIVER.trouble(
    "driver-not-loaded",
    "The machine has a card, but no driver is loaded.",
    "Install the NVIDIA driver of the card's generation; with the GPU operator name its root with "
    "`--driver-root`. `modprobe nvidia` says why it does not load; with Secure Boot its modules must be "
    "signed.",
)
def _not_loaded(driver: DriverFacts, _: float) -> Iterator[str]:
    count = _with_cards(driver)
    if driver.kernel is None and driver.nvml_cards is None:
        yield f"the PCI bus shows {counted(count, 'NVIDIA card')}, but no NVIDIA kernel module is loaded"


@DRIVER.trouble(
    "driver-library-missing",
    "The driver's libraries, which containers need, were not found.",
    "Install the NVIDIA driver of the card's generation; with the GPU operator name its root with "
    "`--driver-root`.",
)
def _no_library(driver: DriverFacts, _: float) -> Iterator[str]:
    _with_cards(driver)
    if driver.library is None:
        yield driver.library_problem or "the driver's libraries were not found"


@DRIVER.trouble(
    "driver-mismatch",
    "The driver was upgraded on disk while the old kernel module stayed loaded: new containers fail with a "
    "version mismatch.",
    "Reboot the node, or drain it, take the agent off it (it holds the driver open), and reload the kernel "
    "modules (`rmmod nvidia_uvm nvidia; modprobe nvidia`).",
)
def _mismatch(driver: DriverFacts, _: float) -> Iterator[str]:
    _with_cards(driver)
    if driver.kernel is None or not driver.library:
        raise Unseen("the driver's versions are not both known")
    if driver.kernel != driver.library:
        yield f"the loaded kernel module is {driver.kernel}, the libraries on disk are {driver.library}"


@DRIVER.trouble(
    "nvml-unusable",
    "NVML, by which cards are listed and measured, does not answer.",
    "Follow the message; `nvidia-smi` on the node must work first.",
)
def _nvml(driver: DriverFacts, _: float) -> Iterator[str]:
    _with_cards(driver)
    nvml_problem = seen(driver.nvml_problem, "NVML was not asked")
    if nvml_problem:
        yield nvml_problem


@DRIVER.trouble(
    "card-not-driven",
    "A card that the bus shows is not served by the driver: fallen off the bus, bound to vfio, or too old "
    "for this driver.",
    "Look for NVRM and Xid lines in `dmesg`; a card passed to a virtual machine is meant to be missing.",
)
def _cards_lost(driver: DriverFacts, _: float) -> Iterator[str]:
    _with_cards(driver)
    if driver.pci_cards is None or driver.nvml_cards is None:
        raise Unseen("the cards were not counted both ways")
    if driver.nvml_cards < driver.pci_cards:
        yield f"the PCI bus shows {counted(driver.pci_cards, 'NVIDIA card')}, the driver {driver.nvml_cards}"


@DRIVER.trouble(
    "device-node-missing",
    "Without the nodes in /dev no container can open a card; /dev/nvidia-uvm appears with the first use "
    "only.",
    "`nvidia-modprobe -u -c=0` on the host makes them; nvidia-persistenced keeps them over reboots.",
)
def _no_device(driver: DriverFacts, _: float) -> Iterator[str]:
    count = _with_cards(driver)
    for name in _CONTROL_DEVICES:
        if name not in driver.devices:
            yield f"/dev/{name} is missing"
    nodes = sum(name.removeprefix("nvidia").isdecimal() for name in driver.devices)
    wanted = driver.nvml_cards if driver.nvml_cards is not None else count
    if nodes < wanted:
        yield f"{counted(wanted, 'card')}, {counted(nodes, 'file')} /dev/nvidia<n>"


@DRIVER.warning(
    "driver-upgraded",
    "The driver was upgraded under running pods: they run on with the old libraries, and mixed with new "
    "ones a restart of one container fails.",
    "Restart those pods once the node runs the new driver.",
)
def _upgraded(driver: DriverFacts, _: float) -> Iterator[str]:
    _with_cards(driver)
    in_use = seen(driver.in_use, "other processes cannot be seen: run as root in the host's PID namespace")
    if not driver.library:
        raise Unseen("the version of the driver's libraries is not known")
    for version, count in sorted(in_use.items()):
        if version != driver.library:
            is_or_are = "process has" if count == 1 else "processes have"
            yield f"{count} {is_or_are} libcuda {version} open, the node now has {driver.library}"


@DRIVER.warning(
    "enforced-elsewhere",
    "Another system holds programs on this node to shares: neither knows what the other has given.",
    "Keep one of them on a node: end the daemon, or take the label of the agent's nodes away "
    "(`nvidia-device-enable`). docs/which.md says when which.",
)
def _enforced_elsewhere(driver: DriverFacts, _: float) -> Iterator[str]:
    for name in seen(driver.enforcers, "the node's processes cannot be seen"):
        yield f"{name} runs here, and holds programs to shares of its own"


# Checks of the container runtime of one machine.


_FIRST_TOOLKIT_OF_V2: Final = (1, 8, 0)


RUNTIME: Final = CheckGroup("runtime")


@RUNTIME.trouble(
    "cri-socket-wrong",
    "The kubelet is configured for a runtime socket that does not exist.",
    "Set containerRuntimeEndpoint of the kubelet's configuration to the socket that exists, and restart the "
    "kubelet.",
)
def _wrong_socket(runtime: RuntimeFacts, _: float) -> Iterator[str]:
    cri = seen(runtime.cri, "the kubelet's configuration does not say which socket it uses")
    if cri not in runtime.sockets:
        there = ", ".join(runtime.sockets) or "none"
        yield f"the kubelet is told to use {cri}, which does not exist; there is {there}"


@RUNTIME.trouble(
    "runtime-config-broken",
    "The runtime will not start again with the files that it has now.",
    "Write the imported file in the version of the first, or bring the first to that of the import.",
)
def _broken(runtime: RuntimeFacts, _: float) -> Iterator[str]:
    if runtime.broken:
        yield runtime.broken


@RUNTIME.trouble(
    "runtime-binary-missing",
    "A configured runtime has no binary: pods that use it fail with `executable file not found`.",
    "Install nvidia-container-toolkit, or remove the runtime: `direct` and `cdi` need no NVIDIA runtime.",
)
def _runtime_binary(runtime: RuntimeFacts, _: float) -> Iterator[str]:
    for name in sorted(runtime.missing):
        default = ", and it is the default" if name == runtime.default_runtime else ""
        yield f"runtime {name} in {runtime.config} is {runtime.runtimes.get(name, '')}, not there{default}"


@RUNTIME.trouble(
    "default-runtime-wrong",
    "The default runtime is not configured: no pod without a runtimeClass starts.",
    "Set default_runtime_name to `runc`, or configure the runtime it names.",
)
def _default_unknown(runtime: RuntimeFacts, _: float) -> Iterator[str]:
    name = runtime.default_runtime
    if name and runtime.runtimes and name not in runtime.runtimes:
        known = ", ".join(sorted(runtime.runtimes))
        yield f"{runtime.config}: default_runtime_name is {name}, configured are {known}"


@RUNTIME.warning(
    "cdi-off",
    "The runtime reads no CDI specs. Cards are injected another way; `--device-injection cdi` would fail.",
    "Nothing, or set `enable_cdi = true` (containerd 1.7; 2 has it on) with `/var/run/cdi` among "
    "cdi_spec_dirs, and restart containerd.",
)
def _cdi_off(runtime: RuntimeFacts, _: float) -> Iterator[str]:
    if runtime.cdi is None:
        raise Unseen("no configuration shows whether the runtime reads CDI specs")
    if not runtime.cdi and runtime.strategy != "cdi":
        yield f"{runtime.why}; containers get their cards by {runtime.strategy} instead"


def _uses_toolkit(runtime: RuntimeFacts) -> bool:
    return runtime.strategy == "nvidia" or "nvidia" in runtime.default_runtime


@RUNTIME.trouble(
    "devices-allow",
    "The NVIDIA runtime on the node is older than cgroup v2.",
    "Upgrade nvidia-container-toolkit and libnvidia-container to 1.8 or newer, or take `nvidia` out as "
    "default runtime: `direct` needs neither.",
)
def _devices_allow(runtime: RuntimeFacts, _: float) -> Iterator[str]:
    if not _uses_toolkit(runtime):
        return
    if runtime.toolkit is None or runtime.cgroups is None:
        raise Unseen("the version of libnvidia-container, or that of the cgroups, is not known")
    if runtime.cgroups == 2 and runtime.toolkit < _FIRST_TOOLKIT_OF_V2:
        version = ".".join(map(str, runtime.toolkit))
        yield (
            f"libnvidia-container {version} knows cgroup v1 alone, the node has v2: containers end with "
            "nvidia-container-cli: mount error: devices.allow: no such file or directory"
        )


@RUNTIME.warning(
    "devices-lost-on-reload",
    "systemd removes access to devices that it does not know of.",
    "Use CDI (`enable_cdi = true`) or `--device-injection direct`: both tell the runtime of every device.",
)
def _lost_on_reload(runtime: RuntimeFacts, _: float) -> Iterator[str]:
    if runtime.strategy == "nvidia" and runtime.systemd_cgroup:
        yield (
            "the NVIDIA runtime gives devices behind systemd's back: after systemctl daemon-reload running "
            "containers lose them (Failed to initialize NVML: Unknown Error)"
        )


@RUNTIME.warning(
    "cards-by-variable",
    "Any pod can name cards by a variable.",
    "Set accept-nvidia-visible-devices-envvar-when-unprivileged = false in the toolkit's config.toml: cards "
    "are then injected by device nodes. Or turn CDI on (`enable_cdi = true`).",
)
def _cards_by_variable(runtime: RuntimeFacts, _: float) -> Iterator[str]:
    if runtime.by_variable or runtime.strategy == "nvidia":
        default = f" {printable(runtime.default_runtime)}, the default," if runtime.default_runtime else ""
        own = ", and those that ask may have no envFrom" if runtime.strategy == "nvidia" else ""
        yield (
            f"the NVIDIA runtime{default} shows a container every card that NVIDIA_VISIBLE_DEVICES names, "
            f"also where its image sets it to all: pods that ask for no card are not judged{own}"
        )


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
