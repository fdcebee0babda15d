"""Plans over the ledger: where a pod goes, which ids say so. No port but a counter; called under the lock."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import ALLOCATION, NVIDIA, decode_assignment
from gpu_manager.domain.errors import Bug, DoesNotFit, RequestInvalid
from gpu_manager.domain.ids import DeviceIds
from gpu_manager.domain.placement.ledger import Allocation, Ledger, Share
from gpu_manager.domain.placement.place import find, follow, place
from gpu_manager.domain.placement.trial_placement import units_of
from gpu_manager.domain.pod import Container, Pod, PodUid
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.request import PodRequest
from gpu_manager.domain.topology import Topology
from gpu_manager.services.allocation.books import Books
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KubeletOffer:
    """What the kubelet is told of a node: of a card that a pod has under one name the other has nothing.

    ``lent`` are the cards that pods have whole under another vendor's name, ``busy`` those of which a pod
    of ours holds or awaits a part.
    """

    node: NodeCards
    lent: frozenset[CardUuid] = frozenset()
    busy: frozenset[CardUuid] = frozenset()

    def healthy(self, resource: str, state: CardState) -> bool:
        """True if the card's ids of the resource may be handed out, or are in use."""
        uuid = state.card.uuid
        if resource != NVIDIA:
            return state.healthy and uuid not in self.lent
        return state.healthy and (uuid in self.lent or (state.open and uuid not in self.busy))


@dataclass(frozen=True, slots=True)
class NodeCards:
    """The node as it is now; replaced whole, so that readers need no lock."""

    name: str
    unit: int
    cards: tuple[CardState, ...]
    topology: Topology
    ids: DeviceIds

    @staticmethod
    def of(name: str, unit: int, cards: Sequence[CardState], topology: Topology) -> NodeCards:
        """Build it, with the ids that its cards have."""
        return NodeCards(name, unit, tuple(cards), topology, DeviceIds(tuple(s.card for s in cards), unit))

    def card(self, uuid: CardUuid) -> CardState | None:
        """The card of that UUID, if it is still there."""
        return next((s for s in self.cards if s.card.uuid == uuid), None)


