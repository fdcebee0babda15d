"""Shares of deleted pods: they are held until the pods' processes have ended.

A pod deleted by force is gone from the API at once, its processes are not. Its node lists such shares in its
inventory, and the accounting books them, so that the extender promises nothing that the node cannot give.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import TerminatingShare
from gpu_manager.domain.kube.pod import ContainerKind, PodUid
from gpu_manager.domain.placement.explain import Refusal
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share, peak
from gpu_manager.domain.resources import ZERO, Amount

MOST: Final = 128  # entries of an inventory: about 14 KiB of the 256 KiB that annotations may have
RELEASED_MOST: Final = 512  # UIDs of an inventory: 20 KiB, and more pods than a kubelet deletes at once


def terminating_shares(ledger: Ledger, gone: Iterable[PodUid]) -> tuple[TerminatingShare, ...]:
    """The shares of these pods for an inventory: by pod and card, and beyond :data:`MOST` summed by card."""
    left = sorted(_of(ledger, gone), key=lambda one: (one.pod, one.card))
    if len(left) <= MOST:
        return tuple(left)
    cards = sorted({one.card for one in left})
    kept = max(0, MOST - len(cards))
    rest = {card: sum((one.amount for one in left[kept:] if one.card == card), ZERO) for card in cards}
    together = (TerminatingShare("", card, amount) for card, amount in rest.items() if amount != ZERO)
    return (*left[:kept], *together)


def _of(ledger: Ledger, gone: Iterable[PodUid]) -> Iterator[TerminatingShare]:
    for uid in gone:
        held = tuple(ledger.of_pod(uid).values())
        for card in dict.fromkeys(card for a in held for card in a.cards):
            yield TerminatingShare(uid, card, peak(held, card))


def terminating_allocations(
    left: Iterable[TerminatingShare], known: Collection[PodUid] = ()
) -> tuple[Allocation, ...]:
    """The shares as allocations for a ledger, without those of ``known`` pods, which are charged anyway."""
    shares: dict[PodUid, list[Share]] = {}
    for one in left:
        if PodUid(one.pod) not in known:
            shares.setdefault(PodUid(one.pod), []).append(Share(one.card, one.amount))
    return tuple(
        Allocation(uid, "", ContainerKind.APP, 0, tuple(held)) for uid, held in sorted(shares.items())
    )


def with_terminating(
    refusal: Refusal, left: Sequence[TerminatingShare], known: Collection[PodUid] = ()
) -> Refusal:
    """The refusal, with the shares of deleted pods mentioned at each open card."""
    held: Mapping[CardUuid, list[TerminatingShare]] = {
        view.uuid: [one for one in left if one.card == view.uuid and PodUid(one.pod) not in known]
        for view, _ in refusal.cards
        if not view.closed
    }
    if not any(held.values()):
        return refusal
    cards = (
        (view, f"{reason}; {_said(those)}" if (those := held.get(view.uuid)) else reason)
        for view, reason in refusal.cards
    )
    return replace(refusal, cards=tuple(cards))


def _said(left: Sequence[TerminatingShare]) -> str:
    amount: Amount = sum((one.amount for one in left), ZERO)
    one = len(left) == 1 and bool(left[0].pod)
    who = "a pod that is gone and whose" if one else "pods that are gone and whose"
    return f"{amount} held by {who} processes still run"
