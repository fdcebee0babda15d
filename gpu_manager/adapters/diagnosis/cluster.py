"""Facts about the cluster, from the API server with the caller's permissions.

``kubectl vcuda`` runs from one file without compiled parts, so that it has no library for certificates: the
one field that a diagnosis needs, when a certificate expires, is read here.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import yaml

from gpu_manager.adapters.kube.connection import Connection, Refused
from gpu_manager.adapters.kube.objects import named
from gpu_manager.adapters.kube.reading import list_all
from gpu_manager.domain import contract
from gpu_manager.domain.doctor.facts import (
    AgentPods,
    ClusterFacts,
    DoctorNode,
    PodFacts,
    SchedulerFacts,
    Webhook,
)
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.kube.constraints import Term, read_terms
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.other_plugins import given_by
from gpu_manager.domain.resize.judgement import NamespaceLimits
from gpu_manager.domain.resources import lenient_count
from gpu_manager.domain.untrusted import mapping, mappings, text

_HOOKS: Final = "/apis/admissionregistration.k8s.io/v1"
_HINTS: Final = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")
_MIRROR: Final = "kubernetes.io/config.mirror"

T = TypeVar("T")


def gather_cluster(connection: Connection) -> ClusterFacts:
    """Everything that the caller may see; ``refused`` lists what was refused.

    Raises:
        NodeUnready: the API server does not answer at all.
    """
    connection.request("say its version", "GET", "/version")
    looked = _Looked(connection)
    hooks = looked.part("webhook configurations", looked.webhooks)
    namespaces = sorted({namespace for namespace, _ in looked.services} | {contract.NAMESPACE})
    agents = looked.part("daemonsets", looked.daemonset)
    return ClusterFacts(
        nodes=looked.part("nodes", looked.nodes),
        pods=looked.part("pods", looked.pods),
        agents=agents[0] if agents else None,
        agents_known=agents is not None,
        webhooks=hooks,
        services_ready=looked.part("the pods of the admission service", looked.endpoints),
        serving_expires=looked.part("the certificate's Secret", looked.serving_expiry),
        schedulers=looked.part("configmaps", lambda: tuple(looked.schedulers(namespaces))),
        runtime_classes=looked.part("runtimeclasses", looked.runtime_classes),
        limits=looked.part("resourcequotas and limitranges", looked.limits),
        given_elsewhere=looked.given_elsewhere,
        refused=looked.refused,
    )


class _Looked:
    """One look: each part is asked for once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.refused: dict[str, str] = {}
        self.services: set[tuple[str, str]] = set()  # (namespace, name) of what webhooks call
        self.given_elsewhere: dict[str, list[str]] = {}

    def part(self, name: str, look: Callable[[], T]) -> T | None:
        try:
            return look()
        except Refused as error:
            missing = "the API server does not serve this kind" if error.code == 404 else str(error)
            self.refused[name] = f"{name}: {missing}"
        except NodeUnready as error:
            self.refused[name] = f"{name}: {error}"
        return None

    def _list(self, what: str, path: str, **query: str) -> Iterator[Mapping[str, Any]]:
        return list_all(self._connection, f"list {what}", path, query)

    def nodes(self) -> tuple[DoctorNode, ...]:
        return tuple(_node(obj) for obj in self._list("nodes", "/api/v1/nodes"))

    def pods(self) -> tuple[PodFacts, ...]:
        return tuple(
            fact for obj in self._list("pods", "/api/v1/pods") if (fact := self._pod(obj)) is not None
        )

    def _pod(self, obj: Mapping[str, Any]) -> PodFacts | None:
        meta, spec = mapping(obj.get("metadata")), mapping(obj.get("spec"))
        who = given_by(mapping(meta.get("labels")), mapping(meta.get("annotations")))
        ended = text(mapping(obj.get("status")).get("phase")) in ("Succeeded", "Failed")
        if who and not ended and (node := text(spec.get("nodeName"))):
            what = f"{text(meta.get('namespace'))}/{text(meta.get('name'))} has a part of a card by {who}"
            self.given_elsewhere.setdefault(node, []).append(what)
        try:
            return _pod(parse_pod(obj), obj)
        except RequestInvalid as error:
            self._connection.told(named(mapping(obj.get("metadata")), str(error)))
            return None

    def limits(self) -> Mapping[str, NamespaceLimits]:
        kinds = ("resourcequotas", "limitranges")
        found = [[dict(obj) for obj in self._list(kind, f"/api/v1/{kind}")] for kind in kinds]
        spaces = {text(mapping(obj.get("metadata")).get("namespace")) for objs in found for obj in objs}
        return {
            space: NamespaceLimits(
                *([o for o in objs if mapping(o.get("metadata")).get("namespace") == space] for objs in found)
            )
            for space in spaces
        }

    def daemonset(self) -> tuple[AgentPods | None]:
        found = next(
            self._list(
                "daemonsets",
                "/apis/apps/v1/daemonsets",
                fieldSelector=f"metadata.name={contract.AGENT_DAEMONSET}",
            ),
            None,
        )
        if found is None:
            return (None,)
        spec = mapping(found.get("spec"))
        template = mapping(mapping(spec.get("template")).get("spec"))
        labels = _texts(mapping(spec.get("selector")).get("matchLabels"))
        namespace = text(mapping(found.get("metadata")).get("namespace"))
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        pods = self._list("the agent's pods", f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)
        ready = {text(mapping(pod.get("spec")).get("nodeName")): _is_ready(pod) for pod in pods}
        return (
            AgentPods(
                f"{namespace}/{contract.AGENT_DAEMONSET}",
                _texts(template.get("nodeSelector")),
                {node: holds for node, holds in ready.items() if node},
                text(template.get("runtimeClassName")),
                lends=any(
                    "--nvidia-resource" in _list(c.get("command")) + _list(c.get("args"))
                    for c in mappings(template.get("containers"))
                ),
                affinity=_affinity(template),
            ),
        )

    def webhooks(self) -> tuple[Webhook, ...]:
        found = []
        for kind in ("mutating", "validating"):
            for obj in self._list(f"{kind} webhooks", f"{_HOOKS}/{kind}webhookconfigurations"):
                name = text(mapping(obj.get("metadata")).get("name"))
                for hook in mappings(obj.get("webhooks")):
                    client = mapping(hook.get("clientConfig"))
                    service = mapping(client.get("service"))
                    if text(service.get("name")) != contract.ADMISSION_NAME:
                        continue
                    place = text(service.get("namespace")), contract.ADMISSION_NAME
                    self.services.add(place)
                    found.append(
                        Webhook(
                            configuration=name,
                            name=text(hook.get("name")),
                            mutating=kind == "mutating",
                            policy=text(hook.get("failurePolicy")) or "Fail",
                            expires=first_expiry(client.get("caBundle")),
                            service="/".join(place),
                            pods=any(
                                "pods" in _list(r.get("resources")) for r in mappings(hook.get("rules"))
                            ),
                        )
                    )
        return tuple(found)

    def endpoints(self) -> dict[str, int]:
        ready: dict[str, int] = {}
        for namespace, name in self.services:
            path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
            slices = self._list("endpoints", path, labelSelector=f"kubernetes.io/service-name={name}")
            ready[f"{namespace}/{name}"] = sum(
                mapping(one.get("conditions")).get("ready") is not False
                for found in slices
                for one in mappings(found.get("endpoints"))
            )
        return ready

    def serving_expiry(self) -> float | None:
        for namespace, _ in sorted(self.services):
            path = f"/api/v1/namespaces/{namespace}/secrets/{contract.ADMISSION_SECRET}"
            try:
                secret = self._connection.request("read the certificate's Secret", "GET", path)
            except Refused as error:
                if error.code == 404:  # cert-manager's, or another name: its caBundle tells enough
                    continue
                raise
            return first_expiry(mapping(secret.get("data")).get("tls.crt"))
        return None

    def schedulers(self, namespaces: Sequence[str]) -> Iterator[SchedulerFacts]:
        for namespace in namespaces:
            for obj in self._list("configmaps", f"/api/v1/namespaces/{namespace}/configmaps"):
                name = text(mapping(obj.get("metadata")).get("name"))
                for page in mapping(obj.get("data")).values():
                    if isinstance(page, str) and "KubeSchedulerConfiguration" in page:
                        yield from _scheduler(f"{namespace}/{name}", page)

    def runtime_classes(self) -> frozenset[str]:
        found = self._list("runtimeclasses", "/apis/node.k8s.io/v1/runtimeclasses")
        return frozenset(text(mapping(obj.get("metadata")).get("name")) for obj in found)


