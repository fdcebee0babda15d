"""The admission service as deployed: builds every part of :mod:`admission.program` from the settings.

The only module of the service that knows the Kubernetes client. Nothing decides here.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from typing import Final

import structlog

from admission.cluster.claims import CLAIMS, CLASSES, TEMPLATES
from admission.cluster.snapshot import BUDGETS, NODES, PODS
from admission.config import POD_GROUP_APIS, AdmissionSettings, ExtenderEndpoint, InflightBounds, LeaderMode
from admission.console.agents_usage import AgentsUsage
from admission.console.history import ConsoleHistory, RangeQuery
from admission.console.routes import ManifestFile, Workload, console_routes, record_routes
from admission.controller import QUOTA, SchedulingController
from admission.explain.caller_gate import CallerGate
from admission.explain.explain_api import ExplainSources, explain_routes
from admission.extender.binding import BindAnswer, BindOutcome
from admission.extender.cluster_metrics import ClusterMetrics
from admission.extender.leader_election import (
    FormerTerm,
    HeldLease,
    LeaseSource,
    SingleReplica,
    WatchedLeader,
)
from admission.ports import ClusterAccess, Involved, WatchRequest
from admission.program import AdmissionProgram
from admission.serving.authority import SelfSigned
from admission.serving.certs import Certificates, ClientGuard, FileCertificates, Switch
from admission.serving.extender_app import build_extender, scheduler_questions
from admission.serving.http_protocol import Peers
from admission.serving.https_server import HttpsServer
from admission.serving.metrics import AdmissionMetrics
from admission.serving.webhook_app import PASSED_ON, LeaderReviews, ReviewClient
from admission.webhook.create_time_checks import create_time_checks
from gpu_manager.adapters.http import HttpClient, HttpLimits, NoAnswer
from gpu_manager.adapters.kube.agent_pages import KubeAgents
from gpu_manager.adapters.kube.changes import limits_of
from gpu_manager.adapters.kube.claims import KubeClaimTemplates
from gpu_manager.adapters.kube.cluster_pods import ClusterPods, KubePlaceholders, KubePodEvents
from gpu_manager.adapters.kube.connection import Connection, KubeReviews, Timeouts, connect
from gpu_manager.adapters.kube.leases import KubeCertificates, KubeLease, KubeTextRecord, PodMark
from gpu_manager.adapters.kube.reflector import Pause, Reflector
from gpu_manager.adapters.machine import SystemClock
from gpu_manager.adapters.manifests import read_manifests
from gpu_manager.adapters.prometheus import PrometheusRanges
from gpu_manager.adapters.record_ring import RecordRing
from gpu_manager.adapters.score_routine import roll_out_routine
from gpu_manager.domain.contract import ADMISSION_NAME, ADMITTED_CLAIMS, CLAIM_RECORD
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Pod
from gpu_manager.domain.resize.sizes import KINDS
from gpu_manager.ports.clock import Clock
from gpu_manager.runtime.inbound import AccessCheck

log = structlog.get_logger(__name__)

_FILES_CHECK_SECONDS: Final = 2.0
_OWN_CHECK_SECONDS: Final = 1.5  # a caBundle that someone wiped is back within two seconds
_LEADER_LIMITS: Final = HttpLimits(1.0, 3.0, 1 << 20)  # an API server waits five seconds for a webhook


_KINDS: Final = {
    NODES: "Node",
    PODS: "Pod",
    BUDGETS: "PodDisruptionBudget",
    CLAIMS: "ResourceClaim",
    CLASSES: "DeviceClass",
    TEMPLATES: "ResourceClaimTemplate",
    QUOTA: "ConfigMap",
    **dict.fromkeys(POD_GROUP_APIS, "PodGroup"),
    **{resource: kind for kind, resource in KINDS.items()},
}


def compose(settings: AdmissionSettings) -> AdmissionProgram:
    """The service as deployed. Raises NodeUnready: a port is taken, or the API server cannot be found."""
    number, clock = version("gpu-manager"), SystemClock()
    metrics, switch = AdmissionMetrics(number), Switch()
    files = _file_certificates(settings, switch, metrics)
    connection = connect(kubeconfig=settings.kubeconfig, url=settings.api_url)
    certificates = files or _own_certificates(settings, connection, switch, metrics)
    cluster_metrics = ClusterMetrics(metrics.registry)
    pods = ClusterPods(connection, clock, component=ADMISSION_NAME, host=settings.leadership.pod)
    cluster_metrics.show_writes_dropped(lambda: pods.writes_dropped)
    records = _records(settings)
    access = _cluster_access(settings, connection, pods, clock, records)
    scheduling = SchedulingController(settings, access, cluster_metrics, clock)
    draining = threading.Event()
    _open_extender(
        settings.extender,
        scheduling,
        cluster_metrics,
        number,
        lambda: draining.is_set() or scheduling.elsewhere(),
    )
    cluster, quota, judge = scheduling.cluster, scheduling.quota, scheduling.judge
    knowledge = ExplainSources(
        cluster,
        quota,
        judge,
        scheduling.policy,
        settings.terms,
        pods.fetch_object,
        scheduling.claiming,
        settings.binds_for,
        scheduling.gangs.state,
    )
    agents = KubeAgents(connection, settings.namespace, settings.agent_token)
    usage = AgentsUsage(agents, clock, lambda node: _pods_of(node, knowledge))
    history = ConsoleHistory(usage, lambda node: _cards_of(node, knowledge), clock, _prometheus(settings))
    gate = CallerGate(AccessCheck(KubeReviews(connection), clock))
    return AdmissionProgram(
        settings,
        certificates,
        switch,
        metrics,
        check_seconds=_OWN_CHECK_SECONDS if files is None else _FILES_CHECK_SECONDS,
        checks=create_time_checks(
            cluster, quota, judge, clock, scheduling.claims, any_scheduler=not settings.terms.scheduler_name
        ),
        routers=(
            explain_routes(knowledge, gate),
            console_routes(
                knowledge,
                gate,
                usage,
                history,
                manifest_file,
                KubePodEvents(connection).read,
                scheduling.stale_seconds,
                clock,
            ),
            record_routes(records, gate),
        ),
        parts=(scheduling, usage),
        draining=draining,
        ask_leader=LeaderReviews(switch, lambda tls: leader_client(_leader_url(settings), tls)).ask,
        ensure=scheduling.templates.ensure if scheduling.templates else None,
        recorded=scheduling.recorder.decided if scheduling.recorder else None,
    )


# Certificates.


def _file_certificates(
    settings: AdmissionSettings, switch: Switch, metrics: AdmissionMetrics
) -> Certificates | None:
    """Certificates of files that someone else renews; None if the service signs for itself."""
    if settings.certificate is None or settings.key is None:
        return None
    files = FileCertificates(
        settings.certificate, settings.key, switch, lambda taken: metrics.reloaded(taken=taken)
    )
    files.check()
    return files


def _own_certificates(
    settings: AdmissionSettings, connection: Connection, switch: Switch, metrics: AdmissionMetrics
) -> Certificates:
    own = settings.own_certificates
    service = f"{settings.service}.{settings.namespace}.svc"
    return SelfSigned(
        KubeCertificates(connection, settings.namespace, own.secret, own.names),
        switch,
        SystemClock(),
        names=(service, f"{service}.cluster.local"),
        life_days=own.life_days,
        settle_seconds=own.settle_seconds,
        noted=lambda taken: metrics.reloaded(taken=taken),
    )


# The cluster, as admission.ports wants it.


def _cluster_access(
    settings: AdmissionSettings,
    connection: Connection,
    pods: ClusterPods,
    clock: Clock,
    records: RecordRing | None,
) -> ClusterAccess:
    namespace, name = settings.quota_map
    places = {
        NODES: ("/api/v1/nodes", ""),
        # Ended pods are left out of the list alone: the watch shows which pods ended before they were
        # deleted.
        PODS: ("/api/v1/pods", "status.phase!=Succeeded,status.phase!=Failed"),
        BUDGETS: ("/apis/policy/v1/poddisruptionbudgets", ""),
        **{resource: (f"/apis/apps/v1/{resource}", "") for resource in KINDS.values()},
        CLAIMS: ("/apis/resource.k8s.io/v1/resourceclaims", ""),
        CLASSES: ("/apis/resource.k8s.io/v1/deviceclasses", ""),
        TEMPLATES: ("/apis/resource.k8s.io/v1/resourceclaimtemplates", ""),
        **{group: (f"/apis/{group}/{version}/podgroups", "") for group, version in settings.pod_groups},
        QUOTA: (f"/api/v1/namespaces/{namespace}/configmaps", f"metadata.name={name}"),
    }

    def watch(wanted: WatchRequest) -> Reflector:
        path, selector = places[wanted.resource]
        return Reflector(
            connection,
            wanted.resource,
            path,
            selector,
            replaced=wanted.replaced,
            changed=wanted.changed,
            unreadable=lambda found: wanted.unreadable(
                Involved(_KINDS[wanted.resource], found.namespace, found.name, found.uid), found.event
            ),
            pause=Pause(0.2, 5.0),
            watch_selector="" if wanted.resource == PODS else None,
        )

    record = KubeTextRecord(_quick_connection(settings), settings.namespace, CLAIM_RECORD, ADMITTED_CLAIMS)
    templates = None
    if settings.claims:
        # The pod that waits for a template waits no longer than its webhook.
        templates = KubeClaimTemplates(_quick_connection(settings, Timeouts(1.0, 1.5)))
    own = settings.leadership.pod, settings.leadership.pod_uid
    mark = PodMark(_quick_connection(settings), clock, settings.namespace, *own)
    limits = partial(limits_of, _quick_connection(settings)) if settings.resize_within_quota else None
    lease, routine = _lease_source(settings, clock, mark.term), roll_out_routine()
    cards = KubePlaceholders(connection, settings.placeholders) if settings.placeholders else None
    return ClusterAccess(
        _Bindings(pods), pods, lease, record, watch, mark.set, templates, routine, limits, cards, records
    )


def _records(settings: AdmissionSettings) -> RecordRing | None:
    """The ring of recorded decisions; None if none are recorded, or none can be."""
    try:
        return RecordRing(settings.records, settings.records_mib << 20) if settings.records else None
    except NodeUnready as error:
        log.warning("record_stopped", reason=str(error))
        return None


def _quick_connection(settings: AdmissionSettings, timeouts: Timeouts = Timeouts(1.0, 2.0)) -> Connection:  # noqa: B008  # frozen
    """A connection of its own, for what must not wait behind anything, nor for long."""
    return connect(kubeconfig=settings.kubeconfig, url=settings.api_url, timeouts=timeouts)


def _lease_source(settings: AdmissionSettings, clock: Clock, former: FormerTerm) -> LeaseSource:
    leadership = settings.leadership
    if leadership.mode is LeaderMode.ALONE:
        return SingleReplica()
    lease = KubeLease(_quick_connection(settings), clock, leadership.namespace, leadership.lease)
    if leadership.mode is LeaderMode.LEASE:
        return HeldLease(lease, clock, leadership.pod, leadership.seconds, former)
    # kube-scheduler signs its Lease with its hostname: the pod's name, cut as the kubelet cuts it.
    hosts = {leadership.pod, leadership.pod[:63].rstrip("-."), socket.gethostname()}
    return WatchedLeader(lease, clock, frozenset(hosts), former)


class _Bindings:
    """:class:`admission.extender.binding.BindingApi` over the adapter."""

    def __init__(self, pods: ClusterPods) -> None:
        self._pods = pods

    def bind(self, pod: Pod, node: str, annotations: Mapping[str, str], seconds: float) -> BindAnswer:
        """See :class:`admission.extender.binding.BindingApi`."""
        return _outcome(lambda: self._pods.bind(pod, node, annotations, seconds))

    def annotate_now(self, pod: Pod, annotations: Mapping[str, str], seconds: float) -> BindAnswer:
        """See :class:`admission.extender.resizing.ResizeApi`."""
        return _outcome(lambda: self._pods.annotate_now(pod, annotations, seconds))

    def fetch(self, namespace: str, name: str) -> Pod | None:
        """See :class:`admission.extender.binding.BindingApi`."""
        return self._pods.fetch(namespace, name)


def _outcome(write: Callable[[], str]) -> BindAnswer:
    try:
        words = write()
    except NodeUnready as error:
        return BindAnswer(BindOutcome.UNKNOWN, str(error))
    return BindAnswer(BindOutcome.REFUSED, words) if words else BindAnswer(BindOutcome.BOUND)


# The extender, on a port of its own.


def _open_extender(
    endpoint: ExtenderEndpoint,
    scheduling: SchedulingController,
    cluster_metrics: ClusterMetrics,
    number: str,
    draining: Callable[[], bool],
) -> None:
    """Give the part its listener. Raises NodeUnready: the port is taken, or a file cannot be used."""
    peers, context = Peers(), None
    if endpoint.certificate is not None and endpoint.key is not None and endpoint.client_ca is not None:
        guarded = ClientGuard(endpoint.certificate, endpoint.key, endpoint.client_ca, peers.end)
        guarded.check()
        scheduling.checks.append(guarded.look)
        context = guarded.context
    app = build_extender(endpoint, scheduling.extender, peers, cluster_metrics, number, draining)
    scheduling.listener = HttpsServer(
        app,
        endpoint.address,
        endpoint.port,
        context,
        patience_seconds=InflightBounds().seconds,
        peers=peers,
        questions=scheduler_questions(scheduling.extender, endpoint, peers, cluster_metrics, draining),
    )


# Reviews that only the leader may answer.


def _leader_url(settings: AdmissionSettings) -> str:
    """The Service that selects the leader's label."""
    return f"https://{settings.service}-leader.{settings.namespace}.svc"


