"""Accounting: which pods and claims hold a node's cards, derived from the node's report and its pods. Pure.

The scheduler extender, quota, the cluster's page and ``kubectl vcuda`` all use this one accounting. The agent
publishes its own :class:`~gpu_manager.domain.placement.ledger.Ledger`; tests check that both agree. A pod is
charged on the cards that its annotation names. A pod without a valid annotation (bound by hand, annotation
lost or forged) is charged where the node's own policy would place it or, if it does not fit, on the cards
with the most left: no amount is ever left out. A pod on its way to a card that has filled up since is charged
in that way too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpu_manager.domain import contract
from gpu_manager.domain.cluster.claims import ClaimCharge, KnownClaim, charge_claims, claims_by_node
from gpu_manager.domain.cluster.node_books import NodeBooks, terminating_allocations
from gpu_manager.domain.cluster.node_json import NodeReport, usual_unit
from gpu_manager.domain.cluster.pod_charges import (
    CardsUnknown,
    Charge,
    PlacedPod,
    allocations_of,
    charge_of,
    is_charged_alike,
    placed_pod,
    usage_by_model,
)
from gpu_manager.domain.errors import DoesNotFit
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.placement.place import Placement, find
from gpu_manager.domain.rules.pod_request import booked_request
from gpu_manager.domain.rules.request import PodRequest

_MOST_MISFITS: Final = 8  # of a node, before its other pods without known cards are charged without a search


def cluster_books(
    nodes: Sequence[NodeReport], pods: Iterable[Pod], claims: Sequence[KnownClaim] = ()
) -> tuple[NodeBooks, ...]:
    """The accounting of all nodes, by name. A node that only pods or claims name has no cards.

    ``pods``: all pods of the cluster; those on a node that offers ``nvidia.com/gpu`` with their whole-card
    alias (:meth:`~gpu_manager.domain.kube.pod.Pod.with_lent_cards`).
    """
    unit = usual_unit(nodes)
    known = {node.name: node if node.published else replace(node, unit=unit) for node in nodes}
    at: dict[str, dict[PodUid, PlacedPod]] = {}
    for pod in pods:
        if pod.uid and pod.asks and pod.node and not pod.terminal:
            at.setdefault(pod.node, {})[pod.uid] = placed_pod(pod)
    by_claim: dict[str, list[KnownClaim]] = {}
    for name, claim in claims_by_node(claims):
        by_claim.setdefault(name, []).append(claim)
    books = []
    for name in sorted({*known, *at, *by_claim}):
        node = known.get(name) or NodeReport(name, unit)
        held = charge_claims(node, by_claim.get(name, ()))
        charges, ledger = charge_node(node, at.get(name, {}).values(), held)
        books.append(NodeBooks(node, ledger, charges, held))
    return tuple(books)


def charge_node(
    node: NodeReport,
    pods: Iterable[PlacedPod],
    claims: Mapping[PodUid, ClaimCharge],
    before: NodeBooks | None = None,
) -> tuple[Mapping[PodUid, Charge], Ledger]:
    """The charge of each pod on the node, and the node's ledger with claims.

    ``before`` is an earlier state of the node's accounting, as a start if little has changed.
    """
    charges, unknown = _charges_as_named(node, pods, before)
    if unknown:
        charges |= _guessed(node, charges, claims, unknown)
    ledger = _ledger(node, charges, claims, before)
    without_room = list(_without_room(node, charges, ledger))
    if without_room:
        for one in without_room:
            del charges[one.placed.uid]
        charges |= _guessed(node, charges, claims, without_room)
        ledger = _ledger(node, charges, claims)
    return charges, ledger


# Charges.


def _charges_as_named(
    node: NodeReport, pods: Iterable[PlacedPod], before: NodeBooks | None
) -> tuple[dict[PodUid, Charge], Sequence[CardsUnknown]]:
    """The charges of the pods whose cards are known, and the pods whose cards are not."""
    known = before.charges if before is not None and before.node is node else {}
    charges: dict[PodUid, Charge] = {}
    unknown: list[CardsUnknown] = []
    for placed in pods:
        done = known.get(placed.uid)
        if done is not None and not done.guessed and is_charged_alike(done.placed, placed):
            charges[placed.uid] = done if done.placed is placed else replace(done, placed=placed)
            continue
        found = charge_of(placed, node)
        if isinstance(found, Charge):
            charges[placed.uid] = found
        else:
            unknown.append(found)
    return charges, unknown


def _guessed(
    node: NodeReport,
    charges: Mapping[PodUid, Charge],
    claims: Mapping[PodUid, ClaimCharge],
    unknown: Sequence[CardsUnknown],
) -> dict[PodUid, Charge]:
    """The charges of pods without known cards, added to what is known."""
    seen = {*charges, *(one.placed.uid for one in unknown)}
    held = _in_ledger(node, _allocations(charges, claims), seen)
    return {
        one.placed.uid: Charge(
            one.placed,
            allocations,
            usage_by_model(allocations, node.models),
            guessed=True,
            unplaceable=not fits,
        )
        for one, allocations, fits in guess(node, held, unknown)
    }


def _without_room(
    node: NodeReport, charges: Mapping[PodUid, Charge], ledger: Ledger
) -> Iterator[CardsUnknown]:
    """Pods on their way to a card that is full by now, so that the agent will choose another card.

    If a card's pods exceed its capacity, the agent has given a part of it to another pod than the one for
    which it was chosen, whose annotation is not corrected yet. So those pods there that the agent has not
    reported yet and that do not fit are charged where the node's own policy would place them. Otherwise the
    remaining room would be promised twice.
    """
    cards = [state.card.uuid for state in node.cards]
    full = {card for card in cards if not ledger.booked(card).fits_in(ledger.capacity(card))}
    if not full:
        return
    coming = [
        charge
        for charge in charges.values()
        if not charge.guessed
        and charge.pod.annotations.get(contract.ASSIGNED) != "true"
        and any(card in full for allocation in charge.allocations for card in allocation.cards)
    ]
    left = ledger.copy()
    for charge in coming:
        left.release(charge.pod.uid)
    for charge in sorted(coming, key=lambda c: (c.pod.began, c.pod.uid)):
        try:
            left.commit(charge.allocations)
        except DoesNotFit:
            request = booked_request(charge.pod, node.unit)
            yield from [CardsUnknown(charge.placed, request)] if request is not None else []


# The ledger.


def _ledger(
    node: NodeReport,
    charges: Mapping[PodUid, Charge],
    claims: Mapping[PodUid, ClaimCharge],
    before: NodeBooks | None = None,
) -> Ledger:
    """The node's ledger, derived from an earlier state if that is cheaper."""
    held = _allocations(charges, claims)
    patched = _patched(before, node, held)
    if patched is not None:
        return patched
    return Ledger((s.card for s in node.cards), node.unit, _in_ledger(node, held, charges))


