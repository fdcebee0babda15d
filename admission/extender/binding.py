"""Binds pods: judge again, reserve, then POST the Binding; and resolves reservations of unknown outcome.

A reservation counts like a bound pod. It ends when the watch shows the pod bound or gone, or when the API
server refuses the Binding. If the outcome is unknown (no answer in time, or the watch is silent for a
minute), the reservation ends only when the API server itself reports the pod unbound, after every request for
it has expired. So a Binding that takes effect late still finds its cards free.

A Binding must be over before another replica may lead. The API server counts the deadline of a request from
its arrival, this process from before sending; so a Binding is sent only while the Lease remains valid for
:data:`TRAVEL_SECONDS` longer than that deadline. One case remains: a leader that can no longer renew the
Lease sends a Binding just before the Lease ends, and it is in transit for longer than that. It may bind a pod
beside one that the next leader has placed on the same card; the agent then refuses the second one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Protocol

import structlog

from admission.cluster.pod_view import PodView, pod_view
from admission.cluster.snapshot import ClusterState
from admission.extender.decisions import BindDecision, Recorded, unrecorded
from admission.extender.feasibility import FeasibilityJudge, Unfit
from admission.extender.refusal_lines import why
from admission.extender.wire import BindingArgs
from admission.quota.quota_book import QuotaBook
from gpu_manager.domain.cluster.pod_charges import allocation_annotations
from gpu_manager.domain.errors import DoesNotFit, NodeUnready, RequestInvalid, VcudaError, printable, quoted
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.explain import explain_placement
from gpu_manager.domain.rules.pod_request import judged_request
from gpu_manager.ports.clock import Clock

log = structlog.get_logger(__name__)

SILENCE_SECONDS: Final = 60.0  # a bound pod that the watch has not shown by then is fetched
BIND_SECONDS: Final = 5.0  # the API server's deadline for one Binding
TRAVEL_SECONDS: Final = 2.0  # a Binding may be in transit to the API server for this long
HOLD_SECONDS: Final = 3.0  # kube-scheduler waits five for the answer, which has the API server's in it
_POLL_SECONDS: Final = 0.1
_MOST_WAITING: Final = 8  # half of the threads that answer


class BindOutcome(Enum):
    """The result of a Binding."""

    BOUND = "bound"
    REFUSED = "refused"  # it had no effect and never will have one
    UNKNOWN = "unknown"  # it may have had, or may still have, an effect


@dataclass(frozen=True, slots=True)
class BindAnswer:
    """The outcome, and the API server's message."""

    outcome: BindOutcome
    words: str = ""


