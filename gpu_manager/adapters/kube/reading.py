"""Reads of the cluster for commands: lists in pages, and paths of the API server's proxies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from gpu_manager.adapters.kube.connection import Connection
from gpu_manager.domain.cluster.accounting import (
    NodeBooks,
    Used,
    cluster_books,
    protected_by_namespace,
    used_by_namespace,
)
from gpu_manager.domain.cluster.node_report import read_node
from gpu_manager.domain.contract import AGENT_DAEMONSET
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.pod import Pod, parse_pod

_PAGE: Final = "500"


def list_all(
    connection: Connection, what: str, path: str, query: Mapping[str, str] | None = None
) -> Iterator[Mapping[str, Any]]:
    """Every object of a list, page by page. ``what`` completes "refused to …". Raises NodeUnready."""
    asked = {**(query or {}), "limit": _PAGE}
    while True:
        page = connection.request(what, "GET", path, query=asked)
        yield from (item for item in page.get("items") or () if isinstance(item, Mapping))
        metadata = page.get("metadata")
        more = metadata.get("continue") if isinstance(metadata, Mapping) else None
        if not isinstance(more, str) or not more:
            return
        asked["continue"] = more


def pod_path(namespace: str, name: str, port: int, page: str) -> str:
    """Path of a pod's page through the API server (needs get on pods/proxy)."""
    return f"/api/v1/namespaces/{_safe(namespace)}/pods/{_safe(name)}:{port}/proxy{page}"


def service_path(namespace: str, name: str, port: int | str, page: str, scheme: str = "https") -> str:
    """Path of a service's page through the API server (needs get on services/proxy)."""
    return f"/api/v1/namespaces/{_safe(namespace)}/services/{scheme}:{_safe(name)}:{port}/proxy{page}"


def _safe(part: str) -> str:
    return quote(part, safe="")


@dataclass(frozen=True, slots=True)
class ClusterReader:
    """A snapshot: nodes with their books, pods that ask for a share, node → its agent's (namespace, pod)."""

    nodes: tuple[NodeBooks, ...]
    pods: tuple[Pod, ...]
    agents: Mapping[str, tuple[str, str]]

    @property
    def with_cards(self) -> tuple[NodeBooks, ...]:
        """The nodes that publish their cards."""
        return tuple(books for books in self.nodes if books.node.published)

    @property
    def by_uid(self) -> Mapping[str, Pod]:
        """Pod by each of its UIDs: a static pod has two."""
        return {uid: pod for pod in self.pods for uid in (pod.uid, pod.twin) if uid}

    @property
    def used(self) -> Used:
        """What quotas count, by namespace and card model."""
        return used_by_namespace(self.nodes)

    @property
    def protected(self) -> Used:
        """The part of :attr:`used` that protected shares hold."""
        return protected_by_namespace(self.nodes)


def read_cluster(connection: Connection) -> ClusterReader:
    """Read nodes and pods. Raises NodeUnready: the API server refuses or does not answer."""
    return cluster_of(list_nodes(connection), list_pods(connection))


def list_nodes(connection: Connection) -> Iterator[Mapping[str, Any]]:
    """Every Node object. Raises NodeUnready."""
    return list_all(connection, "list nodes", "/api/v1/nodes")


def list_pods(connection: Connection) -> Iterator[Mapping[str, Any]]:
    """Every Pod object of all namespaces. Raises NodeUnready."""
    return list_all(connection, "list the pods of all namespaces", "/api/v1/pods")


def read_budgets(connection: Connection) -> Iterator[Mapping[str, Any]]:
    """Every PodDisruptionBudget object. Raises NodeUnready."""
    return list_all(connection, "list poddisruptionbudgets", "/apis/policy/v1/poddisruptionbudgets")


def read_priorities(connection: Connection) -> Iterator[Mapping[str, Any]]:
    """Every PriorityClass object. Raises NodeUnready."""
    return list_all(connection, "list priorityclasses", "/apis/scheduling.k8s.io/v1/priorityclasses")


def cluster_of(
    node_objects: Iterable[Mapping[str, Any]], pod_objects: Iterable[Mapping[str, Any]]
) -> ClusterReader:
    """The snapshot from objects that were listed before."""
    nodes = tuple(map(read_node, node_objects))
    pods: list[Pod] = []
    agents: dict[str, tuple[str, str]] = {}
    for obj in pod_objects:
        try:
            pod = parse_pod(obj)
        except RequestInvalid:
            continue
        pod = pod.with_lent_cards() if pod.node else pod
        if pod.asks:
            pods.append(pod)
        elif is_agent(obj) and pod.phase == "Running":
            agents[pod.node] = pod.namespace, pod.name
    return ClusterReader(cluster_books(nodes, pods), tuple(pods), agents)


def is_agent(obj: Mapping[str, Any]) -> bool:
    """True for a pod of the agent's DaemonSet."""
    meta = obj.get("metadata")
    owners = meta.get("ownerReferences") if isinstance(meta, Mapping) else None
    return isinstance(owners, list) and any(
        isinstance(o, Mapping) and o.get("kind") == "DaemonSet" and o.get("name") == AGENT_DAEMONSET
        for o in owners
    )