def _allocations(
    charges: Mapping[PodUid, Charge], claims: Mapping[PodUid, ClaimCharge]
) -> Mapping[PodUid, tuple[Allocation, ...]]:
    """The allocations of each pod and each claim."""
    held = {uid: charge.allocations for uid, charge in charges.items()}
    return held | {uid: charge.allocations for uid, charge in claims.items()}


def _in_ledger(
    node: NodeReport, held: Mapping[PodUid, tuple[Allocation, ...]], pods: Collection[PodUid]
) -> list[Allocation]:
    """All allocations, including those of deleted pods whose processes still run; ``pods`` are the present
    ones.
    """
    left = terminating_allocations(node.lingering, pods)
    return [*(allocation for allocations in held.values() for allocation in allocations), *left]


def _patched(
    before: NodeBooks | None, node: NodeReport, held: Mapping[PodUid, tuple[Allocation, ...]]
) -> Ledger | None:
    """The old ledger with the differences applied; None if that is not cheaper or an existing grant
    contradicts it.
    """
    if before is None or before.node is not node or node.lingering:
        return None  # a pod that comes or goes decides whether its terminating share counts
    old = _allocations(before.charges, before.held_claims)
    gone = [uid for uid in old if held.get(uid) != old[uid]]
    come = [allocations for uid, allocations in held.items() if old.get(uid) != allocations]
    if not gone and not come:
        return before.ledger
    if len(gone) + len(come) > len(held):
        return None
    ledger = before.without(gone)
    try:
        for allocations in come:
            ledger.commit(allocations)
    except DoesNotFit:
        return None
    return ledger


def guess(
    node: NodeReport, held: Iterable[Allocation], unknown: Sequence[CardsUnknown]
) -> Iterator[tuple[CardsUnknown, tuple[Allocation, ...], bool]]:
    """Place pods without known cards beside what is held, the oldest first, each where the node's own policy
    would: yields its allocations, and whether they fit. After some have found no room the search stops, since
    any number of pods may be bound by their own specification.
    """
    certainly = [a for one in unknown for a in one.certain]
    ledger = Ledger((s.card for s in node.cards), node.unit, [*held, *certainly])
    misfits = 0
    for one in sorted(unknown, key=lambda one: (one.placed.pod.began, one.placed.uid)):
        placement = find(one.rest, node.cards, node.topology, ledger) if misfits < _MOST_MISFITS else None
        fits = placement is not None
        if placement is None:
            misfits += 1
            placement = _where_most_is_left(one.rest, node, ledger)
        allocations = (*one.certain, *allocations_of(one.placed.pod, placement))
        ledger.record(allocations)
        yield one, allocations, fits


def _where_most_is_left(request: PodRequest, node: NodeReport, ledger: Ledger) -> Placement:
    """Cards with the most left, for a pod that is on the node although it does not fit."""
    placement: dict[str, tuple[Share, ...]] = {}
    free = {s.card.uuid: ledger.free(s.card.uuid) for s in node.cards}
    for container in request.containers:
        ranked = sorted(
            node.cards, key=lambda s: (-free[s.card.uuid].cores, -free[s.card.uuid].memory, s.card.index)
        )
        shares = tuple(
            Share(
                s.card.uuid,
                s.card.capacity(node.unit) if container.request.cards else container.request.amount,
            )
            for s in ranked[: container.request.width]
        )
        for share in shares:
            free[share.card] -= share.amount
        placement[container.name] = shares
    return placement
