"""A node's report, read from its Node object, and the JSON of its cards and holders. Pure.

The report names cards, links, and shares of pods that the API has forgotten. Agent, admission and ``kubectl
vcuda`` show the JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Final

from gpu_manager.domain import contract
from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.errors import RequestInvalid, printable
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import (
    CORES_PER_CARD,
    DEFAULT_UNIT,
    ZERO,
    Amount,
    format_bytes,
    parse_quantity,
)
from gpu_manager.domain.rules.request import PodRequest
from gpu_manager.domain.topology import Topology
from gpu_manager.domain.untrusted import mapping, text


def node_json(
    node: str,
    cards: Sequence[CardState],
    topology: Topology,
    ledger: Ledger,
    more: Callable[[Allocation, CardUuid], Mapping[str, Any]],
    stranded: Amount = ZERO,
) -> dict[str, Any]:
    """A node as JSON. Cores are hundredths of a card, memory is bytes.

    ``more`` gives further fields of a holder: at least ``planned``, and ``ended`` for an ended init
    container. ``held`` of a card names its other owner: the driver of ResourceClaims, or the resource name
    under which a pod holds it whole; it is omitted if there is none. ``parent`` of a MIG instance is the UUID
    of its card. ``stranded`` is room on the cards for
    which the kubelet has no device ids left.
    """
    held: dict[CardUuid, list[tuple[Allocation, Share]]] = {}
    for allocation in ledger:
        for share in allocation.shares:
            held.setdefault(share.card, []).append((allocation, share))
    return {
        "node": node,
        "unit": ledger.unit,
        **({} if stranded == ZERO else {"stranded": asdict(stranded)}),
        "links": topology.texts,
        "numa_policy": topology.numa_policy.value,
        "cards": [
            {
                "index": state.card.index,
                "uuid": state.card.uuid,
                "model": state.card.model,
                "healthy": state.healthy,
                "cordoned": state.cordoned,
                "mig": state.card.mig,
                "reason": state.reason,
                "open": state.open,
                **({"parent": state.card.instance.parent} if state.card.instance else {}),
                **({"held": state.held} if state.held else {}),
                **({"whole_only": state.card.whole_only} if state.card.whole_only else {}),
                **({"memory_outside": state.card.outside} if state.card.outside else {}),
                "cores_free": free.cores,
                "memory": state.card.capacity(ledger.unit).memory,
                "memory_free": free.memory,
                "holders": [
                    {
                        "namespace": allocation.namespace,
                        "pod": allocation.pod_name,
                        "container": allocation.container,
                        **_by_claim(allocation),
                        "cores": share.amount.cores,
                        "memory": share.amount.memory,
                        "priority": allocation.priority.value,
                        **({"admin": True} if allocation.is_admin else {}),
                        **more(allocation, state.card.uuid),
                    }
                    for allocation, share in held.get(state.card.uuid, ())
                ],
            }
            for state in cards
            for free in (ledger.free(state.card.uuid),)
        ],
    }


def _by_claim(allocation: Allocation) -> Mapping[str, Any]:
    """The holder, if it is not a container: a ResourceClaim, its request and the pods that share it."""
    claim = allocation.claim
    if claim is None:
        return {}
    pods = [name for _, name in claim.pods]
    return {"claim": claim.name, "request": claim.request, "pods": pods}


def hidden(allocation: Allocation) -> Mapping[str, Any]:
    """A holder's identity without names, for callers without the right to see them."""
    names: dict[str, Any] = {"namespace": "", "pod": "", "container": "", "hidden": True}
    return names if allocation.claim is None else {**names, "claim": "", "request": "", "pods": []}


def held_words(held: str) -> str:
    """A phrase for a card of which pods get no shares, from ``held`` of its JSON."""
    return "given by ResourceClaims" if held == DRA_DRIVER else f"given away whole as {held}"


def mig_words(card: Mapping[str, Any], cards: Iterable[Mapping[str, Any]]) -> str:
    """A phrase for a card in MIG mode, from the JSON of its node's cards: the numbers of its instances."""
    found = [str(one["index"]) for one in cards if one.get("parent") == card["uuid"]]
    if not found:
        return "in MIG mode: its instances are not given here"
    return f"divided into MIG instances: card{'s' * (len(found) > 1)} {', '.join(found)}"


def _stranded(graph: Mapping[str, Any]) -> str:
    room = graph.get("stranded")
    return f"; {Amount(**room)} free without device ids: pods that shrank keep theirs" if room else ""