def _node(obj: Mapping[str, Any]) -> DoctorNode:
    meta, status = mapping(obj.get("metadata")), mapping(obj.get("status"))
    written = mapping(meta.get("annotations")).get(contract.INVENTORY)
    inventory = contract.decode_inventory(written if isinstance(written, str) else None)
    labels, allocatable = _texts(meta.get("labels")), mapping(status.get("allocatable"))
    gpu = lenient_count(allocatable.get(contract.NVIDIA)) or 0
    hints = [f"label {key}" for key in _HINTS if labels.get(key) == "true"]
    return DoctorNode(
        name=text(meta.get("name")),
        inventory=inventory,
        core=lenient_count(allocatable.get(contract.CORE)),
        memory=lenient_count(allocatable.get(contract.MEMORY)),
        gpu=gpu,
        hinted=next(iter([*hints, f"{gpu} {contract.NVIDIA}"] if gpu else hints), ""),
        labels=labels,
        runtime=text(mapping(status.get("nodeInfo")).get("containerRuntimeVersion")),
        inventory_unreadable=written is not None and inventory is None,
    )


def _pod(pod: Pod, obj: Mapping[str, Any]) -> PodFacts | None:
    if not pod.asks:
        return None
    runtime_class = text(mapping(obj.get("spec")).get("runtimeClassName"))
    return PodFacts(pod, _MIRROR in pod.annotations, runtime_class, pod.refused)


