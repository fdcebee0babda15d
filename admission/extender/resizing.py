"""Answers resize requests of running fractions: judged like a bind, reserved, then written.

The leader judges a request by the room on the container's card and by the namespace's quota, in one step with
reserving the increase. Its answer is written into an annotation that only this service may write, and the
agent follows nothing else. An increase counts from the judgement on. A decrease counts once the agent reports
it as returned. So an answer that is written late, or never, over-commits nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from admission.cluster.pod_view import PodView
from admission.cluster.snapshot import ClusterState, Snapshot
from admission.extender.binding import BindAnswer, BindingApi, BindOutcome, BindRules
from admission.extender.decisions import Recorded, ResizeDecision, unrecorded
from admission.quota.quota_book import QuotaBook
from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.pod_charges import usage_by_model
from gpu_manager.domain.cluster.quota import ANY_SIZE, NO_QUOTA, ContainerMax, NamespaceQuota, refusal
from gpu_manager.domain.contract import (
    ALLOCATION,
    ASSIGNED,
    EVENT_RESIZE_REFUSED,
    MULTI_CARD_RESIZE,
    RESIZED,
    decode_assignment,
)
from gpu_manager.domain.errors import NodeUnready, VcudaError, quoted
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.domain.placement.ledger import Allocation
from gpu_manager.domain.resize.judgement import (
    NamespaceLimits,
    grown,
    judge_room,
    legal_sizes,
    past_limits,
    size_of,
)
from gpu_manager.domain.resize.sizes import ResizeAnswer, Sizes, answer_of, digest, encode_answer
from gpu_manager.domain.resources import ZERO, Amount
from gpu_manager.domain.rules.pod_annotations import priority_of
from gpu_manager.ports.clock import Clock

log = structlog.get_logger(__name__)

TICK_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 1.0  # between two answers to one pod, however often the request changes
RETRY_SECONDS: Final = 10.0  # until a refused request, or an answer that was not written, is judged again


class ResizeApi(BindingApi, Protocol):
    """The calls to the API server that the answers need. Thread-safe."""

    def annotate_now(self, pod: Pod, annotations: Mapping[str, str], seconds: float) -> BindAnswer:
        """PATCH the pod's annotations with its UID as precondition. After ``seconds`` it has no effect.

        Outcomes as in :meth:`admission.extender.binding.BindingApi.bind`.
        """


NamespaceQuestion = Callable[[str], NamespaceLimits]
"""Kubernetes' own limits of a namespace, asked of the API server. Raises NodeUnready."""


@dataclass(frozen=True, slots=True)
class ResizeTerms:
    """What a request for another size is judged by, beside the pod and the cluster.

    ``quota``: of the pod's namespace, None if it has none; ``largest``: the size of one container there;
    ``limits``: Kubernetes' own of that namespace; ``minimum_cores``: the smallest part of a card.
    """

    quota: NamespaceQuota | None = None
    largest: ContainerMax = ANY_SIZE
    limits: NamespaceLimits = NamespaceLimits()  # noqa: RUF009  # frozen
    minimum_cores: int = 1

    def judge(self, occupant: PodView, snapshot: Snapshot) -> ResizeAnswer | None:
        """The answer; None while it cannot be decided."""
        pod = occupant.pod
        view = snapshot.nodes.get(pod.node)
        if view is None or view.guessed(pod.uid) or not _followed(occupant):
            return None
        wanted = legal_sizes(pod, view.node.unit, self.minimum_cores)
        if not wanted:
            return None
        ledger = view.with_awaited(view.nominated)
        held = ledger.of_pod(pod.uid)
        before = tuple(held.values())
        if not held.keys() >= wanted.keys():
            return None
        if large := self._too_large(pod, wanted, held):
            return self._no(pod, large)
        several = any(len(held[name].shares) > 1 for name in wanted)
        able = not several or MULTI_CARD_RESIZE in view.node.features
        if not (view.node.resizes and able):  # it would book nothing, and the reservation would stay
            return self._no(
                pod,
                f"the agent of node {view.name} is of an earlier release and changes no sizes: upgrade it, "
                "and the request is judged again",
            )
        states = {state.card.uuid: state for state in view.node.cards}
        if any(card not in states for name in wanted for card in held[name].cards):
            return None  # a card that the node has lost
        for name, size in wanted.items():
            allocation = held[name]
            refused = judge_room(ledger, allocation, size, states)
            if refused is not None:  # the largest size that there is room for may still exceed the quota
                more = dict(_more((allocation,), (grown(allocation, size),), view.node.models))
                return self._no(pod, ". ".join(filter(None, (str(refused), self._over(pod, more, snapshot)))))
            ledger.commit((grown(allocation, size),))
        more = dict(_more(before, tuple(ledger.of_pod(pod.uid).values()), view.node.models))
        if over := self._over(pod, more, snapshot) or self._past(pod, more, snapshot):
            return self._no(pod, over)
        return ResizeAnswer(pod.api_uid, digest(pod), wanted)

    def _too_large(self, pod: Pod, wanted: Mapping[str, Amount], held: Mapping[str, Allocation]) -> str:
        """Why a container may not grow to that size on any card; empty if each may."""
        grown: list[str] = []
        for name, size in wanted.items():
            now = size_of(held[name])
            cores, memory = (size.cores > now.cores) * size.cores, (size.memory > now.memory) * size.memory
            grown += self.largest.passed(f"container {quoted(name)}", Amount(cores, memory))
        return refusal(pod.namespace, grown) if grown else ""

    def _over(self, pod: Pod, more: Mapping[str, Amount], snapshot: Snapshot) -> str:
        """Why the quota of the pod's namespace has no room for this increase, by model; empty if it has."""
        mine = self.quota
        used, protected = (each.get(pod.namespace, {}) for each in (snapshot.used, snapshot.protected))
        passed = mine.passed(used, more, protected) if mine and more else {}
        return refusal(pod.namespace, passed.values()) if passed else ""

    def _past(self, pod: Pod, more: Mapping[str, Amount], snapshot: Snapshot) -> str:
        """Which of Kubernetes' own limits the namespace's pods would exceed; empty if none."""
        if all(amount.fits_in(ZERO) for amount in more.values()):
            return ""
        bound = (one.pod for view in snapshot.nodes.values() for one in view.bound.values())
        pods = [pod if one.uid == pod.uid else one for one in bound if one.namespace == pod.namespace]
        return "; ".join(past_limits(self.limits, pods, snapshot.unit))

    @staticmethod
    def _no(pod: Pod, why: str) -> ResizeAnswer:
        """A refusal, which leaves the previous answer in force."""
        before = answer_of(pod)
        return ResizeAnswer(pod.api_uid, digest(pod), before.sizes if before else {}, why)


