"""A node's report, read from its Node object: cards, links, and shares of pods that the API has forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from gpu_manager.domain import contract
from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.resources import DEFAULT_UNIT, Amount, parse_quantity
from gpu_manager.domain.topology import Topology
from gpu_manager.domain.untrusted import mapping, text

NO_LINKS: Final = Topology(())


@dataclass(frozen=True, slots=True, eq=False)
class NodeReport:
    """A node with its cards; without an inventory ``cards`` is empty and ``published`` False.

    ``unit`` is the bytes of one unit of memory; ``refused`` lists amounts that its agent refused recently;
    ``lingering`` is held by pods that the API no longer has, ``released`` lists those of them that hold
    nothing any more, None if the agent does not tell; ``serving`` is False while its agent starts or stops or
    its kubelet is away; ``resizes``: its agent changes sizes of running containers; ``gates``: its agent
    makes best-effort tenants wait for protected ones; ``injects_by``: the strategy by which it injects cards;
    ``lends``: it offers whole cards as ``nvidia.com/gpu`` too; ``pool`` and ``model`` are its labels.
    """

    name: str
    unit: int
    cards: tuple[CardState, ...] = ()
    topology: Topology = NO_LINKS
    published: bool = False
    refused: frozenset[Amount] = frozenset()
    lingering: tuple[contract.TerminatingShare, ...] = ()
    serving: bool = True
    released: frozenset[str] | None = None
    resizes: bool = False
    gates: bool = False
    injects_by: str = ""
    lends: bool = False
    pool: str = ""
    model: str = ""

    @property
    def models(self) -> Mapping[CardUuid, str]:
        """Card UUID → model."""
        return {state.card.uuid: state.card.model for state in self.cards}


def read_node(obj: Mapping[str, Any], unit: int = DEFAULT_UNIT) -> NodeReport:
    """Read a core/v1 Node; malformed parts count as absent.

    ``unit``: bytes of one unit of memory in this cluster, for a node that does not say its own.
    """
    meta = mapping(obj.get("metadata"))
    annotations, labels = mapping(meta.get("annotations")), mapping(meta.get("labels"))
    report = NodeReport(
        text(meta.get("name")),
        unit,
        pool=text(labels.get(contract.POOL_LABEL)),
        model=text(labels.get(contract.MODEL_LABEL_GAIA)) or text(labels.get(contract.MODEL_LABEL)),
    )
    inventory = contract.decode_inventory(text(annotations.get(contract.INVENTORY)))
    if inventory is None:
        return report
    cordoned = contract.decode_uuids(text(annotations.get(contract.CORDON)))
    return replace(
        report,
        unit=inventory.unit,
        cards=tuple(replace(s, cordoned=s.cordoned or s.card.uuid in cordoned) for s in inventory.cards),
        topology=inventory.topology,
        published=True,
        refused=frozenset(inventory.refused),
        lingering=inventory.lingering,
        serving=inventory.serving,
        released=None if inventory.released is None else frozenset(inventory.released),
        resizes=inventory.resizes,
        gates=inventory.gates,
        injects_by=inventory.injects_by,
        lends=whole_number(mapping(mapping(obj.get("status")).get("capacity")).get(contract.NVIDIA)) > 0,
    )


def what_counts(obj: Mapping[str, Any]) -> Hashable:
    """The parts of a core/v1 Node that :func:`read_node` reads: equal for equal reports."""
    meta = mapping(obj.get("metadata"))
    annotations, labels = mapping(meta.get("annotations")), mapping(meta.get("labels"))
    shown = [annotations.get(key) for key in (contract.INVENTORY, contract.CORDON)]
    shown += [
        labels.get(key) for key in (contract.MODEL_LABEL, contract.MODEL_LABEL_GAIA, contract.POOL_LABEL)
    ]
    shown.append(mapping(mapping(obj.get("status")).get("capacity")).get(contract.NVIDIA))
    return tuple(value if isinstance(value, str) else None for value in shown)


def usual_unit(nodes: Iterable[NodeReport]) -> int:
    """Bytes of one unit of memory on most of the nodes that publish cards."""
    most = Counter(node.unit for node in nodes if node.published).most_common(1)
    return most[0][0] if most else DEFAULT_UNIT


def whole_number(value: object) -> int:
    """A quantity of a node's capacity as a whole number; 0 if absent or malformed."""
    try:
        return max(0, int(Fraction(0) if value is None else parse_quantity(value)))
    except RequestInvalid:
        return 0
