"""Booking what the kubelet's checkpoint proves: a function over the books."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import MEMORY, NVIDIA, decode_assignment
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid
from gpu_manager.domain.kube.pod import ContainerKind, Pod
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.placement.place import follow
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.rules.pod_annotations import legal_ceiling_of, priority_of
from gpu_manager.domain.rules.pod_request import bound_request
from gpu_manager.ports.kubelet import CheckpointEntry
from gpu_manager.services.allocation.books import Books, Grant


def adopt(books: Books, entry: CheckpointEntry, memory: frozenset[str], pod: Pod | None) -> Grant:
    """Book what the checkpoint proves: a container, its ids, and the cards in its response.

    Raises:
        NodeUnready: the response in the checkpoint is not this agent's.
        DoesNotFit: its cards have no room, or the pod may not use them.
    """
    told = decode_assignment(entry.annotation)
    shares = next(iter(told.containers.values()), ()) if told else ()
    if told is None or not shares or not told.directory:
        raise NodeUnready(
            f"the checkpoint's response for container {entry.container!r} carries no allocation of ours"
        )
    cards = [card for card, _ in shares]
    cores = len(entry.ids) * (CORES_PER_CARD if entry.resource == NVIDIA else 1)
    parts = in_parts(shares)
    whole = parts == 1 and cores >= CORES_PER_CARD
    amount = Amount(min(cores // parts, CORES_PER_CARD), len(memory) * books.node.unit // parts)
    kind, order = next(
        ((c.kind, n) for n, c in enumerate(pod.containers if pod else ()) if c.name == entry.container),
        (ContainerKind.APP, 0),
    )
    allocation = Allocation(
        pod=entry.pod,
        container=entry.container,
        kind=kind,
        order=order,
        shares=tuple(
            Share(c, replace(amount, memory=books.ledger.capacity(c).memory) if whole else amount)
            for c in cards
        ),
        namespace=pod.namespace if pod else "",
        pod_name=pod.name if pod else "",
        priority=priority_of(pod) if pod else Priority.NORMAL,
    )
    undo = [
        g
        for g in books.grants.values()
        if g.key != allocation.key
        and (g.directory == told.directory or g.ids.get(MEMORY) == memory != frozenset())
    ]
    undo = [g for g in undo if not (g.allocation.pod == entry.pod and g.directory != told.directory)]
    for wrong in undo:
        books.release(*wrong.key)
    try:
        if pod is not None:
            _allowed(pod, entry.container, cards, books)
        grant = Grant(
            allocation,
            told.directory,
            (legal_ceiling_of(pod) if pod else None) or 0,
            {entry.resource: entry.ids, **({MEMORY: memory} if memory else {})},
        )
        books.put(grant)
    except (DoesNotFit, RequestInvalid):
        for wrong in undo:
            books.put(wrong)
        raise
    return grant


def in_parts(told: Sequence[tuple[CardUuid, Amount]]) -> int:
    """Return on how many of these cards a container lies in equal parts by the amounts; 1 for whole ones."""
    return len(told) if len(told) > 1 and told[0][1].cores < CORES_PER_CARD else 1


def _allowed(pod: Pod, container: str, cards: Sequence[CardUuid], books: Books) -> None:
    """Check the pod's own rules about cards (allow lists, count), and drop its plan elsewhere."""
    request = bound_request(pod, books.node.unit)
    own = replace(request, containers=tuple(c for c in request.containers if c.name == container))
    ledger = books.ledger.copy()
    ledger.release(pod.uid)
    follow(own, {container: [(card, ZERO) for card in cards]}, books.node.cards, ledger)
