"""One node as the extender sees it: its accounting, what keeps pods off it, its host CPU. Frozen; pure.

:class:`KeptNode` is a node that is closed to smaller pods, so that it drains for a waiting pod.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from admission.cluster.pod_view import PodView, allocatable
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.cluster.accounting import charge_node
from gpu_manager.domain.cluster.claims import KnownClaim, charge_claims
from gpu_manager.domain.cluster.kubelet_ids import KubeletIds, NumaIds, kubelet_ids, numa_ids
from gpu_manager.domain.cluster.node_books import NodeBooks
from gpu_manager.domain.cluster.node_json import NodeReport, read_node, what_counts, whole_number
from gpu_manager.domain.cluster.pod_charges import allocations_of, card_by_index
from gpu_manager.domain.contract import CORE, DRA_DRIVER, MEMORY
from gpu_manager.domain.kube.constraints import ANY, OPEN, HostResources, NodeConstraints, node_constraints
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.ledger import Ledger
from gpu_manager.domain.placement.place import find
from gpu_manager.domain.resources import CORES_PER_CARD, format_bytes
from gpu_manager.domain.topology import MAX_CARDS, Link, Topology
from gpu_manager.domain.untrusted import mapping


@dataclass(frozen=True, slots=True, eq=False)
class NodeView(NodeBooks):
    """A node's accounting, and the other inputs of the choice among nodes.

    ``problem`` is why no pod with cards may go there, empty if one may. ``bound`` are the pods on it,
    including those whose Binding is in progress; ``nominated`` those for which preemption is making room.
    Equal ``hardware`` means equal cards and features, equal ``state`` equal to placement, both except for the
    UUIDs of the cards. ``cpu`` is the host CPU that no pod has requested, in thousandths; None if the node
    does not report its CPU. Equal ``kind`` means equal to every pod that is not on the node and may use every
    pool; 0 marks a node with something of its own: a problem, a refusal, a pod nominated to it, or a pod for
    which it is closed. ``constraints``, which kube-scheduler judges before it calls an extender, do not count
    for these numbers. ``ids``: the kubelet's count, if pods shrank; ``numa_ids``: the count by NUMA node, if
    containers hold ids of other nodes than their cards'. ``kept``: the pod for which the node is closed to
    smaller pods. ``prioritised``: a pod there has another priority than normal.
    """

    problem: str
    hardware: int
    bound: Mapping[PodUid, PodView]
    nominated: tuple[PodView, ...]
    state: int
    cpu: int | None = None
    kind: int = 0
    constraints: NodeConstraints = OPEN
    ids: KubeletIds | None = None
    numa_ids: NumaIds | None = None
    kept: KeptFor | None = None
    prioritised: bool = False

    @property
    def host(self) -> HostResources:
        """What its pods leave of its host; only the CPU is known."""
        return ANY if self.cpu is None else replace(ANY, cpu=self.cpu)

    def bars(self, pod: PodView) -> str:
        """What besides cards keeps the pod off, in kube-scheduler's judgement; a phrase after the node's
        name, empty if nothing does.
        """
        return self.constraints.bars(pod.constraints) or self.host.lacks(pod.host)

    def awaits(self, pod: PodUid, priority: int) -> tuple[PodView, ...]:
        """Pods nominated here that ``pod`` must leave room for."""
        return tuple(o for o in self.nominated if o.uid != pod and o.pod.priority >= priority)

    def with_awaited(self, awaited: Sequence[PodView], ledger: Ledger | None = None) -> Ledger:
        """The accounting as if these pods were here already, each at the place that it would get.

        A pod that fits only once the deleted pods are gone is charged on their cards, so that no other pod
        takes that room. A pod that does not fit even then takes nothing: its nomination is out of date.
        """
        node, books = self.node, (self.ledger if ledger is None else ledger).copy()
        for occupant in awaited:
            request = occupant.request(node.unit)
            if request is None or books.of_pod(occupant.uid):
                continue
            placement = find(request, node.cards, node.topology, books)
            if placement is None:
                later = books.copy()
                for uid, charge in self.charges.items():
                    if charge.pod.deleting:
                        later.release(uid)
                placement = find(request, node.cards, node.topology, later)
            if placement is not None:
                books.record(allocations_of(occupant.pod, placement))
        return books


def build_view(
    facts: NodeFacts,
    bound: Iterable[PodView],
    nominated: Iterable[PodView],
    intern: Intern,
    before: NodeView | None = None,
    cpu: int | None = None,
    claims: Iterable[KnownClaim] = (),
    kept: KeptFor | None = None,
) -> NodeView:
    """The node with these pods and claims on it.

    ``before`` is how it was, to start from where little has changed.
    """
    node, here = facts.report, {occupant.uid: occupant for occupant in bound}
    same = before if before is not None and before.node is node else None
    held = charge_claims(node, claims, same.held_claims if same else None)
    charges, ledger = charge_node(node, here.values(), held, before)
    awaited = tuple(sorted(nominated, key=lambda o: (-o.pod.priority, o.pod.began, o.uid)))
    ids = kubelet_ids(node, charges)
    numa = numa_ids(node, charges)
    left = None if ids is None else ids.left(ledger.pods)
    aligned = None if numa is None else numa.left(ledger.pods)
    cards = [state.card.uuid for state in node.cards]
    priorities = tuple(map(ledger.priorities, cards)) if ledger.prioritised else None
    state = intern((facts.hardware, tuple(map(ledger.booked, cards)), left, aligned, priorities))
    plain = not (facts.problem or node.refused or node.lingering or awaited or kept)
    kind = (state if cpu is None else intern((state, cpu))) if plain else 0
    return NodeView(
        node,
        ledger,
        charges,
        held,
        facts.problem,
        facts.hardware,
        here,
        awaited,
        state,
        cpu,
        kind,
        facts.constraints,
        ids,
        numa,
        kept,
        ledger.prioritised,
    )


Intern = Callable[[Hashable], int]  # the same number for equal values
NO_DEVICE = "no GPU device"  # the predecessor's words
AWAY = "its agent is starting or has left: pods wait until it serves again"
BY_CLAIMS = "its cards are given by ResourceClaims alone"
_SYS = Link.parse("SYS")


@dataclass(frozen=True, slots=True, eq=False)
class NodeFacts:
    """A node's report, and ``problem``: why no pod with cards may go there, empty if one may.

    Equal ``hardware`` means equal features, and equal cards except for their UUIDs. ``cpu`` is the
    allocatable CPU in thousandths, None if the node does not report it. ``constraints`` are its cordon,
    taints and labels, which kube-scheduler judges.
    """

    report: NodeReport
    problem: str = ""
    hardware: int = 0
    cpu: int | None = None
    constraints: NodeConstraints = OPEN


def node_facts(obj: Mapping[str, Any], unit: int, intern: Intern) -> NodeFacts:
    """Read a core/v1 Node. ``unit``: bytes of one unit of memory as this cluster counts."""
    report = read_node(obj, unit)
    problem = ""
    if not report.published:
        problem = f"{NO_DEVICE}: the node publishes no inventory of cards"
    elif report.unit != unit:
        problem = (
            f"its memory unit is {format_bytes(report.unit)}, that of this cluster is {format_bytes(unit)}"
        )
    elif not report.cards:
        problem = NO_DEVICE
    elif not report.serving:
        problem = AWAY
    elif {state.held for state in report.cards if not state.card.mig} == {DRA_DRIVER}:
        problem = BY_CLAIMS
    return NodeFacts(report, problem, _hardware(report, intern), allocatable(obj), node_constraints(obj))


def facts_by_capacity(
    obj: Mapping[str, Any], unit: int, intern: Intern, features: frozenset[str] = frozenset()
) -> NodeFacts:
    """Read a node that may publish no inventory: a cluster autoscaler's template, or one of the
    predecessor's agent.

    Without an inventory the cards are taken for alike, as many as its capacity counts; ``features`` are then
    those of its agent.
    """
    facts = node_facts(obj, unit, intern)
    cards = () if facts.report.published else _by_capacity(obj, facts.report.model, unit)
    if not cards:
        return facts
    alike = Topology.uniform(len(cards), _SYS)
    report = replace(facts.report, cards=cards, topology=alike, features=features)
    return replace(facts, report=report, problem="", hardware=_hardware(report, intern))


def facts_again(facts: NodeFacts, intern: Intern) -> NodeFacts:
    """The facts with this process's number of their hardware."""
    return replace(facts, hardware=_hardware(facts.report, intern))


