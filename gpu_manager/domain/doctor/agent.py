"""Checks of the state that the running agent of one node reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpu_manager.domain.doctor.facts import AgentFacts, CheckGroup, counted, seen
from gpu_manager.domain.enforcement.library_messages import TROUBLE, LibraryMessageKind
from gpu_manager.domain.resources import MIB, format_bytes

_METRICS: Final = "the agent's metrics cannot be read"
_UNKNOWN: Final = "unknown"  # of the states of vcuda_container_enforcement
_OLD_SAMPLE_SECONDS: Final = 10.0
_MUCH_OUTSIDE_BYTES: Final = 256 * MIB


AGENT: Final = CheckGroup("agent")


@AGENT.trouble(
    "agent-not-ready",
    "The running agent cannot serve pods yet.",
    "Follow the message; the agent's log has the first cause.",
)
def _agent_not_ready(agent: AgentFacts, _: float) -> Iterator[str]:
    for name, holds in agent.ready.items():
        if not holds:
            yield f"{name} does not hold{f': {agent.why}' if agent.why else ''}"


@AGENT.trouble(
    "enforcement-off",
    "The limits of a container with a fraction are not enforced.",
    "`tampered`: its process wrote what the library never writes; look at the pod.",
)
def _unenforced(agent: AgentFacts, _: float) -> Iterator[str]:
    for container, state in sorted(seen(agent.enforced, _METRICS).items()):
        if state not in ("active", "exclusive", "admin", _UNKNOWN):
            yield f"{container}: enforcement is {state}"


@AGENT.warning(
    "enforcement-unknown",
    "The agent cannot read a container's control page, nor tell whether it is held to its share.",
    "The agent's log says why. A recreated pod gets a new page.",
)
def _enforcement_unknown(agent: AgentFacts, _: float) -> Iterator[str]:
    for container, state in sorted(seen(agent.enforced, _METRICS).items()):
        if state == _UNKNOWN:
            yield f"{container}: whether its limits hold cannot be told"


@AGENT.trouble(
    "evading", "A container bypasses its limits.", "See docs/security; `--evict-evaders` evicts such pods."
)
def _evading(agent: AgentFacts, _: float) -> Iterator[str]:
    yield from seen(agent.evading, _METRICS)


@AGENT.trouble(
    "not-injected",
    "The container runtime did not act on what the agent gave for a container.",
    "The Event `VcudaNotInjected` on the pod says what is missing. See `cdi-off` and the line about how "
    "cards are injected; choose another `--device-injection`, then delete the pod.",
)
def _not_injected(agent: AgentFacts, _: float) -> Iterator[str]:
    for container in seen(agent.not_injected, _METRICS):
        yield f"{container} runs without the mounts of its grant: it has no card, or no limit"


@AGENT.trouble(
    "stranded-containers",
    "The kubelet has no devices for containers of this node: each fails at its next start.",
    "Delete their pods, which have the Event `VcudaStranded`; the agent evicts those that a controller "
    "replaces, unless `--no-evict` is set.",
)
def _stranded(agent: AgentFacts, _: float) -> Iterator[str]:
    stranded = seen(agent.stranded, f"{_METRICS}, or do not say it")
    if stranded:
        yield f"{counted(stranded, 'container')} cannot be started again once ended"


@AGENT.warning(
    "evasion-detection-blind",
    "Degraded mode: limits are enforced, but programs that bypass them are not detected.",
    "Run the agent with `hostPID: true` (the chart's default).",
)
def _evasion_detection_blind(agent: AgentFacts, _: float) -> Iterator[str]:
    blind = seen(agent.blind, _METRICS)
    lacks = {"host-pid": "the agent runs without hostPID", "cards": "the driver gives the agent no figures"}
    for name in blind:
        yield f"{lacks.get(name, name)}: programs that bypass a limit are not detected"


@AGENT.warning(
    "accounts-unwitnessed",
    "Limits hold by the library's account alone: no figure of the driver is compared with it.",
    "Run the agent with `hostPID: true`. Where the driver has no such figures nothing helps.",
)
def _unwitnessed(agent: AgentFacts, _: float) -> Iterator[str]:
    unwitnessed = seen(agent.unwitnessed, f"{_METRICS}, or do not say it")
    why = {
        "host-pid": "the agent runs without hostPID",
        "mig": "the driver has no figures of processes in MIG mode",
        "samples": "the driver has no figures of processes there, as with vGPU and WSL",
    }
    for card, lacks in sorted(unwitnessed):
        yield f"card {card}: {why.get(lacks, lacks)}"


@AGENT.warning(
    "library-trouble",
    "libvcuda reported something unexpected in a container.",
    "The agent's log has each as `library_message`, with pod, process and reason; a pod that was refused "
    "CUDA has an Event `VcudaLibraryMessage` too.",
)
def _library_notes(agent: AgentFacts, _: float) -> Iterator[str]:
    notes = seen(agent.notes, _METRICS)
    what = {
        LibraryMessageKind.CUDA_REFUSED: "was refused CUDA",
        LibraryMessageKind.UNKNOWN_FUNCTION: "asked for a function of the driver that libvcuda does not know",
        LibraryMessageKind.ROUTED_BY_NAME: "was given a function that libvcuda could tell by its name alone",
        LibraryMessageKind.LIMITS_LOST: "found its limits page broken",
    }
    for kind in LibraryMessageKind:
        count = notes.get(kind.value, 0)
        if kind in TROUBLE and count:
            yield f"a process {what[kind]}{f', {count} times' if count > 1 else ''} since the agent's start"


@AGENT.warning(
    "card-closed",
    "A card takes no new shares.",
    "`gpu-manager uncordon UUID` opens a cordoned one; an unhealthy one names its reason.",
)
def _closed(agent: AgentFacts, _: float) -> Iterator[str]:
    yield from agent.closed


@AGENT.warning(
    "card-whole-only",
    "A card is given whole alone: no part of it.",
    "A compute mode is set back with `nvidia-smi -i INDEX -c DEFAULT`. A card without memory of its own "
    "(GB10) stays as it is: no part of its memory could be limited.",
)
def _whole_only(agent: AgentFacts, _: float) -> Iterator[str]:
    yield from agent.whole_only


@AGENT.warning(
    "memory-outside",
    "Processes of no pod hold memory of a card, which pods do not get.",
    "`nvidia-smi` names them. Once they have gone, the memory is offered again after 30 s.",
)
def _memory_outside(agent: AgentFacts, _: float) -> Iterator[str]:
    for card, held in sorted(seen(agent.outside, _METRICS).items()):
        if held > _MUCH_OUTSIDE_BYTES:
            yield f"card {card}: {format_bytes(held)} are held by processes of no pod"


@AGENT.warning(
    "objects-unreadable",
    "An object of the API server cannot be read. The agent passes it over and serves all others.",
    "`object_unreadable` in the agent's log and the Event `VcudaUnreadable` name it and say why. Delete it, "
    "and see who wrote it.",
)
def _unreadable_objects(agent: AgentFacts, _: float) -> Iterator[str]:
    for resource, count in sorted(seen(agent.unreadable, _METRICS).items()):
        if count:
            times = "once" if count == 1 else f"{count} times"
            yield f"one of the {resource} could not be read, {times} since the agent's start"


@AGENT.warning(
    "kubelet-unverified",
    "The agent sends the kubelet no token, and asks the API server for the node's pods.",
    "Let kubelets have serving certificates of the cluster's authority (`serverTLSBootstrap: true` in their "
    "configuration, then `kubectl certificate approve` for their requests), or name who signs them: "
    "`--kubelet-certificate-authority`, chart value `agent.kubeletCertificateAuthority`. For kubelets that "
    "sign their own it is `/host/var/lib/kubelet/pki/kubelet.crt`.",
)
def _unverified_kubelet(agent: AgentFacts, _: float) -> Iterator[str]:
    kubelet_unverified = seen(agent.kubelet_unverified, _METRICS)
    if kubelet_unverified:
        yield "the certificate of the node's kubelet cannot be verified"


@AGENT.warning(
    "pages-on-run",
    "A container can take all space of /run for a second, and then no container starts on the node.",
    "A privileged agent mounts a small file system for each new container (chart value "
    "`agent.pageFileSystem`); pages from before lie where they are until their containers end. Elsewhere "
    "mount a tmpfs with `size=128m,nr_inodes=8192` at `/run/gpu-manager` before the agent starts: "
    "containers can then fill that one alone.",
)
def _pages_among_others(agent: AgentFacts, _: float) -> Iterator[str]:
    containers = seen(agent.pages_among_others, _METRICS)
    if containers:
        yield f"the pages of {counted(containers, 'container')} can fill the node's /run"


@AGENT.warning(
    "evicts-itself",
    "Whoever takes over this node can evict the pods of the whole cluster with the agent's token.",
    "Install the admission service (chart value `admission.enabled`): an evictor comes with it, and the "
    "agent marks pods instead. Or turn eviction off: `agent.evict` and `agent.evictEvaders`.",
)
def _evicts_itself(agent: AgentFacts, _: float) -> Iterator[str]:
    evicts_itself = seen(agent.evicts_itself, _METRICS)
    if evicts_itself:
        yield "the account of the agent may evict the pods of every node"


@AGENT.warning(
    "sample-old",
    "Usage is out of date.",
    "Look for `sample` in the agent's log; a driver that hangs shows in `nvidia-smi` too.",
)
def _old_sample(agent: AgentFacts, _: float) -> Iterator[str]:
    sample_age_seconds = seen(agent.sample_age_seconds, _METRICS)
    if sample_age_seconds > _OLD_SAMPLE_SECONDS:
        yield f"usage was last sampled {sample_age_seconds:.0f} s ago, it is once a second"
