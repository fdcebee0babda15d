"""Checks of the state that the running agent of one node reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpu_manager.domain.doctor.facts import AgentFacts, DoctorCheck, Severity, Unseen, counted
from gpu_manager.domain.enforcement.library_messages import TROUBLE, LibraryMessageKind
from gpu_manager.domain.resources import MIB, format_bytes

_UNKNOWN: Final = "unknown"  # of the states of vcuda_container_enforcement
_OLD_SAMPLE_SECONDS: Final = 10.0
_MUCH_OUTSIDE_BYTES: Final = 256 * MIB


def _agent_not_ready(agent: AgentFacts, _: float) -> Iterator[str]:
    for name, holds in agent.ready.items():
        if not holds:
            yield f"{name} does not hold{f': {agent.why}' if agent.why else ''}"


def _unenforced(agent: AgentFacts, _: float) -> Iterator[str]:
    if agent.enforced is None:
        raise Unseen("the agent's metrics cannot be read")
    for container, state in sorted(agent.enforced.items()):
        if state not in ("active", "exclusive", "admin", _UNKNOWN):
            yield f"{container}: enforcement is {state}"


def _enforcement_unknown(agent: AgentFacts, _: float) -> Iterator[str]:
    if agent.enforced is None:
        raise Unseen("the agent's metrics cannot be read")
    for container, state in sorted(agent.enforced.items()):
        if state == _UNKNOWN:
            yield f"{container}: whether its limits hold cannot be told"


def _evading(agent: AgentFacts, _: float) -> Iterator[str]:
    if agent.evading is None:
        raise Unseen("the agent's metrics cannot be read")
    yield from agent.evading


def _not_injected(agent: AgentFacts, _: float) -> Iterator[str]:
    if agent.not_injected is None:
        raise Unseen("the agent's metrics cannot be read")
    for container in agent.not_injected:
        yield f"{container} runs without the mounts of its grant: it has no card, or no limit"


def _stranded(agent: AgentFacts, _: float) -> Iterator[str]:
    if agent.stranded is None:
        raise Unseen("the agent's metrics cannot be read, or do not say it")
    if agent.stranded:
        yield f"{counted(agent.stranded, 'container')} cannot be started again once ended"


def _evasion_detection_blind(agent: AgentFacts, _: float) -> Iterator[str]:
    if agent.blind is None:
        raise Unseen("the agent's metrics cannot be read")
    lacks = {"host-pid": "the agent runs without hostPID", "cards": "the driver gives the agent no figures"}
    for name in agent.blind:
        yield f"{lacks.get(name, name)}: programs that bypass a limit are not detected"


def _unwitnessed(agent: AgentFacts, _: float) -> Iterator[str]:
    if agent.unwitnessed is None:
        raise Unseen("the agent's metrics cannot be read, or do not say it")
    why = {
        "host-pid": "the agent runs without hostPID",
        "mig": "the driver has no figures of processes in MIG mode",
        "samples": "the driver has no figures of processes there, as with vGPU and WSL",
    }
    for card, lacks in sorted(agent.unwitnessed):
        yield f"card {card}: {why.get(lacks, lacks)}"


def _closed(agent: AgentFacts, _: float) -> Iterator[str]:
    yield from agent.closed


def _whole_only(agent: AgentFacts, _: float) -> Iterator[str]:
    yield from agent.whole_only


def _memory_outside(agent: AgentFacts, _: float) -> Iterator[str]:
    if agent.outside is None:
        raise Unseen("the agent's metrics cannot be read")
    for card, held in sorted(agent.outside.items()):
        if held > _MUCH_OUTSIDE_BYTES:
            yield f"card {card}: {format_bytes(held)} are held by processes of no pod"


def _library_notes(agent: AgentFacts, _: float) -> Iterator[str]:
    if agent.notes is None:
        raise Unseen("the agent's metrics cannot be read")
    what = {
        LibraryMessageKind.CUDA_REFUSED: "was refused CUDA",
        LibraryMessageKind.UNKNOWN_FUNCTION: "asked for a function of the driver that libvcuda does not know",
        LibraryMessageKind.ROUTED_BY_NAME: "was given a function that libvcuda could tell by its name alone",
        LibraryMessageKind.LIMITS_LOST: "found its limits page broken",
    }
    for kind in LibraryMessageKind:
        count = agent.notes.get(kind.value, 0)
        if kind in TROUBLE and count:
            yield f"a process {what[kind]}{f', {count} times' if count > 1 else ''} since the agent's start"


def _unreadable_objects(agent: AgentFacts, _: float) -> Iterator[str]:
    if agent.unreadable is None:
        raise Unseen("the agent's metrics cannot be read")
    for resource, count in sorted(agent.unreadable.items()):
        if count:
            times = "once" if count == 1 else f"{count} times"
            yield f"one of the {resource} could not be read, {times} since the agent's start"


def _unverified_kubelet(agent: AgentFacts, _: float) -> Iterator[str]:
    if agent.kubelet_unverified is None:
        raise Unseen("the agent's metrics cannot be read")
    if agent.kubelet_unverified:
        yield "the certificate of the node's kubelet cannot be verified"


def _pages_among_others(agent: AgentFacts, _: float) -> Iterator[str]:
    if agent.pages_among_others is None:
        raise Unseen("the agent's metrics cannot be read")
    if agent.pages_among_others:
        yield f"the pages of {counted(agent.pages_among_others, 'container')} can fill the node's /run"


def _evicts_itself(agent: AgentFacts, _: float) -> Iterator[str]:
    if agent.evicts_itself is None:
        raise Unseen("the agent's metrics cannot be read")
    if agent.evicts_itself:
        yield "the account of the agent may evict the pods of every node"


def _old_sample(agent: AgentFacts, _: float) -> Iterator[str]:
    if agent.sample_age_seconds is None:
        raise Unseen("the agent's metrics cannot be read")
    if agent.sample_age_seconds > _OLD_SAMPLE_SECONDS:
        yield f"usage was last sampled {agent.sample_age_seconds:.0f} s ago, it is once a second"


AGENT: Final = (
    DoctorCheck(
        id="agent-not-ready",
        group="agent",
        severity=Severity.TROUBLE,
        what="The running agent cannot serve pods yet.",
        cure="Follow the message; the agent's log has the first cause.",
        judge=_agent_not_ready,
    ),
    DoctorCheck(
        id="enforcement-off",
        group="agent",
        severity=Severity.TROUBLE,
        what="The limits of a container with a fraction are not enforced.",
        cure="`tampered`: its process wrote what the library never writes; look at the pod.",
        judge=_unenforced,
    ),
    DoctorCheck(
        id="enforcement-unknown",
        group="agent",
        severity=Severity.WARNING,
        what="The agent cannot read a container's control page, nor tell whether it is held to its share.",
        cure="The agent's log says why. A recreated pod gets a new page.",
        judge=_enforcement_unknown,
    ),
    DoctorCheck(
        id="evading",
        group="agent",
        severity=Severity.TROUBLE,
        what="A container bypasses its limits.",
        cure="See docs/security; `--evict-evaders` evicts such pods.",
        judge=_evading,
    ),
    DoctorCheck(
        id="not-injected",
        group="agent",
        severity=Severity.TROUBLE,
        what="The container runtime did not act on what the agent gave for a container.",
        cure=(
            "The Event `VcudaNotInjected` on the pod says what is missing. See `cdi-off` and the line about "
            "how cards are injected; choose another `--device-injection`, then delete the pod."
        ),
        judge=_not_injected,
    ),
    DoctorCheck(
        id="stranded-containers",
        group="agent",
        severity=Severity.TROUBLE,
        what="The kubelet has no devices for containers of this node: each fails at its next start.",
        cure=(
            "Delete their pods, which have the Event `VcudaStranded`; the agent evicts those that a "
            "controller replaces, unless `--no-evict` is set."
        ),
        judge=_stranded,
    ),
    DoctorCheck(
        id="evasion-detection-blind",
        group="agent",
        severity=Severity.WARNING,
        what="Degraded mode: limits are enforced, but programs that bypass them are not detected.",
        cure="Run the agent with `hostPID: true` (the chart's default).",
        judge=_evasion_detection_blind,
    ),
    DoctorCheck(
        id="accounts-unwitnessed",
        group="agent",
        severity=Severity.WARNING,
        what="Limits hold by the library's account alone: no figure of the driver is compared with it.",
        cure="Run the agent with `hostPID: true`. Where the driver has no such figures nothing helps.",
        judge=_unwitnessed,
    ),
    DoctorCheck(
        id="library-trouble",
        group="agent",
        severity=Severity.WARNING,
        what="libvcuda reported something unexpected in a container.",
        cure=(
            "The agent's log has each as `library_message`, with pod, process and reason; a pod that was "
            "refused CUDA has an Event `VcudaLibraryMessage` too."
        ),
        judge=_library_notes,
    ),
    DoctorCheck(
        id="card-closed",
        group="agent",
        severity=Severity.WARNING,
        what="A card takes no new shares.",
        cure="`gpu-manager uncordon UUID` opens a cordoned one; an unhealthy one names its reason.",
        judge=_closed,
    ),
    DoctorCheck(
        id="card-whole-only",
        group="agent",
        severity=Severity.WARNING,
        what="A card is given whole alone: no part of it.",
        cure=(
            "A compute mode is set back with `nvidia-smi -i INDEX -c DEFAULT`. A card without memory of its "
            "own (GB10) stays as it is: no part of its memory could be limited."
        ),
        judge=_whole_only,
    ),
    DoctorCheck(
        id="memory-outside",
        group="agent",
        severity=Severity.WARNING,
        what="Processes of no pod hold memory of a card, which pods do not get.",
        cure="`nvidia-smi` names them. Once they have gone, the memory is offered again after 30 s.",
        judge=_memory_outside,
    ),
    DoctorCheck(
        id="objects-unreadable",
        group="agent",
        severity=Severity.WARNING,
        what="An object of the API server cannot be read. The agent passes it over and serves all others.",
        cure=(
            "`object_unreadable` in the agent's log and the Event `VcudaUnreadable` name it and say why. "
            "Delete it, and see who wrote it."
        ),
        judge=_unreadable_objects,
    ),
    DoctorCheck(
        id="kubelet-unverified",
        group="agent",
        severity=Severity.WARNING,
        what="The agent sends the kubelet no token, and asks the API server for the node's pods.",
        cure=(
            "Let kubelets have serving certificates of the cluster's authority (`serverTLSBootstrap: true` "
            "in their configuration, then `kubectl certificate approve` for their requests), or name who "
            "signs them: `--kubelet-certificate-authority`, chart value `agent.kubeletCertificateAuthority`. "
            "For kubelets that sign their own it is `/host/var/lib/kubelet/pki/kubelet.crt`."
        ),
        judge=_unverified_kubelet,
    ),
    DoctorCheck(
        id="pages-on-run",
        group="agent",
        severity=Severity.WARNING,
        what="A container can take all space of /run for a second, and then no container starts on the node.",
        cure=(
            "A privileged agent mounts a small file system for each new container (chart value "
            "`agent.pageFileSystem`); pages from before lie where they are until their containers end. "
            "Elsewhere mount a tmpfs with `size=128m,nr_inodes=8192` at `/run/gpu-manager` before the agent "
            "starts: containers can then fill that one alone."
        ),
        judge=_pages_among_others,
    ),
    DoctorCheck(
        id="evicts-itself",
        group="agent",
        severity=Severity.WARNING,
        what="Whoever takes over this node can evict the pods of the whole cluster with the agent's token.",
        cure=(
            "Install the admission service (chart value `admission.enabled`): an evictor comes with it, and "
            "the agent marks pods instead. Or turn eviction off: `agent.evict` and `agent.evictEvaders`."
        ),
        judge=_evicts_itself,
    ),
    DoctorCheck(
        id="sample-old",
        group="agent",
        severity=Severity.WARNING,
        what="Usage is out of date.",
        cure="Look for `sample` in the agent's log; a driver that hangs shows in `nvidia-smi` too.",
        judge=_old_sample,
    ),
)
