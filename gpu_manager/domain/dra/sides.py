"""Which of Kubernetes' two ways gives a node's cards away: the device plugin API, DRA, or both (split).

Neither way knows the other's allocations, and both act on copies that are seconds old. So each card has one
owner, which is decided when the agent starts and changes only at a start that finds nothing held on the node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.placement.ledger import Ledger

_MOST_CARDS: Final = 4096


class Front(Enum):
    """The allocation mode of a node. ``plugin``: extended resources of a device plugin. ``dra``: claims, by a
    DRA driver. ``split``: each for some of the cards.
    """

    PLUGIN = "plugin"
    DRA = "dra"
    SPLIT = "split"


class Side(Enum):
    """The owner of a card."""

    PLUGIN = "plugin"
    DRA = "dra"


Sides = Mapping[CardUuid, Side]
_NONE: Final[Sides] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClaimCards:
    """The cards of a node given by claims: a number, a list of UUIDs, or all if neither is set."""

    number: int | None = None
    uuids: frozenset[CardUuid] = frozenset()


ALL_CARDS = ClaimCards()
NO_CARDS = ClaimCards(0)


def parse_claim_cards(text: str) -> ClaimCards:
    """Read a number of cards, ``all``, or comma-separated UUIDs.

    Raises:
        RequestInvalid: any other text.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return ALL_CARDS
    if len(names) == 1 and names[0].isascii() and names[0].isdecimal() and int(names[0]) <= _MOST_CARDS:
        return ClaimCards(int(names[0]))
    if names and all(name.startswith("GPU-") for name in names):
        return ClaimCards(uuids=frozenset(map(CardUuid, names)))
    raise RequestInvalid(
        f"--claim-cards is {quoted(text)}: use a number of cards, all, or UUIDs such as GPU-5fd4f087-…,GPU-…"
    )


def sides_of(
    front: Front, cards: Iterable[CardState], claim_cards: ClaimCards = NO_CARDS, stored: Sides = _NONE
) -> Sides:
    """Return the side of each card under the front; cards in MIG mode and their instances have none.

    Of a split node ``claim_cards`` are given by claims. Of a number, those that are by the ``stored`` sides
    go first, then cards without one, then the last by index. A card that has left the node is not made up for
    by one that pods have.
    """
    there = [state.card for state in cards if state.card.undivided]
    if front is not Front.SPLIT or claim_cards == ALL_CARDS:
        return dict.fromkeys(
            (card.uuid for card in there), Side.PLUGIN if front is Front.PLUGIN else Side.DRA
        )
    chosen = claim_cards.uuids
    if claim_cards.number is not None:
        rank = {Side.DRA: 0, None: 1, Side.PLUGIN: 2}
        settled = sum(side is Side.DRA for side in stored.values()) == claim_cards.number
        ordered = sorted(there, key=lambda card: (rank[stored.get(card.uuid)], -card.index))
        free = [card.uuid for card in ordered if not (settled and stored.get(card.uuid) is Side.PLUGIN)]
        chosen = frozenset(free[: claim_cards.number])
    return {card.uuid: Side.DRA if card.uuid in chosen else Side.PLUGIN for card in there}


class NodeFront(NamedTuple):
    """The front that a node has now, the sides of its cards if it is split, and why it is not what the
    settings say; empty if it is.
    """

    front: Front
    sides: Sides | None
    kept_because: str


def front_in_force(
    wanted: Front,
    claim_cards: ClaimCards,
    cards: Sequence[CardState],
    ledger: Ledger,
    stored: Sides | None = None,
    by_claims: Collection[CardUuid] = (),
) -> NodeFront:
    """Return what a node has from now on: the settings count once nothing of its cards is held.

    What is held keeps the front that gave it, and every card its side: its containers may start again, and
    only that side of the kubelet says when they have ended. So do claims that only look at cards.
    ``stored`` are the sides of a node that was split. Where none are, claims are allocated of the cards
    ``by_claims``, and the ledger does not know them, it was lost. The text names nobody: /readyz shows it to
    everyone.
    """
    lost = wanted is Front.SPLIT and stored is None and bool(by_claims)
    if lost:
        held = {card: Side.PLUGIN for allocation in ledger for card in allocation.cards}
        stored = held | dict.fromkeys(by_claims, Side.DRA)
    before = stored or _NONE
    chosen = sides_of(wanted, cards, claim_cards, before)
    was = _front_of(wanted, ledger, stored)
    if was is not wanted:
        holders = len({allocation.pod for allocation in ledger})
        return NodeFront(
            was,
            None if stored is None else {**chosen, **before},
            f"the node keeps the front {was.value} until nothing is held by it: {holders} pods and claims "
            f"hold cards; drain the node, and it changes to {wanted.value}",
        )
    if wanted is not Front.SPLIT:
        return NodeFront(wanted, None, "")
    left = sum(before.get(uuid, side) is not side for uuid, side in chosen.items())
    if not left or not (lost or len(ledger)):
        return NodeFront(wanted, {**before, **chosen}, "")
    return NodeFront(
        wanted,
        {**chosen, **before},
        f"{left} of the node's {len(chosen)} cards are to change between extended resources and claims: "
        "drain the node, and they do once nothing is held on it",
    )


def _front_of(wanted: Front, ledger: Ledger, stored: Sides | None) -> Front:
    """The front that what is held came by; the wanted one if nothing is, or if it may be that one."""
    if not len(ledger) or (wanted is Front.SPLIT and stored is not None):
        return wanted
    by = {Side.DRA if allocation.claim is not None else Side.PLUGIN for allocation in ledger}
    by |= set((stored or _NONE).values())
    return Front.SPLIT if len(by) > 1 else Front(by.pop().value)
