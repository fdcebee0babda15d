"""Grants whose container is not known for certain: the kubelet did not ask for a preference first.

Under a NUMA policy it does not where exactly as many aligned ids are left as are needed. The ids are then
tokens, and the choice of cards is ours: such that the container that may be meant can live there. Whose
grant it is settles the kubelet's next listing (:func:`identify`), or else PreStartContainer.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import structlog

from gpu_manager.domain.admission_match import ContainerCandidate
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import CARRIERS, CORE, MEMORY, NVIDIA, RESOURCES
from gpu_manager.domain.errors import DoesNotFit
from gpu_manager.domain.placement.ledger import Allocation, Share
from gpu_manager.domain.placement.place import place
from gpu_manager.domain.pod import ContainerKind, PodUid
from gpu_manager.domain.resources import CORES_PER_CARD
from gpu_manager.domain.rules.pod_annotations import legal_ceiling_of
from gpu_manager.domain.rules.pod_request import container_request
from gpu_manager.domain.rules.request import ContainerRequest, PodRequest, Request
from gpu_manager.services.allocation import planner
from gpu_manager.services.allocation.books import Books, Grant, Key

log = structlog.get_logger(__name__)

UNIDENTIFIED = "unidentified-"


def is_unidentified(uid: PodUid) -> bool:
    """True for the stand-in of a pod that is not known."""
    return uid.startswith(UNIDENTIFIED)


def holds(books: Books, pod: PodUid, container: str, resource: str) -> frozenset[str]:
    """As the books say, and what is taken for this container's under a made-up name. Without that it
    would still seem to lack what it was just given, and the next pod's grant be taken for a part of its.
    """
    held = books.holds(pod, container, resource)
    taken = books.grants.get(books.meant.get((pod, container), (PodUid(""), "")))
    return held or (taken.ids.get(resource, frozenset()) if taken else frozenset())


def book(books: Books, resource: str, ids: frozenset[str], likely: ContainerCandidate | None) -> Grant:
    """Book these ids on cards with room for all that ``likely`` asks for. What that container has booked
    already is in this grant from now on: nothing is booked twice while it is not known.

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
    books.meant = {k: v for k, v in books.meant.items() if v in books.grants}
    if key is not None:
        books.meant[key] = grant.key
    return grant


def owns(books: Books, ids: Iterable[str]) -> bool:
    """True if grants under a made-up name alone hold any of these ids. Nobody is known to have them, so
    the kubelet may give them again: an init container handed them on, or its pod was rejected since.
    """
    return all(map(is_unidentified, books.owners(ids)))


def identify(books: Books, candidate: ContainerCandidate, listed: Mapping[str, frozenset[str]]) -> None:
    """The kubelet lists these ids at the container that it asks about: they are its own.

    Raises:
        DoesNotFit: the card that its core ids were answered with has no room for all that it asks for.
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
        if not any(r in grant.ids for r in CARRIERS):  # the card is open still
            allocation = planner.allocation_of(books, pod, container)
        else:
            order = next(n for n, c in enumerate(pod.containers) if c.name == container.name)
            asked = container_request(container, books.node.unit)
            shares = _shares(books, grant.allocation.cards, asked)
            allocation = Allocation(
                pod.uid, container.name, container.kind, order, shares, pod.namespace, pod.name
            )
        ids = {r: listed[r] for r in RESOURCES if listed.get(r)}
        books.put(Grant(allocation, grant.directory, legal_ceiling_of(pod) or 0, ids))
        planner.plan_again(books, pod)
        log.info("pod_identified", pod=pod.key, container=container.name, directory=grant.directory)


def cards_for(books: Books, candidate: ContainerCandidate) -> tuple[CardUuid, ...]:
    """The cards that this container has, is thought to have, or is to have; none without room."""
    base = _base(books, candidate.key)
    return base.allocation.cards if base else planner.cards_for(books, candidate.pod, candidate.container)


def _waiting(books: Books, resource: str) -> list[Grant]:
    """The last grant that lacks this resource: its container may be the one that is asked for."""
    found = [g for g in books.grants.values() if is_unidentified(g.allocation.pod)]
    return [g for g in found if resource not in g.ids][-1:]


def _held_by_nobody(books: Books, ids: frozenset[str]) -> list[Grant]:
    grants = books.grants.values()
    return [
        g for g in grants if is_unidentified(g.allocation.pod) and any(ids & had for had in g.ids.values())
    ]


def _base(books: Books, key: Key) -> Grant | None:
    """What is granted already to who may be meant: under a made-up name, or under its own."""
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
    whole = wanted[CORE] >= CORES_PER_CARD
    # Memory alone lies where at least one core is left: its container has some.
    request = Request(max(1, wanted[CORE]), 0 if whole else wanted[MEMORY] * books.node.unit)
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
    """Whole cards under another vendor's name: its users read the card in the id, no other will do."""
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
    """The cards that the ids name, else those planned for who may be meant, else any with room."""
    node = books.node
    asked = PodRequest(PodUid(""), (ContainerRequest("", ContainerKind.APP, 0, request),))
    for allowed in _circles(books, named, planned, request.cards or 1):
        states = tuple(s if s.card.uuid in allowed else replace(s, cordoned=True) for s in node.cards)
        try:
            return place(asked, states, node.topology, books.ledger)[""]
        except DoesNotFit:
            continue
    return place(asked, node.cards, node.topology, books.ledger)[""]


def _circles(
    books: Books, named: frozenset[CardUuid], planned: tuple[CardUuid, ...], count: int
) -> Iterator[frozenset[CardUuid]]:
    if len(named) == count:  # else the ids are tokens
        yield named
    yield frozenset(planned)
    cards = [s.card for s in books.node.cards]
    near = {card.numa for card in cards if card.uuid in named and card.numa is not None}
    yield frozenset(card.uuid for card in cards if card.numa in near)


def _shares(books: Books, cards: Iterable[CardUuid], request: Request | None) -> tuple[Share, ...]:
    asked, capacity = request or Request(0, 0), books.ledger.capacity
    return tuple(Share(card, capacity(card) if asked.cards else asked.amount) for card in cards)
