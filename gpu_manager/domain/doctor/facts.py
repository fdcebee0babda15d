"""The doctor's values: the facts that it checks, and the checks, findings and report that come of them.

Adapters in ``adapters/diagnosis`` gather the facts. A group is None if it could not be read
(:attr:`Facts.blind` holds the reason), a field is None if that fact could not. A check that needs a part of
the cluster that is unknown raises :class:`Unseen` with the reason. Names and texts come from files and from
the API server and are untrusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from gpu_manager.domain.contract import Inventory
from gpu_manager.domain.kube.constraints import Term
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.resize.judgement import NamespaceLimits

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """The NVIDIA driver of the machine.

    ``pci_cards`` counts NVIDIA's display controllers on the bus; ``kernel`` is the loaded module's version,
    None if none is loaded; ``library`` is the version of the libraries on disk, None with ``library_problem``
    if there are none; ``nvml_problem`` is NVML's error, empty if it answers (with ``nvml_cards``);
    ``devices`` are names in /dev; ``in_use`` maps the versions of libcuda that processes have open to the
    number of processes, None if other processes cannot be seen; ``enforcers`` names programs that hold others
    to shares of cards.
    """

    pci_cards: int | None = None
    kernel: str | None = None
    library: str | None = None
    library_problem: str = ""
    nvml_problem: str | None = None
    nvml_cards: int | None = None
    devices: frozenset[str] = frozenset()
    in_use: Mapping[str, int] | None = None
    enforcers: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """The container runtime. ``strategy`` is what ``--device-injection auto`` chooses, ``why`` its reason.

    ``config`` is the file that was read, empty if none; ``runtimes`` maps each configured runtime's name to
    its binary (empty: the default's); ``missing`` are the binaries that do not exist. ``cri`` is the socket
    that the kubelet is configured to use, None if unknown; ``sockets`` are those that exist.
    ``toolkit`` is the version of libnvidia-container; ``cgroups`` is 1 or 2. ``broken``: why the runtime does
    not start with its files, empty if it does. ``by_variable``: the default runtime shows any container the
    cards that a variable of it names.
    """

    strategy: str
    why: str
    config: str = ""
    default_runtime: str = ""
    runtimes: Mapping[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    systemd_cgroup: bool | None = None
    cdi: bool | None = None
    sockets: tuple[str, ...] = ()
    cri: str | None = None
    toolkit: Version | None = None
    cgroups: int | None = None
    broken: str = ""
    by_variable: bool = False


@dataclass(frozen=True, slots=True)
class KubeletFacts:
    """The kubelet's files. ``registered`` are the resources in its checkpoint, None if it cannot be read;
    ``others`` those of them under which another plugin offers NVIDIA's cards. One that has gone stays
    registered for five minutes, and offers nothing.

    ``cgroup_driver`` is empty if its configuration names none. ``static_pods`` are ``namespace/name (file)``
    of static pods that request a share; ``agent_problem`` is why the agent on the node does not answer,
    empty if it does. ``claims`` is whether an agent serves ResourceClaims here. ``numa_policy`` is the
    kubelet's topologyManagerPolicy, None if it cannot be seen; ``told_policy`` what the agent is told it is,
    empty if it reads it itself. ``root`` is the kubelet's --root-dir, where it is not its directory.
    """

    socket: bool
    pod_resources: bool
    registered: frozenset[str] | None = None
    others: frozenset[str] = frozenset()
    own_sockets: frozenset[str] = frozenset()
    cgroup_driver: str | None = None
    fail_cgroup_v1: bool | None = None
    cgroups: int | None = None
    static_pods: tuple[str, ...] | None = None
    agent_problem: str = ""
    claims: bool = False
    numa_policy: str | None = None
    told_policy: str = ""
    root: str = ""


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """The state that the node's running agent reports.

    ``enforced`` maps ``namespace/pod container`` to the state of its enforcement; ``evading``, ``closed``,
    ``blind``, ``not_injected`` and ``stranded`` (a count) come from its metrics and its graph. ``notes``
    counts the messages of libvcuda since the agent's start, by kind, ``unreadable`` objects of the API
    server that it could not read, by resource. ``kubelet_unverified``: the kubelet's certificate could not
    be verified. ``pages_among_others``: containers whose pages lie on the file system of ``/run``.
    ``unwitnessed``: cards whose accounts are compared with no figure of the driver, and what is missing.
    ``whole_only`` are cards of which no part is given, and why; ``outside`` bytes that processes of no pod
    hold, by card. ``numa_policy`` is the one that it places by.
    ``evicts_itself``: it evicts pods with its own account, which may evict those of every node.
    """

    url: str
    version: str
    ready: Mapping[str, bool]
    why: str = ""
    closed: tuple[str, ...] = ()
    enforced: Mapping[str, str] | None = None
    evading: tuple[str, ...] | None = None
    blind: tuple[str, ...] | None = None
    notes: Mapping[str, int] | None = None
    sample_age_seconds: float | None = None
    not_injected: tuple[str, ...] | None = None
    stranded: int | None = None
    unreadable: Mapping[str, int] | None = None
    kubelet_unverified: bool | None = None
    pages_among_others: int | None = None
    unwitnessed: tuple[tuple[str, str], ...] | None = None
    whole_only: tuple[str, ...] = ()
    outside: Mapping[str, int] | None = None
    numa_policy: str = ""
    evicts_itself: bool | None = None


@dataclass(frozen=True, slots=True)
class DoctorNode:
    """A node as the API server shows it. ``gpu`` counts ``nvidia.com/gpu``; ``hinted`` says why it should
    have cards although it has no inventory, empty if nothing indicates that.
    """

    name: str
    inventory: Inventory | None
    core: int | None
    memory: int | None
    gpu: int = 0
    hinted: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    runtime: str = ""
    inventory_unreadable: bool = False


@dataclass(frozen=True, slots=True)
class AgentPods:
    """The agent's DaemonSet: node ``selector`` and ``affinity`` (alternatives; empty for every node), and
    whether its pod is ready, by node; ``lends`` if it also offers whole cards as ``nvidia.com/gpu``.
    """

    name: str
    selector: Mapping[str, str]
    ready: Mapping[str, bool]
    runtime_class: str = ""
    lends: bool = False
    affinity: tuple[tuple[Term, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook that calls our service. ``expires`` is when its first trust anchor expires (seconds);
    ``pods`` is True if it checks pods; for pod templates alone it can only warn.
    """

    configuration: str
    name: str
    mutating: bool
    policy: str
    expires: float | None
    service: str
    pods: bool = True


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """A kube-scheduler configuration in a ConfigMap: its profiles, and whether it calls our extender."""

    where: str
    profiles: tuple[str, ...]
    extender: bool


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod that requests a share, with facts for the doctor only. ``refused`` is the kubelet's message, if
    it refused the pod for good when it admitted it.
    """

    pod: Pod
    static: bool = False
    runtime_class: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The cluster's objects. A part is None if the API server refused it; ``refused`` says why.
    ``given_elsewhere``: node → its running pods to which another system has given parts of cards.
    """

    nodes: tuple[DoctorNode, ...] | None = None
    pods: tuple[PodFacts, ...] | None = None
    agents: AgentPods | None = None
    agents_known: bool = False
    webhooks: tuple[Webhook, ...] | None = None
    services_ready: Mapping[str, int] | None = None
    serving_expires: float | None = None
    schedulers: tuple[SchedulerFacts, ...] | None = None
    runtime_classes: frozenset[str] | None = None
    limits: Mapping[str, NamespaceLimits] | None = None  # by namespace
    given_elsewhere: Mapping[str, Sequence[str]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts, at ``now`` (seconds since 1970). ``blind`` maps a group to the reason why it is None."""

    now: float
    driver: DriverFacts | None = None
    runtime: RuntimeFacts | None = None
    kubelet: KubeletFacts | None = None
    agent: AgentFacts | None = None
    cluster: ClusterFacts | None = None
    blind: Mapping[str, str] = field(default_factory=dict)


class Severity(Enum):
    """``trouble`` keeps pods from their shares, or shares from being enforced; ``warning`` will, or may."""

    TROUBLE = "trouble"
    WARNING = "warning"


class Unseen(Exception):  # noqa: N818  # no error: the answer "this cannot be judged from here"
    """A fact that a check needs is unknown; the text says why."""


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A check for one problem. ``group`` names the part of :class:`Facts` that ``judge`` receives.

    ``what`` explains the problem, ``cure`` says what to do. ``judge`` receives the group and the time
    (seconds since 1970), yields a sentence for each case, and raises :class:`Unseen` if it cannot decide.
    """

    id: str
    group: str
    severity: Severity
    what: str
    cure: str
    judge: Callable[[Any, float], Iterable[str]]


_J = TypeVar("_J", bound=Callable[[Any, float], Iterable[str]])


class CheckGroup(list[DoctorCheck]):
    """The checks that judge one part of the facts, in reading order. Its methods decorate their judges."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self._group = group

    def trouble(self, name: str, what: str, cure: str) -> Callable[[_J], _J]:
        """Add a check for a problem that keeps pods from their shares, or shares from being enforced."""
        return self._add(name, Severity.TROUBLE, what, cure)

    def warning(self, name: str, what: str, cure: str) -> Callable[[_J], _J]:
        """Add a check for a problem that will become trouble, or may."""
        return self._add(name, Severity.WARNING, what, cure)

    def _add(self, name: str, severity: Severity, what: str, cure: str) -> Callable[[_J], _J]:
        def added(judge: _J) -> _J:
            self.append(DoctorCheck(name, self._group, severity, what, cure, judge))
            return judge

        return added


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """A case that a check found, as a sentence with its values."""

    check: DoctorCheck
    text: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """Checks that could not run, all for the same reason."""

    checks: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """The findings, the checks that passed, the checks that could not run, and remarks (``notes``)."""

    findings: tuple[DoctorFinding, ...]
    passed: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """True if no finding is trouble; warnings do not count."""
        return not any(f.check.severity is Severity.TROUBLE for f in self.findings)


T = TypeVar("T")


def seen(value: T | None, why: str) -> T:
    """Return the value. Raises Unseen with ``why`` if it is None."""
    if value is None:
        raise Unseen(why)
    return value


def known(cluster: ClusterFacts, value: T | None, part: str) -> T:
    """Return the part. Raises Unseen with the API server's reason if it is None."""
    return seen(value, cluster.refused.get(part, f"the API server did not show {part}"))


def nodes_of(cluster: ClusterFacts) -> Sequence[DoctorNode]:
    """Return all nodes. Raises Unseen if they are unknown."""
    return known(cluster, cluster.nodes, "nodes")


def pods_of(cluster: ClusterFacts) -> Sequence[PodFacts]:
    """Return all pods that request a share. Raises Unseen if they are unknown."""
    return known(cluster, cluster.pods, "pods")


def counted(count: int, what: str) -> str:
    """Format a count with its noun: ``1 card``, ``2 cards``."""
    return f"{count} {what}{'' if count == 1 else 's'}"
