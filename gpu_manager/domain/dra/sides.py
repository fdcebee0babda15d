"""Which of a split node's cards are given by claims, and the steps in which a card changes its side.

Neither side of Kubernetes sees the other's books, and both act on copies that are seconds old. So a card
leaves one side, is nobody's for a while, and then comes to the other. It starts only while nothing is held of
it, and each step is stored before anybody is told of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.errors import RequestInvalid, quoted
from gpu_manager.domain.placement.ledger import Ledger

SETTLE_SECONDS: Final = 6.0  # for schedulers' copies of what a card has left; 5 s is the longest seen
_MOST_CARDS: Final = 4096


class Side(Enum):
    """Where a card stands. ``to-dra`` and ``to-plugin`` are nobody's: the card has left one side, and the
    other has not got it yet.
    """

    PLUGIN = "plugin"
    TO_DRA = "to-dra"
    DRA = "dra"
    TO_PLUGIN = "to-plugin"

    @property
    def is_moving(self) -> bool:
        """True while the card is nobody's."""
        return self in (Side.TO_DRA, Side.TO_PLUGIN)


Sides = Mapping[CardUuid, Side]


@dataclass(frozen=True, slots=True)
class ClaimCards:
    """The cards of a node that are to be given by claims: so many, or these, or all if neither is named."""

    number: int | None = None
    uuids: frozenset[CardUuid] = frozenset()


ALL_CARDS = ClaimCards()
NO_CARDS = ClaimCards(0)


def parse_claim_cards(text: str) -> ClaimCards:
    """Read a number of cards, ``all``, or UUIDs with commas between.

    Raises:
        RequestInvalid: it is none of them.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return ALL_CARDS
    if len(names) == 1 and names[0].isascii() and names[0].isdecimal() and int(names[0]) <= _MOST_CARDS:
        return ClaimCards(int(names[0]))
    if names and all(name.startswith("GPU-") for name in names):
        return ClaimCards(uuids=frozenset(map(CardUuid, names)))
    raise RequestInvalid(
        f"--dra-cards is {quoted(text)}: use a number of cards, all, or UUIDs such as GPU-5fd4f087-…,GPU-…"
    )


def side_by_evidence(card: CardUuid, ledger: Ledger, by_claims: Collection[CardUuid] | None) -> Side | None:
    """Return the side of a card of which no side is stored: the node was not split before, or lost its books.

    Pods that hold the card decide, then claims that do, then whether Kubernetes may still give it by claims
    (``by_claims``: the cards in the node's slice or in allocated claims). None while that is unknown (None).
    """
    holders = ledger.holders(card)
    if any(one.claim is None for one in holders):
        return Side.PLUGIN
    if holders or (by_claims is not None and card in by_claims):
        return Side.DRA
    return None if by_claims is None else Side.PLUGIN


def cards_to_move(
    cards: Sequence[CardState],
    sides: Sides,
    ledger: Ledger,
    wanted: ClaimCards,
    id_holders: Mapping[CardUuid, int] | None = None,
) -> dict[CardUuid, Side]:
    """Return the cards that leave their side now, and the step that each takes first.

    Only cards of which nothing is held or planned leave. Of a number, cards with the fewest ids in use
    elsewhere (``id_holders``: ids of the card that containers on other cards hold) go first, then the last
    ones by index. Cards in MIG mode and missing ones stay where they are.
    """
    there = [s for s in cards if not s.card.mig and not s.missing and s.card.uuid in sides]
    by_claims = [s for s in there if sides[s.card.uuid] in (Side.DRA, Side.TO_DRA)]
    idle = [s for s in there if ledger.idle(s.card.uuid) and not sides[s.card.uuid].is_moving]
    come = [s for s in idle if sides[s.card.uuid] is Side.PLUGIN]
    go = [s for s in idle if sides[s.card.uuid] is Side.DRA]
    if wanted.uuids:
        come = [s for s in come if s.card.uuid in wanted.uuids]
        go = [s for s in go if s.card.uuid not in wanted.uuids]
    else:
        number = len(there) if wanted.number is None else wanted.number
        held = id_holders or {}
        come.sort(key=lambda s: (not s.open, held.get(s.card.uuid, 0), -s.card.index))
        come = come[: max(0, number - len(by_claims))]
        go = sorted(go, key=lambda s: s.card.index)[: max(0, len(by_claims) - number)]
    return {s.card.uuid: Side.TO_DRA for s in come} | {s.card.uuid: Side.TO_PLUGIN for s in go}


def has_left(sides: Sides, wanted: ClaimCards) -> bool:
    """True if every card is on the one side that ``wanted`` (all or none) leaves."""
    there = Side.PLUGIN if wanted == NO_CARDS else Side.DRA
    return all(side is there for side in sides.values())
