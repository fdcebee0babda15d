"""By which of Kubernetes' two ways a node gives its cards away: the device plugin API, or DRA.

The two do not see each other's books, and neither asks anybody before it gives a card away. So a node has one
of them at a time, and keeps it as long as anything is held by it.
"""

from __future__ import annotations

from enum import Enum

from gpu_manager.domain.placement.ledger import Ledger


class Front(Enum):
    """``plugin``: extended resources of a device plugin. ``dra``: claims, by a DRA driver."""

    PLUGIN = "plugin"
    DRA = "dra"


def front_in_force(wanted: Front, ledger: Ledger) -> tuple[Front, str]:
    """Return the front that the node has now, and why it is not the wanted one; empty if it is.

    What is held by the other one keeps it: its containers may start again, and only that side of the kubelet
    says when they have ended. The text names nobody: /readyz shows it to everyone.
    """
    claims = {allocation.pod for allocation in ledger.claims}
    other, kind, holders = Front.DRA, "claims", len(claims)
    if wanted is Front.DRA:
        other, kind, holders = Front.PLUGIN, "pods", len(ledger.pods)
    if not holders:
        return wanted, ""
    return other, (
        f"the node keeps the front {other.value} until nothing is held by it: {holders} {kind} hold cards; "
        f"drain the node, and it changes to {wanted.value}"
    )
