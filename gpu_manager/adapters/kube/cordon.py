"""Closing and opening cards of a node: one annotation, updated without losing concurrent changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import quote

from gpu_manager.adapters.kube.connection import MERGE_PATCH, Connection, Refused
from gpu_manager.adapters.kube.reading import list_all
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CORDON, INVENTORY, decode_inventory, decode_uuids, encode_uuids
from gpu_manager.domain.errors import RequestInvalid

_TRIES = 5


def cordon(
    connection: Connection, node: str, uuids: Collection[CardUuid], *, close: bool
) -> frozenset[CardUuid]:
    """Close these cards to new shares, or open them again; returns all cards that are then closed.

    Raises:
        RequestInvalid: a card that the node's inventory does not show.
        NodeUnready: the API server refuses, or is away.
    """
    path = f"/api/v1/nodes/{quote(node, safe='')}"
    for left in reversed(range(_TRIES)):
        meta = connection.request(f"read the node {node}", "GET", path).get("metadata") or {}
        annotations = meta.get("annotations") or {}
        closed = decode_uuids(annotations.get(CORDON))
        _known(node, uuids, annotations.get(INVENTORY), closed)
        wanted = closed | frozenset(uuids) if close else closed - frozenset(uuids)
        if wanted == closed:
            return closed
        # null removes the annotation, where an empty value would stay.
        body = {
            "metadata": {
                "resourceVersion": meta.get("resourceVersion"),
                "annotations": {CORDON: encode_uuids(wanted) or None},
            }
        }
        try:
            connection.request(f"cordon cards of {node}", "PATCH", path, body=body, content_type=MERGE_PATCH)
            return wanted
        except Refused as refusal:
            if refusal.code != 409 or not left:
                raise
    raise AssertionError  # the last try returns or raises


def nodes_of_cards(connection: Connection) -> Mapping[CardUuid, str]:
    """Card UUID → the node that publishes it or still lists it as closed. Raises NodeUnready."""
    found: dict[CardUuid, str] = {}
    for node in list_all(connection, "list nodes", "/api/v1/nodes"):
        meta = node.get("metadata") or {}
        annotations = meta.get("annotations") or {}
        shown = decode_inventory(annotations.get(INVENTORY))
        cards = frozenset(state.card.uuid for state in shown.cards) if shown else frozenset()
        found |= dict.fromkeys(cards | decode_uuids(annotations.get(CORDON)), str(meta.get("name")))
    return found


def _known(
    node: str, uuids: Collection[CardUuid], inventory: str | None, closed: frozenset[CardUuid]
) -> None:
    """Refuse a UUID that the node's inventory does not have; a closed card may always be opened."""
    shown = decode_inventory(inventory)
    if shown is None:
        return
    there = [state.card.uuid for state in shown.cards]
    for uuid in uuids:
        if uuid not in there and uuid not in closed:
            raise RequestInvalid(
                f"node {node} has no card {uuid[:80]!r}; it has {', '.join(there) or 'none'}"
            )
