"""NodeState: what is held and planned on this node, and the only transactions that change it.

Two locks, taken in this order. The *turn* is held by a writer from the change of the books to their flush, so
that saves come in the order of the changes. The *lock* guards memory alone and is never held during I/O on
the disk, NVML, gRPC or the API server, so that readers never wait for the disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

import structlog

from gpu_manager.domain.admission_match import PreferenceCall
from gpu_manager.domain.card import CardState
from gpu_manager.domain.dra.sides import Sides
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid, VcudaError
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation, Ledger
from gpu_manager.domain.resize.judgement import resized, size_of
from gpu_manager.domain.resources import Amount
from gpu_manager.domain.topology import Topology
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.ports.records import CheckpointEntry, Store
from gpu_manager.services.allocation import adopt, grant, planner, preferred_ids, record, unidentified_grants
from gpu_manager.services.allocation.adopt import recognised
from gpu_manager.services.allocation.association import Hints, Identification, likely, probable
from gpu_manager.services.allocation.books import Books, Grant, Key, KubeletOffer, NodeCards
from gpu_manager.services.allocation.books_format import BooksEncoder
from gpu_manager.services.allocation.grant import Booked, Decision
from gpu_manager.services.allocation.preferred_ids import IdChoice
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

Local = Mapping[str, Sequence[KnownPod]]  # as Pods.local has them


@dataclass(frozen=True, slots=True)
class StateView:
    """The node at one moment, shared by all readers; a what-if must copy the ledger first."""

    node: NodeCards
    ledger: Ledger
    grants: Mapping[Key, Grant]
    sides: Sides | None = None

    def holds(self, pod: PodUid, container: str, resource: str) -> frozenset[str]:
        """The ids that container holds of the resource."""
        grant = self.grants.get((pod, container))
        return grant.ids.get(resource, frozenset()) if grant else frozenset()


class NodeState:
    """Thread-safe owner of the books; others read a :class:`StateView`."""

    def __init__(
        self, books: Books, store: Store, metrics: ServiceMetrics, recorded: record.Recorded | None = None
    ) -> None:
        """``books`` belong to this object from now on. ``recorded`` is called for what is decided."""
        self._recorded = recorded
        self._books = books
        self._store = store
        self._metrics = metrics
        self._encoder = BooksEncoder()
        self._unsaved = False  # what a full disk refused of a release
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._view: StateView | None = None
        # The admission in progress: resource → the last answer and its container.
        self._decided: dict[str, tuple[frozenset[str], Decision]] = {}
        self._partner: Key | None = None
        self._never: frozenset[PodUid] = frozenset()
        self.changed: Callable[[], None] = lambda: None
        self.touched = threading.Event()  # set by every change of the books, saved or unsaved

    # --- Reads: under the lock, for the time of a copy at most ----------------------------------------------

    @property
    def node(self) -> NodeCards:
        """The node's cards as they are now; takes no lock."""
        return self._books.node

    @property
    def view(self) -> StateView:
        """What is held and planned now. Copied once after each change, under the lock."""
        with self._lock:
            if self._view is None:
                books = self._books
                grants = MappingProxyType(dict(books.grants))
                self._view = StateView(books.node, books.ledger.copy(), grants, books.sides)
            return self._view

    @property
    def offer(self) -> KubeletOffer:
        """The offer to the kubelet; equal while nothing has changed for it. Under the lock."""
        with self._lock:
            return planner.offer(self._books)

    def owners(self, ids: Iterable[str]) -> frozenset[PodUid]:
        """The pods that hold any of these ids. Under the lock."""
        with self._lock:
            return self._books.owners(ids)

    def held_up(self, pod: Pod, going: Iterable[PodUid], ending: Iterable[PodUid]) -> bool:
        """True if only those pods block this one (:func:`planner.held_up`). Under the lock."""
        with self._lock:
            return planner.held_up(self._books, pod, going, ending)

    def in_the_way(self, pod: Pod) -> Mapping[PodUid, Allocation]:
        """The pods that occupy the cards that the scheduler named (:func:`planner.in_the_way`). Under the
        lock.
        """
        with self._lock:
            return planner.in_the_way(self._books, pod)

    # --- Changes of memory alone, under the lock; the next save writes them -------------------

    def refit(self, cards: Sequence[CardState], topology: Topology) -> None:
        """Apply the present cards. Under the lock; not saved, since the next start reads them from the
        driver.
        """
        with self._changing() as books:
            books.refit(NodeCards.of(self.node.name, self.node.unit, cards, topology))
            for held in tuple(books.grants.values()):
                known = recognised(held, books.node)
                if known != held:
                    books.state(known)

    def introduce(self, pod: Pod) -> None:
        """Take in a pod from the API: its grants get its name, and the cards that the scheduler chose here
        are planned for it at once. Under the lock, not saved.
        """
        if not pod.asks or pod.terminal or pod.deleting:
            return
        with self._changing() as books:
            named = books.introduce(pod)
            known = books.ledger.of_pod(pod.uid) or books.meant_for(pod.uid)
            if not known and planner.assignment(books.node, pod) is not None:
                try:
                    planner.plan(books, pod, free_choice=False)
                except (RequestInvalid, DoesNotFit) as error:
                    log.info("assignment_not_applicable_yet", pod=pod.key, reason=str(error))
        if named:
            self.changed()

    def plan_waiting(self, pods: Iterable[Pod], living: Collection[PodUid]) -> None:
        """Plan pods that are bound here and have no plan (:func:`planner.plan_waiting`). Under the lock, not
        saved.
        """
        with self._changing() as books:
            for pod in pods:
                if not books.meant_for(pod.uid):
                    planner.plan_waiting(books, pod, living)

    def forget_pod(self, pod: PodUid) -> tuple[Allocation, ...]:
        """Release what an ended pod held. Under the lock; not saved, since the kubelet waits."""
        with self._changing() as books:
            return books.release(pod)

    def forget_admission(self) -> None:
        """Forget decisions: a restarted kubelet does not return to them. Under the lock."""
        with self._lock:
            self._decided.clear()
            self._partner = None

    def ask(self, resource: str) -> Hints:
        """Begin a GetPreferredAllocation: return the known holders. Under the lock.

        The kubelet makes this call once per grant, so the last decision for the resource is forgotten.
        """
        with self._lock:
            self._decided.pop(resource, None)
        return Hints(self.view.holds, self._never, self._partner)

    def decide(
        self, choice: IdChoice, answer: Identification, local: Local, still: str = ""
    ) -> tuple[str, ...]:
        """The ids to prefer; their container is remembered for Allocate. ``still`` is appended to a refusal.

        Under the lock, and not saved: the pod is planned, and nothing is granted yet.
        """
        resource = choice.resource
        with self._changing() as books:
            self._never = answer.never
            free, doubles = preferred_ids.clear(books, choice.free, answer)
            choice = replace(choice, free=free)
            known = answer.candidate
            if answer.deleted and not (known and books.ledger.granted(known.pod.uid)):
                ids, decision = grant.refuse_deleted(books, choice, known)
                self._decided[resource] = frozenset(ids), decision
            elif known is not None:
                ids, decision = record.decide(self._recorded, books, choice, known, answer.has)
                if still and isinstance(decision.refusal, DoesNotFit):
                    decision = replace(decision, refusal=DoesNotFit(f"{decision.refusal}; {still}"))
                self._decided[resource] = frozenset(ids), decision
            else:
                question = PreferenceCall(resource, choice.size, frozenset(choice.must))
                meant = likely(local, question, self._hints(books))
                cards = unidentified_grants.cards_for(books, meant) if meant else ()
                ids = (
                    preferred_ids.pick(books.node, choice, cards)
                    if cards
                    else preferred_ids.best_ids(books, choice)
                )
        if doubles:
            self._metrics.double_offers.labels(resource).inc(doubles)
        return ids

    def memo(self, resource: str) -> str:
        """The last decision for the resource, as :meth:`whose` of the agent's successor takes it. Under the
        lock.
        """
        with self._lock:
            return grant.memo_of(self._decided.get(resource, (None, None))[1])

    def whose(self, resource: str, ids: frozenset[str], local: Local, memo: str = "") -> Decision:
        """The container for which the kubelet allocates ids. Under the lock. A decision serves once, for the
        Allocate right after its GetPreferredAllocation. ``memo``: what was decided for these ids by an agent
        that was killed between the two.

        Raises:
            RequestInvalid: the ids are not of this node.
        """
        with self._lock:
            answered = self._decided.pop(resource, None)
            if answered is None and (before := grant.remembered(memo, local)) is not None:
                answered = ids, before
            grant.check_known(self._books, resource, ids)
            decision = grant.whose(self._books, resource, ids, answered, local)
            if decision is None:
                question = PreferenceCall(resource, len(ids))
                found = probable(local, question, self._hints(self._books))
                meant = unidentified_grants.likeliest(self._books, resource, ids, found)
                decision = Decision(next(iter(meant), None), certain=False, others=tuple(meant[1:]))
            return decision

    # --- Changes that are on the disk when they return: in the turn, and within it the lock --------------

    @contextmanager
    def allocate(self, resource: str, ids: frozenset[str], decision: Decision) -> Iterator[Booked]:
        """Grant ids, as a context in which the caller prepares what the container needs on the node.

        The turn is held throughout, the lock only while the grant is booked. A :class:`VcudaError` from
        within the context, or of the disk, undoes the booking.

        Raises:
            RequestInvalid: the pod is not legal as written.
            DoesNotFit: no room, or another active pod holds one of the ids.
            NodeUnready: the books cannot be written.
        """
        with self._turn:
            with self._changing() as books:
                booked = record.book(self._recorded, books, resource, ids, decision)
            try:
                yield booked
                self._save()
            except VcudaError:
                with self._changing() as books:
                    grant.undo(books, booked)
                raise
            if decision.certain:
                self._partner = booked.grant.key
            if booked.yielded:
                self._metrics.annotation_overridden.inc()

    def open(self, books: Books) -> None:
        """Start from rebuilt books, which belong to this object from now on. Turn, lock, disk.

        Raises:
            NodeUnready: they cannot be written.
        """
        with self._saved():
            self._books = books

    def adopt(self, entry: CheckpointEntry, memory: frozenset[str], pod: Pod | None) -> Grant:
        """Book what the kubelet's checkpoint proves (:func:`adopt.adopt`). Turn, lock, disk.

        Raises:
            DoesNotFit, RequestInvalid: its cards have no room, or the pod may not use them.
            NodeUnready: the response is not ours to read, or the books cannot be written.
        """
        with self._saved() as books:
            return adopt.adopt(books, entry, memory, pod)

    def confirm(self, keys: Sequence[Key]) -> None:
        """Confirm that these containers start with their grants. Turn, lock, disk.

        Raises:
            NodeUnready: the books cannot be written. None is confirmed then: what memory alone knew would be
                written by no later start.
        """
        with self._saved(undo=lambda books: books.mark(keys, proven=False)) as books:
            books.mark(keys, proven=True)

    def set_ceilings(self, ceilings: Mapping[Key, int], before: Mapping[Key, int]) -> None:
        """Set elastic core limits in percent, by container; undone if the disk refuses. Turn, lock, disk.

        Raises:
            NodeUnready: the books cannot be written.
        """
        with self._saved(undo=lambda books: books.set_ceilings(before)) as books:
            books.set_ceilings(ceilings)

    def resize(self, grant: Grant, size: Amount, memory_cap: int = 0) -> Grant:
        """Book another size of this fraction, on its cards, and return its grant then. Turn, lock, disk.

        ``size`` is the total of equal parts, which are booked all or none. ``memory_cap`` as in
        :class:`Grant`. On a full disk less is booked in memory, and saved with the next
        change; more is not booked.

        Raises:
            DoesNotFit: a card has no room, or the container holds something else by now.
            NodeUnready: the books cannot be written.
        """

        def undo(books: Books) -> None:
            if not size.fits_in(size_of(grant.allocation)) and grant.key in books.grants:
                put(books, grant.allocation, grant.memory_cap)

        def put(books: Books, allocation: Allocation, cap: int) -> Grant:
            books.put(replace(books.grants[grant.key], allocation=allocation, memory_cap=cap))
            return books.grants[grant.key]

        with self._saved(undo) as books:
            current = books.grants.get(grant.key)
            if current is None or current.allocation.shares != grant.allocation.shares:
                raise DoesNotFit("the container has ended, or holds another share by now")
            return put(books, resized(current.allocation, size), memory_cap)

    def prepare(self, grants: Sequence[Grant]) -> tuple[Grant, ...]:
        """Book what a ResourceClaim was allocated, a grant for each of its requests, all or none; returns
        what is booked of the claim then, which an earlier call may have done. Turn, lock, disk.

        Raises:
            DoesNotFit: a card has no room.
            NodeUnready: the books cannot be written.
        """
        booked: tuple[Grant, ...] = ()

        def undo(books: Books) -> None:
            if booked == tuple(grants):
                books.release(grants[0].allocation.pod)

        with self._saved(undo) as books:
            booked = books.put_claim(grants)
        return booked

    def set_claim_pods(self, claim: PodUid, pods: tuple[tuple[PodUid, str], ...]) -> None:
        """Record which pods may use a ResourceClaim now. Turn, lock, disk.

        Raises:
            NodeUnready: the books cannot be written; they are, with the next change.
        """
        with self._saved() as books:
            books.set_claim_pods(claim, pods)

    def set_sides(self, sides: Sides | None) -> None:
        """Set the owner of each card on a node of mode ``split``, None in other modes. Turn, lock, disk.

        Raises:
            NodeUnready: the books cannot be written; nothing has changed.
        """
        before = self._books.sides
        with self._saved(undo=lambda books: books.set_sides(before)) as books:
            books.set_sides(sides)

    @property
    def withdrawing(self) -> bool:
        """True if the device lists depend on what is booked. Takes no lock."""
        books = self._books
        outside = any(state.card.outside for state in books.node.cards)
        return bool(books.resized or books.withdrawn or books.sides is not None or outside)

    def release(self, keys: Iterable[Key]) -> tuple[Allocation, ...]:
        """Release what these containers hold, and return it. Turn, lock, disk.

        On a full disk it is released in memory, and saved with the next change or the next call.
        """
        due, released = tuple(keys), tuple[Allocation, ...]()
        if not due and not self._unsaved:
            return ()
        try:
            with self._saved() as books:
                released = tuple(a for key in due for a in books.release(*key))
            self._unsaved = False
        except NodeUnready as error:
            self._unsaved = True
            log.warning("release_not_saved", reason=str(error))
        return released

    # --- Internals ---------------------------------------------------------------------------------------

    @contextmanager
    def _changing(self) -> Iterator[Books]:
        """Context of every change of the books: holds the lock, and invalidates the view."""
        with self._lock:
            self._view = None
            try:
                yield self._books
            finally:
                self.touched.set()

    @contextmanager
    def _saved(self, undo: Callable[[Books], object] = lambda _: None) -> Iterator[Books]:
        """Context that changes the books, then flushes them; ``undo`` is called if the disk refuses."""
        with self._turn:
            with self._changing() as books:
                yield books
            try:
                self._save()
            except NodeUnready:
                with self._changing() as books:
                    undo(books)
                raise
        self.changed()

    def _save(self) -> None:
        """In the turn, without the lock."""
        with self._lock:
            state = self._encoder.encode(self._books)
        self._store.save(state)

    def _hints(self, books: Books) -> Hints:
        return Hints(partial(unidentified_grants.holds, books), self._never, self._partner)
