"""What a node's own object says of itself: cards, links, unit, pool; or why no pod of ours may go there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from admission.cluster.host_cpu import allocatable
from gpu_manager.domain.card import Card, CardState, CardUuid
from gpu_manager.domain.contract import (
    CORDON,
    CORE,
    INVENTORY,
    MEMORY,
    MODEL_LABEL,
    MODEL_LABEL_GAIA,
    NVIDIA,
    POOL_LABEL,
    TerminatingShare,
    decode_inventory,
    decode_uuids,
)
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.resources import CORES_PER_CARD, Amount, format_bytes, parse_quantity
from gpu_manager.domain.topology import MAX_CARDS, Link, Topology
from gpu_manager.domain.untrusted import mapping, text

Intern = Callable[[Hashable], int]  # the same number for equal values
NO_DEVICE = "no GPU device"  # the predecessor's words
_SYS = Link.parse("SYS")
_NO_LINKS = Topology(())


@dataclass(frozen=True, slots=True, eq=False)
class NodeFacts:
    """What the node's own object says. ``problem`` is why no pod of ours may go there, empty if it may.

    ``cpu`` is what it gives to pods in thousandths, None if it does not say. ``lingering`` is what pods hold
    that the API no longer has. ``lends``: it offers whole cards under NVIDIA's name too.
    """

    name: str
    unit: int
    cards: tuple[CardState, ...] = ()
    topology: Topology = _NO_LINKS
    refused: frozenset[Amount] = frozenset()
    pool: str = ""
    model: str = ""
    problem: str = ""
    hardware: int = 0
    cpu: int | None = None
    lingering: tuple[TerminatingShare, ...] = ()
    lends: bool = False

    @property
    def models(self) -> Mapping[CardUuid, str]:
        """Card → model."""
        return {state.card.uuid: state.card.model for state in self.cards}


def read_node(obj: Mapping[str, Any], unit: int, intern: Intern, *, by_capacity: bool = False) -> NodeFacts:
    """Read a core/v1 Node. ``unit``: bytes of one unit of memory as this cluster counts.

    ``by_capacity``: where there is no inventory, take the cards for alike and count the node's capacity; for
    nodes that do not exist yet (a cluster autoscaler's templates).
    """
    meta = mapping(obj.get("metadata"))
    annotations, labels = mapping(meta.get("annotations")), mapping(meta.get("labels"))
    name, pool = text(meta.get("name")), text(labels.get(POOL_LABEL))
    model = text(labels.get(MODEL_LABEL_GAIA)) or text(labels.get(MODEL_LABEL))
    inventory = decode_inventory(text(annotations.get(INVENTORY)))
    if inventory is None:
        cards = _by_capacity(mapping(obj.get("status")), model, unit) if by_capacity else ()
        problem = "" if cards else f"{NO_DEVICE}: the node publishes no inventory of cards"
        topology = Topology.uniform(len(cards), _SYS)
        hardware = intern((topology, tuple(replace(s, card=_plain(s.card)) for s in cards)))
        cpu = allocatable(obj)
        return NodeFacts(name, unit, cards, topology, frozenset(), pool, model, problem, hardware, cpu)
    cordoned = decode_uuids(text(annotations.get(CORDON)))
    cards = tuple(replace(s, cordoned=s.cordoned or s.card.uuid in cordoned) for s in inventory.cards)
    problem = ""
    if inventory.unit != unit:
        problem = (
            f"its memory unit is {format_bytes(inventory.unit)}, that of this cluster is {format_bytes(unit)}"
        )
    elif not cards:
        problem = NO_DEVICE
    hardware = intern((inventory.topology, tuple(replace(s, card=_plain(s.card)) for s in cards)))
    return NodeFacts(
        name,
        inventory.unit,
        cards,
        inventory.topology,
        frozenset(inventory.refused),
        pool,
        model,
        problem,
        hardware,
        allocatable(obj),
        inventory.lingering,
        _count(mapping(mapping(obj.get("status")).get("capacity")).get(NVIDIA)) > 0,
    )


def what_counts(obj: Mapping[str, Any]) -> Hashable:
    """What of a core/v1 Node :func:`read_node` reads: equal for equal facts."""
    meta = mapping(obj.get("metadata"))
    annotations, labels = mapping(meta.get("annotations")), mapping(meta.get("labels"))
    shown = [annotations.get(key) for key in (INVENTORY, CORDON)]
    shown += [labels.get(key) for key in (MODEL_LABEL, MODEL_LABEL_GAIA, POOL_LABEL)]
    status = mapping(obj.get("status"))
    shown += [mapping(status.get("allocatable")).get("cpu"), mapping(status.get("capacity")).get(NVIDIA)]
    return tuple(value if isinstance(value, str) else None for value in shown)


def _plain(card: Card) -> Card:
    """The card without its name: what placement sees unless a pod asks for cards by UUID."""
    return replace(card, uuid=CardUuid(""), numa=None, minor=None, pci_bus_id="")


def _by_capacity(status: Mapping[str, Any], model: str, unit: int) -> tuple[CardState, ...]:
    capacity = mapping(status.get("capacity"))
    count = min(_count(capacity.get(CORE)) // CORES_PER_CARD, MAX_CARDS)
    memory = _count(capacity.get(MEMORY)) // count * unit if count else 0
    return tuple(CardState(Card(i, CardUuid(f"capacity-{i}"), model, memory)) for i in range(count))


def _count(value: object) -> int:
    try:
        return max(0, int(Fraction(0) if value is None else parse_quantity(value)))
    except RequestInvalid:
        return 0
