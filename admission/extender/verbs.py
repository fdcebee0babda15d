"""The scheduler's four calls: filter, prioritize, bind and preempt.

Answers are functions of the snapshot and the question; only bind calls the API server. A scheduler decides on
the next pod before it binds this one, and does not report what it decided. So the node that got the 10 (or
was the only one to fit) counts as taken by a waiting pod until its bind comes, it is filtered again, it is
given up, or some minutes pass (:mod:`admission.cluster.other_pods`). Otherwise a burst of pods would be
sent to the same card, and a pod that waits for a volume or its gang would lose its place.

:meth:`Extender.routes` is the table that a server mounts; its handlers may be called from any thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import partial
from http import HTTPStatus
from typing import Final, Protocol

import structlog

from admission.cluster.node_view import NodeView
from admission.cluster.pod_view import PodView, pod_view
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.config import SHORTEST_KEEP_SECONDS
from admission.extender.binding import Binder
from admission.extender.decisions import FilterDecision, PreemptDecision, Recorded, unrecorded
from admission.extender.feasibility import FeasibilityCheck, FeasibilityJudge, Fit, Unfit
from admission.extender.fragmentation_score import LeastFragmentation
from admission.extender.many_nodes import NodeTable, Verdicts, beside_its_gang, judge_nodes
from admission.extender.node_choice import NodeChoice
from admission.extender.preemption import evictions
from admission.extender.refusal_lines import FULL_LINES, LATE, reasons
from admission.extender.wire import (
    ExtenderArgs,
    LastQuestion,
    NodeNames,
    Obj,
    binding_answer,
    filter_answer,
    filter_error,
    preemption_answer,
    priority_answer,
    read_args,
    read_binding,
    read_preemption,
)
from admission.quota.quota_book import QuotaBook
from gpu_manager.domain.errors import NodeUnready, RequestInvalid
from gpu_manager.domain.kube.pod import PodUid, parse_pod
from gpu_manager.domain.placement.explain import LINE_LIMIT
from gpu_manager.domain.rules.pod_annotations import preemption_delay_of
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.domain.rules.request import PodRequest
from gpu_manager.domain.untrusted import timestamp
from gpu_manager.ports.clock import Clock

log = structlog.get_logger(__name__)

_MOST_EARLY: Final = 1024
JUDGE_SECONDS: Final = 0.1  # per call: the scheduler handles one pod after the other


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP response; the body is JSON unless the status is an error.

    ``after`` prepares the next question while the scheduler reads this answer. It changes no answer.
    """

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    after: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """A POST route. ``guarded``: only for callers that may bind; ``others`` answers other callers, if set."""

    path: str
    verb: str
    handle: Callable[[bytes], Reply]
    guarded: bool = False
    others: Callable[[bytes], Reply] | None = None

    def handler(self, *, binds: bool) -> Callable[[bytes], Reply]:
        """The handler for callers that may bind, or for others."""
        return self.handle if binds or self.others is None else self.others


@dataclass(frozen=True, slots=True, eq=False)
class _Offered:
    """The nodes that filter has just offered for a pod, and the verdicts on them."""

    occupant: PodView
    snapshot: Snapshot
    quota: object
    names: NodeNames
    verdicts: Verdicts


class GangJudge(Protocol):
    """Judges the members of a gang together; see :class:`admission.gangs.keeper.GangKeeper`."""

    def before_filter(self, pod: PodView, shown: Obj, names: Sequence[str]) -> str:
        """Why the pod is refused because of its gang; empty if it is judged like any other. ``shown`` is the
        object that the scheduler sent. Raises NodeUnready.
        """

    def chosen(self, pod: PodView, node: str) -> None:
        """The scheduler has placed the pod on this node."""

    def place_of(self, uid: PodUid) -> str:
        """The node reserved for the pod together with its gang; empty if there is none."""

    def has_room(self, pod: PodView) -> bool | None:
        """Whether all missing members of the pod's gang have room now; None for a pod judged alone."""

    def make_way(self, question: FeasibilityCheck) -> bool:
        """Release places of a gang of lower priority if the pod then fits; False if there are none."""


