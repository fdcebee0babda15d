"""Plans the cards of a pod's containers. Functions over the books, without I/O or locks."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import ALLOCATION, CORE, NVIDIA, Assignment, decode_assignment
from gpu_manager.domain.errors import Bug, DoesNotFit, RequestInvalid
from gpu_manager.domain.kube.pod import Container, Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.placement.place import Placement, find, follow, place
from gpu_manager.domain.placement.trial_placement import groups_of
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.pod_annotations import priority_of
from gpu_manager.domain.rules.pod_request import bound_request
from gpu_manager.domain.rules.request import PodRequest
from gpu_manager.services.allocation import preferred_ids
from gpu_manager.services.allocation.books import Books, KubeletOffer, NodeCards

log = structlog.get_logger(__name__)

Assigned = Mapping[str, Sequence[tuple[CardUuid, Amount]]]


def offer(books: Books) -> KubeletOffer:
    """Return the devices to report in ListAndWatch now."""
    lent = {g.allocation.pod for g in books.grants.values() if g.ids.get(NVIDIA)}
    books.lending &= set(books.ledger.pods)
    ours = (a for a in books.ledger if a.pod not in lent and a.pod not in books.lending)
    busy = frozenset(card for a in ours for card in a.cards)
    needed = books.resized or books.withdrawn or books.sides is not None or _taken_outside(books)
    books.withdrawn = preferred_ids.withdrawn(books) if needed else {}
    return KubeletOffer(books.node, books.lent(), busy, books.withdrawn)


def _taken_outside(books: Books) -> bool:
    return any(state.card.outside for state in books.node.cards)


def allocation_of(books: Books, pod: Pod, container: Container) -> Allocation:
    """Return the container's allocation, granted or planned; plans the whole pod if it has no plan yet."""
    held = books.ledger.get(pod.uid, container.name)
    if held is not None and (held.granted or all(_open(books, card) for card in held.cards)):
        return held
    if held is not None:
        books.drop_plan(pod.uid)
    plan(books, pod, free_choice=True)
    planned = books.ledger.get(pod.uid, container.name)
    if planned is None:
        raise Bug(f"{pod.key}: container {container.name} was left out of its pod's plan")
    return planned


def cards_for(books: Books, pod: Pod, container: Container) -> tuple[CardUuid, ...]:
    """Return the cards granted or planned for this container; empty if no card has room."""
    if books.ledger.get(pod.uid, container.name) is None:
        with contextlib.suppress(RequestInvalid, DoesNotFit):
            plan(books, pod, free_choice=True)
    held = books.ledger.get(pod.uid, container.name)
    return held.cards if held is not None else ()


def plan(books: Books, pod: Pod, *, free_choice: bool) -> None:
    """Plan every container of the pod that is not booked yet.

    On the cards that an init container passes on, else on those in the extender's annotation, else by the
    placement policy. With ``free_choice`` an annotation that cannot be followed is ignored.

    Raises:
        RequestInvalid: the pod's request is illegal.
        DoesNotFit: the cards have no room.
    """
    request = _open_part(books, pod)
    tied = _tied(books, pod)
    bound = tuple(c for c in request.containers if c.name in tied)
    rest = tuple(c for c in request.containers if c.name not in tied)
    if bound:
        handed = {c.name: [(card, ZERO) for card in tied[c.name]] for c in bound}
        placed = follow(
            replace(_only(request, handed), containers=bound), handed, books.node.cards, books.ledger
        )
        _book(books, pod, placed)
    try:
        _plan_free(books, pod, replace(request, containers=rest), free_choice=free_choice)
    except DoesNotFit:
        for container in bound:
            books.release(pod.uid, container.name)
        raise


