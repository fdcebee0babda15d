"""The scheduler's four questions: which nodes fit, which is best, bind there, whom to evict.

Answers are functions of the snapshot and the question; no API call is on the path of any but bind. A
scheduler decides on the next pod before it binds this one, and never says what it decided. So the node that
got the 10 (or was the only one to fit) counts as taken by a pod that waits, for a few seconds or until its
bind comes: without that, a burst of pods would be sent to the same card and most be refused at bind.

:meth:`Extender.routes` is the table that a server mounts; its handlers may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import structlog

from admission.extender_wire import (
    ExtenderArgs,
    Obj,
    Victims,
    binding_answer,
    filter_answer,
    filter_error,
    preemption_answer,
    priority_answer,
    read_args,
    read_binding,
    read_preemption,
)
from admission.judging import Fit, Judge, No, Question
from admission.node_view import NodeView
from admission.occupant import Occupant, occupant_of
from admission.preemption import choose
from admission.quota import QuotaBook
from admission.ranking import BEST, Candidate, NodePolicy, scores
from admission.reservations import Binder
from admission.snapshot import Cluster, Snapshot
from gpu_manager.domain.errors import RequestInvalid
from gpu_manager.domain.explain import LINE_LIMIT
from gpu_manager.domain.pod import PodUid, parse_pod
from gpu_manager.domain.rules import pod_request
from gpu_manager.ports import Clock

log = structlog.get_logger(__name__)

FULL_LINES: Final = 8  # nodes whose refusal is told card by card in one answer; kube-scheduler joins them all
EXPECT_SECONDS: Final = 5.0  # from a scheduler's choice to its bind
_BRIEF_LIMIT = 300  # characters of any other
_MOST_BRIEFS = 64  # distinct ones in one answer
_UNKNOWN: Final = "no GPU device: this node is not known here yet"


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes over HTTP; the body is JSON unless the status is an error."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK


@dataclass(frozen=True, slots=True)
class Route:
    """A POST. ``guarded``: only over loopback or with a client certificate."""

    path: str
    verb: str
    handle: Callable[[bytes], Reply]
    guarded: bool = False


class Extender:
    """Thread-safe. ``count(name, label)`` is told every answer, ``refused`` every pod that no node takes.

    Without a ``clock`` nothing is expected.
    """

    def __init__(
        self,
        cluster: Cluster,
        quota: QuotaBook,
        judge: Judge,
        policy: NodePolicy,
        binder: Binder,
        *,
        clock: Clock | None = None,
        minimum_cores: int = 1,
        count: Callable[[str, str], None] = lambda _name, _label: None,
        refused: Callable[[PodUid], None] = lambda _uid: None,
    ) -> None:
        self._refused = refused
        self._cluster = cluster
        self._quota = quota
        self._judge = judge
        self._policy = policy
        self._binder = binder
        self._clock = clock
        self._minimum_cores = minimum_cores
        self._count = count

    def routes(self) -> tuple[Route, ...]:
        """Every path that a scheduler may be configured with."""
        return (
            Route("/scheduler/filter", "filter", self.filter),
            Route("/scheduler/predicates", "filter", self.filter),
            Route("/scheduler/prioritize", "prioritize", self.prioritize),
            Route("/scheduler/priorities", "prioritize", self.prioritize),
            Route("/scheduler/bind", "bind", self.bind, guarded=True),
            Route("/scheduler/preempt", "preempt", self.preempt, guarded=True),
        )

    def filter(self, body: bytes) -> Reply:
        """ExtenderArgs → ExtenderFilterResult. What keeps the whole pod out is its Error."""
        try:
            args = read_args(body)
            occupant = _occupant(args.pod)
        except RequestInvalid as error:
            return self._filter_error(str(error))
        if not occupant.pod.asks:
            return Reply(filter_answer(args, args.names, {}, {}))
        if reason := self._unready():
            return self._filter_error(reason)
        try:
            question, snapshot = self._ask(occupant)
        except RequestInvalid as error:
            # A pod that no node can ever take: said for each, so that nobody is evicted for it.
            self._refused(occupant.uid)
            return Reply(filter_answer(args, (), {}, dict.fromkeys(args.names, str(error)[:LINE_LIMIT])))
        views = self._views(args, snapshot)
        judged = [(name, view, question.on(view) if view else No.NODE) for name, view in views]
        fitting = [name for name, _, found in judged if isinstance(found, Fit)]
        failed, lasting = _reasons(question, judged)
        self._binder.offers.remember(occupant.uid, fitting)
        if len(fitting) == 1:  # then kube-scheduler does not ask for priorities
            self._expect(question, occupant, *next((v, f) for _, v, f in judged if isinstance(f, Fit)))
        self._count("filtered", "fits" if fitting else "refused")
        if not fitting:
            self._refused(occupant.uid)
        log.debug("filtered", pod=occupant.pod.key, fitting=len(fitting), failed=len(failed) + len(lasting))
        return Reply(filter_answer(args, fitting, failed, lasting))

    def prioritize(self, body: bytes) -> Reply:
        """ExtenderArgs → HostPriorityList: one 10, the others 0 to 8; all 0 for a pod that is not ours."""
        try:
            args = read_args(body)
            occupant = _occupant(args.pod)
            question, snapshot = self._ask(occupant)
        except RequestInvalid as error:
            return Reply(str(error).encode("utf-8", "replace"), HTTPStatus.BAD_REQUEST)
        if not occupant.pod.asks or self._unready():
            return Reply(priority_answer(args.names, [0] * len(args.names)))
        kinds: dict[tuple[int, int | None], int] = {}  # what a cost depends on → place among the candidates
        candidates: list[Candidate] = []
        groups: list[int | None] = []  # by node
        views = self._views(args, snapshot)
        for _, view in views:
            found = question.on(view) if view else No.NODE
            if view is None or not isinstance(found, Fit):
                groups.append(None)
                continue
            kind = id(found), view.cpu
            if kind not in kinds:
                kinds[kind] = len(candidates)
                candidates.append(Candidate(view, found))
            groups.append(kinds[kind])
        costs = self._policy.costs(question.request, candidates)
        given = scores(args.names, [None if at is None else costs[at] for at in groups])
        if candidates:
            chosen = given.index(BEST)
            self._expect(question, occupant, views[chosen][1], candidates[groups[chosen] or 0].fit)
        return Reply(priority_answer(args.names, given))

    def bind(self, body: bytes) -> Reply:
        """ExtenderBindingArgs → ExtenderBindingResult."""
        try:
            args = read_binding(body)
        except RequestInvalid as error:
            return Reply(binding_answer(str(error)))
        return Reply(binding_answer(self._binder.bind(args)))

    def preempt(self, body: bytes) -> Reply:
        """ExtenderPreemptionArgs → ExtenderPreemptionResult: nodes on which evicting helps, and whom."""
        try:
            args = read_preemption(body)
            occupant = _occupant(args.pod)
            question, snapshot = self._ask(occupant)
        except RequestInvalid as error:
            return Reply(str(error).encode("utf-8", "replace"), HTTPStatus.BAD_REQUEST)
        answer: dict[str, Victims] = {}
        for name, given in args.victims.items():
            view = snapshot.nodes.get(name)
            if not occupant.pod.asks:
                answer[name] = given
            elif view is not None and not self._unready():
                victims = choose(question, occupant.pod, view, given, snapshot.budgets)
                if victims is not None:
                    answer[name] = victims
        log.info("preemption", pod=occupant.pod.key, asked=len(args.victims), nodes=len(answer))
        self._count("preempted", "found" if answer else "none")
        return Reply(preemption_answer(answer))

    def _ask(self, occupant: Occupant) -> tuple[Question, Snapshot]:
        """Raises RequestInvalid: the pod is illegal."""
        request = pod_request(occupant.pod, self._cluster.unit, self._minimum_cores)
        if self._clock is not None:
            self._cluster.expire(self._clock.monotonic())
        snapshot, quota = self._cluster.snapshot(), self._quota.current
        namespace = quota.of(occupant.pod.namespace) if quota else None
        return self._judge.ask(occupant, request, snapshot, namespace), snapshot

    def _expect(self, question: Question, occupant: Occupant, view: NodeView | None, fit: Fit) -> None:
        """Count the pod as lying there; only as the watch shows it, for a question can say anything."""
        known = self._cluster.pod(occupant.uid)
        if self._clock is None or view is None or known is None:
            return
        if known.pod.containers == occupant.pod.containers and self._binder.binds(known.pod):
            until = self._clock.monotonic() + EXPECT_SECONDS
            self._cluster.expect(occupant.uid, view.name, question.placement(view, fit), until)

    def _views(self, args: ExtenderArgs, snapshot: Snapshot) -> list[tuple[str, NodeView | None]]:
        if args.nodes is not None:
            pairs = zip(args.names, args.nodes, strict=True)
            return [(name, snapshot.nodes.get(name) or self._cluster.view_of(node)) for name, node in pairs]
        return [(name, snapshot.nodes.get(name)) for name in args.names]

    def _unready(self) -> str:
        if not self._cluster.synced:
            return "nodes and pods have not been listed yet, please retry later"
        return self._quota.missing()

    def _filter_error(self, error: str) -> Reply:
        self._count("filtered", "error")
        return Reply(filter_error(error))


def _reasons(
    question: Question, judged: Sequence[tuple[str, NodeView | None, Fit | No]]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Why each node fails: a few in full, the rest in words that a scheduler can count, all bounded."""
    failed: dict[str, str] = {}
    lasting: dict[str, str] = {}
    briefs: set[str] = set()
    full = 0
    for name, view, no in judged:
        if isinstance(no, Fit):
            continue
        if view is None:
            failed[name] = _UNKNOWN
            continue
        if no in (No.ROOM, No.NEVER) and full < FULL_LINES:
            text, full = question.why(view), full + 1
        else:
            text = question.brief(view, no)[:_BRIEF_LIMIT]
            if len(briefs) < _MOST_BRIEFS:
                briefs.add(text)
            elif text not in briefs:
                text = f"left out ({no.value})"
        (lasting if no.lasting else failed)[name] = text
    return failed, lasting


def _occupant(pod: Obj) -> Occupant:
    return occupant_of(parse_pod(pod), pod)
