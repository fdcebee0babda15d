"""The cluster for what-if commands, read from the API server or from a file written by kubectl; and the pods
of a question.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from gpu_manager.adapters.manifests import Manifest, read_manifests
from gpu_manager.cli.files import drafted_pod, load, shown
from gpu_manager.cli.kubectl import service
from gpu_manager.cli.kubectl.service import Access, Login, Unread, log_in
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.cluster.node_books import NodeBooks
from gpu_manager.domain.cluster.node_json import usual_unit
from gpu_manager.domain.contract import RESIZE
from gpu_manager.domain.errors import RequestInvalid, printable, quoted
from gpu_manager.domain.kube.constraints import (
    ANY,
    ANYWHERE,
    DAEMONS,
    ONE_POD,
    HostResources,
    NodeConstraints,
    PodConstraints,
    host_of_node,
    host_of_pod,
    node_constraints,
    pod_constraints,
)
from gpu_manager.domain.kube.evictions import read_budget
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.resize.sizes import answer_of
from gpu_manager.domain.resources import format_bytes
from gpu_manager.domain.rules.pod_request import booked_request, judged_request
from gpu_manager.domain.rules.request import PodRequest
from gpu_manager.domain.untrusted import mapping, text
from gpu_manager.domain.whatif.defragmentation import DisruptionAllowance
from gpu_manager.domain.whatif.simulation import SimNode, SimPod
from gpu_manager.runtime.arguments import Option

if TYPE_CHECKING:
    from gpu_manager.adapters.kube.reading import ClusterReader


CAVEAT: Final = (
    "Judged by cards, host CPU and memory, cordons, taints, node selectors and node affinities. Quotas, "
    "volumes, and how pods spread or attract one another are not seen here; of nodes that have room the "
    "scheduler may choose another."
)
_AWAY: Final = "waits for its agent, which is starting or has left"
SAVING: Final = "kubectl get nodes,pods,pdb,priorityclasses -A -o json"
_NO_CLAIMS: Final = "the file has none (let kubectl get print resourceclaims, too)"
_SYSTEM: Final = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
_LARGEST: Final = 1 << 30  # bytes of a file with a saved cluster
_PIECE: Final = 1 << 16

Source = Annotated[
    str,
    Option(
        "--from",
        metavar="FILE",
        help=f"Instead of the cluster: what `{SAVING}` printed; - reads standard input.",
    ),
]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Nodes with their books, disruption budgets, and every pod that asks for cards."""

    nodes: tuple[SimNode, ...]
    budgets: tuple[DisruptionAllowance, ...]
    pods: tuple[Pod, ...]
    hosts: HostReader
    priorities: Mapping[str, int]
    unit: int  # bytes of one unit of memory, as most nodes count
    namespace: str = "default"
    by_claims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # node → pods with ResourceClaims

    @property
    def waiting(self) -> int:
        """Number of pods that ask for cards and have no node yet."""
        return sum(not pod.node and not pod.terminal for pod in self.pods)

    def node(self, name: str) -> SimNode:
        """The node. Raises RequestInvalid: it publishes no cards."""
        found = next((node for node in self.nodes if node.name == name), None)
        if found is None:
            there = ", ".join(node.name for node in self.nodes[:10]) or "none"
            raise RequestInvalid(f"node {quoted(name)} publishes no cards; nodes that do: {there}")
        return found


@dataclass(frozen=True, slots=True)
class PodDetails:
    """Details of a pod that plans need beside its request."""

    constraints: PodConstraints
    host: HostResources
    daemon: bool  # created by a DaemonSet for this very node

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> PodDetails:
        """Read a core/v1 Pod; malformed parts count as absent."""
        owners = mapping(obj.get("metadata")).get("ownerReferences")
        daemon = isinstance(owners, list) and any(mapping(o).get("kind") == "DaemonSet" for o in owners)
        return cls(pod_constraints(obj.get("spec")), host_of_pod(obj), daemon)


def read_view(source: str, access: Access, namespace: str = "") -> ClusterView:
    """Read the cluster. Raises RequestInvalid for a malformed file, NodeUnready for an API server."""
    from gpu_manager.adapters.kube import reading  # noqa: PLC0415  # heavy

    hosts = HostReader()
    if source:
        unread = Unread()
        saved = _saved(source, unread)
        nodes, found = saved.get("Node", []), reading.holding_claims(saved.get("ResourceClaim", ()))
        silent = "" if found or not reading.give_by_claims(nodes) else _NO_CLAIMS
        pods = hosts.pods(saved.get("Pod", ()))
        cluster = reading.cluster_of(hosts.nodes(nodes), pods, found, silent, unread)
        unread.tell()
        service.tell_unread_claims(cluster)
        budgets, classes = saved.get("PodDisruptionBudget", []), saved.get("PriorityClass", [])
        return _view(cluster, budgets, hosts, classes, namespace or "default")
    with log_in(access, namespace) as login:
        nodes = list(reading.list_nodes(login.connection))
        held = reading.read_claims(login.connection, nodes)
        pods = hosts.pods(reading.list_pods(login.connection))
        cluster = reading.cluster_of(hosts.nodes(nodes), pods, *held, login.connection.told)
        service.tell_unread_claims(cluster)
        budgets = list(reading.read_budgets(login.connection))
        return _view(cluster, budgets, hosts, _classes(login), login.namespace)


