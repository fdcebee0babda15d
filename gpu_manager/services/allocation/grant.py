"""Allocate obeys: what was decided is booked, made ready on the node, and on disk before the kubelet is told.

Two steps, so that a slow disk holds up nobody who only looks: :meth:`Granting.book` is quick, and under the
allocator's lock; :meth:`Granting.hand_out` writes pages, files and the books without it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

import structlog

from gpu_manager.domain.admission_match import ContainerCandidate
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import (
    CARRIERS,
    CORE,
    EVENT_REFUSED,
    MEMORY,
    NVIDIA,
    Assignment,
    encode_assignment,
)
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid, VcudaError
from gpu_manager.domain.injection import Injection
from gpu_manager.domain.placement import explain
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.pod import Container, Pod
from gpu_manager.domain.resources import CORES_PER_CARD, Amount
from gpu_manager.domain.rules import legal_values
from gpu_manager.ports import Clock, ControlPages, Injector, Limit, Pods
from gpu_manager.services.allocation.books import Grant
from gpu_manager.services.allocation.planner import NodeCards, Planner
from gpu_manager.services.allocation.unidentified_grants import UnidentifiedGrants
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

REFUSED_SECONDS = 30.0  # how long the extender is told of a shape that was refused here


@dataclass(frozen=True, slots=True)
class Decision:
    """What GetPreferredAllocation settled for one id set: whose it is, or why it will be refused."""

    candidate: ContainerCandidate
    refusal: VcudaError | None = None


@dataclass(frozen=True, slots=True)
class Booked:
    """A grant that the books have and the kubelet has not been told of; ``before`` is what it replaces.

    ``named`` is false where nobody is known to hold it: ``candidate`` is then who may be meant, if anybody.
    """

    resource: str
    ids: frozenset[str]
    grant: Grant
    candidate: ContainerCandidate | None
    named: bool
    before: Grant | None = None


class GrantWriter:
    """One grant at a time: the allocator's turn is around both steps, its ``lock`` around the first."""

    def __init__(
        self,
        planner: Planner,
        unnamed: UnidentifiedGrants,
        lock: threading.RLock,
        *,
        save: Callable[[], None],
        pods: Pods,
        tenants: ControlPages,
        injector: Injector,
        clock: Clock,
        tally: ServiceMetrics,
    ) -> None:
        """``save`` puts the books on the disk; it raises NodeUnready if that refuses."""
        self._planner = planner
        self._unnamed = unnamed
        self._lock = lock
        self._save = save
        self._pods = pods
        self._tenants = tenants
        self._injector = injector
        self._clock = clock
        self._tally = tally
        self._refused: list[tuple[float, Amount]] = []

    def refused(self) -> tuple[Amount, ...]:
        """Shapes refused in the last 30 s."""
        now = self._clock.monotonic()
        with self._lock:
            self._refused = [(until, shape) for until, shape in self._refused if until > now]
            return tuple(dict.fromkeys(shape for _, shape in self._refused))

    def book(self, resource: str, ids: frozenset[str], decision: Decision) -> Booked:
        """Book these ids for the container that was decided on.

        Raises:
            RequestInvalid: the pod is not legal as written.
            DoesNotFit: no room, or another active pod holds one of the ids.
        """
        pod, container = decision.candidate.pod, decision.candidate.container
        try:
            if decision.refusal is not None:
                raise decision.refusal
            self._check_free(resource, ids, pod)
            self._unnamed.forget((pod.uid, container.name))
            allocation = self._planner.allocation_of(pod, container)
            named = self._planner.node.ids.cards_of(resource, ids)
            if named != set(allocation.cards) and not named < set(allocation.cards):
                allocation = self._yield_to(resource, named, pod, container, allocation)
            before = self._planner.books.grants.get(allocation.key)
            grant = before or Grant(allocation, secrets.token_hex(16), legal_values.ceiling_of(pod) or 0)
            grant = replace(grant, allocation=allocation, ids={**grant.ids, resource: ids})
            self._planner.books.put(grant)
            return Booked(resource, ids, grant, decision.candidate, named=True, before=before)
        except VcudaError as error:
            self._refuse(decision.candidate, error)

    def book_unnamed(self, resource: str, ids: frozenset[str], likely: ContainerCandidate | None) -> Booked:
        """Nobody was asked for a preference: the next listing or PreStartContainer settles whose it is.

        Raises:
            DoesNotFit: no room, or a pod that is known holds one of the ids.
        """
        if not self._unnamed.owns(ids):
            raise DoesNotFit(f"device ids of {resource} are still held by another pod")
        try:
            return Booked(resource, ids, self._unnamed.book(resource, ids, likely), likely, named=False)
        except DoesNotFit:
            self._tally.count("allocations", "refused")
            raise

    def hand_out(self, booked: Booked) -> Injection:
        """Everything that the container is to find on the node; the books are on disk when this returns.

        Raises:
            RequestInvalid: the pod may not be served as it is written.
            NodeUnready: the books or the pages cannot be written; nothing is booked any more.
        """
        candidate = booked.candidate if booked.named else None
        try:
            injection = Injection()
            if booked.resource in CARRIERS:
                injection = self._inject(booked.grant, candidate.pod if candidate else None)
            self._save()
        except VcudaError as error:
            with self._lock:
                self._undo(booked)
                if candidate is not None:
                    self._refuse(candidate, error)
            raise
        self._tally.count("allocations", "granted" if booked.named else "unidentified")
        self._say(booked)
        return injection

    def _check_free(self, resource: str, ids: frozenset[str], pod: Pod) -> None:
        books = self._planner.books
        foreign = books.owners(ids) - {pod.uid}
        if foreign:
            holder = next((a for uid in foreign for a in books.ledger.of_pod(uid).values()), None)
            raise DoesNotFit(
                f"device ids of {resource} are still held by {holder.pod_key if holder else 'another pod'}"
            )

    def _undo(self, booked: Booked) -> None:
        books = self._planner.books
        if booked.grant.key not in books.grants:
            return  # its pod has left meanwhile
        if booked.before is not None:
            books.put(booked.before)
            return
        books.release(*booked.grant.key)
        if booked.candidate is not None and not booked.named:
            self._planner.plan_again(booked.candidate.pod)

    def _say(self, booked: Booked) -> None:
        cards = [self._index(card) for card in booked.grant.allocation.cards]
        facts = {"resource": booked.resource, "ids": len(booked.ids), "cards": cards}
        pod = booked.candidate.pod.key if booked.candidate else ""
        if booked.named:
            allocation = booked.grant.allocation
            log.info(
                "placed", pod=pod, container=allocation.container, **facts, directory=booked.grant.directory
            )
        else:
            log.warning(
                "granted to an unidentified pod", **facts, directory=booked.grant.directory, likely=pod
            )

    def _yield_to(
        self,
        resource: str,
        named: frozenset[CardUuid],
        pod: Pod,
        container: Container,
        allocation: Allocation,
    ) -> Allocation:
        """The ids are not of the decided cards: one card set that fits decides, anything else is a token."""
        if not self._planner.books.ledger.granted(pod.uid) and len(named) == len(allocation.cards):
            moved = self._planner.plan_within(pod, container, named)
            if moved is not None:
                self._tally.count("annotation_yielded")
                return moved
        if resource == NVIDIA:
            raise DoesNotFit(self._taken(named))
        self._tally.count("ids_off_card", resource)
        log.info("ids are tokens", pod=pod.key, container=container.name, resource=resource)
        return allocation

    def _taken(self, named: frozenset[CardUuid]) -> str:
        """Why the cards that the kubelet chose cannot be given; no others will do: the id is the card."""
        node, ledger = self._planner.node, self._planner.books.ledger
        said = []
        for uuid in sorted(named, key=str):
            holders = sorted({a.pod_key for a in ledger.holders(uuid)})
            if holders:
                said.append(f"card {self._index(uuid)} is held by {', '.join(holders[:3])}")
        idle = sum(s.open and ledger.idle(s.card.uuid) for s in node.cards)
        why = "; ".join(said) or "the pod has other cards already"
        return f"{why}; {idle} of {len(node.cards)} cards are idle"

    def _inject(self, grant: Grant, pod: Pod | None) -> Injection:
        limits = limits_of(grant)
        if limits:
            self._tenants.open(grant.directory, limits)
        return self._injector.inject(
            grant.directory,
            grant.allocation.shares,
            pod,
            annotation_of(grant, self._planner.node.name),
        )

    def _refuse(self, candidate: ContainerCandidate, error: VcudaError) -> NoReturn:
        """Say it to the pod, and to the scheduler, which would send the next of that shape here at once."""
        pod, container = candidate.pod, candidate.container
        cores = container.wants(CORE) + container.wants(NVIDIA) * CORES_PER_CARD
        request = Amount(cores, container.wants(MEMORY) * self._planner.node.unit)
        self._refused.append((self._clock.monotonic() + REFUSED_SECONDS, request))
        self._planner.drop_plan(pod.uid)
        self._tally.count("allocations", "refused")
        log.warning("refused", pod=pod.key, container=container.name, reason=str(error))
        text = str(error) if 'container "' in str(error) else f'container "{container.name}": {error}'
        self._pods.event(pod, EVENT_REFUSED, text, warning=True)
        kinds = (RequestInvalid, DoesNotFit, NodeUnready)
        kind = next((k for k in kinds if isinstance(error, k)), type(error))
        raise kind(f"pod {pod.key}: {text}") from error

    def _index(self, uuid: CardUuid) -> int | str:
        state = self._planner.node.card(uuid)
        return state.card.index if state else uuid


def limits_of(grant: Grant) -> tuple[Limit, ...]:
    """What the container's library enforces; whole cards need none."""
    return tuple(
        Limit(s.card, s.amount.memory, s.amount.cores, max(grant.ceiling, s.amount.cores))
        for s in grant.allocation.shares
        if not s.whole
    )


def annotation_of(grant: Grant, node: str) -> str:
    """The exact copy of one container's allocation that the kubelet keeps in its checkpoint for us."""
    allocation = grant.allocation
    shares = tuple((s.card, s.amount) for s in allocation.shares)
    return encode_assignment(
        Assignment(node, allocation.pod, {allocation.container: shares}, grant.directory)
    )


def success_text(grant: Grant, node: NodeCards) -> str:
    """One sentence for the Event: ``30 cores, 5 GiB of card 3``."""
    return explain.explain_shares(grant.allocation.shares, node.cards)
