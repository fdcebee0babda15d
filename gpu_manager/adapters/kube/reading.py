"""Reads of the cluster for commands: lists in pages, and paths of the API server's proxies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpu_manager.adapters.kube.agents import is_agent
from gpu_manager.adapters.kube.connection import Connection, Refused, pods_path, segment
from gpu_manager.adapters.kube.objects import Told, named, unheard
from gpu_manager.adapters.kube.streams import Pages
from gpu_manager.domain.cluster.accounting import cluster_books
from gpu_manager.domain.cluster.claims import KnownClaim, read_claim
from gpu_manager.domain.cluster.node_books import NodeBooks, Used, protected_by_namespace, used_by_namespace
from gpu_manager.domain.cluster.node_json import read_node
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.kube.pod import Pod, parse_pod
from gpu_manager.domain.untrusted import mapping, text

_CLAIMS: Final = "/apis/resource.k8s.io/v1/resourceclaims"


def list_all(
    connection: Connection, what: str, path: str, query: Mapping[str, str] | None = None
) -> Iterator[Mapping[str, Any]]:
    """Every object of a list; ``connection.told`` is called for objects that cannot be read.

    ``what`` completes "refused to …". Raises NodeUnready.
    """
    return Pages(connection, what, path, query, connection.told).read()


@dataclass(frozen=True, slots=True)
class ClusterReader:
    """A snapshot: nodes with their accounting, pods that request a share, node → its agent's (namespace,
    pod).

    ``silent``: why ResourceClaims are left out although nodes give their cards by them; empty if they are
    not.
    """

    nodes: tuple[NodeBooks, ...]
    pods: tuple[Pod, ...]
    agents: Mapping[str, tuple[str, str]]
    silent: str = ""

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
        """The amounts that quotas count, by namespace and card model."""
        return used_by_namespace(self.nodes)

    @property
    def protected(self) -> Used:
        """The part of :attr:`used` that protected shares hold."""
        return protected_by_namespace(self.nodes)


def read_cluster(connection: Connection, node: str = "") -> ClusterReader:
    """Read nodes and pods, and claims if a node gives cards by them; only for ``node`` if it is set.

    Raises NodeUnready: the API server refuses or does not answer.
    """
    nodes = list(list_nodes(connection, node))
    claims, silent = read_claims(connection, nodes)
    return cluster_of(nodes, list_pods(connection, node), claims, silent, connection.told)


def read_claims(connection: Connection, nodes: Iterable[Mapping[str, Any]]) -> tuple[list[KnownClaim], str]:
    """Every claim that is allocated a card, and why they cannot be read; empty if they can.

    No request is made if no node gives cards by claims. Raises NodeUnready: no answer.
    """
    if not give_by_claims(nodes):
        return [], ""
    try:
        found = list(list_all(connection, "list resourceclaims", _CLAIMS))
    except Refused as refusal:
        return [], str(refusal)
    return holding_claims(found), ""


def give_by_claims(nodes: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether any of the Node objects gives a card by ResourceClaims."""
    cards = (state for node in map(read_node, nodes) for state in node.cards)
    return any(state.held == DRA_DRIVER for state in cards)


def holding_claims(objects: Iterable[Mapping[str, Any]]) -> list[KnownClaim]:
    """The ResourceClaims that are allocated a card."""
    claims = (read_claim(obj) for obj in objects)
    return [claim for claim in claims if claim is not None and claim.devices]


def list_nodes(connection: Connection, name: str = "") -> Iterator[Mapping[str, Any]]:
    """Every Node object, or the one of that name. Raises NodeUnready."""
    return list_all(connection, "list nodes", "/api/v1/nodes", _only("metadata.name", name))


def list_pods(connection: Connection, node: str = "") -> Iterator[Mapping[str, Any]]:
    """Every Pod object of all namespaces, or those on that node. Raises NodeUnready."""
    what = "list the pods of all namespaces"
    return list_all(connection, what, "/api/v1/pods", _only("spec.nodeName", node))


_GROUPS: Final = {
    "Pod": "/api/v1", "Deployment": "/apis/apps/v1", "StatefulSet": "/apis/apps/v1",
    "DaemonSet": "/apis/apps/v1", "ReplicaSet": "/apis/apps/v1", "Job": "/apis/batch/v1",
}  # fmt: skip


def read_object(connection: Connection, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
    """A pod, or a workload that makes pods; None if there is none. Raises NodeUnready."""
    place = f"{_GROUPS[kind]}/namespaces/{segment(namespace)}/{kind.lower()}s/{segment(name)}"
    found = connection.read(f"read the {kind.lower()} {namespace}/{name}", place)
    return None if found is None else {"kind": kind, **found}


def node_object(connection: Connection, name: str) -> dict[str, Any] | None:
    """The node of that name; None if there is none. Raises NodeUnready."""
    return connection.read(f"read the node {name}", f"/api/v1/nodes/{segment(name)}")


def labelled_pods(connection: Connection, workload: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The pods that the selector of a workload finds, and perhaps others beside them. Raises NodeUnready."""
    namespace = text(mapping(workload.get("metadata")).get("namespace"))
    labels = mapping(mapping(mapping(workload.get("spec")).get("selector")).get("matchLabels"))
    selector = ",".join(f"{text(key)}={text(value)}" for key, value in sorted(labels.items()))
    query = {"labelSelector": selector} if selector else {}
    return list_all(connection, f"list the pods of namespace {namespace}", pods_path(namespace), query)


def _only(field: str, value: str) -> Mapping[str, str]:
    return {"fieldSelector": f"{field}={value}"} if value else {}


def read_budgets(connection: Connection) -> Iterator[Mapping[str, Any]]:
    """Every PodDisruptionBudget object. Raises NodeUnready."""
    return list_all(connection, "list poddisruptionbudgets", "/apis/policy/v1/poddisruptionbudgets")


def read_priorities(connection: Connection) -> Iterator[Mapping[str, Any]]:
    """Every PriorityClass object. Raises NodeUnready."""
    return list_all(connection, "list priorityclasses", "/apis/scheduling.k8s.io/v1/priorityclasses")


def cluster_of(
    node_objects: Iterable[Mapping[str, Any]],
    pod_objects: Iterable[Mapping[str, Any]],
    claims: Sequence[KnownClaim] = (),
    silent: str = "",
    told: Told = unheard,
) -> ClusterReader:
    """The snapshot from objects; ``silent`` as :attr:`ClusterReader.silent`, ``told`` is called for pods that
    cannot be read.
    """
    nodes = tuple(map(read_node, node_objects))
    pods: list[Pod] = []
    agents: dict[str, tuple[str, str]] = {}
    for obj in pod_objects:
        try:
            pod = parse_pod(obj)
        except RequestInvalid as error:
            told(named(mapping(obj.get("metadata")), str(error)))
            continue
        pod = pod.with_lent_cards() if pod.node else pod
        if pod.asks:
            pods.append(pod)
        elif is_agent(obj) and pod.phase == "Running":
            agents[pod.node] = pod.namespace, pod.name
    return ClusterReader(cluster_books(nodes, pods, claims), tuple(pods), agents, silent)
