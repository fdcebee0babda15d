"""The agent's view of Kubernetes: its own node and that node's pods, which the kubelet's ``/pods`` on its
HTTPS port lists exactly as it admits them.

The latter needs the fine-grained right ``get nodes/pods`` (never ``nodes/proxy``: that one can run commands).
A kubelet whose certificate cannot be verified gets no token: any user of the node may listen on that port
while no kubelet does, and on many networks a pod may answer for the node's address.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog

from gpu_manager.adapters.http import HttpAnswer, HttpClient, HttpLimits
from gpu_manager.adapters.kube.connection import Connection, KubeReviews
from gpu_manager.adapters.kube.kubeconfig import SERVICE_ACCOUNT
from gpu_manager.adapters.kube.objects import ListReader, Obj, unheard
from gpu_manager.adapters.kube.outbox import Outbox
from gpu_manager.adapters.kube.pods import FirstSource, KubeletSource, KubePods
from gpu_manager.adapters.kube.reading import list_all
from gpu_manager.adapters.kube.reflector import Pause, Reflector, WatchedObjects
from gpu_manager.adapters.kube.tasks import EventTeller, LeaveTaints, MergeMetadata, Thing, publish_node
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.node_json import whole_number
from gpu_manager.domain.contract import (
    CORDON,
    CORE,
    EVENT_UNREADABLE,
    FORGET,
    FRONT_LABEL,
    INVENTORY,
    STARTUP_TAINT,
    decode_inventory,
    decode_uuids,
    encode_uuids,
)
from gpu_manager.domain.dra.sides import Front
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.untrusted import mapping, text
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.records import Store
from gpu_manager.runtime.inbound import AccessCheck

log = structlog.get_logger(__name__)


# The agent's own Node object: the values published there, and operators' cordons of cards.


_AGAIN_SECONDS = 30.0  # shortest time between two repairs of keys that others changed


@dataclass(eq=False, repr=False)
class KubeNode(WatchedObjects):
    """Watches the Node and patches it. Published keys are restored if they are removed.

    Cordons outlive the Node object: a recreated one, with another UID and no cordons, gets them back.

    ``cordons`` keeps them while no agent runs; without it they live as long as this agent.
    ``startup_taint``: remove the taint of a node that joined, once pods can be given cards there.
    """

    connection: Connection
    node: str
    _: KW_ONLY
    clock: Clock
    outbox: Outbox
    pause: InitVar[Pause | None] = None
    cordons: Store | None = None
    startup_taint: bool = False

    def __post_init__(self, pause: Pause | None) -> None:
        self._teller = EventTeller(self.connection, self.clock, self.node)
        self._lock = threading.Lock()
        self._uid, self._cordoned = _load(self.cordons)
        self._to_forget: frozenset[CardUuid] = frozenset()
        self._wanted: tuple[dict[str, str], dict[str, str | None]] = ({}, {})
        self._there: tuple[Mapping[str, str], Mapping[str, str]] | None = None
        self._repaired = float("-inf")
        reflector = Reflector(
            self.connection,
            "nodes",
            "/api/v1/nodes",
            f"metadata.name={self.node}",
            replaced=self._replaced,
            changed=self._changed,
            unreadable=lambda found: self.event(EVENT_UNREADABLE, found.event),
            pause=pause,
        )
        super().__init__(reflector)

    def publish(self, annotations: Mapping[str, str], labels: Mapping[str, str | None]) -> None:
        """See :meth:`gpu_manager.ports.api_server.InventoryPublisher.publish`; unchanged values are not
        written again.
        """
        with self._lock:
            self._wanted = ({**self._wanted[0], **annotations}, {**self._wanted[1], **labels})
            task = self._task()
            if self._holds() and not self.outbox.waiting(task.key):
                return
        self.outbox.put(task)

    def shown(self) -> bool:
        """See :meth:`gpu_manager.ports.api_server.InventoryPublisher.shown`."""
        with self._lock:
            return self._there is not None and _has(self._there[0], self._wanted[0])

    def label(self, key: str) -> str:
        """The value of a label of the Node object as last seen; empty without it."""
        with self._lock:
            return text(self._there[1].get(key)) if self._there is not None else ""

    def cordoned(self) -> frozenset[CardUuid]:
        """Cards that the operator has closed, as last read; they stay closed while the API server is away."""
        with self._lock:
            return self._cordoned

    def to_forget(self) -> frozenset[CardUuid]:
        """Vanished cards that the operator does not expect back, as last seen."""
        with self._lock:
            return self._to_forget

    def forgot(self, uuids: Collection[CardUuid]) -> None:
        """Remove cards from the operator's annotation; the annotation is deleted with the last of them."""
        with self._lock:
            self._to_forget = left = self._to_forget.difference(uuids)
        self.outbox.put(publish_node(self.connection, self.node, {FORGET: encode_uuids(left) or None}))

    def elsewhere(self, uuids: Collection[CardUuid]) -> frozenset[CardUuid]:
        """Those of the cards that another node lists in working order. Raises NodeUnready."""
        found: set[CardUuid] = set()
        for node in list_all(self.connection, "list nodes", "/api/v1/nodes"):
            meta = mapping(node.get("metadata"))
            shown = decode_inventory(mapping(meta.get("annotations")).get(INVENTORY))
            if shown is not None and meta.get("name") != self.node:
                found |= {state.card.uuid for state in shown.cards if state.healthy}
        return frozenset(found.intersection(uuids))

    def event(self, reason: str, message: str) -> None:
        """Record a warning Event about the node; its uid is the node's name there, as the kubelet has it."""
        subject = Thing("Node", self.node, "default", self.node)
        self.outbox.put(self._teller.event(subject, reason, message))

    def _task(self) -> MergeMetadata:
        return publish_node(self.connection, self.node, dict(self._wanted[0]), dict(self._wanted[1]))

    def _holds(self) -> bool:
        if self._there is None:
            return False
        annotations, labels = self._there
        return _has(annotations, self._wanted[0]) and _has(labels, self._wanted[1])

    def _replaced(self, nodes: Iterable[Obj], take: Callable[[Obj], None]) -> None:
        for node in nodes:
            take(node)

    def _changed(self, node: Mapping[str, Any], gone: bool) -> None:  # noqa: FBT001 - the watch's word for DELETED
        meta = mapping(node.get("metadata"))
        annotations = mapping(meta.get("annotations"))
        if not gone:
            self._note_cordons(text(meta.get("uid")), annotations)
            if self.startup_taint and (left := left_taints(node)) is not None:
                version = text(meta.get("resourceVersion"))
                self.outbox.put(LeaveTaints(self.connection, self.node, version, left))
        with self._lock:
            if gone:
                self._there = None
                return
            self._there = (annotations, meta.get("labels") or {})
            self._to_forget = decode_uuids(annotations.get(FORGET))
            task = self._task()
            if self._holds() or self.outbox.waiting(task.key):
                return
            now = self.clock.monotonic()
            self._repaired = max(now, self._repaired + _AGAIN_SECONDS)
            delay = self._repaired - now
        self.outbox.put(task, delay)

    def _note_cordons(self, uid: str, annotations: Mapping[str, str]) -> None:
        said = decode_uuids(annotations.get(CORDON))
        with self._lock:
            made_anew = self._uid not in ("", uid)
            kept = self._cordoned if made_anew and CORDON not in annotations else frozenset()
            if (uid, said | kept) == (self._uid, self._cordoned):
                return
            self._uid, self._cordoned = uid, said | kept
            state = json.dumps({"uid": uid, "cordoned": encode_uuids(self._cordoned)}).encode()
        if kept:
            log.warning("cordons_restored", node=self.node, cards=sorted(kept))
            self.outbox.put(publish_node(self.connection, self.node, {CORDON: encode_uuids(kept)}))
        if self.cordons is not None:
            try:
                self.cordons.save(state)
            except NodeUnready as error:
                log.warning("cordons_not_saved", reason=str(error))