@dataclass(eq=False, repr=False)
class Extender:
    """Answers schedulers. Thread-safe. ``count(name, label)`` is called for every answer, ``refused`` for
    every pod that no node takes, with the generation of the snapshot by which it was judged.

    Without a ``clock`` no place is assumed; without ``gangs`` each pod is judged alone. ``best_nodes``:
    filter offers at most so many nodes, the best ones of equal cost; 0: all that fit. ``never``: why a pod
    is placed nowhere whatever is free, empty if it may be. ``recorded`` is called for every judgement of
    filter and prioritize over node names, and of preempt that has to wait for nothing.
    """

    cluster: ClusterState
    quota: QuotaBook
    judge: FeasibilityJudge
    policy: InitVar[LeastFragmentation]
    binder: Binder
    _: KW_ONLY
    clock: Clock | None = None
    gangs: GangJudge | None = None
    minimum_cores: int = 1
    best_nodes: int = 0
    never: Callable[[Obj], str] = lambda _pod: ""
    count: Callable[[str, str], None] = lambda _name, _label: None
    refused: Callable[[PodUid, int], None] = lambda _uid, _turn: None
    recorded: Recorded = unrecorded

    def __post_init__(self, policy: LeastFragmentation) -> None:
        self._choice = NodeChoice(policy, self.recorded)
        self._early: dict[
            PodUid, float
        ] = {}  # pods that asked for victims too early, and when they may again
        self._asked = LastQuestion()
        self._table = NodeTable(self.cluster)
        self._offered: _Offered | None = None  # the scheduler asks about these next
        self._last: tuple[Obj, PodView, PodRequest | None] | None = None  # the last question

    def routes(self) -> tuple[Route, ...]:
        """Every path that a scheduler may be configured with."""
        filter_, prioritize = partial(self.filter, binds=False), partial(self.prioritize, binds=False)
        return (
            Route("/scheduler/filter", "filter", self.filter, others=filter_),
            Route("/scheduler/predicates", "filter", self.filter, others=filter_),
            Route("/scheduler/filter-dryrun", "filter-dryrun", self.dry_run),
            Route("/scheduler/prioritize", "prioritize", self.prioritize, others=prioritize),
            Route("/scheduler/priorities", "prioritize", self.prioritize, others=prioritize),
            Route("/scheduler/bind", "bind", self.bind, guarded=True),
            Route("/scheduler/preempt", "preempt", self.preempt, guarded=True),
        )

    def filter(self, body: bytes, *, binds: bool = True) -> Reply:
        """ExtenderArgs → ExtenderFilterResult. A reason that concerns the whole pod is its Error.

        ``binds``: the caller may bind; for other callers a place is assumed briefly, and none is freed.
        """
        try:
            args = read_args(body, self._asked)
            occupant = self._read(args.pod)
        except RequestInvalid as error:
            return self._filter_error(str(error))
        if not occupant.pod.asks:
            return Reply(filter_answer(args, args.names, {}, {}))
        if reason := self.never(args.pod):
            return self._never_fits(args, reason)
        if reason := self._unready():
            return self._filter_error(reason)
        gangs = self.gangs if binds else None
        try:
            self._request(occupant)
            if gangs is not None and (reason := gangs.before_filter(occupant, args.pod, args.names)):
                return self._refuse(args, occupant, reason)
            question, snapshot = self._ask(occupant)
        except RequestInvalid as error:
            return self._refuse(args, occupant, str(error))
        except NodeUnready as error:
            return self._filter_error(str(error))
        verdicts = self._judged(args, question, snapshot)
        fits = verdicts.fitting()
        beside = gangs.place_of(occupant.uid) if gangs is not None else ""
        fits = beside_its_gang(args.names, fits, beside)
        fitting = args.names.among(fits)
        if not fitting and gangs is not None and gangs.make_way(question):
            return self.filter(body)
        if not fitting and verdicts.says(Unfit.LATE):
            return self._filter_error(LATE)  # an error is retried soon, and the verdicts so far are cached
        fewer = args.nodes is None and binds and self.best_nodes > 0 and len(fitting) > 1
        failed, lasting = ({}, {}) if fewer else self._reasons(question, args, snapshot, verdicts, fitting)
        if args.nodes is None:
            self.recorded(
                FilterDecision(question, args.names, verdicts, beside, fits, fitting, failed, lasting, fewer)
            )
        if fewer:
            fits = self._choice.best(question, args.names, fits, verdicts, snapshot, self.best_nodes)
            fitting = args.names.among(fits)
        self.binder.offers.remember(occupant.uid, fitting)
        if binds:
            self._give_up_elsewhere(occupant, fitting)
        after: Callable[[], object] | None = None
        if len(fitting) == 1:  # then kube-scheduler does not ask for priorities
            if (taken := self._view(args, snapshot, fits.index(1))) is not None:
                self._expect(question, occupant, taken, question.on(taken), binds=binds)
        elif fitting:  # the scheduler's next question
            if args.nodes is None:
                self._asked.offered = fitting
            offered = verdicts.among(fits)
            self._offered = _Offered(occupant, snapshot, self.quota.current, fitting, offered)
            if question.quota is None:
                after = partial(self._choice.prepare, question, offered, snapshot)
        self.count("filtered", "fits" if fitting else "refused")
        if not fitting:
            self.refused(occupant.uid, snapshot.turn)
        log.debug("filtered", pod=occupant.pod.key, fitting=len(fitting), failed=len(failed) + len(lasting))
        return Reply(filter_answer(args, fitting, failed, lasting), after=after)

    def dry_run(self, body: bytes) -> Reply:
        """ExtenderArgs → ExtenderFilterResult, as filter would answer for this pod alone; nothing is kept,
        counted or told. For an autoscaler: the pod and the nodes may not exist yet.
        """
        try:
            args = read_args(body)
            occupant = pod_view(parse_pod(args.pod), args.pod)
        except RequestInvalid as error:
            return Reply(filter_error(str(error)))
        if not occupant.pod.asks:
            return Reply(filter_answer(args, args.names, {}, {}))
        if reason := self._unready():
            return Reply(filter_error(reason))
        try:
            request = judged_request(occupant.pod, self.cluster.unit, self.minimum_cores)
        except RequestInvalid as error:
            return self._never_fits(args, str(error))
        snapshot = self.cluster.snapshot()
        question = self._question(occupant, request, snapshot)
        verdicts = self._judged(args, question, snapshot)
        fitting = args.names.among(verdicts.fitting())
        if not fitting and verdicts.says(Unfit.LATE):
            return Reply(filter_error(LATE))
        failed, lasting = self._reasons(question, args, snapshot, verdicts, fitting)
        return Reply(filter_answer(args, fitting, failed, lasting))

    def prioritize(self, body: bytes, *, binds: bool = True) -> Reply:
        """ExtenderArgs → HostPriorityList: one 10, the others 0 to 8; all 0 for a pod that requests no cards.

        ``binds`` as for :meth:`filter`.
        """
        try:
            args = read_args(body, self._asked)
            occupant = self._read(args.pod)
            question, snapshot = self._ask(occupant)
        except RequestInvalid as error:
            return Reply(str(error).encode("utf-8", "replace"), HTTPStatus.BAD_REQUEST)
        if not occupant.pod.asks or self._unready():
            return Reply(priority_answer(args.names, [0] * len(args.names)))
        verdicts = self._are_offered(occupant, args.names, snapshot) or self._judged(args, question, snapshot)
        ranked = self._choice.rank(question, args.names, verdicts, snapshot, record=args.nodes is None)
        if ranked.costs:
            best = int(ranked.scores.argmax())
            taken = self._view(args, snapshot, best)
            if taken is not None:
                where = ranked.places[int(verdicts.numbers[best])][1]
                self._expect(question, occupant, taken, where, binds=binds)
        return Reply(priority_answer(args.names, ranked.scores), after=self.cluster.build)

    def bind(self, body: bytes) -> Reply:
        """ExtenderBindingArgs → ExtenderBindingResult."""
        try:
            args = read_binding(body)
        except RequestInvalid as error:
            return Reply(binding_answer(str(error)))
        return Reply(binding_answer(self.binder.bind(args)))

    def preempt(self, body: bytes) -> Reply:
        """ExtenderPreemptionArgs → ExtenderPreemptionResult: the nodes on which evicting helps, with the
        victims.
        """
        try:
            args = read_preemption(body)
            occupant = self._read(args.pod)
            question, snapshot = self._ask(occupant)
        except RequestInvalid as error:
            return Reply(str(error).encode("utf-8", "replace"), HTTPStatus.BAD_REQUEST)
        early = bool(self.never(args.pod)) or self._may_not_evict_yet(occupant)
        answer = args.victims if not (early or occupant.pod.asks) else {}
        if occupant.pod.asks and not early and not self._unready():
            nodes, budgets = snapshot.nodes, snapshot.budgets
            answer = evictions(question, nodes, args.victims, budgets)
            self.recorded(PreemptDecision(question, nodes, args.victims, budgets, answer))
        log.info("preemption", pod=occupant.pod.key, asked=len(args.victims), nodes=len(answer), early=early)
        self.count("preempted", "found" if answer else "none")
        return Reply(preemption_answer(answer))

    def _may_not_evict_yet(self, occupant: PodView) -> bool:
        """True until the pod has waited for its preemption delay; its scheduler is made to ask again then."""
        self._early.pop(occupant.uid, None)
        delay, created = preemption_delay_of(occupant.pod), timestamp(occupant.pod.created)
        if not delay or created is None or self.clock is None or self.clock.now() - created >= delay:
            return False
        self._early[occupant.uid] = created + delay
        if len(self._early) > _MOST_EARLY:
            del self._early[next(iter(self._early))]
        return True

    def has_room(self, occupant: PodView, turn: int) -> bool:
        """True if a waiting pod would fit now on a node that changed after snapshot generation ``turn``, with
        all of its gang if it is of one, or may evict others now.
        """
        ends = self._early.get(occupant.uid)
        if ends is not None and self.clock is not None and self.clock.now() >= ends:
            return True
        if self.gangs is not None and (together := self.gangs.has_room(occupant)) is not None:
            return together
        snapshot, views = self.cluster.news(turn)
        if not views or occupant.uid in snapshot.reserved:
            return False
        try:
            request = judged_request(occupant.pod, self.cluster.unit, self.minimum_cores)
        except RequestInvalid:
            return False
        quota = self.quota.current
        namespace = quota.of(occupant.pod.namespace, request.priority) if quota else None
        views = [view for view in views if not view.constraints.bars(occupant.constraints)]
        verdicts = judge_nodes(self.judge.ask(occupant, request, snapshot, namespace), views)
        return any(verdicts.fitting())

    def _deadline(self, request: PodRequest) -> Callable[[], bool]:
        """A function that tells whether the present call has taken too long; never for one container."""
        clock = self.clock
        if clock is None or len(request.containers) == 1:
            return lambda: False
        ends = clock.monotonic() + JUDGE_SECONDS
        return lambda: clock.monotonic() > ends

    def _read(self, pod: Obj) -> PodView:
        """The pod of a question. Prioritize usually sends the one that filter has just read."""
        last = self._last
        if last is not None and (last[0] is pod or last[0] == pod):
            return last[1]
        occupant = pod_view(parse_pod(pod), pod)
        self._last = pod, occupant, None
        return occupant

    def _request(self, occupant: PodView) -> PodRequest:
        last = self._last
        if last is not None and last[1] is occupant and last[2] is not None:
            return last[2]
        request = judged_request(occupant.pod, self.cluster.unit, self.minimum_cores)
        if last is not None and last[1] is occupant:
            self._last = last[0], occupant, request
        return request

    def _ask(self, occupant: PodView) -> tuple[FeasibilityCheck, Snapshot]:
        """Begin to judge the pod. Raises RequestInvalid: the pod is illegal."""
        request = self._request(occupant)
        if self.clock is not None:
            self.cluster.expire(self.clock.monotonic())
        snapshot = self.cluster.snapshot()
        return self._question(occupant, request, snapshot), snapshot

    def _question(self, occupant: PodView, request: PodRequest, snapshot: Snapshot) -> FeasibilityCheck:
        quota = self.quota.current
        namespace = quota.of(occupant.pod.namespace, request.priority) if quota else None
        return self.judge.ask(occupant, request, snapshot, namespace)

    def _expect(
        self, question: FeasibilityCheck, occupant: PodView, view: NodeView, fit: Fit | Unfit, *, binds: bool
    ) -> None:
        """Count the pod as placed there; only if the watch shows the pod, since a question may contain
        anything.
        """
        if self.clock is None or isinstance(fit, Unfit) or not self._is_of_its_scheduler(occupant):
            return
        if binds or not self.cluster.expected_on(occupant.uid):
            now, most = self.clock.monotonic(), math.inf if binds else SHORTEST_KEEP_SECONDS
            self.cluster.expect(occupant, view.name, question.placement(view, fit), now, most)
            if binds and self.gangs is not None:
                self.gangs.chosen(occupant, view.name)

    def _reasons(
        self,
        question: FeasibilityCheck,
        args: ExtenderArgs,
        snapshot: Snapshot,
        verdicts: Verdicts,
        fitting: NodeNames,
    ) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """See :func:`reasons`. If a node takes the pod kube-scheduler drops them: one in full is enough."""
        view_at = partial(self._view, args, snapshot)
        return reasons(question, args.names, view_at, verdicts, full=1 if fitting else FULL_LINES)

    def _give_up_elsewhere(self, occupant: PodView, fitting: NodeNames) -> None:
        """Give up the place that is kept for the pod, unless it is offered once more."""
        place = self.cluster.expected_on(occupant.uid)
        if place and place not in fitting and self._is_of_its_scheduler(occupant):
            self.cluster.give_up(occupant.uid)

    def _is_of_its_scheduler(self, occupant: PodView) -> bool:
        """True if the question is about the pod as the watch shows it, and this process binds it."""
        known = self.cluster.pod(occupant.uid)
        if known is None or known.pod.containers != occupant.pod.containers:
            return False
        return self.binder.binds(known.pod)

    def _view(self, args: ExtenderArgs, snapshot: Snapshot, place: int) -> NodeView | None:
        known = snapshot.nodes.get(args.names[place])
        return known if known is not None or args.nodes is None else self.cluster.view_of(args.nodes[place])

    def _are_offered(self, occupant: PodView, names: NodeNames, now: Snapshot) -> Verdicts | None:
        """The verdicts by which filter has offered just these nodes for the pod; None if it has not."""
        last = self._offered
        if last is None or last.occupant is not occupant or last.snapshot is not now:
            return None
        same = last.names is names or last.names == names
        return last.verdicts if same and last.quota is self.quota.current else None

    def _judged(self, args: ExtenderArgs, question: FeasibilityCheck, snapshot: Snapshot) -> Verdicts:
        late = self._deadline(question.request)
        known = self._table.verdicts(question, args.names, snapshot, late) if args.nodes is None else None
        return known or judge_nodes(question, self._views(args, snapshot), late)

    def _views(self, args: ExtenderArgs, snapshot: Snapshot) -> list[NodeView | None]:
        if args.nodes is not None:
            pairs = zip(args.names, args.nodes, strict=True)
            return [snapshot.nodes.get(name) or self.cluster.view_of(node) for name, node in pairs]
        return list(map(snapshot.nodes.get, args.names))

    def _unready(self) -> str:
        if not self.cluster.synced:
            return "nodes and pods have not been listed yet, please retry later"
        return self.quota.missing()

    def _refuse(self, args: ExtenderArgs, occupant: PodView, reason: str) -> Reply:
        """Refuse a pod that no node takes, for every node as unresolvable, so that no pod is evicted for
        it.
        """
        self.refused(occupant.uid, self.cluster.snapshot().turn)
        return self._never_fits(args, reason)

    @staticmethod
    def _never_fits(args: ExtenderArgs, reason: str) -> Reply:
        return Reply(filter_answer(args, NodeNames(), {}, dict.fromkeys(args.names, reason[:LINE_LIMIT])))

    def _filter_error(self, error: str) -> Reply:
        self.count("filtered", "error")
        return Reply(filter_error(error))