def _plan_free(books: Books, pod: Pod, request: PodRequest, *, free_choice: bool) -> None:
    """Plan the containers whose cards no granted container determines."""
    if not request.containers:
        return
    cards, ledger = books.node.cards, books.ledger
    chosen = assignment(books.node, pod)
    if chosen is not None:
        try:
            _book(books, pod, follow(_only(request, chosen), chosen, cards, ledger))
            return
        except DoesNotFit as error:
            if not free_choice:
                raise
            log.warning(
                "assignment_not_followed", pod=pod.key, reason=str(error), holders=_holders(ledger, chosen)
            )
    _book(books, pod, place(request, cards, books.node.topology, ledger))


def plan_waiting(books: Books, pod: Pod, living: Collection[PodUid]) -> None:
    """Plan a pod on the cards that the scheduler named; elsewhere only if a pod that stays, one of the
    ``living``, has taken their room. Nothing changes if there is none.
    """
    chosen = assignment(books.node, pod)
    try:
        request = _open_part(books, pod)
    except RequestInvalid:
        return
    if chosen is None or not request.containers:
        return
    if _follows(books.node, request, chosen, books.ledger):
        placed = follow(_only(request, chosen), chosen, books.node.cards, books.ledger)
        _book(books, pod, placed)
        return
    ending = {a.pod for a in _on_cards(books.ledger, chosen)}.difference(living)
    if not _follows(books.node, request, chosen, _without(books.ledger, ending)):
        found = find(request, books.node.cards, books.node.topology, books.ledger)
        if found is not None:
            _book(books, pod, found)


def plan_within(books: Books, pod: Pod, container: Container, cards: Iterable[CardUuid]) -> Allocation | None:
    """Plan the container anew on these cards only, with the rest of the pod there if it fits, else anywhere;
    returns None and keeps the old plans if it does not fit.

    Pods that are planned there and not admitted yet are planned elsewhere, if all of them fit: the kubelet
    has chosen these cards for this container, and nothing yet for the others.
    """
    allowed = frozenset(cards)
    before, planned = [a for a in books.ledger if not a.granted], books.planned
    books.drop_plan(pod.uid)
    try:
        request = _open_part(books, pod)
    except RequestInvalid:
        books.plan(before)
        return None
    tied = _tied(books, pod)
    free = tuple(c for c in request.containers if c.name not in tied)
    groups = groups_of(replace(request, containers=free)) or ()
    alone = next((group.members for group in groups if container.name in {c.name for c in group.members}), ())
    for some in dict.fromkeys((free, alone)):
        if some and _laid(books, pod, replace(request, containers=some), allowed):
            return books.ledger.get(pod.uid, container.name)
        for one in {a.pod for a in before} | {pod.uid}:
            books.drop_plan(one)
        books.plan(before)
        books.planned = planned
        books.drop_plan(pod.uid)
    books.plan(before)
    return None


def _laid(books: Books, pod: Pod, request: PodRequest, cards: Collection[CardUuid]) -> bool:
    """Plan this part of the pod on these cards, then the rest of it, then whoever made room for it. False if
    that does not go for all; the plans are in no good order then.
    """
    states, topology = only(books.node, cards), books.node.topology
    moved: Sequence[Pod] = ()
    if find(request, states, topology, books.ledger) is None:
        moved = set_aside(books, cards, request)
    try:
        _book(books, pod, place(request, states, topology, books.ledger))
        for one in (pod, *moved):
            plan(books, one, free_choice=True)
    except (RequestInvalid, DoesNotFit):
        return False
    return True


def tied(books: Books, pod: Pod, container: Container) -> bool:
    """True if a granted container determines the cards of this one."""
    return container.name in _tied(books, pod)


def only(node: NodeCards, cards: Collection[CardUuid]) -> tuple[CardState, ...]:
    """Return the cards of the node, closed but for these."""
    return tuple(s if s.card.uuid in cards else replace(s, cordoned=True) for s in node.cards)


