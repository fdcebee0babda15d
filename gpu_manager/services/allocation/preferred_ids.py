"""Device ids: those that GetPreferredAllocation answers with, and those that the kubelet may not hand out.

Functions over the books, without I/O or locks. :mod:`gpu_manager.services.allocation.planner` chooses the
cards that the answered ids are of. Ids are withdrawn where resized containers are booked beyond theirs, or
where a card is given by claims. The kubelet counts ids of the whole node, so an id of any card will do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CORE, MEMORY, NVIDIA
from gpu_manager.domain.kube.pod import PodUid
from gpu_manager.domain.placement.ledger import peak
from gpu_manager.domain.resize.judgement import choose_ids, ids_to_withdraw
from gpu_manager.services.allocation.association import Identification
from gpu_manager.services.allocation.books import Books, NodeCards


@dataclass(frozen=True, slots=True)
class IdChoice:
    """A GetPreferredAllocation request: choose ``size`` of the ``free`` ids of a resource, all of ``must``
    included.
    """

    resource: str
    free: Sequence[str]
    must: Sequence[str]
    size: int


def pick(node: NodeCards, choice: IdChoice, cards: Iterable[CardUuid]) -> tuple[str, ...]:
    """Return the preferred ids: the required ones, then as many of each of these cards, then any of them,
    then any offered ones.
    """
    known, missing = node.ids.card_of[choice.resource], choice.size - len(choice.must)
    rest, wanted = set(choice.free).difference(choice.must), tuple(cards)
    offered = [sorted(d for d in rest if known.get(d) == card) for card in wanted]
    of_each = -(-choice.size // max(1, len(wanted)))
    chosen = [
        device
        for card, ids in zip(wanted, offered, strict=True)
        for device in ids[: max(0, of_each - sum(known.get(d) == card for d in choice.must))]
    ]
    for more in (chain(*offered), sorted(rest)) if len(chosen) < missing else ():
        taken = frozenset(chosen)
        chosen += [device for device in more if device not in taken]
    return (*choice.must, *chosen[: max(0, missing)])


def best_ids(books: Books, choice: IdChoice) -> tuple[str, ...]:
    """Return ids of as few cards as possible: of the fullest card with enough ids, else of the emptiest
    cards.
    """
    known, offered = books.node.ids.card_of[choice.resource], dict[CardUuid, int]()
    for device in choice.free:
        if device in known:
            offered[known[device]] = offered.get(known[device], 0) + 1
    if choice.resource == NVIDIA:
        return pick(books.node, choice, (card for card in sorted(offered) if books.ledger.idle(card)))
    enough = sorted((n, card) for card, n in offered.items() if n >= choice.size)
    first = [enough[0][1]] if enough else sorted(offered, key=lambda card: (-offered[card], card))
    return pick(books.node, choice, first)


def clear(books: Books, offered: Sequence[str], answer: Identification) -> tuple[list[str], int]:
    """Return the offered ids without those that another active pod holds, and the number of ids left out.

    Ids that are booked for pods that are no longer active are free; their bookings are removed.
    """
    name = (answer.candidate.pod.namespace, answer.candidate.pod.name) if answer.candidate else None
    own = {answer.candidate.pod.uid} if answer.candidate else set()
    known = books.taken(offered) | (answer.held.keys() & offered)
    free, stale = [], []
    for device in offered:
        if device not in known:  # nearly all: an offer may name thousands
            free.append(device)
            continue
        others = books.owners((device,)) - own
        listed_elsewhere = answer.held.get(device, name) != name
        if listed_elsewhere or (others and _any_active(books, others, answer.active)):
            continue
        if others:
            stale.append(device)
        free.append(device)
    if stale:
        books.detach(stale)
    return free, len(offered) - len(free)


def _any_active(books: Books, pods: Iterable[PodUid], active: Collection[tuple[str, str]] | None) -> bool:
    """True if one of these pods is active, or if that is not known."""
    held = (a for uid in pods for a in books.ledger.of_pod(uid).values())
    return active is None or any((a.namespace, a.pod_name) in active for a in held)


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
    """By card, units that resized pods are booked beyond the ids they hold, negative where they hold more,
    and those that processes of no pod take.

    A container that has not been given ids of the resource yet is planned, and needs as many as are booked. A
    card that is closed for its health hands out nothing. Ids of a container on several cards count for each
    of them alike.
    """
    counted = dict(_taken_outside(books)) if resource == MEMORY else {}
    for pod in sorted({uid for uid, _ in books.resized}):
        grants = [g for key, g in books.grants.items() if key[0] == pod and g.ids.get(resource)]
        for card in {card for g in grants for card in g.allocation.cards}:
            state = books.node.card(card)
            if state is None or not state.healthy:
                continue
            here = [g for g in grants if card in g.allocation.cards]
            amount = peak((g.allocation for g in here), card)
            booked = amount.cores if resource == CORE else amount.memory // books.node.unit
            held = frozenset[str]().union(*(g.ids[resource] for g in here if len(g.allocation.cards) == 1))
            spread = sum(
                len(g.ids[resource]) // width for g in here if (width := len(g.allocation.cards)) > 1
            )
            counted[card] = counted.get(card, 0) + booked - len(held) - spread
    yield from counted.items()


def _taken_outside(books: Books) -> Iterator[tuple[CardUuid, int]]:
    """At most as many as the card has left: existing containers may hold more than there is now."""
    unit = books.node.unit
    for state in books.node.cards:
        if state.healthy and state.card.outside:
            ids = books.node.ids.of_card[MEMORY][state.card.uuid]
            taken = (state.card.size(unit) - state.card.capacity(unit)).memory // unit
            yield state.card.uuid, min(taken, len(ids) - len(books.taken(ids)))