class Planner:
    """The books and the node they are about. Not thread-safe: the allocator's lock is around it."""

    def __init__(self, node: NodeCards, books: Books, tally: ServiceMetrics) -> None:
        self.node = node
        self.books = books
        self._tally = tally
        self._lending: set[PodUid] = set()  # pods planned under another vendor's name
        # Containers of a pod that are booked under a made-up name: a plan would book them again.
        self.booked_elsewhere: Callable[[PodUid], Collection[str]] = lambda _: ()

    def offer(self) -> KubeletOffer:
        """What the kubelet is to be told now."""
        books = self.books
        lent = {g.allocation.pod for g in books.grants.values() if g.ids.get(NVIDIA)}
        self._lending &= set(books.ledger.pods)
        ours = (a for a in books.ledger if a.pod not in lent and a.pod not in self._lending)
        return KubeletOffer(self.node, books.lent(), frozenset(card for a in ours for card in a.cards))

    def allocation_of(self, pod: Pod, container: Container) -> Allocation:
        """What this container has, or is to have; plans the whole pod if there is no plan yet."""
        held = self.books.ledger.get(pod.uid, container.name)
        if held is not None and (held.granted or all(self._open(card) for card in held.cards)):
            return held
        if held is not None:
            self.drop_plan(pod.uid)
        self.plan(pod, free_choice=True)
        planned = self.books.ledger.get(pod.uid, container.name)
        if planned is None:
            raise Bug(f"{pod.key}: container {container.name} was left out of its pod's plan")
        return planned

    def cards_for(self, pod: Pod, container: Container) -> tuple[CardUuid, ...]:
        """The cards that this container has, or is to have; none if it has no room anywhere."""
        if self.books.ledger.get(pod.uid, container.name) is None:
            with contextlib.suppress(RequestInvalid, DoesNotFit):
                self.plan(pod, free_choice=True)
        held = self.books.ledger.get(pod.uid, container.name)
        return held.cards if held is not None else ()

    def plan(self, pod: Pod, *, free_choice: bool) -> None:
        """Book every container of the pod that is not booked: on the cards whose ids it will be handed, as
        assigned, else by policy.
        """
        request = self._open_part(pod)
        tied = self._tied(pod)
        bound = tuple(c for c in request.containers if c.name in tied)
        rest = tuple(c for c in request.containers if c.name not in tied)
        if bound:
            handed = {c.name: [(card, ZERO) for card in tied[c.name]] for c in bound}
            self._book(
                pod, follow(replace(request, containers=bound), handed, self.node.cards, self.books.ledger)
            )
        try:
            self._plan_free(pod, replace(request, containers=rest), free_choice=free_choice)
        except DoesNotFit:
            for container in bound:
                self.books.release(pod.uid, container.name)
            raise

    def _plan_free(self, pod: Pod, request: PodRequest, *, free_choice: bool) -> None:
        """Containers that no granted one binds."""
        if not request.containers:
            return
        cards, ledger = self.node.cards, self.books.ledger
        assignment = self.assignment(pod)
        if assignment is not None:
            try:
                self._book(pod, follow(request, assignment, cards, ledger))
                return
            except DoesNotFit as error:
                if not free_choice:
                    raise
                self._tally.count("annotation_yielded")
                log.warning(
                    "assignment not followed",
                    pod=pod.key,
                    reason=str(error),
                    holders=self._holders(assignment),
                )
        self._book(pod, place(request, cards, self.node.topology, ledger))

    def plan_within(self, pod: Pod, container: Container, cards: Iterable[CardUuid]) -> Allocation | None:
        """Plan the pod anew on these cards alone; None, and the old plan, if it does not fit there."""
        allowed = frozenset(cards)
        before = tuple(self.books.ledger.of_pod(pod.uid).values())
        self.drop_plan(pod.uid)
        try:
            request = self._open_part(pod)
            states = tuple(
                s if s.card.uuid in allowed else replace(s, cordoned=True) for s in self.node.cards
            )
            self._book(pod, place(request, states, self.node.topology, self.books.ledger))
            return self.books.ledger.get(pod.uid, container.name)
        except (RequestInvalid, DoesNotFit):
            self.books.plan(before)
            return None

    def held_up(self, pod: Pod, going: Iterable[PodUid], ending: Iterable[PodUid] = ()) -> bool:
        """True if the pod finds no room here and would if the pods in ``going`` were gone; or not on the
        cards that the scheduler named, and would if those in ``ending`` were.
        """
        try:
            request = self._open_part(pod)
        except RequestInvalid:
            return False
        if not request.containers:
            return False
        now = self.books.ledger
        assignment = self.assignment(pod)
        if assignment is not None and self._follows(request, assignment, _without(now, ending)):
            return not self._follows(request, assignment, now)
        cards, topology = self.node.cards, self.node.topology
        if find(request, cards, topology, now) is not None:
            return False
        return find(request, cards, topology, _without(now, going)) is not None

    def _follows(
        self,
        request: PodRequest,
        assignment: Mapping[str, Sequence[tuple[CardUuid, Amount]]],
        ledger: Ledger,
    ) -> bool:
        try:
            follow(request, assignment, self.node.cards, ledger)
        except DoesNotFit:
            return False
        return True

    def plan_again(self, pod: Pod) -> None:
        try:
            self.plan(pod, free_choice=True)
        except (RequestInvalid, DoesNotFit) as error:
            log.info("plan not renewed", pod=pod.key, reason=str(error))

    def _open_part(self, pod: Pod) -> PodRequest:
        request = judged_request(pod, self.node.unit)
        booked = {*self.books.ledger.of_pod(pod.uid), *self.booked_elsewhere(pod.uid)}
        return replace(request, containers=tuple(c for c in request.containers if c.name not in booked))

    def _book(self, pod: Pod, placement: Mapping[str, tuple[Share, ...]]) -> None:
        if any(c.lent for c in pod.containers):
            self._lending.add(pod.uid)
        order = {c.name: (n, c.kind) for n, c in enumerate(pod.containers)}
        self.books.plan(
            Allocation(
                pod.uid, name, order[name][1], order[name][0], shares, pod.namespace, pod.name, granted=False
            )
            for name, shares in placement.items()
        )

    def drop_plan(self, uid: PodUid) -> None:
        for allocation in tuple(self.books.ledger.of_pod(uid).values()):
            if not allocation.granted:
                self.books.release(*allocation.key)

    def _tied(self, pod: Pod) -> Mapping[str, tuple[CardUuid, ...]]:
        """Container → the cards that it will be handed, where a granted one of its unit decides them: the
        ids of an ordinary init container go on to the containers after it (:func:`units_of`).
        """
        held = {a.container: a.cards for a in self.books.ledger.of_pod(pod.uid).values() if a.granted}
        tied: dict[str, tuple[CardUuid, ...]] = {}
        for unit in units_of(judged_request(pod, self.node.unit)) or ():
            cards = next((held[c.name] for c in unit.members if c.name in held), None)
            if cards is not None:
                tied |= {c.name: cards for c in unit.members if c.name not in held}
        return tied

    def assignment(self, pod: Pod) -> Mapping[str, Sequence[tuple[CardUuid, Amount]]] | None:
        """The extender's choice if it is about this pod and node; only *which card* is taken from it."""
        assignment = decode_assignment(pod.annotations.get(ALLOCATION))
        if assignment is None or assignment.node != self.node.name or assignment.pod != pod.api_uid:
            return None
        return assignment.containers

    def pick(
        self, resource: str, cards: Sequence[CardUuid], free: Sequence[str], must: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """``must``, then ids of the decided cards, then whatever is offered."""
        known, missing = self.node.ids.card_of[resource], size - len(must)
        rest = set(free).difference(must)
        chosen: list[str] = []
        for card in cards:
            chosen += sorted(d for d in rest if known.get(d) == card)
        if len(chosen) < missing:
            chosen += sorted(rest.difference(chosen))
        return (*must, *chosen[: max(0, missing)])

    def best_ids(self, resource: str, free: Sequence[str], must: Sequence[str], size: int) -> tuple[str, ...]:
        """Ids of as few cards as possible: the fullest card that still offers enough, else the emptiest."""
        known, offered = self.node.ids.card_of[resource], dict[CardUuid, int]()
        for device in free:
            if device in known:
                offered[known[device]] = offered.get(known[device], 0) + 1
        if resource == NVIDIA:
            idle = [card for card in sorted(offered) if self.books.ledger.idle(card)]
            return self.pick(resource, idle, free, must, size)
        enough = sorted((n, card) for card, n in offered.items() if n >= size)
        first = [enough[0][1]] if enough else sorted(offered, key=lambda card: (-offered[card], card))
        return self.pick(resource, first, free, must, size)

    def _holders(self, assignment: Mapping[str, Sequence[tuple[CardUuid, Amount]]]) -> list[str]:
        """Who stands where the assignment points, for the log."""
        cards = {card for shares in assignment.values() for card, _ in shares}
        return sorted(
            f"{a.namespace}/{a.pod_name} {a.container}{'' if a.granted else ' (planned)'}"
            for card in cards
            for a in self.books.ledger.holders(card)
        )

    def _open(self, uuid: CardUuid) -> bool:
        state = self.node.card(uuid)
        return state is not None and state.open


def _without(ledger: Ledger, pods: Iterable[PodUid]) -> Ledger:
    later = ledger.copy()
    for uid in pods:
        later.release(uid)
    return later
