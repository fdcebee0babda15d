"""Booking what the kubelet's checkpoint and the predecessor's records prove: functions over the books."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import ASSIGNED, CORE, MEMORY, NVIDIA, PREDICATE_INDEX, decode_assignment
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid
from gpu_manager.domain.kube.pod import ContainerKind, Pod
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.placement.place import follow
from gpu_manager.domain.priority import Priority
from gpu_manager.domain.resources import CORES_PER_CARD, ZERO, Amount
from gpu_manager.domain.rules.pod_annotations import legal_ceiling_of, priority_of
from gpu_manager.domain.rules.pod_request import bound_request
from gpu_manager.ports.records import CheckpointEntry, PredecessorPod
from gpu_manager.services.allocation.books import Books, Grant, NodeCards

# Containers of the predecessor that run on across an upgrade are booked by its records.
# The kubelet shows them with ids of the predecessor's form, which say nothing about the card. Its
# checkpoint does, else the index in the pod's annotation. They keep running as they were started; none has
# control pages.


_ABSENT = "nvidia"  # and the n of /dev/nvidia<n>: a card known from a record only; no UUID begins so
_CORE_ID = re.compile(re.escape(CORE) + r"-\d{1,9}")
_MEMORY_ID = re.compile(re.escape(MEMORY) + r"-(\d{1,13})-\d{1,9}")


def is_predecessor_pod(ids: Mapping[str, frozenset[str]]) -> bool:
    """True if these ids, by resource, are of the predecessor's form."""
    core = ids.get(CORE, frozenset())
    return bool(core) and all(_CORE_ID.fullmatch(device) for device in core)


def shares_by_record(record: PredecessorPod, node: NodeCards) -> tuple[Share, ...]:
    """The cards of a record of its checkpoint. An absent card keeps its number, since the container may still
    hold it; :func:`recognised` finds it when it is back.
    """
    whole = record.amount.cores >= CORES_PER_CARD
    absent = Amount(CORES_PER_CARD, 0) if whole else record.amount
    return tuple(
        Share(CardUuid(f"{_ABSENT}{minor}"), absent)
        if (state := _by_minor(node, minor)) is None
        else Share(state.card.uuid, state.card.capacity(node.unit) if whole else record.amount)
        for minor in record.minors
    )


def recognised(grant: Grant, node: NodeCards) -> Grant:
    """The shares with the UUIDs of cards that were known by number only and are present now."""
    shares = tuple(_recognised(share, node) for share in grant.allocation.shares)
    return replace(grant, allocation=replace(grant.allocation, shares=shares))


def _recognised(share: Share, node: NodeCards) -> Share:
    number = share.card.removeprefix(_ABSENT)
    if number == share.card or not number.isdecimal():
        return share
    state = _by_minor(node, int(number))
    if state is None:
        return share
    return Share(state.card.uuid, state.card.capacity(node.unit) if share.whole else share.amount)


def shares_by_annotation(
    pod: Pod | None, container: str, ids: Mapping[str, frozenset[str]], node: NodeCards
) -> tuple[Share, ...]:
    """The cards that its annotation names by index, with the amounts of its ids; empty without annotation."""
    apps = [c.name for c in pod.containers if c.kind is ContainerKind.APP] if pod else []
    if pod is None or container not in apps or pod.annotations.get(ASSIGNED) != "true":
        return ()
    written = pod.annotations.get(f"{PREDICATE_INDEX}{apps.index(container)}", "").split(",")
    by_index = {str(s.card.index): s for s in node.cards}
    found = [by_index[text.strip()] for text in written if text.strip() in by_index]
    cores = len(ids.get(CORE, ()))
    if not found or len(found) != len(written) or len(found) != max(1, cores // CORES_PER_CARD):
        return ()
    sizes = (_MEMORY_ID.fullmatch(device) for device in ids.get(MEMORY, ()))
    return _shares(found, Amount(cores, sum(int(match[1]) for match in sizes if match)), node)


def _shares(states: list[CardState], amount: Amount, node: NodeCards) -> tuple[Share, ...]:
    if amount.cores >= CORES_PER_CARD:
        return tuple(Share(s.card.uuid, s.card.capacity(node.unit)) for s in states)
    return (Share(states[0].card.uuid, amount),)


def _by_minor(node: NodeCards, minor: int) -> CardState | None:
    """By the number in ``/dev/nvidia<n>``, which is the index where the driver does not tell."""
    return next(
        (s for s in node.cards if (s.card.index if s.card.minor is None else s.card.minor) == minor), None
    )


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