def _load(cordons: Store | None) -> tuple[str, frozenset[CardUuid]]:
    """The UID of the Node as last seen, and its cordons; nothing where that cannot be read."""
    try:
        state = cordons.load() if cordons is not None else None
        kept = mapping(json.loads(state)) if state is not None else {}
    except (NodeUnready, ValueError, RecursionError) as error:
        log.error("cordons_lost", reason=str(error))
        kept = {}
    return text(kept.get("uid")), decode_uuids(text(kept.get("cordoned")))


def left_taints(node: Mapping[str, Any]) -> list[Any] | None:
    """The taints of a node without that of its start; None if it has none, or must keep it for now: until its
    agent serves, and its kubelet has reported the devices, so that an autoscaler sees them too.
    """
    meta, status = mapping(node.get("metadata")), mapping(node.get("status"))
    taints = mapping(node.get("spec")).get("taints")
    if not isinstance(taints, list):
        return None
    left = [taint for taint in taints if mapping(taint).get("key") != STARTUP_TAINT]
    shown = decode_inventory(mapping(meta.get("annotations")).get(INVENTORY))
    by_claims = mapping(meta.get("labels")).get(FRONT_LABEL) == Front.DRA.value
    reported = by_claims or whole_number(mapping(status.get("allocatable")).get(CORE)) > 0
    serves = shown is not None and shown.serving and reported
    return left if serves and len(left) < len(taints) else None