def node_fingerprint(obj: Mapping[str, Any]) -> Hashable:
    """Equal for objects of a node from which equal facts are read, as after a heartbeat."""
    status = mapping(obj.get("status"))
    cpu, capacity = mapping(status.get("allocatable")).get("cpu"), mapping(status.get("capacity"))
    said = cpu, capacity.get(CORE), capacity.get(MEMORY)
    return what_counts(obj), tuple(value if isinstance(value, str) else None for value in said)


def _hardware(report: NodeReport, intern: Intern) -> int:
    cards = tuple(replace(s, card=_plain(s.card)) for s in report.cards)
    return intern((report.topology, cards, report.features))


def _plain(card: Card) -> Card:
    """The card without its name: what placement sees unless a pod asks for cards by UUID."""
    return replace(card, uuid=CardUuid(""), minor=None, pci_bus_id="")


def _by_capacity(obj: Mapping[str, Any], model: str, unit: int) -> tuple[CardState, ...]:
    capacity = mapping(mapping(obj.get("status")).get("capacity"))
    count = min(whole_number(capacity.get(CORE)) // CORES_PER_CARD, MAX_CARDS)
    memory = whole_number(capacity.get(MEMORY)) // count * unit if count else 0
    return tuple(CardState(Card(i, card_by_index(i), model, memory)) for i in range(count))


@dataclass(frozen=True, slots=True)
class KeptFor:
    """The waiting pod, the whole cards of one node that it requests, and how many pods of the cluster may
    leave their nodes before this one opens again.

    ``seconds``: the node opens this long after it first had room for the pod; None while it has none.
    """

    pod: Pod
    cards: int
    left: int
    seconds: int | None = None

    def refuses(self, pod: Pod, cards: int) -> bool:
        """True if a pod whose largest part requests ``cards`` whole cards is kept out."""
        return cards < self.cards and pod.priority <= self.pod.priority and pod.uid != self.pod.uid

    def as_json(self, namespace: str = "") -> Mapping[str, Any]:
        """The waiting pod, since when it waits, its cards, and after how many departures or seconds the node
        opens. ``namespace``: the only one whose pods are named, empty for all; for others ``pod`` is empty.
        """
        name = self.pod.key if namespace in ("", self.pod.namespace) else ""
        found = {"pod": name, "since": self.pod.created, "cards": self.cards, "left": self.left}
        return found if self.seconds is None else {**found, "seconds": self.seconds}


@dataclass(slots=True)
class KeptNode:
    """The node that is closed now, and for which pod. Not thread-safe."""

    node: str = ""
    kept: KeptFor | None = None

    def on(self, node: str) -> KeptFor | None:
        """The pod for which that node is closed; None if it is not."""
        return self.kept if node == self.node else None

    def change(self, node: str, kept: KeptFor | None) -> frozenset[str]:
        """Close that node instead, or none without ``kept``; returns the changed nodes."""
        if (node, kept) == (self.node, self.kept):
            return frozenset()
        changed = frozenset(name for name in (self.node, node) if name)
        self.node, self.kept = node, kept
        return changed