def node_text(graph: Mapping[str, Any]) -> str:
    """The result of :func:`node_json` as text: a line for each card and holder, no control characters.

    ``kept`` in it tells for which pod the node is closed to smaller ones, from the admission service.
    """
    lines = [f"{printable(graph['node'])}: {len(graph['cards'])} cards{_stranded(graph)}"]
    if kept := graph.get("kept"):
        until = f"{kept['left']} more pods with cards have left their nodes"
        if kept.get("seconds") is not None:
            until = f"its cards have been free for {max(1, round(kept['seconds'] / 60))} min"
        lines.append(
            printable(
                f"|---closed to pods that ask for fewer than {kept['cards']} cards and have no higher "
                f"priority: kept for {kept['pod'] or 'a pod of another namespace'} until it is here, or "
                f"{until}"
            )
        )
    for card in graph["cards"]:
        reason = f": {card['reason']}" if card["reason"] else ""
        state = "" if card["healthy"] else f", unhealthy{reason}"
        state += ", cordoned" if card["cordoned"] else ""
        state += f", {mig_words(card, graph['cards'])}" if card["mig"] else ""
        held = card.get("held", "")
        by_claims = held == DRA_DRIVER and card["healthy"] and not card["cordoned"] and not card["mig"]
        state += f", {held_words(held)}" if held else ""
        state += f", given whole alone: {card['whole_only']}" if card.get("whole_only") else ""
        if outside := card.get("memory_outside", 0):
            state += f", {format_bytes(outside)} held by processes of no pod"
        free = (
            f"{card['cores_free']} of {CORES_PER_CARD} cores free, "
            f"{format_bytes(card['memory_free'])} of {format_bytes(card['memory'])} free"
            if card["open"] or by_claims
            else "no share of the card itself"
            if card["mig"] and not card["holders"]
            else f"closed, {CORES_PER_CARD - card['cores_free']} of {CORES_PER_CARD} cores and "
            f"{format_bytes(card['memory'] - card['memory_free'])} of {format_bytes(card['memory'])} booked"
        )
        lines.append(printable(f"|---card {card['index']} ({card['model']}, {card['uuid']}): {free}{state}"))
        for holder in card["holders"]:
            planned = ", planned" if holder["planned"] else ", ended" if holder["ended"] else ""
            name = f"{holder['namespace']}/{holder['pod']} {holder['container']}"
            name = "hidden" if holder.get("hidden") else name
            if (uid := holder.get("gone")) is not None:
                name = f"gone, its processes still run (pod {uid or 'unknown'})"
            amount = f"{holder['cores']} cores, {format_bytes(holder['memory'])}"
            if holder.get("admin"):
                amount = "looks at the card (admin access)"
            elif (priority := holder.get("priority", Priority.NORMAL.value)) != Priority.NORMAL.value:
                amount += f", {priority}"
            lines.append(printable(f"|   |---{name}: {amount}{planned}"))
    return "\n".join(lines) + "\n"


NO_LINKS: Final = Topology(())


@dataclass(frozen=True, slots=True, eq=False)
class NodeReport:
    """A node with its cards; without an inventory ``cards`` is empty and ``published`` False.

    ``unit`` is the bytes of one unit of memory; ``refused`` lists amounts that its agent refused recently;
    ``lingering`` is held by pods that the API no longer has, ``released`` lists those of them that no longer
    hold anything, None if the agent does not publish it; ``serving`` is False while its agent starts or stops
    or its kubelet is away; ``resizes``: its agent resizes running containers; ``gates``: its agent makes
    best-effort tenants wait for protected ones; ``injects_by``: the strategy by which it injects cards;
    ``features``: what its agent can do that earlier ones cannot, such as ``multi-card``; ``lends``: it offers
    whole cards as ``nvidia.com/gpu`` too; ``pool`` and ``model`` are its labels.
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
    features: frozenset[str] = frozenset()
    lends: bool = False
    pool: str = ""
    model: str = ""

    @property
    def models(self) -> Mapping[CardUuid, str]:
        """Card UUID → model."""
        return {state.card.uuid: state.card.model for state in self.cards}

    def lacks(self, request: PodRequest) -> str:
        """Why the node's agent cannot serve such a request, whatever is free; empty if it can."""
        if not request.has_parts or contract.MULTI_CARD in self.features:
            return ""
        return (
            f"its agent gives no parts of several cards ({contract.CARDS}): it is of an earlier release, and "
            "would take them for whole cards"
        )


def read_node(obj: Mapping[str, Any], unit: int = DEFAULT_UNIT) -> NodeReport:
    """Read a core/v1 Node; malformed parts count as absent.

    ``unit``: bytes of one unit of memory in this cluster, for a node that does not publish its own.
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
        features=inventory.features,
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