def _has(there: Mapping[str, str], wanted: Mapping[str, str | None]) -> bool:
    return all(there.get(key) == value for key, value in wanted.items())


class Kube:
    """One node: ``pods`` and ``node`` over one connection, started and stopped together; ``access`` is what
    callers may do.

    Args:
        connection: from :func:`connect`; closed by :meth:`close`.
        node: this node's name.
        clock: time.
        kubelet_url: ``https://<node>:10250`` to ask the kubelet for its pods, None not to.
        kubelet_ca: who signs the kubelet's certificate.
        token_file: the token shown to the kubelet.
        pause: between attempts, for tests.
        tombstone_seconds: how long a deleted pod is remembered.
        lending: whole cards go by NVIDIA's resource name too.
        pods_api: asks the kubelet for its pods before its port is; closed by :meth:`close`.
        mark_evictions: pods are not evicted, but marked for an evictor.
        cordons: keeps the operator's cordons over the Node object's life.
        startup_taint: the taint of a node that joined is removed once pods can be given cards there.
    """

    def __init__(
        self,
        connection: Connection,
        node: str,
        *,
        clock: Clock,
        kubelet_url: str | None = None,
        kubelet_ca: Path = SERVICE_ACCOUNT / "ca.crt",
        token_file: Path = SERVICE_ACCOUNT / "token",
        pause: Pause | None = None,
        tombstone_seconds: float = 120.0,
        lending: bool = False,
        mark_evictions: bool = False,
        pods_api: KubeletSource | None = None,
        cordons: Store | None = None,
        startup_taint: bool = False,
    ) -> None:
        self._connection = connection
        self.access = AccessCheck(KubeReviews(connection), clock)
        self._outbox = Outbox(clock, pause)
        sources: list[KubeletSource] = [pods_api] if pods_api is not None else []
        self._kubelet_pods = (
            KubeletPods(kubelet_url, clock, token_file, kubelet_ca, node) if kubelet_url else None
        )
        if self._kubelet_pods is not None:
            sources.append(self._kubelet_pods)
        self.pods = KubePods(
            connection,
            node,
            clock=clock,
            outbox=self._outbox,
            kubelet=FirstSource(*sources) if sources else None,
            pause=pause,
            tombstone_seconds=tombstone_seconds,
            lending=lending,
            mark_evictions=mark_evictions,
        )
        self.node = KubeNode(
            connection,
            node,
            clock=clock,
            outbox=self._outbox,
            pause=pause,
            cordons=cordons,
            startup_taint=startup_taint,
        )

    def start(self) -> None:
        """Start the watches and the writer thread."""
        self._outbox.start()
        self.pods.start()
        self.node.start()

    @property
    def kubelet_unverified(self) -> bool:
        """True if the kubelet's certificate could not be verified, so that it got no token."""
        return self._kubelet_pods is not None and self._kubelet_pods.unverified

    @property
    def writes_dropped(self) -> int:
        """Writes given up because too many waited."""
        return self._outbox.dropped

    @property
    def unreadable(self) -> Mapping[str, int]:
        """How often an object could not be read, by resource."""
        return {"nodes": self.node.unreadable, "pods": self.pods.unreadable}

    @property
    def trouble(self) -> str:
        """The resources that cannot be read at present, for /readyz, without names; empty if all can."""
        count = self.node.spoiled + self.pods.spoiled
        return (
            f"{count} of the node's objects cannot be read: see object_unreadable in the log" if count else ""
        )

    def close(self) -> None:
        """Stop all threads, within about a second each, and close the connection."""
        self.pods.close()
        self.node.close()
        self._outbox.close()
        self._connection.close()


_SIZE_LIMIT = 64 << 20  # bytes; 110 pods are about 1 MiB
_SECONDS = 1.0  # p99 was 21 to 180 ms on a saturated machine
_REST_SECONDS = 10.0  # pause after a kubelet did not answer
_LONG_REST_SECONDS = 300.0  # pause after a kubelet refused