class HostReader:
    """Collects hosts' CPU and memory while objects pass, of pods without cards too."""

    def __init__(self) -> None:
        self.details: dict[PodUid, PodDetails] = {}
        self._constraints: dict[str, NodeConstraints] = {}
        self._given: dict[str, HostResources] = {}
        self._taken: dict[str, HostResources] = {}
        self._daemons: dict[str, HostResources] = {}

    def nodes(self, objects: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """The same objects."""
        for obj in objects:
            constraints = node_constraints(obj)
            self._constraints[constraints.name], self._given[constraints.name] = (
                constraints,
                host_of_node(obj),
            )
            yield obj

    def pods(self, objects: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """The same objects."""
        for obj in objects:
            details = PodDetails.of(obj)
            self.details[PodUid(text(mapping(obj.get("metadata")).get("uid")))] = details
            node = text(mapping(obj.get("spec")).get("nodeName"))
            if node and mapping(obj.get("status")).get("phase") not in ("Succeeded", "Failed"):
                self._taken[node] = self._taken.get(node, HostResources()) + details.host
                if details.daemon:
                    self._daemons[node] = self._daemons.get(node, HostResources()) + details.host
            yield obj

    def constraints(self, node: str) -> NodeConstraints:
        """The node's scheduling constraints."""
        return self._constraints.get(node, NodeConstraints(node))

    def bars(self, node: str, pod: PodDetails) -> str:
        """What besides cards keeps a pod without a node off this one, as a phrase after the node's name."""
        return self.constraints(node).bars(pod.constraints) or self.left(node).lacks(pod.host)

    def left(self, node: str) -> HostResources:
        """CPU, memory and pod slots that the node's pods leave free."""
        return self._given.get(node, ANY) - self._taken.get(node, HostResources())

    def new(self, node: str) -> HostResources:
        """What DaemonSets leave free on a new node like it."""
        return self._given.get(node, ANY) - self._daemons.get(node, HostResources())


def _classes(login: Login) -> list[Mapping[str, Any]]:
    """PriorityClasses by name; empty where the caller may not list them."""
    from gpu_manager.adapters.kube import reading  # noqa: PLC0415  # heavy
    from gpu_manager.adapters.kube.connection import Refused  # noqa: PLC0415  # heavy

    try:
        return list(reading.read_priorities(login.connection))
    except Refused:
        return []


def _saved(source: str, unread: Unread) -> Mapping[str, list[Mapping[str, Any]]]:
    """The objects of a file that kubectl wrote, by kind, without those that cannot be read."""
    from gpu_manager.adapters.kube.objects import ListReader  # noqa: PLC0415  # heavy

    name = printable(shown(source))
    found: dict[str, list[Mapping[str, Any]]] = {}
    try:
        with nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb") as file:
            begin = file.read(_PIECE)
            if not begin.strip():
                raise RequestInvalid(f"{name}: empty; save a cluster with {SAVING}")
            for item in ListReader(_pieces(name, begin, file), unread):
                found.setdefault(str(item.get("kind")), []).append(item)
    except OSError as error:
        raise RequestInvalid(f"{name}: {error.strerror or error}") from error
    except ValueError as error:
        raise RequestInvalid(f"{name}: not a list of objects in JSON, as {SAVING} prints") from error
    return found


def _pieces(name: str, begin: bytes, file: IO[bytes]) -> Iterator[bytes]:
    size, piece = 0, begin
    while piece:
        yield piece
        size += len(piece)
        if size > _LARGEST:
            raise RequestInvalid(f"{name}: larger than {format_bytes(_LARGEST)}")
        piece = file.read(_PIECE)


def _view(
    cluster: ClusterReader,
    budget_objects: Sequence[Mapping[str, Any]],
    hosts: HostReader,
    class_objects: Sequence[Mapping[str, Any]],
    namespace: str,
) -> ClusterView:
    unit = usual_unit(books.node for books in cluster.with_cards)
    nodes = tuple(
        _sim_node(books, _constraints_of(books, hosts, unit), hosts) for books in cluster.with_cards
    )
    budgets = tuple(_budgets(budget_objects, cluster.pods))
    by_claims = {books.name: users for books in cluster.with_cards if (users := _claimants(books))}
    return ClusterView(
        nodes, budgets, cluster.pods, hosts, _priorities(class_objects), unit, namespace, by_claims
    )


def _claimants(books: NodeBooks) -> tuple[str, ...]:
    """Keys of the pods that use a claim which holds a card of the node."""
    held = (one.claim for one in books.held_claims.values())
    return tuple(sorted({f"{claim.namespace}/{pod}" for claim in held for _, pod in claim.pods}))


def _constraints_of(books: NodeBooks, hosts: HostReader, unit: int) -> NodeConstraints:
    """The node's constraints; one with another memory unit, or without an agent that serves, is closed as for
    the extender.
    """
    constraints, own = hosts.constraints(books.name), books.node.unit
    if own == unit:
        return constraints if books.node.serving else replace(constraints, closed=_AWAY)
    return replace(
        constraints, closed=f"counts memory by {format_bytes(own)}, most nodes by {format_bytes(unit)}"
    )


def _priorities(objects: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
    """Priority by class name; the empty name stands for the global default."""
    found = dict(_SYSTEM)
    for obj in objects:
        value = obj.get("value", 0)
        if isinstance(value, int) and not isinstance(value, bool):
            found[text(mapping(obj.get("metadata")).get("name"))] = value
            if obj.get("globalDefault") is True:
                found[""] = value
    return found


def _sim_node(books: NodeBooks, constraints: NodeConstraints, hosts: HostReader) -> SimNode:
    pods = {
        uid: _running(charge.pod, books.node.unit, hosts.details.get(uid))
        for uid, charge in books.charges.items()
        if charge.allocations
    }
    return SimNode(
        books.name,
        books.node.cards,
        books.node.topology,
        books.ledger,
        pods,
        constraints,
        hosts.left(books.name),
        books.node.features,
    )


def _budgets(objects: Sequence[Mapping[str, Any]], pods: Sequence[Pod]) -> Iterator[DisruptionAllowance]:
    for obj in objects:
        budget = read_budget(obj)
        if budget is not None:
            covered = frozenset(pod.uid for pod in pods if budget.selects(pod))
            yield DisruptionAllowance(f"{budget.namespace}/{budget.name}", budget.allowed, covered)


def requested_pod(pod: Pod, unit: int, details: PodDetails | None) -> SimPod:
    """A requested pod in the form that plans place. Raises RequestInvalid: its request is illegal."""
    return _planned(pod, judged_request(pod, unit), details)


def _running(pod: Pod, unit: int, details: PodDetails | None) -> SimPod:
    """A running pod in the form that plans move; it stays unless a controller would recreate it.

    It comes back with the size of its spec, or with that which its workload asks for.
    """
    request = booked_request(pod, unit)
    if request is not None:
        return _planned(pod, _made_anew(pod, request), details)
    nothing = _planned(pod, PodRequest(pod.uid, ()), details)
    return replace(nothing, stays=nothing.stays or "its request is illegal: no node would take it again")


def _made_anew(pod: Pod, request: PodRequest) -> PodRequest:
    """What a pod asks for that replaces this one: a request of its own ends with it, its owner's does not."""
    answer = answer_of(pod)
    if answer is None or RESIZE in pod.annotations:
        return request
    sizes = answer.sizes
    return replace(
        request,
        containers=tuple(
            replace(c, request=replace(c.request, cores=size.cores, memory=size.memory))
            if (size := sizes.get(c.name))
            else c
            for c in request.containers
        ),
    )


def _planned(pod: Pod, request: PodRequest, details: PodDetails | None) -> SimPod:
    stays, tied = _stays(pod, daemon=details is not None and details.daemon)
    constraints, host = (ANYWHERE, ONE_POD) if details is None else (details.constraints, details.host)
    return SimPod(pod.uid, pod.key, request, stays, pod.priority, constraints, tied, host)


def _stays(pod: Pod, *, daemon: bool) -> tuple[str, bool]:
    """Why a pod cannot be moved (empty if it can), and whether it may end with its node."""
    if pod.deleting:
        return "it is ending already", True
    if daemon:
        return "its DaemonSet would make it anew on the same node", True
    if pod.static:
        return "it comes from a file of the node", True
    return ("", False) if pod.controlled else ("no controller would make it anew", False)


# What the what-if commands read: the pods that a manifest would create, and nodes that do not exist yet.


_MOST_PODS: Final = 100_000


class RequestedPod(NamedTuple):
    """A pod to come, and the core/v1 Pod of the manifest that would create it."""

    pod: SimPod
    manifest: Mapping[str, Any]


def requested(files: Sequence[str], view: ClusterView) -> list[RequestedPod]:
    """The pods that manifests would create, one for each replica. Raises RequestInvalid."""
    found: list[RequestedPod] = []
    for name in files:
        for manifest in load(name, read_manifests):
            try:
                found += _made(manifest, view, _MOST_PODS - len(found))
            except RequestInvalid as error:
                who = printable(f"{shown(name)}: {manifest.kind} {manifest.namespace}/{manifest.name}")
                raise RequestInvalid(f"{who}: {error}") from error
    return found


def pods_with_claims(files: Sequence[str]) -> int:
    """Number of manifests whose pods use ResourceClaims and no extended resource. Raises RequestInvalid."""
    found = (manifest for name in files for manifest in load(name, read_manifests))
    return sum(one.pod is not None and _only_claims(one) for one in found)


def _only_claims(manifest: Manifest) -> bool:
    pod = mapping(manifest.pod)
    uses = bool(mapping(pod.get("spec")).get("resourceClaims"))
    return uses and not drafted_pod(pod, manifest.namespace, manifest.name)[0].asks


def _made(manifest: Manifest, view: ClusterView, most: int) -> Iterator[RequestedPod]:
    """The pods of one object that ask for cards."""
    if manifest.pod is None:
        return
    details = PodDetails.of(manifest.pod)
    draft, _ = drafted_pod(manifest.pod, manifest.within(view.namespace), manifest.name)
    if not draft.asks:
        return
    pod = requested_pod(_ranked(draft, mapping(manifest.pod.get("spec")), view), view.unit, details)
    meta = mapping(manifest.pod.get("metadata"))
    made = {**manifest.pod, "metadata": {**meta, "namespace": draft.namespace, "name": draft.name}}
    if manifest.kind == "DaemonSet":
        yield from (RequestedPod(one, made) for one in _one_each(pod, view))
        return
    if manifest.copies > most:
        raise RequestInvalid(f"more than {_MOST_PODS} pods in all")
    for copy in range(manifest.copies):
        yield RequestedPod(_copy(pod, f"{pod.name}-{copy}" if manifest.copies > 1 else pod.name), made)


def _copy(pod: SimPod, name: str) -> SimPod:
    uid = PodUid(uuid.uuid4().hex)
    return replace(pod, uid=uid, name=name, request=replace(pod.request, uid=uid))


def _one_each(pod: SimPod, view: ClusterView) -> Iterator[SimPod]:
    """Pods of a DaemonSet: one for every node it is allowed on, cordoned and not-ready nodes included."""
    constraints = replace(pod.constraints, tolerations=(*pod.constraints.tolerations, *DAEMONS))
    for node in view.nodes:
        if not node.constraints.bars(constraints):
            yield replace(_copy(pod, f"{pod.name}-{node.name}"), constraints=constraints.only(node.name))


def _ranked(pod: Pod, spec: Mapping[str, Any], view: ClusterView) -> Pod:
    """The pod with the priority of its class, as the API server would set it."""
    if spec.get("priority") is not None:
        return pod
    name = text(spec.get("priorityClassName"))
    if name and name not in view.priorities:
        print(
            f"{pod.key}: priority class {quoted(name)} is not known here: judged with priority 0",
            file=sys.stderr,
        )
    return replace(pod, priority=view.priorities.get(name, 0))


def kind_of_node(name: str, view: ClusterView) -> SimNode:
    """An empty node like one of the cluster's, or like a simulated profile. Raises RequestInvalid."""
    from gpu_manager.adapters import profiles  # noqa: PLC0415  # rarely asked for

    like = next((node for node in view.nodes if node.name == name), None)
    if like is not None:
        cards = tuple(CardState(state.card) for state in like.cards)
        books = Ledger((s.card for s in cards), view.unit)
        return SimNode(
            name, cards, like.topology, books, constraints=like.constraints, host=view.hosts.new(name)
        )
    if name not in profiles.names():
        nodes = ", ".join(node.name for node in view.nodes[:10]) or "none"
        kinds = ", ".join(profiles.names())
        raise RequestInvalid(f"--like is {quoted(name)}: use a node ({nodes}) or a profile ({kinds})")
    profile = profiles.load(name)
    states = tuple(
        CardState(Card(i, CardUuid(f"GPU-{name}-{i}"), k.model, k.memory, k.reserved, k.numa, mig=k.mig))
        for i, k in enumerate(profile.cards)
    )
    return SimNode(name, states, profile.topology, Ledger((s.card for s in states), view.unit))
