"""Grants whose container is not known yet, because Allocate came without GetPreferredAllocation.

Under a NUMA policy the kubelet skips GetPreferredAllocation if exactly as many aligned device ids are left as
are needed. The ids then say nothing about cards: the agent chooses cards on which the likely container has
room. The kubelet's next listing (:func:`identify`) or PreStartContainer shows whose grant it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import structlog

from gpu_manager.domain.admission_match import ContainerCandidate
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CARRIERS, CORE, GPU_MODEL, GPU_UUID, MEMORY, NVIDIA, RESOURCES
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid
from gpu_manager.domain.kube.pod import ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.placement.place import find, place
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.rules.pod_annotations import legal_ceiling_of, priority_of
from gpu_manager.domain.rules.pod_request import bound_request, container_request
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest, Request
from gpu_manager.domain.topology import NumaPolicy
from gpu_manager.services.allocation import planner
from gpu_manager.services.allocation.books import Books, Grant, Key

log = structlog.get_logger(__name__)

UNIDENTIFIED = "unidentified-"


def is_unidentified(uid: PodUid) -> bool:
    """True for the made-up UID of an unidentified grant."""
    return uid.startswith(UNIDENTIFIED)


def holds(books: Books, pod: PodUid, container: str, resource: str) -> frozenset[str]:
    """Return the device ids booked for this container, or those of the unidentified grant that is likely its.

    Without the latter the container would still seem to lack its ids, and the next pod's grant would be
    taken for a part of it.
    """
    held = books.holds(pod, container, resource)
    taken = books.grants.get(books.meant.get((pod, container), (PodUid(""), "")))
    return held or (taken.ids.get(resource, frozenset()) if taken else frozenset())


def likeliest(
    books: Books, resource: str, ids: frozenset[str], found: Sequence[ContainerCandidate]
) -> Sequence[ContainerCandidate]:
    """Return the containers that may be meant in the order to book for: those that ask for the most memory
    first, and of these the ones that are planned on the NUMA nodes of the ids.

    What is booked for the first suits all, and the cards planned for one of them are not kept from all.
    """
    near = _near(books, books.node.ids.cards_of(resource, ids))

    def unlike(candidate: ContainerCandidate) -> tuple[int, bool]:
        planned = books.ledger.get(*candidate.key)
        return -candidate.container.wants(MEMORY), planned is None or not near.issuperset(planned.cards)

    return sorted(found, key=unlike)


def book(books: Books, resource: str, ids: frozenset[str], likely: ContainerCandidate | None) -> Grant:
    """Book device ids for an unidentified container, on cards with room for the whole request of ``likely``.

    What is booked for ``likely`` already becomes part of this grant, so that nothing is booked twice.

    Raises:
        DoesNotFit: no card has room; nothing has changed.
    """
    key = likely.key if likely else None
    base = _base(books, key) if key else None
    if likely is not None and base is None:
        planner.cards_for(books, likely.pod, likely.container)
    planned = books.ledger.get(*key) if key else None
    before = [g for g in _held_by_nobody(books, ids) if g is not base]
    for old in {a.key for a in (planned, base, *before) if a is not None}:
        books.release(*old)
    near = [base] if base else before or (_waiting(books, resource) if likely is None else [])
    cards = planned.cards if planned else tuple(card for g in near for card in g.allocation.cards)
    moved = _set_aside(books, resource, ids, likely) if base is None else ()
    try:
        grant = _grant(books, resource, ids, likely, base, cards)
        books.put(grant)
    except DoesNotFit:
        for undone in (base, *before):
            if undone is not None:
                books.state(undone)
        if planned is not None and base is None:
            books.plan((planned,))
        raise
    finally:
        for other in moved:
            planner.plan_again(books, other)
    books.meant = {k: v for k, v in books.meant.items() if v in books.grants}
    if key is not None:
        books.meant[key] = grant.key
    return grant


def _set_aside(
    books: Books, resource: str, ids: frozenset[str], likely: ContainerCandidate | None
) -> Sequence[Pod]:
    """Have plans make room on the cards that the ids name, where these lack it: :func:`planner.set_aside`."""
    named, node = books.node.ids.cards_of(resource, ids), books.node
    if likely is None or resource not in CARRIERS:
        return ()
    try:
        asked = container_request(likely.container, node.unit)
    except RequestInvalid:
        return ()
    if asked is None:
        return ()
    if len(named) != asked.width:
        if not _aligns(books):
            return ()
        named = _near(books, named)
    request = PodRequest(likely.pod.uid, (ContainerRequest("", ContainerKind.APP, 0, asked),))
    if find(request, planner.only(node, named), node.topology, books.ledger) is not None:
        return ()
    return planner.set_aside(books, named, request)


def owns(books: Books, ids: Iterable[str]) -> bool:
    """True if only unidentified grants hold any of these device ids.

    The kubelet may hand such ids out again: an init container passed them on, or its pod was rejected.
    """
    return all(map(is_unidentified, books.owners(ids)))


def identify(books: Books, candidate: ContainerCandidate, listed: Mapping[str, frozenset[str]]) -> None:
    """Assign unidentified grants to the container for which the kubelet lists their device ids.

    Raises:
        DoesNotFit, RequestInvalid: the card that Allocate answered with has no room for the container's whole
            request, or the pod may not use it.
    """
    pod, container = candidate.pod, candidate.container
    books.meant.pop(candidate.key, None)
    found = [
        g
        for g in books.grants.values()
        if is_unidentified(g.allocation.pod) and any(g.ids.get(r) == ids for r, ids in listed.items() if ids)
    ]
    for grant in found:
        books.meant = {k: v for k, v in books.meant.items() if v != grant.key}
        books.release(*grant.key)
        books.drop_plan(pod.uid)
        if not any(r in grant.ids for r in CARRIERS):  # the card is not chosen yet
            allocation = planner.allocation_of(books, pod, container)
        else:
            order = next(n for n, c in enumerate(pod.containers) if c.name == container.name)
            asked = container_request(container, books.node.unit)
            if asked is not None and asked.parts > 1 and len(grant.allocation.shares) != asked.parts:
                raise DoesNotFit(
                    f"it asks for parts of {asked.parts} cards and was answered with "
                    f"{len(grant.allocation.shares)}: delete the pod, so that a new one is admitted"
                )
            _check_allowed(books, pod, grant.allocation.cards)
            shares = _shares(books, grant.allocation.cards, asked)
            allocation = Allocation(
                pod.uid,
                container.name,
                container.kind,
                order,
                shares,
                pod.namespace,
                pod.name,
                priority=priority_of(pod),
            )
        ids = {r: listed[r] for r in RESOURCES if listed.get(r)}
        books.put(Grant(allocation, grant.directory, legal_ceiling_of(pod) or 0, ids))
        planner.plan_again(books, pod)
        log.info("pod_identified", pod=pod.key, container=container.name, directory=grant.directory)


def _check_allowed(books: Books, pod: Pod, cards: tuple[CardUuid, ...]) -> None:
    request = bound_request(pod, books.node.unit)
    barred = [s.card.index for s in books.node.cards if s.card.uuid in cards and not request.allows(s.card)]
    if barred:
        raise DoesNotFit(
            f"it was given card {', '.join(map(str, barred))} before its pod could be read, which allows "
            f"other cards alone ({GPU_MODEL}, {GPU_UUID}): delete the pod, so that a new one is admitted"
        )


def cards_for(books: Books, candidate: ContainerCandidate) -> tuple[CardUuid, ...]:
    """Return the cards that are granted, likely granted, or planned for this container; empty without
    room.
    """
    base = _base(books, candidate.key)
    return base.allocation.cards if base else planner.cards_for(books, candidate.pod, candidate.container)


def _waiting(books: Books, resource: str) -> list[Grant]:
    """Return the last unidentified grant without this resource: it may be the same container's."""
    found = [g for g in books.grants.values() if is_unidentified(g.allocation.pod)]
    return [g for g in found if resource not in g.ids][-1:]


