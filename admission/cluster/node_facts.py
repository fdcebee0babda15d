"""What the scheduler needs of a node beside its report: why no pod of ours may go there, and its host CPU."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from admission.cluster.host_cpu import allocatable
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.cluster.node_json import NodeReport, read_node, what_counts, whole_number
from gpu_manager.domain.cluster.pod_charges import card_by_index
from gpu_manager.domain.contract import CORE, DRA_DRIVER, MEMORY
from gpu_manager.domain.resources import CORES_PER_CARD, format_bytes
from gpu_manager.domain.topology import MAX_CARDS, Link, Topology
from gpu_manager.domain.untrusted import mapping
from gpu_manager.domain.whatif.scheduling_constraints import OPEN, NodeConstraints, node_constraints

Intern = Callable[[Hashable], int]  # the same number for equal values
NO_DEVICE = "no GPU device"  # the predecessor's words
AWAY = "its agent is starting or has left: pods wait until it serves again"
BY_CLAIMS = "its cards are given by ResourceClaims alone"
_SYS = Link.parse("SYS")


@dataclass(frozen=True, slots=True, eq=False)
class NodeFacts:
    """A node's report, and ``problem``: why no pod of ours may go there, empty if it may.

    Equal ``hardware`` means equal cards but for their UUIDs. ``cpu`` is what the node gives to pods in
    thousandths, None if it does not say. ``constraints`` are its cordon, taints and labels, which
    kube-scheduler judges.
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


def facts_by_capacity(obj: Mapping[str, Any], unit: int, intern: Intern) -> NodeFacts:
    """Read a node that may publish no inventory: a cluster autoscaler's template, or one of the
    predecessor's agent.

    Without an inventory the cards are taken for alike, as many as its capacity counts.
    """
    facts = node_facts(obj, unit, intern)
    cards = () if facts.report.published else _by_capacity(obj, facts.report.model, unit)
    if not cards:
        return facts
    report = replace(facts.report, cards=cards, topology=Topology.uniform(len(cards), _SYS))
    return replace(facts, report=report, problem="", hardware=_hardware(report, intern))


def node_fingerprint(obj: Mapping[str, Any]) -> Hashable:
    """Equal for objects of a node from which the same facts are read, as after a heartbeat."""
    status = mapping(obj.get("status"))
    cpu, capacity = mapping(status.get("allocatable")).get("cpu"), mapping(status.get("capacity"))
    said = cpu, capacity.get(CORE), capacity.get(MEMORY)
    return what_counts(obj), tuple(value if isinstance(value, str) else None for value in said)


def _hardware(report: NodeReport, intern: Intern) -> int:
    return intern((report.topology, tuple(replace(s, card=_plain(s.card)) for s in report.cards)))


def _plain(card: Card) -> Card:
    """The card without its name: what placement sees unless a pod asks for cards by UUID."""
    return replace(card, uuid=CardUuid(""), minor=None, pci_bus_id="")


def _by_capacity(obj: Mapping[str, Any], model: str, unit: int) -> tuple[CardState, ...]:
    capacity = mapping(mapping(obj.get("status")).get("capacity"))
    count = min(whole_number(capacity.get(CORE)) // CORES_PER_CARD, MAX_CARDS)
    memory = whole_number(capacity.get(MEMORY)) // count * unit if count else 0
    return tuple(CardState(Card(i, card_by_index(i), model, memory)) for i in range(count))
