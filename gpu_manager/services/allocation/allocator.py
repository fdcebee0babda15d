"""The kubelet's two calls of an admission: GetPreferredAllocation decides, Allocate obeys.

:class:`NodeState` owns what is held and planned. This module fetches what its transactions need, and prepares
on the node what they have booked. Allocate asks no other service, except whether a pod is gone whose ids the
kubelet hands out again.

Under a NUMA policy the kubelet's ids move containers to other cards than were chosen for them. A pod that is
bound here keeps a plan, so that nobody who is moved takes its room. Where a pod is planned or granted
elsewhere than its annotation says, the annotation is corrected at once: the scheduler counts the pod there,
and sends nobody to cards that only seem free. Without a policy nobody moves, and nothing is done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NoReturn

import structlog

from gpu_manager.domain.admission_match import PreferenceCall
from gpu_manager.domain.cluster.pod_charges import allocation_annotations
from gpu_manager.domain.contract import CARRIERS, CORE, EVENT_REFUSED, MEMORY, NVIDIA
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid, VcudaError
from gpu_manager.domain.injection import Injection
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.resources import CORES_PER_CARD, Amount
from gpu_manager.domain.topology import NumaPolicy
from gpu_manager.ports.api_server import Pods
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.containers import Injector
from gpu_manager.ports.control_pages import ControlPages
from gpu_manager.services.allocation.admission_window import AdmissionWindow
from gpu_manager.services.allocation.association import Association, is_deleted
from gpu_manager.services.allocation.grant import DELETED, Booked, Decision, annotation_of, limits_of
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.allocation.planner import assignment_of
from gpu_manager.services.allocation.preferred_ids import IdChoice
from gpu_manager.services.allocation.prestart import strayed_ids
from gpu_manager.services.allocation.reclaim import DepartedPods
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

REFUSED_SECONDS = 30.0  # how long the inventory lists a refused request


@dataclass(eq=False, repr=False)
class Allocator:
    """Thread-safe: the kubelet admits one pod at a time, but two agents or a test may not.

    ``not_injected`` is called when a container could not be given its cards.
    """

    state: NodeState
    _: KW_ONLY
    association: Association
    window: AdmissionWindow
    departed: DepartedPods
    pods: Pods
    tenants: ControlPages
    injector: Injector
    clock: Clock
    metrics: ServiceMetrics
    not_injected: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        self._plans = NumaPlans(self.state, self.pods, self.clock)
        self._lock = threading.Lock()  # guards _refused
        self._refused: list[tuple[float, Amount]] = []  # until when, which shape

    def registered(self) -> None:
        """The kubelet restarted."""
        self.window.registered()
        self.departed.restarted()
        self.state.forget_admission()

    def refused(self) -> tuple[Amount, ...]:
        """Requests refused in the last 30 s."""
        now = self.clock.monotonic()
        with self._lock:
            self._refused = [(until, shape) for until, shape in self._refused if until > now]
            return tuple(dict.fromkeys(shape for _, shape in self._refused))

    def prefer(
        self, resource: str, offered: Sequence[str], must: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """The preferred ids; fewer than ``size`` or none where there is no preference.

        Failures of kubelet or API server raise nothing: an error here would fail the pod.
        """
        with self.window.question():
            hints = self.state.ask(resource)
            answer = self.association.identify(PreferenceCall(resource, size, frozenset(must)), hints)
            still = self.departed.outwait(answer, set(offered).difference(must))
        if answer.candidate is None and not answer.deleted:
            self.metrics.preferred_allocation_unidentified.labels(resource).inc()
            log.warning("pod_not_identified", resource=resource, size=size, reason=answer.reason)
        self._plans.renew()
        choice = IdChoice(resource, offered, must, size)
        ids = self.state.decide(choice, answer, self.pods.local(), still)
        self._plans.tell()
        return ids

    def allocate(self, resource: str, devices: Sequence[str], memo: str = "") -> Injection:
        """Grant ids; idempotent. ``memo`` as in :meth:`NodeState.whose`.

        Asks neither the kubelet nor the API server, with one exception: for ids that a pod holds and that
        come without a preceding GetPreferredAllocation, it asks whether that pod has ended, and waits some
        seconds for its processes.

        Raises:
            RequestInvalid: unknown ids, or the pod is not legal as written.
            DoesNotFit: no room, or another active pod holds one of the ids.
            NodeUnready: the books or the pages cannot be written.
        """
        ids = frozenset(devices)
        with self.window.answer():
            try:
                decision = self.state.whose(resource, ids, self.pods.local(), memo)
                try:
                    if decision.again or not decision.certain:
                        decision = self._reclaimed(resource, ids, decision, memo)
                        self._plans.renew()
                    self._record(resource, ids, decision)
                    with self.state.allocate(resource, ids, decision) as booked:
                        self._still_wanted(booked)
                        injection = self._make_ready(booked) if resource in CARRIERS else Injection()
                except VcudaError as error:
                    self._refuse(decision, error)
                self._say(booked)
                return injection
            finally:
                self._plans.tell()
                self.state.changed()

    def _still_wanted(self, booked: Booked) -> None:
        """Refuse a pod that was deleted between its identification and its first grant: schedulers may have
        been told that it holds nothing. One that is deleted later is in the books, and told as held.
        """
        pod = booked.pod
        if pod is not None and is_deleted(self.pods.local(), pod):
            held = self.state.view.ledger.of_pod(pod.uid)
            if booked.before is None and not any(
                a.granted for a in held.values() if a.key != booked.grant.key
            ):
                raise DoesNotFit(DELETED)

    def _reclaimed(self, resource: str, ids: frozenset[str], decision: Decision, memo: str) -> Decision:
        """Release the pods that have ended of those that hold these ids. Returns whose the ids are then."""
        before = self.state.owners(ids)
        own = decision.candidate.pod.uid if decision.again and decision.candidate is not None else None
        if still := self.departed.given_again(resource, ids, own):
            raise DoesNotFit(still)
        if before != self.state.owners(ids):
            decision = self.state.whose(resource, ids, self.pods.local(), memo)
        if not decision.certain:
            likely = (decision.candidate, *decision.others)
            self.departed.make_room([one.pod for one in likely if one is not None])
        return decision

    def _record(self, resource: str, ids: frozenset[str], decision: Decision) -> None:
        """Log the books before a grant under a NUMA policy, at level debug: they tell where the container
        could have lain.
        """
        view = self.state.view
        if view.node.topology.numa_policy is NumaPolicy.NONE or not log.is_enabled_for(logging.DEBUG):
            return
        books = [
            {
                "pod": held.pod,
                "container": held.container,
                "kind": held.kind.value,
                "order": held.order,
                "granted": held.granted,
                "shares": [[s.card, s.amount.cores, s.amount.memory] for s in held.shares],
            }
            for held in view.ledger
        ]
        pod = decision.candidate.pod.uid if decision.candidate is not None else ""
        log.debug("books_before_grant", resource=resource, id=min(ids, default=""), pod=pod, books=books)

    def _make_ready(self, booked: Booked) -> Injection:
        """Create what the container needs on the node: pages, files, device specs."""
        granted = booked.grant
        limits = limits_of(granted)
        if limits:
            self.tenants.open(granted.directory, limits)
        annotation = annotation_of(granted, self.state.node.name)
        try:
            return self.injector.inject(granted.directory, granted.allocation.shares, booked.pod, annotation)
        except NodeUnready:
            self.not_injected()  # before the next pod comes
            raise

    def _say(self, booked: Booked) -> None:
        allocation, pod = booked.grant.allocation, booked.pod
        facts = {
            "resource": booked.resource,
            "ids": len(booked.ids),
            "cards": [self.state.node.index(card) for card in allocation.cards],
            "directory": booked.grant.directory,
        }
        self.metrics.allocations.labels("granted" if pod else "unidentified").inc()
        if pod is not None:
            log.info("placed", pod=pod.key, container=allocation.container, **facts)
        else:
            likely = booked.decision.candidate
            log.warning("granted_to_unidentified_pod", likely=likely.pod.key if likely else "", **facts)

    def _refuse(self, decision: Decision, error: VcudaError) -> NoReturn:
        """Tell the pod by an Event, and the scheduler, which would send the next such pod here at once.

        Neither is told of a pod that was deleted: nobody reads of it, and the next of its shape may well fit.
        """
        meant = decision.candidate if decision.certain else None
        if decision.deleted or (meant is not None and is_deleted(self.pods.local(), meant.pod)):
            self.metrics.allocations.labels("deleted").inc()
            who = f"pod {meant.pod.key}: " if meant else ""
            log.info("deleted_pod_refused", pod=meant.pod.key if meant else "", reason=str(error))
            raise DoesNotFit(f"{who}{DELETED}") from error
        self.metrics.allocations.labels("refused").inc()
        if meant is None:
            raise error
        pod, container = meant.pod, meant.container
        cores = container.wants(CORE) + container.wants(NVIDIA) * CORES_PER_CARD
        shape = Amount(cores, container.wants(MEMORY) * self.state.node.unit)
        with self._lock:
            self._refused.append((self.clock.monotonic() + REFUSED_SECONDS, shape))
        log.warning("refused", pod=pod.key, container=container.name, reason=str(error))
        text = str(error) if 'container "' in str(error) else f'container "{container.name}": {error}'
        self.pods.event(pod, EVENT_REFUSED, text, warning=True)
        kinds = (RequestInvalid, DoesNotFit, NodeUnready)
        kind = next((k for k in kinds if isinstance(error, k)), type(error))
        raise kind(f"pod {pod.key}: {text}") from error


class NumaPlans:
    """Thread-safe; returns at once."""

    def __init__(self, state: NodeState, pods: Pods, clock: Clock) -> None:
        self._state, self._pods, self._clock = state, pods, clock
        self._told: dict[PodUid, dict[str, str]] = {}

    def renew(self) -> None:
        """Plan the pods that are bound here and have no plan: when they came, their cards were still held."""
        if not self._moves():
            return
        view = self._state.view
        waiting = [
            pod
            for pod in self._bound()
            if not view.ledger.of_pod(pod.uid) and not pod.deleting and not pod.started
        ]
        if waiting:
            living = {pod.uid for pod in self._bound() if not pod.deleting}
            self._state.plan_waiting(waiting, living)

    def tell(self) -> None:
        """Annotate the pods that have not started whose cards, or NUMA nodes of ids, are not those that their
        annotation names.
        """
        if not self._moves():
            return
        view = self._state.view
        there: set[PodUid] = set()
        for pod in self._bound():
            there.add(pod.uid)
            named, held = assignment_of(view.node, pod), view.ledger.of_pod(pod.uid)
            grants = (view.grants.get(one.key) for one in held.values())
            asking = {c.name for c in pod.containers if c.asks}
            if named is None or held.keys() != asking or any(grant and grant.proven for grant in grants):
                continue
            strayed = strayed_ids(view, pod.uid)
            cards = {name: {card for card, _ in shares} for name, shares in named.containers.items()}
            if cards == {name: set(one.cards) for name, one in held.items()} and named.numa_ids == strayed:
                self._told.pop(pod.uid, None)
                continue
            placement = {name: one.shares for name, one in held.items()}
            written = allocation_annotations(
                pod,
                view.node.name,
                placement,
                view.node.cards,
                self._clock.now(),
                assigned=False,
                numa_ids=strayed,
            )
            if self._told.get(pod.uid) != written:
                self._told[pod.uid] = written
                self._pods.annotate(pod, written)
        self._told = {uid: told for uid, told in self._told.items() if uid in there}

    def _moves(self) -> bool:
        return self._state.node.topology.numa_policy is not NumaPolicy.NONE

    def _bound(self) -> Iterator[Pod]:
        for found in self._pods.local().values():
            for known in found:
                if known.pod.asks and not known.tombstone and not known.pod.terminal:
                    yield known.pod
