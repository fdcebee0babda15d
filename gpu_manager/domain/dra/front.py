"""By which of Kubernetes' two ways a node gives its cards away: the device plugin API, or DRA.

The two do not see each other's books, and neither asks anybody before it gives a card away. So a card is
given by one of them at a time (:mod:`gpu_manager.domain.dra.sides`), and a node that is not split has one of
them for all its cards, and keeps it as long as anything is held by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from gpu_manager.domain.card import CardState
from gpu_manager.domain.dra.sides import ALL_CARDS, NO_CARDS, ClaimCards, Side, Sides, has_left
from gpu_manager.domain.placement.ledger import Ledger


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
