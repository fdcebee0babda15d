"""ResourceClaims for tests: what one holds of a node's cards."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_manager.domain.card import CardState
from gpu_manager.domain.placement.ledger import Allocation, HoldingClaim, Share
from gpu_manager.domain.pod import ContainerKind, PodUid
from gpu_manager.domain.resources import GIB, Amount
from gpu_manager.services.allocation.books import Grant


def claim_grant(
    uid: str,
    *states: CardState,
    cores: int = 30,
    request: str = "gpu",
    pods: Sequence[str] = ("train-0",),
    directory: str = "",
) -> Grant:
    """What a request of the claim ``ml/<uid>`` holds: the same part of each of these cards."""
    shares = tuple(Share(state.card.uuid, Amount(cores, 4 * GIB)) for state in states)
    results = tuple((f"gpu-{state.card.index}", f"share-{uid}-{state.card.index}") for state in states)
    holder = HoldingClaim(uid, request, results, tuple((PodUid(f"uid-{name}"), name) for name in pods))
    allocation = Allocation(
        PodUid(f"claim-{uid}"),
        f"{uid}/{request}",
        ContainerKind.APP,
        0,
        shares,
        "ml",
        pods[0] if len(pods) == 1 else uid,
        claim=holder,
    )
    return Grant(allocation, directory or f"{uid}-{request}", proven=True)
