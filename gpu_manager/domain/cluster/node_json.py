"""The JSON of a node's cards and their holders, which agent, admission and ``kubectl vcuda`` show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import DRA_DRIVER
from gpu_manager.domain.errors import printable
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount, format_bytes
from gpu_manager.domain.topology import Topology


def node_json(
    node: str,
    cards: Sequence[CardState],
    topology: Topology,
    ledger: Ledger,
    more: Callable[[Allocation, CardUuid], Mapping[str, Any]],
    stranded: Amount = ZERO,
) -> dict[str, Any]:
    """A node as JSON. Cores are hundredths of a card, memory is bytes.

    ``more`` gives further fields of a holder: at least ``planned``, and ``ended`` for an init container that
    has ended. ``held`` of a card is who else gives it away: the driver of ResourceClaims, or the name under
    which a pod holds it whole; it is left out where nobody does.
    ``stranded`` is room on the cards for which the kubelet has no device ids left.
    """
    held: dict[CardUuid, list[tuple[Allocation, Share]]] = {}
    for allocation in ledger:
        for share in allocation.shares:
            held.setdefault(share.card, []).append((allocation, share))
    return {
        "node": node,
        "unit": ledger.unit,
        **({} if stranded == ZERO else {"stranded": asdict(stranded)}),
        "links": [[str(link) for link in row] for row in topology.links],
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
                **({"held": state.held} if state.held else {}),
                "cores_free": ledger.free(state.card.uuid).cores,
                "memory": state.card.capacity(ledger.unit).memory,
                "memory_free": ledger.free(state.card.uuid).memory,
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
        ],
    }


def _by_claim(allocation: Allocation) -> Mapping[str, Any]:
    """What holds it, where that is no container: a ResourceClaim, its request and the pods that share it."""
    claim = allocation.claim
    if claim is None:
        return {}
    pods = [name for _, name in claim.pods]
    return {"claim": claim.name, "request": claim.request, "pods": pods}


def hidden(allocation: Allocation) -> Mapping[str, Any]:
    """The names of a holder, for who may not hear them."""
    names: dict[str, Any] = {"namespace": "", "pod": "", "container": "", "hidden": True}
    return names if allocation.claim is None else {**names, "claim": "", "request": "", "pods": []}


def held_words(held: str) -> str:
    """How a card is given away that pods get no shares of, from ``held`` of its JSON."""
    return "given by ResourceClaims" if held == DRA_DRIVER else f"given away whole as {held}"


def _stranded(graph: Mapping[str, Any]) -> str:
    room = graph.get("stranded")
    return f"; {Amount(**room)} free without device ids: pods that shrank keep theirs" if room else ""


def node_text(graph: Mapping[str, Any]) -> str:
    """The result of :func:`node_json` as text, a line for each card and holder, no control characters.

    ``kept`` in it says for whom the node is closed to smaller pods, as the admission service tells.
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
        state += ", MIG (left alone)" if card["mig"] else ""
        held = card.get("held", "")
        by_claims = held == DRA_DRIVER and card["healthy"] and not card["cordoned"] and not card["mig"]
        state += f", {held_words(held)}" if held else ""
        free = (
            f"{card['cores_free']} of {CORES_PER_CARD} cores free, "
            f"{format_bytes(card['memory_free'])} of {format_bytes(card['memory'])} free"
            if card["open"] or by_claims
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