def set_aside(books: Books, cards: Collection[CardUuid], request: PodRequest) -> Sequence[Pod]:
    """Drop the plans on these cards of pods that are not admitted yet, and return these pods, to be planned
    again in this order once the request is booked. If they have no room elsewhere, those of all such pods.

    None, and nothing has changed, unless the request fits on these cards then, and each of the pods
    elsewhere.
    """
    planned = {uid for uid in books.planned if books.ledger.of_pod(uid) and not books.ledger.granted(uid)}
    planned.discard(request.uid)
    near = planned.intersection(a.pod for card in cards for a in books.ledger.holders(card))
    for uids in (near, planned) if near else ():
        others = sorted((books.planned[uid] for uid in uids), key=_largest_first)
        if _make_way(books, cards, request, others):
            for other in others:
                books.drop_plan(other.uid)
            log.info("plans_set_aside", pods=[other.key for other in others])
            return others
    return ()


def _largest_first(pod: Pod) -> tuple[int, str]:
    """Order of pods that look for room: whole cards are the hardest to find."""
    return -sum(
        container.wants(CORE) or 100 * container.wants(NVIDIA) for container in pod.containers
    ), pod.uid


def _make_way(books: Books, cards: Collection[CardUuid], request: PodRequest, others: Sequence[Pod]) -> bool:
    """True if the request fits on these cards without the plans of the others, and they fit after it."""
    node, later = books.node, books.ledger.copy()
    for other in others:
        later.release(other.uid)
    if not _tried(later, request, find(request, only(node, cards), node.topology, later), "trial"):
        return False
    for other in others:
        try:
            asked = bound_request(other, node.unit)
        except RequestInvalid:
            return False
        chosen = assignment(node, other)  # it is planned by it again, if it can be followed
        if chosen is not None and _follows(node, asked, chosen, later):
            found: Placement | None = follow(_only(asked, chosen), chosen, node.cards, later)
        else:
            found = find(asked, node.cards, node.topology, later)
        if not _tried(later, asked, found, f"trial-{other.uid}"):
            return False
    return True


def _tried(ledger: Ledger, request: PodRequest, found: Placement | None, name: str) -> bool:
    """Book what was found under this name; False if nothing was."""
    kinds = {c.name: c.kind for c in request.containers}
    ledger.commit(
        Allocation(PodUid(name), each, kinds[each], n, shares)
        for n, (each, shares) in enumerate((found or {}).items())
    )
    return found is not None


def held_up(books: Books, pod: Pod, going: Iterable[PodUid], ending: Iterable[PodUid] = ()) -> bool:
    """True if only ending pods keep the pod from its room.

    Without the pods in ``ending`` it would fit on the cards that the scheduler named, or without those in
    ``going`` on any cards of the node, and now it does not.
    """
    try:
        request = _open_part(books, pod)
    except RequestInvalid:
        return False
    if not request.containers:
        return False
    now = books.ledger
    chosen = assignment(books.node, pod)
    if chosen is not None and _follows(books.node, request, chosen, _without(now, ending)):
        return not _follows(books.node, request, chosen, now)
    cards, topology = books.node.cards, books.node.topology
    if find(request, cards, topology, now) is not None:
        return False
    return find(request, cards, topology, _without(now, going)) is not None


def in_the_way(books: Books, pod: Pod) -> Mapping[PodUid, Allocation]:
    """Return the other pods on the cards that the scheduler named, with one allocation of each.

    Empty if the pod has room on these cards, or would have none there without the others either.
    """
    try:
        request = _open_part(books, pod)
    except RequestInvalid:
        return {}
    node, now = books.node, books.ledger
    chosen = assignment(node, pod)
    if chosen is None or not request.containers or _follows(node, request, chosen, now):
        return {}
    others = {a.pod: a for a in _on_cards(now, chosen) if a.pod != pod.uid}
    return others if _follows(node, request, chosen, _without(now, others)) else {}


def _follows(node: NodeCards, request: PodRequest, chosen: Assigned, ledger: Ledger) -> bool:
    try:
        follow(_only(request, chosen), chosen, node.cards, ledger)
    except DoesNotFit:
        return False
    return True


