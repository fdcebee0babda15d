"""Decisions of GetPreferredAllocation and bookings of Allocate: functions over the books, without I/O or
lock.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

import structlog

from gpu_manager.domain.admission_match import ContainerCandidate, reuser
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import NVIDIA, Assignment, encode_assignment
from gpu_manager.domain.errors import Bug, DoesNotFit, RequestInvalid, VcudaError
from gpu_manager.domain.kube.pod import ContainerKind, Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.rules.pod_annotations import legal_ceiling_of
from gpu_manager.domain.topology import NumaPolicy
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.ports.control_pages import Limit
from gpu_manager.services.allocation import planner, preferred_ids, unidentified_grants
from gpu_manager.services.allocation.books import Books, Grant
from gpu_manager.services.allocation.preferred_ids import IdChoice

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Decision:
    """The container that ids are for: ``certain``, or only the probable one, or None.

    ``refusal``: why the ids will be refused, empty if they will not. ``again``: the container has these ids
    already, and the kubelet gives them once more, unless the pod has ended. ``others``: containers that may
    be meant as well, the likelier first. ``deleted``: the pod was deleted before the kubelet admitted it.
    """

    candidate: ContainerCandidate | None
    certain: bool = True
    refusal: VcudaError | None = None
    again: bool = False
    others: tuple[ContainerCandidate, ...] = ()
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Booked:
    """A booked grant that is not yet answered to the kubelet; ``before`` is what it replaces.

    ``yielded``: it is on other cards than the scheduler chose.
    """

    resource: str
    ids: frozenset[str]
    grant: Grant
    decision: Decision
    before: Grant | None = None
    yielded: bool = False

    @property
    def pod(self) -> Pod | None:
        """The pod, if it is certain."""
        return self.decision.candidate.pod if self.decision.candidate and self.decision.certain else None


_NOBODY: Final = "-"  # the memo of a pod that was deleted
DELETED = "the pod was deleted before the kubelet admitted it: its room is given to others"


def refuse_deleted(
    books: Books, choice: IdChoice, candidate: ContainerCandidate | None
) -> tuple[tuple[str, ...], Decision]:
    """As :func:`decide`, for a pod that was deleted before the kubelet admitted it.

    The scheduler has given its room away, and it would run for a second. Nothing is planned for it: a card
    would be taken from pods that live.
    """
    if candidate is not None:
        books.drop_plan(candidate.pod.uid)
    return preferred_ids.best_ids(books, choice), Decision(
        candidate, refusal=DoesNotFit(DELETED), deleted=True
    )


def decide(
    books: Books, choice: IdChoice, candidate: ContainerCandidate, listed: Mapping[str, frozenset[str]]
) -> tuple[tuple[str, ...], Decision]:
    """The ids to prefer for this container, and the decision to keep until Allocate.

    ``listed`` are the ids that the kubelet lists at it already.
    """
    pod, container = candidate.pod, candidate.container
    try:
        unidentified_grants.identify(books, candidate, listed)
        _retract(books, candidate, listed)
        allocation = planner.allocation_of(books, pod, container)
        ids = preferred_ids.pick(books.node, choice, allocation.cards)
        offered_cards = books.node.ids.cards_of(choice.resource, choice.free)
        decided = offered_cards & set(allocation.cards)
        elsewhere = not decided or (choice.resource == NVIDIA and len(decided) < len(allocation.cards))
        if (
            elsewhere
            and not choice.must
            and not allocation.granted
            and not planner.tied(books, pod, container)
            and (
                choice.resource == NVIDIA
                or books.free_ids(choice.resource, allocation.cards)
                or _aligned(books, choice)
            )
        ):
            # Only cards of another NUMA node are offered: the kubelet's topology policy decides. Where the
            # card has no free id left, because of resized containers, those of any card stand for it, unless
            # the kubelet holds ids of other nodes back.
            moved = planner.plan_within(books, pod, container, offered_cards)
            if moved is not None:
                ids = preferred_ids.pick(books.node, choice, moved.cards)
            else:
                log.info(
                    "alignment_not_followed",
                    pod=pod.key,
                    container=container.name,
                    aligned=sorted(books.node.index(card) for card in offered_cards),
                    cards=[books.node.index(card) for card in allocation.cards],
                    holders=planner.holders_of(books.ledger, offered_cards),
                )
        return ids, Decision(candidate)
    except (RequestInvalid, DoesNotFit) as error:
        log.info("pod_will_be_refused", pod=pod.key, container=container.name, reason=str(error))
        return preferred_ids.best_ids(books, choice), Decision(candidate, refusal=error)


def _aligned(books: Books, choice: IdChoice) -> bool:
    """True if the kubelet has a topology policy and offers less than what is free."""
    if books.node.topology.numa_policy is NumaPolicy.NONE:
        return False
    there = (state.card.uuid for state in books.node.cards if state.open)
    return not books.free_ids(choice.resource, there) <= {*choice.free}


def _retract(books: Books, candidate: ContainerCandidate, listed: Mapping[str, frozenset[str]]) -> None:
    """Retract ids that the books have at this container and the kubelet does not list there: they went to an
    earlier pod of that name. Its directory may be in use there, so the container gets a new one.
    PodResources never lists ordinary init containers, so nothing is retracted of one.
    """
    grant = books.grants.get(candidate.key)
    if grant is None or candidate.container.kind is ContainerKind.INIT:
        return
    if any(ids and listed.get(resource) != ids for resource, ids in grant.ids.items()):
        books.retract(candidate.key)
        log.warning("grant_retracted", pod=candidate.pod.key, directory=grant.directory)


def check_known(books: Books, resource: str, ids: frozenset[str]) -> None:
    """Raise RequestInvalid for ids that belong to no card of the node and to no grant."""
    ours = books.node.ids.card_of[resource]
    unknown = sorted(d for d in ids if d not in ours and not books.owners((d,)))
    if not ids or unknown:
        raise RequestInvalid(
            f"{resource}: unknown device id {unknown[0]!r}" if ids else f"{resource}: no device ids given"
        )


def memo_of(decision: Decision | None) -> str:
    """The container that was decided on, for :func:`remembered`; empty where it is not certain."""
    if decision is None or not decision.certain:
        return ""
    if decision.deleted or decision.candidate is None:
        return _NOBODY if decision.deleted else ""
    return "/".join(decision.candidate.key)


def remembered(memo: str, local: Mapping[str, Sequence[KnownPod]]) -> Decision | None:
    """The decision behind a memo; None without one, or where its pod is not known. What it was refused for,
    if it was, is found anew; and who held the ids, since a release that was not saved died with the agent.
    """
    if memo == _NOBODY:
        return Decision(None, refusal=DoesNotFit(DELETED), deleted=True)
    uid, _, name = memo.partition("/")
    pod = next((f.pod for found in local.values() for f in found if f.pod.uid == uid), None)
    container = pod.container(name) if pod is not None else None
    return Decision(ContainerCandidate(pod, container), again=True) if pod and container else None


def whose(
    books: Books,
    resource: str,
    ids: frozenset[str],
    answered: tuple[frozenset[str], Decision] | None,
    local: Mapping[str, Sequence[KnownPod]],
) -> Decision | None:
    """The container that these ids are for: as decided; else their present holder; else that of the last
    ``answered`` call, if the kubelet took as many ids as possible from that answer.
    """
    if answered is not None and answered[0] == ids:
        return answered[1]
    owners = books.owners(ids)
    if len(owners) == 1:
        pod = _there(local, next(iter(owners)))
        if pod is not None and _passed_on(books, pod, resource, books.taken(ids)):
            container = reuser(pod, ids, resource, books.holds)
            if container is not None and not books.holds(pod.uid, container.name, resource):
                return Decision(ContainerCandidate(pod, container))
        if pod is not None and not pod.deleting:
            same = (c for c in pod.containers if books.holds(pod.uid, c.name, resource) == ids)
            if (container := next(same, None)) is not None:
                return Decision(ContainerCandidate(pod, container), again=True)
    if answered is None:
        return None
    told, decision = answered
    fits = decision.candidate is not None and decision.candidate.container.wants(resource) == len(ids)
    return decision if fits and (not told or told & ids) else None


def _passed_on(books: Books, pod: Pod, resource: str, ids: AbstractSet[str]) -> bool:
    """True if ordinary init containers of the pod hold these ids: the next container gets them, and more
    if it asks for more.
    """
    inits = (c.name for c in pod.containers if c.kind is ContainerKind.INIT)
    return ids <= frozenset().union(*(books.holds(pod.uid, name, resource) for name in inits))


def _there(local: Mapping[str, Sequence[KnownPod]], uid: PodUid) -> Pod | None:
    """The pod of that UID; None if it has ended or is deleted."""
    known = (f for found in local.values() for f in found if f.pod.uid == uid)
    return next((f.pod for f in known if not (f.tombstone or f.pod.terminal)), None)


def book(books: Books, resource: str, ids: frozenset[str], decision: Decision) -> Booked:
    """Book these ids for the decided container. Where it is not certain, the kubelet asked for no preference,
    and the next listing or PreStartContainer identifies the grant.

    Raises:
        RequestInvalid: the pod is not legal as written.
        DoesNotFit: no room, or another pod holds one of the ids. Nothing is planned for the pod any more.
    """
    candidate = decision.candidate
    if candidate is None and decision.refusal is not None:
        raise decision.refusal
    if candidate is None or not decision.certain:
        if not unidentified_grants.owns(books, ids):
            raise _held_by(books, resource, books.owners(ids))
        return _book_unidentified(books, resource, ids, decision)
    try:
        if decision.refusal is not None:
            raise decision.refusal
        return _book(books, resource, ids, candidate, decision)
    except VcudaError:
        books.drop_plan(candidate.pod.uid)
        raise


def _book_unidentified(books: Books, resource: str, ids: frozenset[str], decision: Decision) -> Booked:
    """Book for the first that has room of the containers that may be meant."""
    refusal: DoesNotFit | None = None
    for likely in (decision.candidate, *decision.others):
        try:
            grant = unidentified_grants.book(books, resource, ids, likely)
        except DoesNotFit as error:
            refusal = refusal or error
        else:
            return Booked(resource, ids, grant, replace(decision, candidate=likely))
    raise refusal or Bug("no container was tried")


def _book(
    books: Books, resource: str, ids: frozenset[str], candidate: ContainerCandidate, decision: Decision
) -> Booked:
    pod, container = candidate.pod, candidate.container
    _check_free(books, resource, ids, pod)
    books.meant.pop(candidate.key, None)
    allocation = planner.allocation_of(books, pod, container)
    named = books.node.ids.cards_of(resource, ids)
    if not named <= set(allocation.cards):
        allocation = _yield_to(books, resource, named, candidate, allocation)
    before = books.grants.get(allocation.key)
    grant = before or Grant(allocation, secrets.token_hex(16), legal_ceiling_of(pod) or 0)
    grant = replace(grant, allocation=allocation, ids={**grant.ids, resource: ids})
    books.put(grant)
    chosen = (planner.assignment(books.node, pod) or {}).get(container.name)
    yielded = before is None and chosen is not None and {c for c, _ in chosen} != set(allocation.cards)
    return Booked(resource, ids, grant, decision, before, yielded)


def undo(books: Books, booked: Booked) -> None:
    """Undo :func:`book`, unless the pod was released meanwhile."""
    candidate, certain = booked.decision.candidate, booked.decision.certain
    if booked.grant.key in books.grants:
        if booked.before is not None:
            books.put(booked.before)
        else:
            books.release(*booked.grant.key)
            if candidate is not None and not certain:
                planner.plan_again(books, candidate.pod)
    if candidate is not None and certain:
        books.drop_plan(candidate.pod.uid)


def _check_free(books: Books, resource: str, ids: frozenset[str], pod: Pod) -> None:
    foreign = books.owners(ids) - {pod.uid}
    if foreign:
        raise _held_by(books, resource, foreign)


def _held_by(books: Books, resource: str, pods: Iterable[PodUid]) -> DoesNotFit:
    names = sorted({a.pod_key for uid in pods for a in books.ledger.of_pod(uid).values()})
    return DoesNotFit(f"device ids of {resource} are still held by {names[0] if names else 'another pod'}")


def _yield_to(
    books: Books,
    resource: str,
    named: frozenset[CardUuid],
    candidate: ContainerCandidate,
    allocation: Allocation,
) -> Allocation:
    """Use the cards that the ids name if they fit; otherwise the ids are tokens for the decided cards.

    They are tokens too where the decided cards have too few free ids: the kubelet could not name these. Under
    a topology policy it names a NUMA node, whatever ids are left there.
    """
    pod, container = candidate.pod, candidate.container
    enough = len(books.free_ids(resource, allocation.cards)) >= container.wants(resource)
    chosen = (enough or resource == NVIDIA) and len(named) == len(allocation.cards)
    if books.node.topology.numa_policy is not NumaPolicy.NONE and not named.intersection(allocation.cards):
        chosen = True
    if chosen and not allocation.granted and not planner.tied(books, pod, container):
        moved = planner.plan_within(books, pod, container, named)
        if moved is not None:
            return moved
    if resource == NVIDIA:
        raise DoesNotFit(_taken(books, named))
    log.info("device_ids_not_followed", pod=pod.key, container=container.name, resource=resource)
    return allocation


def _taken(books: Books, named: frozenset[CardUuid]) -> str:
    """Why the cards that the kubelet chose cannot be given; no others will do: the id is the card."""
    said = []
    for uuid in sorted(named, key=str):
        holders = sorted({a.pod_key for a in books.ledger.holders(uuid)})
        if holders:
            said.append(f"card {books.node.index(uuid)} is held by {', '.join(holders[:3])}")
    idle = sum(s.open and books.ledger.idle(s.card.uuid) for s in books.node.cards)
    why = "; ".join(said) or "the pod has other cards already"
    return f"{why}; {idle} of {len(books.node.cards)} cards are idle"


def limits_of(grant: Grant) -> tuple[Limit, ...]:
    """The limits that the container's library enforces; none for whole cards, of zero for admin access."""
    return tuple(
        Limit(
            s.card,
            grant.memory_cap or s.amount.memory,
            s.amount.cores,
            max(grant.ceiling, s.amount.cores),
            grant.allocation.priority,
        )
        for s in grant.allocation.shares
        if not s.whole
    )


def annotation_of(grant: Grant, node: str) -> str:
    """The annotation with the container's allocation, which the kubelet stores in its checkpoint."""
    allocation = grant.allocation
    shares = tuple((s.card, s.amount) for s in allocation.shares)
    return encode_assignment(
        Assignment(node, allocation.pod, {allocation.container: shares}, grant.directory)
    )
