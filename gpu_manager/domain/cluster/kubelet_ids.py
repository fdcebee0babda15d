"""The kubelet's count of a node whose pods shrank: room on its cards that has no device ids left.

A container keeps the ids that it was admitted with. What a shrink below its spec gives back serves growth on
the node; a new pod needs ids, and is refused without, however much room the cards have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.node_report import NodeReport
from gpu_manager.domain.cluster.pod_charges import Charge
from gpu_manager.domain.contract import RESIZED
from gpu_manager.domain.placement.ledger import Allocation, Share, peak
from gpu_manager.domain.pod import PodUid
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.pod_request import booked_request
from gpu_manager.domain.rules.request import PodRequest

_ANY_CARD = CardUuid("")


@dataclass(frozen=True, slots=True)
class KubeletIds:
    """Ids as what they stand for: cores, and bytes of memory. ``total``: of all cards that hand out any;
    ``held`` by each pod on the node, ``booked`` what these pods have on the cards.
    """

    total: Amount
    held: Mapping[PodUid, Amount]
    booked: Amount

    @property
    def stranded(self) -> Amount:
        """What pods gave back of the cards but not of their ids: no new pod gets it."""
        return (sum(self.held.values(), ZERO) - self.booked).peak(ZERO)

    def left(self, pods: Collection[PodUid]) -> Amount:
        """What there is for others if these pods alone are on the node."""
        return self.total - sum((self.held[uid] for uid in pods if uid in self.held), ZERO)

    def lack(self, request: PodRequest, pods: Collection[PodUid]) -> str:
        """Why the kubelet cannot hand out the ids of a request beside these pods; empty if it can."""
        asked, left = ids_asked(request), self.left(pods)
        if asked.fits_in(left):
            return ""
        held = sum(self.held.values(), ZERO)
        return (
            f"no device ids for it: {asked} asked, {left.peak(ZERO)} left. Pods that shrank keep theirs: "
            f"{held} of ids for {self.booked} booked. Make their templates smaller, or grow others"
        )


def ids_asked(request: PodRequest) -> Amount:
    """The ids that the kubelet hands out for a pod, at its worst moment."""
    held = [
        Allocation(request.uid, c.name, c.kind, c.order, (Share(_ANY_CARD, c.request.amount),))
        for c in request.containers
    ]
    return peak(held, _ANY_CARD)


def kubelet_ids(node: NodeReport, charges: Mapping[PodUid, Charge]) -> KubeletIds | None:
    """The count of a node; None unless a pod there has less than its spec, for else the cards decide."""
    if not any(RESIZED in charge.pod.annotations for charge in charges.values()):
        return None  # nearly always
    ours = [charge for charge in charges.values() if not charge.pod.lent]
    requests = {charge.pod.uid: booked_request(charge.pod, node.unit) for charge in ours}
    held = {uid: ids_asked(request) for uid, request in requests.items() if request is not None}
    booked = {c.pod.uid: _booked(c.allocations) for c in ours if c.pod.uid in held}
    if all(held[uid].fits_in(booked[uid]) for uid in held):
        return None
    lent = {card for c in charges.values() if c.pod.lent for a in c.allocations for card in a.cards}
    open_cards = (s.card for s in node.cards if s.healthy and s.card.uuid not in lent)
    total = sum((card.capacity(node.unit) for card in open_cards), ZERO)
    return KubeletIds(total, held, sum(booked.values(), ZERO))


def _booked(allocations: Iterable[Allocation]) -> Amount:
    mine = tuple(allocations)
    return sum((peak(mine, card) for card in {card for a in mine for card in a.cards}), ZERO)