def leader_client(url: str, tls: ssl.SSLContext) -> ReviewClient:
    """Return what asks the replica at ``url`` about a review, in no more than three seconds."""
    client = HttpClient(url, limits=_LEADER_LIMITS, tls=tls, keep=0)
    headers = {"content-type": "application/json", PASSED_ON: "true"}

    def ask(body: bytes) -> bytes | None:
        try:
            answer = client.ask("POST", "/validate", body=body, headers=headers)
        except NoAnswer as error:
            log.warning("leader_not_asked", reason=str(error))
            return None
        return answer.body if answer.status == HTTPStatus.OK else None

    return ask


# What the console asks beside the books.


def manifest_file(body: bytes) -> ManifestFile:
    """What the console judges of a file. Raises RequestInvalid."""
    found = read_manifests(body)
    workloads = (Workload(m.kind, m.namespace, m.name, m.copies, m.pod) for m in found if m.runs_pods)
    return ManifestFile(tuple(workloads), [m.claim for m in found if m.claim is not None])


def _cards_of(node: str, knowledge: ExplainSources) -> Sequence[str]:
    view = knowledge.snapshot().nodes.get(node)
    return [state.card.uuid for state in view.node.cards] if view else []


def _pods_of(node: str, knowledge: ExplainSources) -> Mapping[str, Pod]:
    view = knowledge.snapshot().nodes.get(node)
    return {uid: known.pod for uid, known in view.bound.items()} if view else {}


def _prometheus(settings: AdmissionSettings) -> RangeQuery | None:
    """The way to Prometheus; None if none is configured. Raises RequestInvalid: its URL is malformed."""
    if not settings.prometheus:
        return None
    return PrometheusRanges(settings.prometheus, settings.prometheus_token).ask
