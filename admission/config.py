"""All settings of the admission service, in frozen values; the command line fills them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated

from gpu_manager.domain import features
from gpu_manager.domain.contract import ADMISSION_NAME, ADMISSION_SECRET, AGENT_NAME, NAMESPACE, QUOTA_MAP
from gpu_manager.domain.resources import DEFAULT_UNIT
from gpu_manager.runtime.arguments import Option

QUOTA = f"{NAMESPACE}/{QUOTA_MAP}"  # the predecessor's ConfigMap
SCHEDULER_USER = "system:kube-scheduler"  # the common name in kube-scheduler's client certificate
EXTENDER = "127.0.0.1:3456"  # the predecessor's flag and its default
PROBES = ":9440"
KEEP_SECONDS = 900.0  # from a scheduler's choice to its bind; an in-tree gang waits 300, a volume 600
RECORDS_MIB = 256  # of recorded decisions
GANG_SECONDS = 300.0  # for members of a gang that no scheduler has asked about; an in-tree gang waits as long
POD_GROUP_APIS = ("scheduling.k8s.io", "scheduling.x-k8s.io", "scheduling.volcano.sh")  # as ADR 21 ranks them
SHORTEST_KEEP_SECONDS = 5.0  # a burst of pods is bound within that, whatever became of them before
# Who may write the annotations that say which cards a pod holds.
TRUSTED_USERS = frozenset(
    f"system:serviceaccount:{NAMESPACE}:{account}" for account in (AGENT_NAME, ADMISSION_NAME)
)


@dataclass(frozen=True, slots=True)
class ClusterTerms:
    """What this cluster grants, and what the webhooks write into pods.

    ``unit`` is bytes of a memory unit; ``default_memory`` units for a part of a card without memory, 0 for
    none; an empty ``scheduler_name`` or ``runtime_class`` leaves the pod's own. ``allow_env_from``: envFrom
    is accepted although a variable from it may show a container every card.
    """

    unit: int = DEFAULT_UNIT
    minimum_cores: Annotated[
        int, Option(envvar="VCUDA_MINIMUM_CORES", min=1, max=100, help="Smallest vcuda-core of a container.")
    ] = 1
    default_memory: Annotated[
        int,
        Option(envvar="VCUDA_DEFAULT_MEMORY", min=0, help="Units for fractions without memory; 0: refused."),
    ] = 0
    scheduler_name: Annotated[str, Option(help="schedulerName for pods that ask for cards.")] = ""
    runtime_class: Annotated[
        str, Option(help="runtimeClassName to set in pods without one; default: unchanged.")
    ] = ""
    deny_node_name: Annotated[
        bool, Option("--deny-node-name", help="Refuse pods with spec.nodeName instead of warning.")
    ] = False
    allow_env_from: Annotated[
        bool,
        Option(
            "--allow-envfrom",
            help="Take pods whose envFrom may bring NVIDIA_VISIBLE_DEVICES, where nodes show cards by it.",
        ),
    ] = False
    trusted_users: frozenset[str] = TRUSTED_USERS


@dataclass(frozen=True, slots=True)
class InflightBounds:
    """Bounds for one caller: bytes of a body, seconds to send it, requests in progress and waiting.

    An API server sends reviews of all pods of a large Deployment or Job at once; they wait in a queue.
    """

    body: int = 3 << 20
    seconds: float = 10.0
    at_work: int = 16
    waiting: int = 1280


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """How many connections a listener keeps open: in all, and of one client address.

    More than an API server ever opens at once, which is one for each review that it waits for.
    """

    total: int = 2048
    per_source: int = 1536


@dataclass(frozen=True, slots=True)
class OwnCertificates:
    """Certificates made by the service itself: where they are stored, and which configurations trust them.

    ``names`` are those of the webhook configurations; ``life_days`` is a certificate's life, renewed after
    two thirds; ``settle_seconds`` is how long API servers know a new authority before it is used.
    """

    secret: Annotated[str, Option("--cert-secret", help="Secret of self-signed certificates.")] = (
        ADMISSION_SECRET
    )
    names: tuple[str, ...] = (ADMISSION_NAME,)
    life_days: Annotated[
        int, Option("--cert-days", min=1, max=825, help="Days of a self-signed certificate.")
    ] = 90
    settle_seconds: Annotated[
        float,
        Option(
            "--cert-settle-seconds",
            min=0,
            help="Seconds between publishing a new certificate authority and using it.",
        ),
    ] = 60.0


class LeaderMode(Enum):
    """How replicas decide which of them binds."""

    SCHEDULER = "scheduler"  # the one whose pod holds the Lease of the kube-scheduler that runs beside it
    LEASE = "lease"  # the one that holds a Lease of our own; it labels its pod
    ALONE = "alone"  # there is no other replica


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leader election. ``namespace``/``lease``: the Lease that is held or watched.

    ``pod`` is this pod's name, ``pod_uid`` its UID, without which a process that starts again in it waits as
    another pod's would. ``seconds``: how long the service's own Lease lasts without renewal. Renewed every
    two to three seconds, it always has the seven left that a Binding needs, and another replica leads within
    fifteen.
    """

    mode: Annotated[
        LeaderMode,
        Option(
            "--leader-mode",
            help="Which replica binds. scheduler: that of the leading kube-scheduler in its pod; lease: the"
            " holder of a Lease of this service, which labels its pod; alone: the only one.",
        ),
    ] = LeaderMode.SCHEDULER
    namespace: str = NAMESPACE
    lease: Annotated[str, Option("--lease-name", help="Name of the Lease, in either mode.")] = ADMISSION_NAME
    pod: str = ""
    seconds: Annotated[
        float,
        Option(
            "--lease-seconds",
            min=10,
            max=60,
            help="Seconds that a Lease of this service lasts without renewal.",
        ),
    ] = 12.0
    pod_uid: Annotated[
        str,
        Option(
            envvar="POD_UID",
            help="UID of this pod: a process that starts again in it goes on with its own former Lease.",
        ),
    ] = ""


