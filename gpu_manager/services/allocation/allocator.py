"""The allocator: GetPreferredAllocation decides, Allocate obeys. Owns the one Ledger and its one lock.

The lock is held over memory alone, never over the disk, NVML, gRPC or the API server. Who changes the books
and saves them has the turn as well, from the change to the flush: saves come in the order of the changes, and
who only looks waits for no disk. What was decided for an id set is remembered until the kubelet comes back
with it (:mod:`gpu_manager.services.allocation.grant`); Allocate itself asks nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import structlog

from gpu_manager.domain.admission_match import ContainerCandidate, PreferenceCall, reuser
from gpu_manager.domain.card import CardState
from gpu_manager.domain.contract import NVIDIA, TerminatingShare
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid
from gpu_manager.domain.injection import Injection
from gpu_manager.domain.pod import ContainerKind, Pod, PodUid
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.topology import Topology
from gpu_manager.ports import Clock, ControlPages, Injector, Pods, Processes, Store
from gpu_manager.services.allocation.association import Association
from gpu_manager.services.allocation.books import Books, Grant, Key
from gpu_manager.services.allocation.grant import Decision, GrantWriter
from gpu_manager.services.allocation.planner import KubeletOffer, NodeCards, Planner
from gpu_manager.services.allocation.reclaim import PATIENCE_SECONDS, DepartedPods
from gpu_manager.services.allocation.unidentified_grants import UnidentifiedGrants
from gpu_manager.services.metrics import ServiceMetrics
from gpu_manager.services.recovery.predecessor_pods import recognised

T = TypeVar("T")

log = structlog.get_logger(__name__)

QUIET_SECONDS = 2.0  # after the last call of an admission, before the kubelet may be asked for a listing


class Allocator:
    """Thread-safe. ``books`` and ``node`` are read by others only through :meth:`read`."""

    def __init__(
        self,
        node: NodeCards,
        books: Books,
        *,
        association: Association,
        pods: Pods,
        store: Store,
        tenants: ControlPages,
        injector: Injector,
        processes: Processes,
        clock: Clock,
        tally: ServiceMetrics,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """``patience``: seconds that a question waits for deleted pods' processes to end."""
        self._planner = Planner(node, books, tally)
        self._unnamed = UnidentifiedGrants(self._planner)
        self._association = association
        self._pods = pods
        self._store = store
        self._clock = clock
        self._tally = tally
        # In this order, where several are held: a question or a listing, a writer's turn, the books.
        self._asking, self._turn, self._lock = threading.Lock(), threading.Lock(), threading.RLock()
        self._departures = DepartedPods(books, self._lock, pods, processes, tally, patience)
        self._granting = GrantWriter(
            self._planner,
            self._unnamed,
            self._lock,
            save=self._save,
            pods=pods,
            tenants=tenants,
            injector=injector,
            clock=clock,
            tally=tally,
        )
        self._decided: dict[
            str, tuple[frozenset[str], Decision]
        ] = {}  # resource → the last answer, whose it is
        self._partner: Key | None = None
        self._never: frozenset[PodUid] = frozenset()
        self._in_flight = 0
        self._admitted_at = float("-inf")
        self.registered_at = clock.monotonic()
        self.changed: Callable[[], None] = lambda: None

    @property
    def _books(self) -> Books:
        return self._planner.books

    @property
    def node(self) -> NodeCards:
        """The node as it is now."""
        return self._planner.node

    @property
    def offer(self) -> KubeletOffer:
        """The node as the kubelet is to see it now; equal while nothing has changed for it."""
        with self._lock:
            return self._planner.offer()

    # --- what the world tells us ------------------------------------------------------------------

    def refit(self, cards: Sequence[CardState], topology: Topology) -> None:
        """The cards as they are now."""
        with self._lock:
            self._planner.node = NodeCards.of(self.node.name, self.node.unit, cards, topology)
            self._books.refit(s.card for s in cards)
            for grant in tuple(self._books.grants.values()):
                known = recognised(grant, self.node)
                if known != grant:
                    self._books.state(known)

    def replace(self, books: Books) -> None:
        """Open for business with rebuilt books; called once, before anyone asks."""
        with self._lock:
            self._planner.books = self._departures.books = books

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

    def read(self, reader: Callable[[Books, NodeCards], T]) -> T:
        """Look at the books under the lock; ``reader`` must be quick and keep nothing that changes."""
        with self._lock:
            return reader(self._books, self.node)

    def change(
        self, writer: Callable[[Books, NodeCards], T], undo: Callable[[Books], object] = lambda _: None
    ) -> T:
        """Change the books under the lock and save them. Raises NodeUnready, after ``undo``, if the disk
        refuses.
        """
        with self._turn:
            with self._lock:
                result = writer(self._books, self.node)
            try:
                self._save()
            except NodeUnready:
                with self._lock:
                    undo(self._books)
                raise
        self.changed()
        return result

    def _save(self) -> None:
        """In the writer's turn, without the lock."""
        with self._lock:
            state = self._books.encode()
        self._store.save(state)

    def listing_when_idle(self) -> frozenset[tuple[str, str]] | None:
        """Which pods are active, asked only while nothing is being admitted: a listing between the calls of
        an admission makes the kubelet forget ids in flight. A question that comes meanwhile waits for it.
        """
        with self._asking:
            with self._lock:
                if self._in_flight or self._clock.monotonic() - self._admitted_at < QUIET_SECONDS:
                    return None
            return self._association.active()

    def seen(self, uid: PodUid) -> bool:
        """True if the pod was listed as active since the kubelet came up."""
        return self._departures.seen(uid)

    def refused(self) -> tuple[Amount, ...]:
        """Shapes refused in the last 30 s."""
        return self._granting.refused()

    def lingering(self) -> tuple[TerminatingShare, ...]:
        """What is not free though no pod of the API holds it: processes of deleted pods still run."""
        return self._departures.lingering()

    # --- GetPreferredAllocation -------------------------------------------------------------------

    def prefer(
        self, resource: str, offered: Sequence[str], must: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """The ids to hand out; fewer than ``size`` or none when there is nothing better to say. Never raises
        for the world's faults: an error here would fail the pod.
        """
        question = PreferenceCall(resource, size, frozenset(must))
        with self._asking, self._lock:
            never, partner, holds = self._never, self._partner, dict(self._books.grants)
            self._in_flight += 1
            self._decided.pop(resource, None)  # the kubelet asks once for each grant: that one did not come
        try:
            answer = self._association.identify(
                question, lambda pod, name, r: _held(holds, pod, name, r), never=never, partner=partner
            )
            still = self._departures.outwait(
                answer,
                set(offered).difference(must),
                lambda going, ending: self._held_up(answer.candidate, going, ending),
            )
        finally:
            self._answered()
        with self._lock:
            self._never = answer.never
            free = self._departures.clear(resource, offered, answer)
            if answer.candidate is None:
                self._tally.count("unidentified", resource)
                log.warning("pod not identified", resource=resource, size=size, reason=answer.reason)
                likely = self._likely(question)
                cards = self._unnamed.cards_for(likely) if likely else ()
                if cards:
                    return self._planner.pick(resource, cards, free, must, size)
                return self._planner.best_ids(resource, free, must, size)
            ids, decision = self._decide(resource, answer.candidate, answer.has, free, must, size)
            if still and isinstance(decision.refusal, DoesNotFit):
                decision = replace(decision, refusal=DoesNotFit(f"{decision.refusal}; {still}"))
            self._decided[resource] = frozenset(ids), decision
            return ids

    def _answered(self) -> None:
        """One call of an admission less; the next may come at once."""
        with self._lock:
            self._in_flight -= 1
            self._admitted_at = self._clock.monotonic()

    def _held_up(
        self, candidate: ContainerCandidate | None, going: frozenset[PodUid], ending: frozenset[PodUid]
    ) -> bool:
        with self._lock:
            return candidate is not None and self._planner.held_up(candidate.pod, going, ending)

    def _decide(
        self,
        resource: str,
        candidate: ContainerCandidate,
        listed: Mapping[str, frozenset[str]],
        free: Sequence[str],
        must: Sequence[str],
        size: int,
    ) -> tuple[tuple[str, ...], Decision]:
        pod, container = candidate.pod, candidate.container
        try:
            self._unnamed.name(candidate, listed)
            self._retract(candidate, listed)
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

    def _retract(self, candidate: ContainerCandidate, listed: Mapping[str, frozenset[str]]) -> None:
        """What the books say this container holds and the kubelet does not list at it went to another: to a
        namesake that the API had forgotten. Its directory may be in use there, so the container gets its own.
        PodResources never lists an ordinary init container: nothing is concluded of one.
        """
        grant = self._books.grants.get(candidate.key)
        if grant is None or candidate.container.kind is ContainerKind.INIT:
            return
        if any(ids and listed.get(resource) != ids for resource, ids in grant.ids.items()):
            self._books.retract(candidate.key)
            log.warning("grant retracted", pod=candidate.pod.key, directory=grant.directory)

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
            self._in_flight += 1
        try:
            with self._turn:
                with self._lock:
                    decision = self._decision(resource, ids)
                    self._check_known(resource, ids)
                    if decision is None:
                        likely = self._likely(PreferenceCall(resource, len(ids)))
                        booked = self._granting.book_unnamed(resource, ids, likely)
                    else:
                        booked = self._granting.book(resource, ids, decision)
                injection = self._granting.hand_out(booked)
                if booked.named:
                    self._partner = booked.grant.key
                return injection
        finally:
            self._answered()
            self.changed()

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
                return Decision(ContainerCandidate(pod, container))
        followed = not answered or bool(answered & ids)
        if decision is not None and followed and decision.candidate.container.wants(resource) == len(ids):
            return decision
        return None

    def _likely(self, question: PreferenceCall) -> ContainerCandidate | None:
        """Who may be meant, for a choice of cards alone; nobody if several could be."""
        return self._association.likely(
            question, self._unnamed.holds, never=self._never, partner=self._partner
        )

    def _pod(self, uid: PodUid) -> Pod | None:
        return next((f.pod for found in self._pods.local().values() for f in found if f.pod.uid == uid), None)


def _held(grants: Mapping[Key, Grant], pod: PodUid, container: str, resource: str) -> frozenset[str]:
    grant = grants.get((pod, container))
    return grant.ids.get(resource, frozenset()) if grant else frozenset()
