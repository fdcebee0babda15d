"""Cards that operators close, open or forget: annotations, updated without losing concurrent changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from gpu_manager.adapters.kube.connection import CONFLICT, Connection, segment
from gpu_manager.adapters.kube.reading import list_all
from gpu_manager.domain import contract
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.untrusted import mapping

_TRIES = 5


def cordon(
    connection: Connection, node: str, uuids: Collection[CardUuid], *, close: bool
) -> frozenset[CardUuid]:
    """Close these cards to new shares, or open them again; returns all cards that are then closed.

    Raises:
        RequestInvalid: a card that the node's inventory does not show.
        NodeUnready: the API server refuses, or is away.
    """
    listed = frozenset(uuids)

    def change(closed: frozenset[CardUuid], shown: contract.Inventory | None) -> frozenset[CardUuid]:
        _known(node, uuids, shown, closed)
        return closed | listed if close else closed - listed

    return _change(connection, node, contract.CORDON, change)


def forget(connection: Connection, node: str, uuids: Collection[CardUuid]) -> frozenset[CardUuid]:
    """Mark vanished cards as gone for good, for the node's agent; returns all such marks of the node.

    Raises:
        RequestInvalid: a card that the node's inventory does not list as vanished.
        NodeUnready: the API server refuses, or does not answer.
    """

    def change(waiting: frozenset[CardUuid], shown: contract.Inventory | None) -> frozenset[CardUuid]:
        _known(node, uuids, shown, waiting)
        for state in shown.cards if shown else ():
            if state.card.uuid in uuids and not state.missing:
                raise RequestInvalid(
                    f"the driver of node {node} lists card {state.card.uuid}: only a card that has vanished "
                    "can be forgotten; to keep pods off this one, cordon it"
                )
        return waiting | frozenset(uuids)

    return _change(connection, node, contract.FORGET, change)


def _change(
    connection: Connection,
    node: str,
    key: str,
    change: Callable[[frozenset[CardUuid], contract.Inventory | None], frozenset[CardUuid]],
) -> frozenset[CardUuid]:
    """Change a list of cards in an annotation of the node; again if somebody else did so meanwhile."""
    path = f"/api/v1/nodes/{segment(node)}"
    for left in reversed(range(_TRIES)):
        meta = connection.request(f"read the node {node}", "GET", path).get("metadata") or {}
        annotations = meta.get("annotations") or {}
        before = contract.decode_uuids(annotations.get(key))
        wanted = change(before, contract.decode_inventory(annotations.get(contract.INVENTORY)))
        if wanted == before:
            return before
        # null removes the annotation, where an empty value would stay.
        body = {
            "metadata": {
                "resourceVersion": meta.get("resourceVersion"),
                "annotations": {key: contract.encode_uuids(wanted) or None},
            }
        }
        missed = (CONFLICT,) if left else ()
        if connection.write(f"change {key} of {node}", "PATCH", path, body, missed=missed) is not None:
            return wanted
    raise AssertionError  # the last try returns or raises


class CardPlace(NamedTuple):
    """The place of a card; ``at`` is its index, None if its node only lists it as closed."""

    uuid: CardUuid
    node: str
    at: int | None


def places_of_cards(connection: Connection) -> Sequence[CardPlace]:
    """Where each card is that a node publishes or still lists as closed: what a node says of a card decides
    for that node alone. Raises NodeUnready.
    """
    found: list[CardPlace] = []
    for node in list_all(connection, "list nodes", "/api/v1/nodes"):
        meta = mapping(node.get("metadata"))
        annotations = mapping(meta.get("annotations"))
        shown = contract.decode_inventory(annotations.get(contract.INVENTORY))
        name, closed = str(meta.get("name")), contract.decode_uuids(annotations.get(contract.CORDON))
        here = {s.card.uuid: s.card.index for s in (shown.cards if shown else ())}
        found += [CardPlace(uuid, name, at) for uuid, at in here.items()]
        found += [CardPlace(uuid, name, None) for uuid in sorted(closed - here.keys())]
    return found


def _known(
    node: str, uuids: Collection[CardUuid], shown: contract.Inventory | None, listed: frozenset[CardUuid]
) -> None:
    """Refuse a UUID that the node's inventory does not have; a listed card may always be taken off."""
    if shown is None:
        return
    there = [state.card.uuid for state in shown.cards]
    for uuid in uuids:
        if uuid not in there and uuid not in listed:
            raise RequestInvalid(
                f"node {node} has no card {uuid[:80]!r}; it has {', '.join(there) or 'none'}"
            )