@dataclass(frozen=True, slots=True)
class ExtenderEndpoint:
    """The endpoint for schedulers.

    With ``certificate``, ``key`` and ``client_ca`` it speaks TLS, and bind and preempt are open to clients
    whose certificate that authority signed for one of ``client_names``, from loopback too; without them, only
    to loopback.
    """

    address: str = "127.0.0.1"
    port: int = 3456
    certificate: Annotated[
        Path | None,
        Option(
            "--extender-tls-cert-file",
            help="Path of the TLS certificate for schedulers, watched; default: HTTP.",
        ),
    ] = None
    key: Annotated[
        Path | None, Option("--extender-tls-private-key-file", help="The extender's TLS private key.")
    ] = None
    client_ca: Annotated[
        Path | None,
        Option("--extender-client-ca-file", help="CA of the clients that may bind and preempt, watched."),
    ] = None
    client_names: frozenset[str] = frozenset({SCHEDULER_USER})
    body: int = 64 << 20  # 5,000 whole Node objects are some 50 MB


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Settings of ``gpu-quota-admission``.

    With ``certificate`` and ``key`` those files are served and watched (cert-manager); without, the service
    signs for itself. ``probes``: host and port at which the kubelet asks whether the program is alive and
    ready, None for nowhere. ``binds_for``: schedulerNames whose pods are bound here, empty for any;
    ``claims``: ResourceClaims are watched, charged and held to the quota;
    ``keep_seconds``: how long the place of a pod is kept at most until its scheduler binds it;
    ``best_nodes``: filter offers at most so many nodes, the best ones of equal cost, 0 for all that fit;
    ``gang_seconds``: how long places are kept for members of a gang that no scheduler has asked about, 0 to
    judge each pod alone; ``pod_groups``: group and version of the APIs whose PodGroups state a gang's size;
    ``placeholders``: the namespace of pods that ask an autoscaler for cards, empty for none;
    ``resize_within_quota``: a resize is held to Kubernetes' own ResourceQuotas and LimitRanges too;
    ``nodes_by_capacity``: nodes without an inventory are judged by their capacity (the predecessor's agent);
    ``records``: directory of recorded decisions, None to record none, of ``records_mib`` MiB at most;
    ``agent_token``: file with the bearer token of the agents' pages, None if they ask for none;
    ``prometheus``: URL from which the console has hours and days, empty for none, ``prometheus_token`` the
    file with a token for it;
    ``quota_map`` is namespace and name; pods of ``unseen_namespaces`` never pass the webhooks.
    """

    terms: ClusterTerms = field(default_factory=ClusterTerms)
    bounds: InflightBounds = field(default_factory=InflightBounds)
    address: Annotated[
        str,
        Option("--webhook-address", help="Address that serves the webhooks; default: all, IPv4 and IPv6."),
    ] = ""
    port: Annotated[
        int, Option("--webhook-port", help="Port that serves the webhooks; 0 for a free one.")
    ] = 9443
    probes: tuple[str, int] | None = None
    connections: ConnectionBounds = field(default_factory=ConnectionBounds)
    namespace: Annotated[str, Option(envvar="POD_NAMESPACE", help="The service's namespace.")] = NAMESPACE
    service: Annotated[str, Option(help="Service that API servers call.")] = ADMISSION_NAME
    certificate: Annotated[
        Path | None,
        Option(
            "--tls-cert-file", help="Path of the webhooks' TLS certificate, watched; default: self-signed."
        ),
    ] = None
    key: Annotated[
        Path | None, Option("--tls-private-key-file", help="Path of the webhooks' private key.")
    ] = None
    own_certificates: OwnCertificates = field(default_factory=OwnCertificates)
    extender: ExtenderEndpoint = field(default_factory=ExtenderEndpoint)
    leadership: Leadership = field(default_factory=Leadership)
    binds_for: frozenset[str] = frozenset()
    nodes_by_capacity: Annotated[
        bool,
        Option(
            "--nodes-by-capacity",
            help="Judge nodes without an inventory, such as the predecessor's, by their capacity.",
        ),
    ] = False
    keep_seconds: Annotated[
        float,
        Option(
            min=SHORTEST_KEEP_SECONDS,
            max=3600,
            help="Seconds that a pod's place is kept at most until its scheduler binds it.",
        ),
    ] = KEEP_SECONDS
    best_nodes: Annotated[
        int,
        Option(
            min=0,
            max=100,
            help="Filter offers at most so many nodes, the best ones of equal cost; 0: all that fit.",
        ),
    ] = 0
    gang_seconds: Annotated[
        float,
        Option(
            min=0,
            max=900,
            help="Seconds that places are kept for members of a gang that no scheduler has asked about;"
            " 0: each pod is judged alone.",
            feature=features.GANGS,
        ),
    ] = GANG_SECONDS
    pod_groups: tuple[tuple[str, str], ...] = ()
    resize_within_quota: Annotated[
        bool,
        Option(
            "--resize-within-quota",
            help="Refuse a resize past a ResourceQuota or LimitRange of its namespace; these are then read.",
            feature=features.RESIZE,
        ),
    ] = False
    placeholders: Annotated[
        str,
        Option(
            help="Namespace of pods that ask an autoscaler for cards which sums hide; default: none.",
            feature=features.AUTOSCALERS,
        ),
    ] = ""
    claims: Annotated[
        bool,
        Option(
            "--claims",
            help="Charge ResourceClaims of the driver vcuda.tencent.com, and hold them to the quota.",
            feature=features.CLAIMS,
        ),
    ] = False
    quota_map: tuple[str, str] = (NAMESPACE, QUOTA_MAP)
    unseen_namespaces: frozenset[str] = frozenset({NAMESPACE})
    records: Annotated[
        Path | None,
        Option(
            "--record-directory",
            help="Directory in which decisions are recorded for gpu-manager replay; default: none are.",
            feature=features.RECORDS,
        ),
    ] = None
    records_mib: Annotated[
        int,
        Option(
            "--record-mib",
            min=8,
            max=1 << 16,
            help="MiB of recorded decisions; the oldest go.",
            feature=features.RECORDS,
        ),
    ] = RECORDS_MIB
    agent_token: Annotated[
        Path | None,
        Option(
            "--agent-token-file",
            help="File with the bearer token of the agents' pages, which the console asks for usage.",
        ),
    ] = None
    prometheus: Annotated[
        str,
        Option(
            "--prometheus-url",
            help="URL of the Prometheus that scrapes the agents: hours and days for the console.",
            feature=features.CONSOLE,
        ),
    ] = ""
    prometheus_token: Annotated[
        Path | None, Option("--prometheus-token-file", help="File with a bearer token for that Prometheus.")
    ] = None
    drain_seconds: Annotated[float, Option(min=0, help="Seconds to be unready before the program ends.")] = (
        5.0
    )
    api_url: Annotated[
        str | None, Option("--api-url", "--master", help="Address of an API server without credentials.")
    ] = None
    kubeconfig: Annotated[Path | None, Option(help="Path of a kubeconfig; default: the pod's own.")] = None
