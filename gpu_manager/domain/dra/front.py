"""By which of Kubernetes' two ways a node gives its cards away: the device plugin API, or DRA.

The two do not see each other's books, and neither asks anybody before it gives a card away. So a node has one
of them at a time, and keeps it as long as anything is held by it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from gpu_manager.domain.placement.ledger import Ledger

_SHOWN: Final = 3  # holders named


class Front(Enum):
    """``plugin``: extended resources of a device plugin. ``dra``: claims, by a DRA driver."""

    PLUGIN = "plugin"
    DRA = "dra"


def front_in_force(wanted: Front, ledger: Ledger) -> tuple[Front, str]:
    """Return the front that the node has now, and why it is not the wanted one; empty if it is.

    What is held by the other one keeps it: its containers may start again, and only that side of the kubelet
    says when they have ended.
    """
    claims = sorted({allocation.pod_key for allocation in ledger.claims})
    pods = sorted({allocation.pod_key for allocation in ledger if allocation.claim is None})
    other, holders = (Front.DRA, claims) if wanted is Front.PLUGIN else (Front.PLUGIN, pods)
    if not holders:
        return wanted, ""
    more = f" and {len(holders) - _SHOWN} more" if len(holders) > _SHOWN else ""
    return other, (
        f"the node keeps the front {other.value} until nothing is held by it: {', '.join(holders[:_SHOWN])}"
        f"{more} hold cards; drain the node, and it changes to {wanted.value}"
    )