def _only(request: PodRequest, chosen: Assigned) -> PodRequest:
    """Return the request with the chosen cards in place of its lists of allowed models and cards.

    The extender applied them when it chose the cards and counts the pod there, even if they have been
    rewritten since.
    """
    cards = frozenset(card for shares in chosen.values() for card, _ in shares)
    return replace(request, models=(), uuids=cards)


def plan_again(books: Books, pod: Pod) -> None:
    """Plan the pod's containers that are not booked, if there is room."""
    try:
        plan(books, pod, free_choice=True)
    except (RequestInvalid, DoesNotFit) as error:
        log.info("plan_not_renewed", pod=pod.key, reason=str(error))


def _open_part(books: Books, pod: Pod) -> PodRequest:
    request = bound_request(pod, books.node.unit)
    booked = {*books.ledger.of_pod(pod.uid), *books.meant_for(pod.uid)}
    return replace(request, containers=tuple(c for c in request.containers if c.name not in booked))


def _book(books: Books, pod: Pod, placement: Mapping[str, tuple[Share, ...]]) -> None:
    if any(c.lent for c in pod.containers):
        books.lending.add(pod.uid)
    books.planned = {**{uid: p for uid, p in books.planned.items() if books.ledger.of_pod(uid)}, pod.uid: pod}
    order = {c.name: (n, c.kind) for n, c in enumerate(pod.containers)}
    priority = priority_of(pod)
    books.plan(
        Allocation(
            pod.uid,
            name,
            order[name][1],
            order[name][0],
            shares,
            pod.namespace,
            pod.name,
            granted=False,
            priority=priority,
        )
        for name, shares in placement.items()
    )


def _tied(books: Books, pod: Pod) -> Mapping[str, tuple[CardUuid, ...]]:
    """Return container → cards, for containers whose cards a granted container determines.

    The kubelet passes an ordinary init container's ids on to the containers after it (:func:`groups_of`).
    """
    held = {a.container: a.cards for a in books.ledger.of_pod(pod.uid).values() if a.granted}
    tied: dict[str, tuple[CardUuid, ...]] = {}
    for group in groups_of(bound_request(pod, books.node.unit)) or ():
        cards = next((held[c.name] for c in group.members if c.name in held), None)
        if cards is not None:
            tied |= {c.name: cards for c in group.members if c.name not in held}
    return tied


def assignment(node: NodeCards, pod: Pod) -> Assigned | None:
    """Return the extender's choice of cards from the annotation; None if it is for another pod or node."""
    written = assignment_of(node, pod)
    return None if written is None else written.containers


def assignment_of(node: NodeCards, pod: Pod) -> Assignment | None:
    """The pod's cards in the annotation; None if it is for another pod or node."""
    written = decode_assignment(pod.annotations.get(ALLOCATION))
    if written is None or written.node != node.name or written.pod != pod.api_uid:
        return None
    return written


def _holders(ledger: Ledger, chosen: Assigned) -> list[str]:
    return holders_of(ledger, {card for shares in chosen.values() for card, _ in shares})


def holders_of(ledger: Ledger, cards: Iterable[CardUuid]) -> list[str]:
    """Return the containers on these cards, for the log."""
    return sorted(
        f"{a.namespace}/{a.pod_name} {a.container}{'' if a.granted else ' (planned)'}"
        for card in cards
        for a in ledger.holders(card)
    )


def _on_cards(ledger: Ledger, chosen: Assigned) -> list[Allocation]:
    """Return what is booked on the assigned cards."""
    cards = {card for shares in chosen.values() for card, _ in shares}
    return [a for card in cards for a in ledger.holders(card)]


def _open(books: Books, uuid: CardUuid) -> bool:
    state = books.node.card(uuid)
    return state is not None and state.open


def _without(ledger: Ledger, pods: Iterable[PodUid]) -> Ledger:
    later = ledger.copy()
    for uid in pods:
        later.release(uid)
    return later
