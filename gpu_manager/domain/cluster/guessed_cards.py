"""Where a pod lies whose cards are not known: where its node's own policy would put it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.node_report import NodeReport
from gpu_manager.domain.cluster.pod_charges import CardsUnknown, allocations_of
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.placement.place import Placement, find
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.request import PodRequest


def guess(
    node: NodeReport, held: Iterable[Allocation], unknown: Sequence[CardsUnknown]
) -> Iterator[tuple[CardsUnknown, tuple[Allocation, ...], bool]]:
    """Place pods without known cards beside what is held, the oldest first, each where the node's own policy
    puts it: its allocations, and whether they fit.
    """
    certainly = [a for one in unknown for a in one.certain]
    ledger = Ledger((s.card for s in node.cards), node.unit, [*held, *certainly])
    for one in sorted(unknown, key=lambda one: (one.placed.pod.began, one.placed.uid)):
        placement = find(one.rest, node.cards, node.topology, ledger)
        fits = placement is not None
        if placement is None:
            placement = _where_most_is_left(one.rest, node, ledger)
        allocations = (*one.certain, *allocations_of(one.placed.pod, placement))
        ledger = book_as_fact(ledger, node, allocations)
        yield one, allocations, fits


def _where_most_is_left(request: PodRequest, node: NodeReport, ledger: Ledger) -> Placement:
    """Cards with the most left, for a pod that is on the node though it does not fit."""
    placement: dict[str, tuple[Share, ...]] = {}
    taken: dict[CardUuid, Amount] = {}
    for container in request.containers:
        free = {s.card.uuid: ledger.free(s.card.uuid) - taken.get(s.card.uuid, ZERO) for s in node.cards}
        ranked = sorted(
            node.cards, key=lambda s: (-free[s.card.uuid].cores, -free[s.card.uuid].memory, s.card.index)
        )
        shares = tuple(
            Share(
                s.card.uuid,
                s.card.capacity(node.unit) if container.request.cards else container.request.amount,
            )
            for s in ranked[: container.request.cards or 1]
        )
        for share in shares:
            taken[share.card] = taken.get(share.card, ZERO) + share.amount
        placement[container.name] = shares
    return placement


def book_as_fact(ledger: Ledger, node: NodeReport, allocations: Sequence[Allocation]) -> Ledger:
    """A ledger with these allocations booked as facts, whether they fit or not."""
    return Ledger((s.card for s in node.cards), node.unit, (*ledger, *allocations))