class KubeletPods:
    """Asks ``url`` (``https://<node>:10250``); any thread.

    Args:
        url: where the kubelet listens.
        clock: for the pauses after failures.
        token_file: the service account's token, read anew each time as it rotates.
        ca_file: who signs the kubelet's certificate; the kubelet's own file where it signs that itself.
        node: a name that the certificate may have instead of the address in ``url``; empty: none.
    """

    def __init__(self, url: str, clock: Clock, token_file: Path, ca_file: Path, node: str = "") -> None:
        address = urlsplit(url)
        if address.scheme != "https" or not address.hostname:
            raise NodeUnready(f"{url} is not the kubelet's address: give https://<node>:10250")
        self._url = f"https://{address.netloc}" if address.port else f"https://{address.netloc}:10250"
        self._clock = clock
        self._token_file = token_file
        self._ca_file = ca_file
        self._names = ("", node) if node else ("",)
        self._lock = threading.Lock()
        self._client: HttpClient | None = None
        self._rests_until = 0.0
        self.error: str | None = None
        self.unverified = False
        """True after the kubelet's certificate could not be verified, until one was."""

    def pods(self) -> Sequence[Pod] | None:
        """Every pod that the kubelet knows; None if it cannot be asked now (``error`` has the reason)."""
        with self._lock:
            if self._clock.monotonic() < self._rests_until:
                return None
            try:
                answer = self._ask()
                status, pods = answer.status, _parse(answer.body) if answer.status == 200 else None
            except _Unverified as error:
                self._close()
                self.unverified = True
                self._rest(_LONG_REST_SECONDS, f"its certificate is not trusted: {error}; {_CURE_UNVERIFIED}")
                return None
            except (NodeUnready, RequestInvalid, OSError, ValueError) as error:
                self._close()
                self._rest(_REST_SECONDS, f"no answer: {error or type(error).__name__}")
                return None
            if pods is None:
                self._rest(_LONG_REST_SECONDS, _CURES.get(status, f"it answers with {status}"))
                return None
            if self.error is not None:
                log.info("kubelet_pods_restored")
            self.error = None
            return pods

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._close()

    def _ask(self) -> HttpAnswer:
        if self._client is not None:
            return self._request(self._client)
        limits = HttpLimits(_SECONDS, _SECONDS, _SIZE_LIMIT)
        # Made anew after each failure: the authority's file may have been renewed.
        context = ssl.create_default_context(cafile=str(self._ca_file))
        for name in self._names:
            self._client = HttpClient(self._url, limits=limits, tls=context, server_name=name, keep=1)
            try:
                answer = self._request(self._client)
            except NodeUnready as error:
                why = _untrusted(error)
                if not why:
                    raise
                self._close()
                continue
            self.unverified = False
            return answer
        raise _Unverified(why)

    def _request(self, client: HttpClient) -> HttpAnswer:
        token = self._token_file.read_text().strip()
        return client.ask("GET", "/pods", headers={"Authorization": f"Bearer {token}"})

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    def _rest(self, seconds: float, reason: str) -> None:
        self._rests_until = self._clock.monotonic() + seconds
        if self.error is None:
            log.warning("kubelet_pods_away", reason=reason, instead="the API server's watch")
        self.error = reason


class _Unverified(NodeUnready):
    """The kubelet's certificate cannot be verified."""


def _untrusted(error: BaseException | None) -> str:
    """Why TLS does not trust the certificate; empty if the error is another one."""
    while error is not None:
        for one in (error, *error.args):
            if isinstance(one, ssl.SSLCertVerificationError):
                return one.verify_message or str(one)
        error = error.__cause__
    return ""


_CURE_UNVERIFIED = (
    "let kubelets have serving certificates of the cluster's authority (serverTLSBootstrap: true, and "
    "approve their requests), or name who signs them with --kubelet-certificate-authority"
)
_CURES = {
    401: "it does not take the service account's token (401): is its webhook authentication on?",
    403: "the right get nodes/pods is missing (403): install the ClusterRole of this version",
    404: "it serves no /pods (404): its read-only endpoints are off",
}


def _parse(data: bytes) -> list[Pod]:
    """The pods of a list that can be read. Raises ValueError: it is none."""
    pods = []
    for item in ListReader(iter((data,)), unheard):
        with contextlib.suppress(RequestInvalid):
            pods.append(parse_pod(item))
    return pods
