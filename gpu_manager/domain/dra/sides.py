"""By which of Kubernetes' two ways a node gives its cards away: the device plugin API, DRA, or both (split).

Neither way sees the other's books, and both act on copies that are seconds old. So one of them gives a card
at a time. A node that is not split has one of them for all its cards, and keeps it as long as anything is
held by it. On a split node a card leaves one side, is nobody's for a while, and then comes to the other. It
starts only while nothing is held of it, and each step is stored before anybody is told of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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


class Front(Enum):
    """``plugin``: extended resources of a device plugin. ``dra``: claims, by a DRA driver. ``split``: some
    cards by the one, the others by the other.
    """

    PLUGIN = "plugin"
    DRA = "dra"
    SPLIT = "split"


def front_in_force(
    wanted: Front, ledger: Ledger, sides: Sides | None = None, *, in_claims: bool = False
) -> tuple[Front, str]:
    """Return the front that the node has now, and why it is not the wanted one; empty if it is.

    What is held by the other one keeps it: its containers may start again, and only that side of the kubelet
    says when they have ended. A node with stored ``sides`` was split, and stays so until all its cards have
    changed. One that leaves claims for extended resources is split meanwhile, as long as there are claims
    (those that only look at cards, too: the kubelet releases them by the driver) or Kubernetes may still
    give cards by them (``in_claims``: cards of no known side may be in the node's slice or in allocated
    claims). The text names nobody: /readyz shows it to everyone.
    """
    if wanted is Front.SPLIT:
        return wanted, ""
    if sides and not in_claims:
        if has_left(sides, cards_of_front(wanted)):
            if wanted is Front.DRA or not ledger.claims:
                return wanted, ""
            return Front.SPLIT, (
                "all cards of the node have changed to plugin, and it stays split until the claims that look "
                "at them, by admin access, have ended; drain the node"
            )
        there = Side.PLUGIN if wanted is Front.PLUGIN else Side.DRA
        left = sum(side is not there for side in sides.values())
        return Front.SPLIT, (
            f"the node stays split until {left} of its {len(sides)} cards have changed to {wanted.value}: a "
            "card changes once nothing is held of it; drain the node"
        )
    if wanted is Front.PLUGIN:
        claims = {allocation.pod for allocation in ledger.claims}
        if not (claims or in_claims):
            return wanted, ""
        return Front.SPLIT, (
            f"the node is split until its cards have left claims, of which {len(claims)} hold cards: a card "
            "changes to plugin once nothing is held of it; drain the node"
        )
    if not ledger.pods:
        return wanted, ""
    return Front.PLUGIN, (
        f"the node keeps the front plugin until nothing is held by it: {len(ledger.pods)} pods hold cards; "
        "drain the node, and it changes to dra"
    )


def cards_of_front(front: Front) -> ClaimCards:
    """Return the cards that go by claims under a front that is not split."""
    return ALL_CARDS if front is Front.DRA else NO_CARDS


def sides_of_front(front: Front, cards: Iterable[CardState]) -> Sides:
    """Return the sides of the cards under a front that is not split; cards in MIG mode have none."""
    side = Side.DRA if front is Front.DRA else Side.PLUGIN
    return {state.card.uuid: side for state in cards if not state.card.mig}
