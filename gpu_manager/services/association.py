"""Finding the container a GetPreferredAllocation is for: a fresh listing, the pods behind its names, one GET.

The certain part is pure and lives in :mod:`gpu_manager.domain.identity`; this file fetches what it needs.
Nothing here is called from Allocate: a listing there makes the kubelet forget ids in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.identity import (
    Candidate,
    Holds,
    ListedPod,
    Question,
    choose,
    matching,
    next_container,
    unsatisfied,
)
from gpu_manager.domain.pod import Pod, PodUid
from gpu_manager.ports import Clock, Found, Kubelet, Listed, Pods
from gpu_manager.services.tally import Tally

log = structlog.get_logger(__name__)

# A listed pod that the API has forgotten (force-deleted) stays listed while the kubelet lags behind:
# asking for it again each time would cost a round trip per call.
_GONE_SECONDS = 10.0

Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """Who it is, if that is certain; which pods are active, if the kubelet could be asked."""

    candidate: Candidate | None
    active: frozenset[Name] | None
    passed_over: frozenset[PodUid] = frozenset()
    held: Mapping[str, Name] | None = None  # id → the active pod that PodResources shows it at
    reason: str = ""


class Association:
    """Asks the kubelet and the API; thread-safe, holds no lock."""

    def __init__(self, kubelet: Kubelet, pods: Pods, clock: Clock, tally: Tally) -> None:
        self._kubelet = kubelet
        self._pods = pods
        self._clock = clock
        self._tally = tally
        self._gone: dict[Name, float] = {}

    def identify(
        self,
        question: Question,
        holds: Holds,
        *,
        never: frozenset[PodUid],
        partner: tuple[PodUid, str] | None,
    ) -> Answer:
        """Name the container, or say why it cannot be named. Never raises for the world's faults."""
        try:
            listing = self._kubelet.listing()
        except NodeUnready as error:
            return Answer(None, None, reason=str(error))
        local = self._pods.local()
        objects = [
            (pod, _by_container(listing[name]))
            for name in listing
            for pod in self._objects(name, local, question, holds)
        ]
        candidate, passed_over = _judge(objects, question, holds, never, partner)
        if candidate is not None:
            candidate = self._confirm(candidate, listing, question, holds)
        return Answer(
            candidate=candidate,
            active=frozenset(listing),
            passed_over=passed_over,
            held={
                device: name
                for name, containers in listing.items()
                for listed in containers
                for device in listed.ids.get(question.resource, ())
            },
            reason=""
            if candidate
            else f"no single container among {len(listing)} active pods lacks {question.size}",
        )

    def active(self) -> frozenset[Name] | None:
        """The pods that the kubelet counts as active; None if it does not answer."""
        try:
            return frozenset(self._kubelet.listing())
        except NodeUnready:
            return None

    def _objects(
        self, name: Name, local: Mapping[str, Sequence[Found]], question: Question, holds: Holds
    ) -> Sequence[Pod]:
        """The pod objects that may stand behind a listed name: one, unless a namesake is about."""
        found = local.get(f"{name[0]}/{name[1]}", ())
        if not found:
            pod = self._fetch(name)
            return (pod,) if pod is not None else ()
        if len(found) == 1:
            return (found[0].pod,)
        # The listing carries no UID. A namesake that has its ids already is not the one being admitted.
        return [f.pod for f in found if not _satisfied(f.pod, question.resource, holds)][:1] or [found[0].pod]

    def _confirm(
        self, candidate: Candidate, listing: Mapping[Name, Sequence[Listed]], question: Question, holds: Holds
    ) -> Candidate | None:
        """Ask for the pod itself: the watch may still show an older namesake, or older annotations."""
        name = candidate.pod.namespace, candidate.pod.name
        try:
            fresh = self._pods.fetch(*name)
        except NodeUnready as error:
            log.warning(
                "pod not confirmed, the watch's copy is used", pod=candidate.pod.key, reason=str(error)
            )
            self._tally.count("association_unconfirmed")
            return candidate
        if fresh is None or fresh.uid == candidate.pod.uid:
            return (
                candidate
                if fresh is None
                else Candidate(fresh, fresh.container(candidate.container.name) or candidate.container)
            )
        if _satisfied(fresh, question.resource, holds):
            return candidate
        container = next_container(fresh, _by_container(listing[name]), question.resource, holds)
        if container is None or container.wants(question.resource) != question.size:
            return candidate
        return Candidate(fresh, container)

    def _fetch(self, name: Name) -> Pod | None:
        now = self._clock.monotonic()
        self._gone = {n: until for n, until in self._gone.items() if until > now}
        if name in self._gone:
            return None
        self._tally.count("association_fetches")
        try:
            pod = self._pods.fetch(*name)
        except NodeUnready as error:
            log.warning("listed pod unknown and not to be had", pod="/".join(name), reason=str(error))
            return None
        if pod is None:
            self._gone[name] = now + _GONE_SECONDS
        return pod


def _judge(
    objects: Sequence[tuple[Pod, ListedPod]],
    question: Question,
    holds: Holds,
    never: frozenset[PodUid],
    partner: tuple[PodUid, str] | None,
) -> tuple[Candidate | None, frozenset[PodUid]]:
    """The candidate, and who was passed over by choosing it."""
    lacking = unsatisfied(objects, question.resource, holds)
    candidate = choose(matching(lacking, question, holds), never=never, partner=partner)
    passed_over = frozenset(
        c.pod.uid for c in lacking if candidate is not None and c.pod.uid != candidate.pod.uid
    )
    return candidate, passed_over


def _satisfied(pod: Pod, resource: str, holds: Holds) -> bool:
    wanting = [c for c in pod.containers if c.wants(resource)]
    return all(holds(pod.uid, c.name, resource) for c in wanting)


def _by_container(listed: Sequence[Listed]) -> ListedPod:
    return {one.container: one.ids for one in listed}