def _held_by_nobody(books: Books, ids: frozenset[str]) -> list[Grant]:
    grants = books.grants.values()
    return [
        g for g in grants if is_unidentified(g.allocation.pod) and any(ids & had for had in g.ids.values())
    ]


def _base(books: Books, key: Key) -> Grant | None:
    """Return what the container was granted before: by an unidentified grant, or under its own name."""
    grants = books.grants
    return grants.get(books.meant[key]) if books.meant.get(key) in grants else grants.get(key)


def _grant(
    books: Books,
    resource: str,
    ids: frozenset[str],
    likely: ContainerCandidate | None,
    base: Grant | None,
    planned: tuple[CardUuid, ...],
) -> Grant:
    if resource == NVIDIA:
        return _lent(books, ids)
    wanted = {r: likely.container.wants(r) if likely else 0 for r in (CORE, MEMORY)}
    wanted |= {r: len(held) for r, held in (base.ids if base else {}).items()} | {resource: len(ids)}
    parts = likely.container.parts if likely else 1
    whole = parts == 1 and wanted[CORE] >= CORES_PER_CARD
    # A memory grant needs a card with at least one free core: its container asks for cores too.
    memory = 0 if whole else wanted[MEMORY] * books.node.unit
    request = Request(max(parts, wanted[CORE]), memory, parts)
    cards = base.allocation.cards if base and CORE in base.ids else ()
    shares = (
        _shares(books, cards, request)
        if cards
        else _place(books, request, books.node.ids.cards_of(resource, ids), planned)
    )
    if not wanted[CORE]:
        shares = tuple(replace(s, amount=replace(s.amount, cores=0)) for s in shares)
    directory = base.directory if base else secrets.token_hex(16)
    allocation = Allocation(PodUid(UNIDENTIFIED + directory), resource, ContainerKind.APP, 0, shares)
    return Grant(allocation, directory, ids={**(base.ids if base else {}), resource: ids})