@dataclass(eq=False, repr=False)
class ResizeAnswers:
    """Judges and answers resize requests. One thread calls :meth:`run`; any may call :meth:`look`.

    ``event``: publish an Event for a refused pod, with reason and text. ``count`` takes a step, "resize",
    and its result. ``limits``: what Kubernetes' own quotas grant; None if they are not enforced.
    ``recorded`` is called for every answer.
    """

    cluster: ClusterState
    quota: QuotaBook
    api: ResizeApi
    clock: Clock
    rules: BindRules
    event: Callable[[Pod, str, str], None]
    count: Callable[[str, str], None] = lambda *_: None
    limits: NamespaceQuestion | None = None
    recorded: Recorded = unrecorded

    def __post_init__(self) -> None:
        # Answers of unknown outcome: the pod, the text, and from when on no request of this process takes
        # effect.
        self._unknown: dict[PodUid, tuple[Pod, str, float]] = {}
        self._pauses: dict[PodUid, tuple[float, float]] = {}  # until a request, new or the same, is judged
        self._woken = threading.Event()

    def look(self, occupant: PodView) -> None:
        """The watch has shown this pod: answer at once if it has an open request."""
        if self._is_open(self.cluster.workloads.asking(occupant).pod):
            self._woken.set()

    def wake(self) -> None:
        """A workload requests another size."""
        self._woken.set()

    def run(self, ended: threading.Event, seconds: float | None = TICK_SECONDS) -> None:
        """Answer requests as they come, and waiting ones every ``seconds`` (None: never)."""
        while not ended.is_set():
            self._woken.wait(seconds)
            self._woken.clear()
            if self.cluster.synced:
                self.tick()

    def tick(self) -> None:
        """Answer every open request, while this process leads."""
        for uid in list(self._unknown):
            self._ask(uid)
        pods = {occupant.uid: occupant for occupant in self.cluster.resizing()}
        self._unknown = {uid: unknown for uid, unknown in self._unknown.items() if uid in pods}
        self._pauses = {uid: pause for uid, pause in self._pauses.items() if uid in pods}
        if self.quota.missing():
            return
        for occupant in pods.values():
            if occupant.uid not in self._unknown and self._is_open(occupant.pod):
                self._answer(occupant.uid)

    def _is_open(self, pod: Pod) -> bool:
        """True if the pod has a request that was not answered yet, or was refused a while ago."""
        if not pod.node or pod.terminal or pod.deleting or pod.lent:
            return False
        answer, asked, now = answer_of(pod), digest(pod), self.clock.monotonic()
        other, same = self._pauses.get(pod.uid, (now, now))
        if answer is None or answer.asked != asked:
            return now >= other and (bool(asked) or answer is not None)
        return now >= same and bool(answer.refused)

    def _answer(self, uid: PodUid) -> None:
        if not self.rules.may_send():
            return
        limits = self._limits_of(uid)
        if limits is None:
            return
        with self.cluster.lock:
            shown = self.cluster.pod(uid)
            if shown is None:
                return
            occupant = self.cluster.workloads.asking(shown)
            snapshot, pod, quota = self.cluster.snapshot(), occupant.pod, self.quota.current or NO_QUOTA
            mine, most = quota.of(pod.namespace, priority_of(pod)), quota.largest_of(pod.namespace)
            terms = ResizeTerms(mine, most, limits, self.rules.minimum_cores)
            answer = terms.judge(occupant, snapshot)
            if answer is None:
                return
            self.recorded(ResizeDecision(occupant, snapshot, terms, answer))
            text = encode_answer(answer)
            before = answer_of(pod)
            self.cluster.answer(uid, text)
        now = self.clock.monotonic()
        self._pauses[uid] = now + PAUSE_SECONDS, now + RETRY_SECONDS
        if answer.refused:
            if before is not None and (before.asked, before.refused) == (answer.asked, answer.refused):
                return
            self.event(pod, EVENT_RESIZE_REFUSED, answer.refused)
        self.count("resize", "refused" if answer.refused else "reserved")
        log.info("resize_answered", pod=pod.key, sizes=_shown(answer.sizes), refused=answer.refused)
        self._send(pod, text)

    def _limits_of(self, uid: PodUid) -> NamespaceLimits | None:
        """Kubernetes' own limits of the pod's namespace, read without holding the lock; None if there is no
        answer.
        """
        shown = self.cluster.pod(uid)
        if self.limits is None or shown is None:
            return NamespaceLimits()
        try:
            return self.limits(shown.pod.namespace)
        except VcudaError as error:
            now = self.clock.monotonic()
            self._pauses[uid] = now + RETRY_SECONDS, now + RETRY_SECONDS
            log.warning("resize_limits_unknown", pod=shown.pod.key, reason=str(error))
            return None

    def _send(self, pod: Pod, text: str) -> None:
        if not self.rules.may_send():
            self.cluster.answer(pod.uid, None)
            return
        try:
            said = self.api.annotate_now(pod, {RESIZED: text}, self.rules.seconds)
        except VcudaError as error:
            said = BindAnswer(BindOutcome.UNKNOWN, str(error))
        now = self.clock.monotonic()
        if said.outcome is BindOutcome.UNKNOWN:
            self._unknown[pod.uid] = pod, text, now + 2 * self.rules.seconds
        elif said.outcome is BindOutcome.REFUSED:
            self.cluster.answer(pod.uid, None)
            self._pauses[pod.uid] = now + RETRY_SECONDS, now + RETRY_SECONDS
        if said.outcome is not BindOutcome.BOUND:
            self.count("resize", "not_written")
            log.warning("resize_answer_not_written", pod=pod.key, reason=said.words)

    def _ask(self, uid: PodUid) -> None:
        """Ask the API server whether the answer was written. It is not sent again: another replica may have
        led meanwhile and given the room away.
        """
        pod, text, quiet = self._unknown[uid]
        asked = self.clock.monotonic()
        try:
            found = self.api.fetch(pod.namespace, pod.name)
        except NodeUnready as error:
            log.warning("resize_answer_still_unknown", pod=pod.key, reason=str(error))
            return
        written = found is not None and found.uid == uid and found.annotations.get(RESIZED) == text
        if written or asked >= quiet:
            del self._unknown[uid]
        if not written and asked >= quiet:
            self.cluster.answer(uid, None)


def _followed(occupant: PodView) -> bool:
    """True once the agent has booked the last answer. Until then a smaller answer would count as returned
    what the agent may still book.
    """
    answer = answer_of(occupant.pod)
    if answer is None or not answer.sizes:
        return True
    if occupant.pod.annotations.get(ASSIGNED) != "true":
        return False
    said = decode_assignment(occupant.pod.annotations.get(ALLOCATION))
    booked = said.containers if said else {}
    return all(
        (shares := booked.get(name, ()))
        and all(size.part(len(shares)).fits_in(amount) for _, amount in shares)
        for name, size in answer.sizes.items()
    )


def _more(
    before: tuple[Allocation, ...], after: tuple[Allocation, ...], models: Mapping[CardUuid, str]
) -> Iterator[tuple[str, Amount]]:
    """By model of card, by how much the pod's peak grows."""
    was = dict(usage_by_model(before, models))
    for model, amount in usage_by_model(after, models):
        if (more := amount - was.get(model, ZERO)) != ZERO:
            yield model, more


def _shown(sizes: Sizes) -> dict[str, str]:
    return {name: str(size) for name, size in sizes.items()}
