"""The device ids that GetPreferredAllocation answers with. Functions over the books, without I/O or locks.

:mod:`gpu_manager.services.allocation.planner` chooses the cards that they are of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import NVIDIA
from gpu_manager.domain.pod import PodUid
from gpu_manager.services.allocation.association import Identification
from gpu_manager.services.allocation.books import Books
from gpu_manager.services.allocation.node_cards import NodeCards


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
    """Return the preferred ids: the required ones, then those of these cards, then any that are offered."""
    known, missing = node.ids.card_of[choice.resource], choice.size - len(choice.must)
    rest = set(choice.free).difference(choice.must)
    chosen: list[str] = []
    for card in cards:
        chosen += sorted(d for d in rest if known.get(d) == card)
    if len(chosen) < missing:
        chosen += sorted(rest.difference(chosen))
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
