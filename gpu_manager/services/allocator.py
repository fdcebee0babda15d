"""The allocator: GetPreferredAllocation decides, Allocate obeys. Owns the one Ledger and its one lock.

The lock is held over memory and the store's fsync, never over NVML, gRPC or the API server. What was
decided for an id set is remembered until the kubelet comes back with it; Allocate itself asks nobody.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, TypeVar

import structlog

from gpu_manager.domain import explain, rules
from gpu_manager.domain.card import CardState, CardUuid
from gpu_manager.domain.contract import (
    CARRIERS,
    CORE,
    MEMORY,
    NVIDIA,
    Assignment,
    Lingering,
    encode_assignment,
)
from gpu_manager.domain.errors import DoesNotFit, RequestInvalid, VcudaError
from gpu_manager.domain.identity import Candidate, Question, reuser
from gpu_manager.domain.injection import Injection
from gpu_manager.domain.ledger import Allocation
from gpu_manager.domain.pod import Container, Pod, PodUid
from gpu_manager.domain.resources import CORES_PER_CARD, Amount
from gpu_manager.domain.topology import Topology
from gpu_manager.ports import Clock, Injector, Limit, Pods, Processes, Store, Tenants
from gpu_manager.services.association import Association
from gpu_manager.services.books import Books, Grant, Key
from gpu_manager.services.departures import PATIENCE_SECONDS, Departures
from gpu_manager.services.inheritance import recognised
from gpu_manager.services.planner import Node, Offer, Planner
from gpu_manager.services.tally import Tally
from gpu_manager.services.unnamed import Unnamed

T = TypeVar("T")

log = structlog.get_logger(__name__)

QUIET_SECONDS = 2.0  # after the last call of an admission, before the kubelet may be asked for a listing
REFUSED_SECONDS = 30.0  # how long the extender is told of a shape that was refused here


@dataclass(frozen=True, slots=True)
class Decision:
    """What GetPreferredAllocation settled for one id set: whose it is, or why it will be refused."""

    candidate: Candidate
    refusal: VcudaError | None = None


class Allocator:
    """Thread-safe. ``books`` and ``node`` are read by others only through :meth:`read`."""

    def __init__(
        self,
        node: Node,
        books: Books,
        *,
        association: Association,
        pods: Pods,
        store: Store,
        tenants: Tenants,
        injector: Injector,
        processes: Processes,
        clock: Clock,
        tally: Tally,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """``patience``: seconds that a question waits for deleted pods' processes to end."""
        self._planner = Planner(node, books, tally)
        self._books = books
        self._unnamed = Unnamed(self._planner)
        self._association = association
        self._pods = pods
        self._store = store
        self._tenants = tenants
        self._injector = injector
        self._clock = clock
        self._tally = tally
        self._lock = threading.RLock()
        self._departures = Departures(books, self._lock, pods, processes, tally, patience)
        self._decided: dict[
            str, tuple[frozenset[str], Decision]
        ] = {}  # resource → the last answer, whose it is
        self._partner: Key | None = None
        self._never: frozenset[PodUid] = frozenset()
        self._in_flight = 0
        self._admitted_at = float("-inf")
        self._refused: list[tuple[float, Amount]] = []
        self.registered_at = clock.monotonic()
        self.changed: Callable[[], None] = lambda: None

    @property
    def node(self) -> Node:
        """The node as it is now."""
        return self._planner.node

    @property
    def offer(self) -> Offer:
        """The node as the kubelet is to see it now; equal while nothing has changed for it."""
        with self._lock:
            return self._planner.offer()

    # --- what the world tells us ------------------------------------------------------------------

    def refit(self, cards: Sequence[CardState], topology: Topology) -> None:
        """The cards as they are now."""
        with self._lock:
            self._planner.node = Node.of(self.node.name, self.node.unit, cards, topology)
            self._books.refit(s.card for s in cards)
            for grant in tuple(self._books.grants.values()):
                known = recognised(grant, self.node)
                if known != grant:
                    self._books.state(known)

    def replace(self, books: Books) -> None:
        """Open for business with rebuilt books; called once, before anyone asks."""
        with self._lock:
            self._books = self._planner.books = self._departures.books = books

    def registered(self) -> None:
        """The kubelet is new: it lists its pods one by one again, so absence means nothing yet."""
        with self._lock:
            self.registered_at = self._clock.monotonic()
            self._departures.restarted()
            self._decided.clear()
            self._partner = None

    def pod_changed(self, pod: Pod) -> None:
        """A pod bound here with an assignment is booked at once, so that nothing takes its place."""
        if not pod.asks or pod.terminal or pod.deleting:
            return
        with self._lock:
            if self._books.introduce(pod):
                self.changed()
            if self._planner.assignment(pod) is None:
                return
            if not self._books.ledger.of_pod(pod.uid) and not self._unnamed.of(pod.uid):
                try:
                    self._planner.plan(pod, free_choice=False)
                except (RequestInvalid, DoesNotFit) as error:
                    log.info("assignment cannot be followed yet", pod=pod.key, reason=str(error))

    def read(self, reader: Callable[[Books, Node], T]) -> T:
        """Look at the books under the lock; ``reader`` must be quick and keep nothing that changes."""
        with self._lock:
            return reader(self._books, self.node)

    def change(self, writer: Callable[[Books, Node], T]) -> T:
        """Change the books under the lock and save them. Raises NodeUnready if the disk refuses."""
        with self._lock:
            result = writer(self._books, self.node)
            self._store.save(self._books.encode())
        self.changed()
        return result

    def listing_when_idle(self) -> frozenset[tuple[str, str]] | None:
        """Which pods are active, asked only while nothing is being admitted: a listing between the calls of
        an admission makes the kubelet forget ids in flight.
        """
        with self._lock:
            if self._in_flight or self._clock.monotonic() - self._admitted_at < QUIET_SECONDS:
                return None
        return self._association.active()

    def seen(self, uid: PodUid) -> bool:
        """True if the pod was listed as active since the kubelet came up."""
        return self._departures.seen(uid)

    def refused(self) -> tuple[Amount, ...]:
        """Shapes refused in the last 30 s."""
        now = self._clock.monotonic()
        with self._lock:
            self._refused = [(until, shape) for until, shape in self._refused if until > now]
            return tuple(dict.fromkeys(shape for _, shape in self._refused))

    def lingering(self) -> tuple[Lingering, ...]:
        """What is not free though no pod of the API holds it: processes of deleted pods still run."""
        return self._departures.lingering()

    # --- GetPreferredAllocation -------------------------------------------------------------------

    def prefer(
        self, resource: str, offered: Sequence[str], must: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """The ids to hand out; fewer than ``size`` or none when there is nothing better to say. Never raises
        for the world's faults: an error here would fail the pod.
        """
        question = Question(resource, size, frozenset(must))
        with self._lock:
            never, partner, holds = self._never, self._partner, dict(self._books.grants)
            self._in_flight += 1
            self._decided.pop(resource, None)  # the kubelet asks once for each grant: that one did not come
        try:
            answer = self._association.identify(
                question, lambda pod, name, r: _held(holds, pod, name, r), never=never, partner=partner
            )
            still = self._departures.outwait(
                answer, set(offered).difference(must), lambda going: self._held_up(answer.candidate, going)
            )
        finally:
            with self._lock:
                self._in_flight -= 1
        with self._lock:
            free = self._departures.clear(resource, offered, answer)
            if answer.candidate is None:
                self._tally.count("unidentified", resource)
                log.warning("pod not identified", resource=resource, size=size, reason=answer.reason)
                likely = self._likely(question)
                cards = self._unnamed.cards_for(likely) if likely else ()
                if cards:
                    return self._planner.pick(resource, cards, free, must, size)
                return self._planner.best_ids(resource, free, must, size)
            self._never |= answer.passed_over
            ids, decision = self._decide(resource, answer.candidate, answer.has, free, must, size)
            if still and isinstance(decision.refusal, DoesNotFit):
                decision = replace(decision, refusal=DoesNotFit(f"{decision.refusal}; {still}"))
            self._decided[resource] = frozenset(ids), decision
            self._admitted_at = self._clock.monotonic()
            return ids

    def _held_up(self, candidate: Candidate | None, going: frozenset[PodUid]) -> bool:
        with self._lock:
            return candidate is not None and self._planner.held_up(candidate.pod, going)

    def _decide(
        self,
        resource: str,
        candidate: Candidate,
        listed: Mapping[str, frozenset[str]],
        free: Sequence[str],
        must: Sequence[str],
        size: int,
    ) -> tuple[tuple[str, ...], Decision]:
        pod, container = candidate.pod, candidate.container
        try:
            self._unnamed.name(candidate, listed)
            allocation = self._planner.allocation_of(pod, container)
            ids = self._planner.pick(resource, allocation.cards, free, must, size)
            granted = self._books.ledger.granted(pod.uid)
            offered_cards = self.node.ids.cards_of(resource, free)
            decided = offered_cards & set(allocation.cards)
            elsewhere = not decided or (resource == NVIDIA and len(decided) < len(allocation.cards))
            if not granted and not must and elsewhere:
                # Only cards of another NUMA node are offered: the kubelet's topology policy decides.
                moved = self._planner.plan_within(pod, container, offered_cards)
                if moved is not None:
                    ids = self._planner.pick(resource, moved.cards, free, must, size)
            return ids, Decision(candidate)
        except (RequestInvalid, DoesNotFit) as error:
            log.info("will be refused", pod=pod.key, container=container.name, reason=str(error))
            return self._planner.best_ids(resource, free, must, size), Decision(candidate, error)

    # --- Allocate ---------------------------------------------------------------------------------

    def allocate(self, resource: str, devices: Sequence[str]) -> Injection:
        """Grant ids; idempotent. Asks neither the kubelet nor the API server.

        Raises:
            RequestInvalid: unknown ids, or the pod is not legal as written.
            DoesNotFit: no room, or another active pod holds one of the ids.
            NodeUnready: the books or the pages cannot be written.
        """
        ids = frozenset(devices)
        with self._lock:
            decision = self._decision(resource, ids)
            self._check_known(resource, ids)
            if decision is None:
                return self._grant_unidentified(resource, ids)
            pod, container = decision.candidate.pod, decision.candidate.container
            if decision.refusal is not None:
                self._refuse(pod, container, decision.refusal)
            try:
                return self._grant(resource, ids, pod, container)
            except (RequestInvalid, DoesNotFit) as error:
                self._refuse(pod, container, error)

    def _check_known(self, resource: str, ids: frozenset[str]) -> None:
        ours = self.node.ids.card_of[resource]
        unknown = sorted(d for d in ids if d not in ours and not self._books.owners((d,)))
        if not ids or unknown:
            raise RequestInvalid(
                f"{resource}: unknown device id {unknown[0]!r}" if ids else f"{resource}: no device ids given"
            )

    def _decision(self, resource: str, ids: frozenset[str]) -> Decision | None:
        """Whose ids these are: as decided; else re-used by their owner; else the question last answered, if
        the kubelet took what it could of the answer. A decision serves once, for the call right after it.
        """
        answered, decision = self._decided.pop(resource, (frozenset[str](), None))
        if decision is not None and answered == ids:
            return decision
        owners = self._books.owners(ids)
        if len(owners) == 1 and all(self._books.owners((device,)) for device in ids):
            pod = self._pod(next(iter(owners)))
            container = reuser(pod, ids, resource, self._books.holds) if pod else None
            if pod is not None and container is not None:
                return Decision(Candidate(pod, container))
        followed = not answered or bool(answered & ids)
        if decision is not None and followed and decision.candidate.container.wants(resource) == len(ids):
            return decision
        return None

    def _grant(self, resource: str, ids: frozenset[str], pod: Pod, container: Container) -> Injection:
        foreign = self._books.owners(ids) - {pod.uid}
        if foreign:
            holder = next((a for uid in foreign for a in self._books.ledger.of_pod(uid).values()), None)
            raise DoesNotFit(
                f"device ids of {resource} are still held by {holder.pod_key if holder else 'another pod'}"
            )
        self._unnamed.forget((pod.uid, container.name))
        allocation = self._planner.allocation_of(pod, container)
        named = self.node.ids.cards_of(resource, ids)
        if named != set(allocation.cards) and not named < set(allocation.cards):
            allocation = self._yield_to(resource, named, pod, container, allocation)
        key = allocation.key
        before = self._books.grants.get(key)
        grant = before or Grant(allocation, secrets.token_hex(16), rules.ceiling_of(pod) or 0)
        grant = replace(grant, allocation=allocation, ids={**grant.ids, resource: ids})
        self._books.put(grant)
        try:
            injection = self._inject(grant, pod) if resource in CARRIERS else Injection()
            self._store.save(self._books.encode())
        except VcudaError:
            if before is not None:
                self._books.put(before)
            else:
                self._books.release(*key)
                self._planner.plan_again(pod)
            raise
        self._partner = key
        self._tally.count("allocations", "granted")
        log.info(
            "placed",
            pod=pod.key,
            container=container.name,
            resource=resource,
            ids=len(ids),
            cards=[self._index(c) for c in allocation.cards],
            directory=grant.directory,
        )
        self.changed()
        return injection

    def _yield_to(
        self,
        resource: str,
        named: frozenset[CardUuid],
        pod: Pod,
        container: Container,
        allocation: Allocation,
    ) -> Allocation:
        """The ids are not of the decided cards: one card set that fits decides, anything else is a token."""
        if not self._books.ledger.granted(pod.uid) and len(named) == len(allocation.cards):
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
        said = []
        for uuid in sorted(named, key=str):
            holders = sorted({a.pod_key for a in self._books.ledger.holders(uuid)})
            if holders:
                said.append(f"card {self._index(uuid)} is held by {', '.join(holders[:3])}")
        idle = sum(s.open and self._books.ledger.idle(s.card.uuid) for s in self.node.cards)
        why = "; ".join(said) or "the pod has other cards already"
        return f"{why}; {idle} of {len(self.node.cards)} cards are idle"

    def _grant_unidentified(self, resource: str, ids: frozenset[str]) -> Injection:
        """Nobody was asked for a preference: the next listing or PreStartContainer settles whose it is."""
        if not self._unnamed.owns(ids):
            raise DoesNotFit(f"device ids of {resource} are still held by another pod")
        likely = self._likely(Question(resource, len(ids)))
        try:
            grant = self._unnamed.book(resource, ids, likely)
        except DoesNotFit:
            self._tally.count("allocations", "refused")
            raise
        try:
            injection = self._inject(grant, None) if resource in CARRIERS else Injection()
            self._store.save(self._books.encode())
        except VcudaError:
            self._books.release(*grant.key)
            if likely is not None:
                self._planner.plan_again(likely.pod)
            raise
        self._tally.count("allocations", "unidentified")
        log.warning(
            "granted to an unidentified pod",
            resource=resource,
            ids=len(ids),
            cards=[self._index(c) for c in grant.allocation.cards],
            directory=grant.directory,
            likely=likely.pod.key if likely else "",
        )
        self.changed()
        return injection

    def _likely(self, question: Question) -> Candidate | None:
        """Who may be meant, for a choice of cards alone; nobody if several could be."""
        return self._association.likely(
            question, self._unnamed.holds, never=self._never, partner=self._partner
        )

    # --- small things -----------------------------------------------------------------------------

    def _inject(self, grant: Grant, pod: Pod | None) -> Injection:
        limits = limits_of(grant)
        if limits:
            self._tenants.open(grant.directory, limits)
        return self._injector.inject(
            grant.directory, grant.allocation.shares, pod, annotation_of(grant, self.node.name)
        )

    def _refuse(self, pod: Pod, container: Container, error: VcudaError) -> NoReturn:
        cores = container.wants(CORE) + container.wants(NVIDIA) * CORES_PER_CARD
        request = Amount(cores, container.wants(MEMORY) * self.node.unit)
        self._refused.append((self._clock.monotonic() + REFUSED_SECONDS, request))
        self._planner.drop_plan(pod.uid)
        self._tally.count("allocations", "refused")
        log.warning("refused", pod=pod.key, container=container.name, reason=str(error))
        text = str(error) if 'container "' in str(error) else f'container "{container.name}": {error}'
        self._pods.event(pod, "VcudaRefused", text, warning=True)
        self.changed()
        raise type(error)(f"pod {pod.key}: {text}") from error

    def _pod(self, uid: PodUid) -> Pod | None:
        return next((f.pod for found in self._pods.local().values() for f in found if f.pod.uid == uid), None)

    def _index(self, uuid: CardUuid) -> int | str:
        state = self.node.card(uuid)
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


def success_text(grant: Grant, node: Node) -> str:
    """One sentence for the Event: ``30 cores, 5 GiB of card 3``."""
    return explain.explain_shares(grant.allocation.shares, node.cards)


def _held(grants: Mapping[Key, Grant], pod: PodUid, container: str, resource: str) -> frozenset[str]:
    grant = grants.get((pod, container))
    return grant.ids.get(resource, frozenset()) if grant else frozenset()