def _affinity(template: Mapping[str, Any]) -> tuple[tuple[Term, ...], ...]:
    """What a node's labels must be: the terms of one of these; none where every node will do."""
    wanted = mapping(mapping(template.get("affinity")).get("nodeAffinity"))
    required = mapping(wanted.get("requiredDuringSchedulingIgnoredDuringExecution"))
    return tuple(read_terms(term) or () for term in mappings(required.get("nodeSelectorTerms")))


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = mappings(mapping(pod.get("status")).get("conditions"))
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _scheduler(where: str, page: str) -> Iterator[SchedulerFacts]:
    try:
        data = yaml.safe_load(page)
    except (yaml.YAMLError, ValueError, RecursionError):
        return
    config = mapping(data)
    if config.get("kind") != "KubeSchedulerConfiguration":
        return
    managed = {
        text(resource.get("name"))
        for extender in mappings(config.get("extenders"))
        for resource in mappings(extender.get("managedResources"))
    }
    profiles = tuple(text(p.get("schedulerName")) for p in mappings(config.get("profiles")))
    yield SchedulerFacts(where, profiles or ("default-scheduler",), contract.CORE in managed)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: object) -> dict[str, str]:
    return {k: v for k, v in mapping(value).items() if isinstance(k, str) and isinstance(v, str)}


_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0  # [0] EXPLICIT; absent in certificates of version 1
_TIMES: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}  # UTCTime, GeneralizedTime


def first_expiry(bundle: object) -> float | None:
    """When the first of these PEM certificates expires, in seconds since 1970.

    Args:
        bundle: base64, as in ``caBundle`` and Secrets.

    Returns:
        None without a certificate, or if one cannot be read.
    """
    try:
        pem = base64.b64decode(str(bundle or ""), validate=True)
        return min((_not_after(base64.b64decode(body)) for body in _PEM.findall(pem)), default=None)
    except (ValueError, IndexError, binascii.Error):
        return None


def _not_after(der: bytes) -> float:
    """``tbsCertificate.validity.notAfter`` (RFC 5280, 4.1.2.5).

    Raises:
        ValueError: this is no certificate.
    """
    fields, _ = _value(_value(der, _SEQUENCE)[0], _SEQUENCE)
    if fields[0] == _VERSION:
        _, fields = _value(fields)
    for _ in ("serialNumber", "signature", "issuer"):
        _, fields = _value(fields)
    validity, _ = _value(fields, _SEQUENCE)
    _, rest = _value(validity)
    text, _ = _value(rest)
    # strptime reads the years 50 to 68 as 2050 to 2068, RFC 5280 as 1950 to 1968: nobody stores those.
    return dt.datetime.strptime(text.decode(), _TIMES.get(rest[0], "")).replace(tzinfo=dt.UTC).timestamp()


def _value(data: bytes, tag: int | None = None) -> tuple[bytes, bytes]:
    """The content of the DER element at the beginning of ``data``, and what follows it.

    Raises:
        ValueError: it has another tag, or is longer than the data.
        IndexError: the data ends within its head.
    """
    if tag is not None and data[0] != tag:
        raise ValueError(f"tag {data[0]:#x} where {tag:#x} belongs")
    length, start = data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start])
    if len(data) < start + length:
        raise ValueError("an element ends before its end")
    return data[start : start + length], data[start + length :]