def _lent(books: Books, ids: frozenset[str]) -> Grant:
    """Return the grant of whole cards asked for as ``nvidia.com/gpu``: the ids are the cards' UUIDs."""
    node = books.node
    named = node.ids.cards_of(NVIDIA, ids)
    request = PodRequest(
        PodUid(""),
        (ContainerRequest("", ContainerKind.APP, 0, Request(CORES_PER_CARD * len(named), 0)),),
        uuids=named,
    )
    shares = place(request, node.cards, node.topology, books.ledger)[""]
    directory = secrets.token_hex(16)
    allocation = Allocation(PodUid(UNIDENTIFIED + directory), NVIDIA, ContainerKind.APP, 0, shares)
    return Grant(allocation, directory, ids={NVIDIA: ids})


def _place(
    books: Books, request: Request, named: frozenset[CardUuid], planned: tuple[CardUuid, ...]
) -> tuple[Share, ...]:
    """Place on the cards that the ids name, else on those planned for the likely container, else on any."""
    node = books.node
    asked = PodRequest(PodUid(""), (ContainerRequest("", ContainerKind.APP, 0, request),))
    for allowed in _circles(books, named, planned, request.width):
        try:
            return place(asked, planner.only(node, allowed), node.topology, books.ledger)[""]
        except DoesNotFit:
            continue
    return place(asked, node.cards, node.topology, books.ledger)[""]


def _circles(
    books: Books, named: frozenset[CardUuid], planned: tuple[CardUuid, ...], count: int
) -> Iterator[frozenset[CardUuid]]:
    if len(named) == count:  # otherwise the ids are not tied to cards
        yield named
    near = _near(books, named)
    if _aligns(books) and not near.issuperset(planned):
        yield near
    yield frozenset(planned)
    yield near


def _aligns(books: Books) -> bool:
    """True if the kubelet has a topology policy: it has chosen the NUMA node, if not the card."""
    return books.node.topology.numa_policy is not NumaPolicy.NONE


def _near(books: Books, named: frozenset[CardUuid]) -> frozenset[CardUuid]:
    """The cards of the NUMA nodes of these."""
    cards = [s.card for s in books.node.cards]
    nodes = {card.numa for card in cards if card.uuid in named and card.numa is not None}
    return frozenset(card.uuid for card in cards if card.numa in nodes)


def _shares(books: Books, cards: Iterable[CardUuid], request: Request | None) -> tuple[Share, ...]:
    asked, capacity = request or Request(0, 0), books.ledger.capacity
    return tuple(Share(card, capacity(card) if asked.cards else asked.amount) for card in cards)
