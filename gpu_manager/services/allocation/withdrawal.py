"""The device ids that the kubelet may not hand out: because resized containers are booked beyond theirs, or
because their card is given by claims.

A function over the books. The kubelet counts ids of the whole node, so an id of any card will do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CORE, MEMORY
from gpu_manager.domain.placement.ledger import peak
from gpu_manager.domain.resize.judgement import choose_ids, ids_to_withdraw
from gpu_manager.services.allocation.books import Books


def withdrawn(books: Books) -> Mapping[str, frozenset[str]]:
    """The ids to report as unhealthy, by resource; never one that any container holds."""
    found = {CORE: dict(_excess(books, CORE)), MEMORY: dict(_excess(books, MEMORY))}
    return {resource: ids for resource, excess in found.items() if (ids := _chosen(books, resource, excess))}


def _chosen(books: Books, resource: str, excess: Mapping[CardUuid, int]) -> frozenset[str]:
    away = books.away()
    if sum(excess.values()) <= 0 and not away:
        return frozenset()
    lent = books.lent()
    of_card = books.node.ids.of_card[resource]
    offered = {
        state.card.uuid: of_card[state.card.uuid]
        for state in books.node.cards
        if state.healthy and state.card.uuid not in lent
    }
    taken = books.taken(device for ids in offered.values() for device in ids)
    free = {card: [device for device in ids if device not in taken] for card, ids in offered.items()}
    # An id that a container holds stays healthy, or the kubelet would not admit that pod again when it
    # restarts: where its card is given by claims, another id stands for it.
    gone = frozenset(device for card in away & free.keys() for device in free.pop(card))
    stand_ins = sum(device in taken for card in away & offered.keys() for device in offered[card])
    missing = sum(excess.values()) + stand_ins
    number = ids_to_withdraw(missing, sum(map(len, free.values())))
    grown = [card for card, units in excess.items() if units > 0]
    return gone | choose_ids(number, free, grown, books.withdrawn.get(resource, frozenset()))


def _excess(books: Books, resource: str) -> Iterator[tuple[CardUuid, int]]:
    """By card, units that resized pods are booked beyond the ids they hold; negative where they hold more.

    A container that has not been given ids of the resource yet is planned, and needs as many as are booked. A
    card that is closed for its health hands out nothing.
    """
    counted: dict[CardUuid, int] = {}
    for pod in sorted({uid for uid, _ in books.resized}):
        grants = [g for key, g in books.grants.items() if key[0] == pod and g.ids.get(resource)]
        for card in {card for g in grants for card in g.allocation.cards}:
            state = books.node.card(card)
            if state is None or not state.healthy:
                continue
            here = [g for g in grants if card in g.allocation.cards]
            amount = peak((g.allocation for g in here), card)
            booked = amount.cores if resource == CORE else amount.memory // books.node.unit
            held = frozenset[str]().union(*(g.ids[resource] for g in here))
            counted[card] = counted.get(card, 0) + booked - len(held)
    yield from counted.items()