class BindingApi(Protocol):
    """The calls to the API server that binding needs. Thread-safe."""

    def bind(self, pod: Pod, node: str, annotations: Mapping[str, str], seconds: float) -> BindAnswer:
        """POST a Binding with the pod's UID as precondition. After ``seconds`` it no longer takes effect.

        Only an answer of the API server with status 400 to 499 is REFUSED; no answer, and 5xx, are UNKNOWN.
        """

    def fetch(self, namespace: str, name: str) -> Pod | None:
        """The pod's present object at the API server; None if it does not exist. Raises NodeUnready: no
        answer.
        """


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a pod is not bound at this moment. ``passes``: the reason ends by itself, as a rule in seconds."""

    reason: str
    passes: bool = False


@dataclass(frozen=True, slots=True)
class _Trial:
    """A Binding of this process: sent at ``posted``; from ``quiet`` on no request for it can take effect."""

    pod: Pod
    node: str
    posted: float
    quiet: float
    outcome: BindOutcome | None = None  # None while it is in progress


@dataclass(frozen=True, slots=True)
class BindRules:
    """Which pods this process may bind. ``schedulers``: the scheduler names it serves, empty for any.

    ``leads(seconds)``: True if only this process binds for at least that long, and it has received a complete
    list of pods since it began to lead.
    """

    leads: Callable[[float], bool]
    schedulers: frozenset[str] = frozenset()
    minimum_cores: int = 1
    seconds: float = BIND_SECONDS
    travel: float = TRAVEL_SECONDS

    def binds(self, pod: Pod) -> bool:
        """True if this process is responsible for binding this pod now."""
        return (not self.schedulers or pod.scheduler in self.schedulers) and self.may_send()

    def may_send(self) -> bool:
        """True if a Binding sent now will be over before this process stops leading."""
        return self.leads(self.seconds + self.travel)


@dataclass(eq=False, repr=False)
class Binder:
    """The extender's bind verb, and :meth:`settle` for Bindings of unknown outcome. Thread-safe.

    ``gang``: what keeps a member of a gang from being bound to that node; where it passes, the bind waits
    up to :data:`HOLD_SECONDS` for its end, by ``pause``. ``recorded`` is called for every judgement of a
    pod on a node.
    """

    cluster: ClusterState
    quota: QuotaBook
    judge: FeasibilityJudge
    api: BindingApi
    clock: Clock
    rules: BindRules
    count: Callable[[str, str], None] = lambda _name, _label: None
    gang: Callable[[PodUid, str], Obstacle | None] = lambda _uid, _node: None
    recorded: Recorded = unrecorded
    pause: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._waiting = 0
        self.offers = FilterResults()
        self._lock = threading.Lock()
        self._trials: dict[PodUid, _Trial] = {}
        self.lapsed = 0  # reservations that ended unbound long after their bind was answered

    def bind(self, args: BindingArgs) -> str:
        """Bind the pod; returns an empty text if it is bound, else the reason, after which the scheduler
        retries.

        Never raises because of the cluster's state or the API server's answers.
        """
        try:
            self._bind(args)
        except VcudaError as error:
            pod = f"{args.namespace}/{args.name}"
            log.info("bind_refused", pod=pod, uid=args.uid, node=args.node, reason=str(error))
            self.count("binds", "refused")
            self.cluster.give_up(args.uid)
            return str(error)
        self.count("binds", "bound")
        return ""

    def begin(self) -> None:
        """Begin to lead. The nodes that the previous leader offered for waiting pods are not known here:
        until such a pod is filtered again, its bind is judged by the node alone.
        """
        self.offers.inherit(occupant.uid for occupant in self.cluster.waiting())

    def end(self) -> None:
        """Stop leading: drop the places assumed for pods, since another replica now decides on these pods."""
        self.cluster.give_up_all()

    def binds(self, pod: Pod) -> bool:
        """True if this process is responsible for binding this pod now."""
        return self.rules.binds(pod)

    def settle(self) -> int:
        """Query the API server about reservations of unknown outcome; returns how many remain. Call each
        second.
        """
        now = self.clock.monotonic()
        with self._lock:
            trials = dict(self._trials)
        for uid, trial in trials.items():
            if self.cluster.reserved_on(uid) != trial.node and trial.outcome is not None:
                self._forget(uid, trial)  # the watch has shown the outcome
            elif trial.outcome is BindOutcome.UNKNOWN or now - trial.posted > SILENCE_SECONDS:
                self._ask(uid, trial)
        with self._lock:
            return sum(t.outcome is BindOutcome.UNKNOWN for t in self._trials.values())

    def _bind(self, args: BindingArgs) -> None:
        self._may_bind(args)
        occupant = self._pod(args)
        pod = occupant.pod
        trial = self._begin(occupant, args.node)
        try:
            annotations = self._reserve_in_time(occupant, args.node)
        except VcudaError:
            self._forget(pod.uid, trial)
            raise
        trial = self._sending(trial)
        if not self.rules.may_send():
            self._undo(pod.uid, trial)
            raise NodeUnready(_NOT_LEADER)
        answer = self._post(trial, annotations)
        if answer.outcome is BindOutcome.REFUSED:
            self._undo(pod.uid, trial)
            raise DoesNotFit(f"the API server refused the binding: {answer.words}")
        self._set(trial, replace(trial, outcome=answer.outcome))
        if answer.outcome is BindOutcome.BOUND:
            self.offers.bound(pod.uid, args.node)
        if answer.outcome is BindOutcome.UNKNOWN:
            log.warning("bind_outcome_unknown", pod=pod.key, node=args.node, reason=answer.words)
            raise NodeUnready(
                f"the API server did not say whether {pod.key} is bound to {args.node}: {answer.words}."
                " Its place is kept until it does"
            )

    def _may_bind(self, args: BindingArgs) -> None:
        if not self.rules.may_send():
            raise NodeUnready(_NOT_LEADER)
        if reason := self.quota.missing():
            raise NodeUnready(reason)
        if not self.offers.has(args.uid, args.node):
            raise RequestInvalid(
                f"node {quoted(args.node)} was never offered for {quoted(args.name)}: a pod is bound only"
                " where filter said that it fits"
            )

    def _pod(self, args: BindingArgs) -> PodView:
        occupant = self.cluster.pod(args.uid)
        if occupant is None:
            pod = self.api.fetch(args.namespace, args.name)
            if pod is None or pod.uid != args.uid:
                raise RequestInvalid(
                    f"pod {args.namespace}/{args.name} is gone, or another of that name came"
                )
            occupant = pod_view(pod)
        pod = occupant.pod
        if (pod.namespace, pod.name) != (args.namespace, args.name):
            raise RequestInvalid(f"pod {quoted(args.uid)} is {pod.key}, not {args.namespace}/{args.name}")
        if self.rules.schedulers and pod.scheduler not in self.rules.schedulers:
            raise RequestInvalid(
                f"{pod.key} has schedulerName {quoted(pod.scheduler)}: this extender binds for"
                f" {', '.join(sorted(self.rules.schedulers))} alone"
            )
        _must_wait(pod)
        return occupant

    def _begin(self, occupant: PodView, node: str) -> _Trial:
        """Register a Binding for the pod; only one may be in progress."""
        uid = occupant.uid
        with self._lock:
            before = self._trials.get(uid)
        if before is not None and before.outcome is not None and self.cluster.reserved_on(uid):
            self._ask(uid, before)
        with self._lock:
            before = self._trials.get(uid)
            if before is not None and (before.outcome is None or self.cluster.reserved_on(uid)):
                raise NodeUnready(
                    f"{occupant.pod.key} is being bound to {before.node}: the outcome is not known yet"
                )
            now = self.clock.monotonic()
            trial = _Trial(occupant.pod, node, now, now + 2 * self.rules.seconds)
            self._trials[uid] = trial
            return trial

    def _sending(self, trial: _Trial) -> _Trial:
        """Record that the request is being sent now: its deadline starts here."""
        now = self.clock.monotonic()
        sent = replace(trial, posted=now, quiet=now + 2 * self.rules.seconds)
        with self._lock:
            current = self._trials.get(trial.pod.uid)
            if current is trial:
                self._trials[trial.pod.uid] = sent
                return sent
            if current is None:
                self.cluster.release(trial.pod.uid)
        raise NodeUnready(f"{trial.pod.key} was too long on its way to the API server: its place went")

    def _reserve_in_time(self, occupant: PodView, node: str) -> dict[str, str]:
        """:meth:`_reserve`, again and again while what holds the pod may pass.

        A member that was refused would leave a gang in part: its scheduler binds all of them at once.
        """
        found = self._reserve(occupant, node)
        if not isinstance(found, Obstacle):
            return found
        with self._lock:
            waits = found.passes and self._waiting < _MOST_WAITING
            self._waiting += waits
        ends = self.clock.monotonic() + HOLD_SECONDS
        try:
            while waits and isinstance(found, Obstacle) and found.passes and self.clock.monotonic() < ends:
                self.pause(_POLL_SECONDS)
                found = self._reserve(occupant, node)
        finally:
            with self._lock:
                self._waiting -= waits
        if isinstance(found, Obstacle):
            self.count("bind_conflicts", "gang")
            raise DoesNotFit(found.reason)
        return found

    def _reserve(self, occupant: PodView, node: str) -> dict[str, str] | Obstacle:
        """Judge and reserve in one step under the lock of the whole cluster, since a quota spans the
        cluster.
        """
        pod = occupant.pod
        request = judged_request(pod, self.cluster.unit, self.rules.minimum_cores)
        if not request.containers:
            raise RequestInvalid(f"{pod.key} asks for no card")
        quota = self.quota.current
        with self.cluster.lock:
            known = self.cluster.pod(pod.uid)
            if known is not None:
                _must_wait(known.pod)  # bound since it was looked up: the accounting must keep its cards
            if hold := self.gang(pod.uid, node):
                return hold
            snapshot = self.cluster.glance()
            view = snapshot.nodes.get(node)
            if view is None:
                raise DoesNotFit(f"node {quoted(node)} is not known here")
            mine = quota.of(pod.namespace, request.priority) if quota else None
            question = self.judge.ask(occupant, request, snapshot, mine, chosen=True)
            fit = question.on(view)
            if isinstance(fit, Unfit):
                self.count("bind_conflicts", fit.value)
                self.recorded(BindDecision(question, node, {}, refusal := why(question, view)))
                raise DoesNotFit(refusal)
            placement = question.placement(view, fit)
            self.recorded(BindDecision(question, node, placement))
            self.cluster.reserve(pod, node, placement)
        cards = view.node.cards
        log.info("placed", pod=pod.key, uid=pod.uid, node=node, cards=explain_placement(placement, cards))
        return allocation_annotations(pod, node, placement, cards, self.clock.now(), assigned=False)

    def _post(self, trial: _Trial, annotations: Mapping[str, str]) -> BindAnswer:
        try:
            return self.api.bind(trial.pod, trial.node, annotations, self.rules.seconds)
        except VcudaError as error:
            return BindAnswer(BindOutcome.UNKNOWN, str(error))
        except BaseException:
            self._set(trial, replace(trial, outcome=BindOutcome.UNKNOWN))
            raise

    def _ask(self, uid: PodUid, trial: _Trial) -> None:
        """Ask the API server for the outcome. A query made too early, or without an answer, changes
        nothing.
        """
        asked = self.clock.monotonic()
        try:
            pod = self.api.fetch(trial.pod.namespace, trial.pod.name)
        except NodeUnready as error:
            log.warning("bind_outcome_still_unknown", pod=trial.pod.key, reason=str(error))
            return
        with self._lock:
            if self._trials.get(uid) is not trial:
                return  # a newer attempt: the answer does not concern it
            if pod is not None and pod.uid == uid and pod.node:
                log.info("bind_found_done", pod=pod.key, node=pod.node)
                if self.cluster.learn(pod):
                    del self._trials[uid]
                else:
                    self._trials[uid] = replace(trial, node=pod.node, posted=asked, outcome=BindOutcome.BOUND)
            elif pod is None or pod.uid != uid or asked >= trial.quiet:
                del self._trials[uid]
                self.cluster.release(uid)
                self.lapsed += 1
                log.warning("assumed_pod_expired", pod=trial.pod.key, node=trial.node)
                self.count("reservations", "ended")
            # Else the pod is unbound, but a request of this process may still take effect.

    def _undo(self, uid: PodUid, trial: _Trial) -> None:
        with self._lock:
            if self._trials.get(uid) is trial:
                del self._trials[uid]
                self.cluster.release(uid)

    def _forget(self, uid: PodUid, trial: _Trial) -> None:
        with self._lock:
            if self._trials.get(uid) is trial:
                del self._trials[uid]

    def _set(self, trial: _Trial, new: _Trial) -> None:
        """Replace the trial by ``new``, unless the pod has another trial by now."""
        with self._lock:
            if self._trials.get(trial.pod.uid) is trial:
                self._trials[trial.pod.uid] = new


def _must_wait(pod: Pod) -> None:
    """Raises RequestInvalid: the pod is not waiting for a node."""
    if pod.node or pod.terminal or pod.deleting:
        state = f"bound to {printable(pod.node)}" if pod.node else "at its end"
        raise RequestInvalid(f"{pod.key} is {state} already")


_NOT_LEADER: Final = "this replica does not lead, or not for long enough to bind: ask again"


# Filter's answers, kept for bind: it accepts only a node that filter offered to the pod. An offer lasts as
# long as the pod waits, since pods with volumes or gangs are bound minutes later, and bind judges the node
# again in any case.


_MOST_OFFERS: Final = 1 << 14  # pods between filter and bind
_MOST_RECENT: Final = 32  # kept uncompressed: more than a scheduler binds at one time
_ONE: Final = ord("1")


class FilterResults:
    """All nodes that filter has offered for each pod. Thread-safe; the oldest pods are dropped first.

    Most pods are bound a moment after filter has answered, so only the other answers are compressed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bits: dict[str, int] = {}
        self._recent: dict[PodUid, Sequence[str]] = {}  # the newest last
        self._made: dict[PodUid, int] = {}  # a bit per node
        self._inherited: frozenset[PodUid] = frozenset()

    def remember(self, uid: PodUid, nodes: Sequence[str]) -> None:
        """Store filter's answer for this pod. The caller must not change ``nodes`` afterwards."""
        with self._lock:
            self._inherited -= {uid}
            before = self._recent.pop(uid, None)
            if before is not None and before != nodes:
                self._make_small(uid, before)
            if len(nodes):
                self._recent[uid] = nodes
            if len(self._recent) > _MOST_RECENT:
                oldest = next(iter(self._recent))
                self._make_small(oldest, self._recent.pop(oldest))

    def bound(self, uid: PodUid, node: str) -> None:
        """The pod is bound: of its offers only this node is still needed."""
        with self._lock:
            self._made.pop(uid, None)
            if uid in self._recent:
                self._recent[uid] = (node,)

    def inherit(self, uids: Iterable[PodUid]) -> None:
        """Assume that another replica offered every node for these pods, before this replica answered for
        them.
        """
        with self._lock:
            self._inherited = frozenset(uids)

    def has(self, uid: PodUid, node: str) -> bool:
        """True if the node was offered for the pod, or may have been by another replica."""
        with self._lock:
            if uid in self._inherited or node in self._recent.get(uid, ()):
                return True
            made, bit = self._made.get(uid, 0), self._bits.get(node)
            return bit is not None and bool(made >> bit & 1)

    def _make_small(self, uid: PodUid, nodes: Sequence[str]) -> None:
        try:
            bits = list(map(self._bits.__getitem__, nodes))
        except KeyError:  # some are new
            bits = [self._bits.setdefault(name, len(self._bits)) for name in nodes]
        # One bit for each offered node: 5,000 nodes take 600 bytes. The bits are written as binary digits,
        # lowest bit last, because one int() of all digits is faster than 5,000 shifts.
        digits = bytearray(b"0") * (max(bits, default=0) + 1)
        for bit in bits:
            digits[-1 - bit] = _ONE
        self._made[uid] = int(digits, 2) | self._made.pop(uid, 0)
        while len(self._made) > _MOST_OFFERS:
            del self._made[next(iter(self._made))]
        if len(self._bits) > 1 << 17:  # includes names of deleted nodes
            self._bits.clear()
            self._made.clear()
