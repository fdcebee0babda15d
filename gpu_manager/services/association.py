"""Finding the container a GetPreferredAllocation is for: a fresh listing, the pods behind its names, one GET.

The certain part is pure and lives in :mod:`gpu_manager.domain.identity`; this file fetches what it needs.
Nothing here is called from Allocate: a listing there makes the kubelet forget ids in flight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

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
from gpu_manager.domain.pod import ContainerKind, Pod, PodUid
from gpu_manager.ports import Clock, Found, Kubelet, Listed, Pods
from gpu_manager.services.tally import Tally

log = structlog.get_logger(__name__)

# A listed pod that the API has forgotten (force-deleted) stays listed while the kubelet lags behind:
# asking for it again each time would cost a round trip per call.
_GONE_SECONDS = 10.0
_MOST_FETCHES = 8

Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """Who it is, if that is certain; which pods are active, if the kubelet could be asked."""

    candidate: Candidate | None
    active: frozenset[Name] | None
    passed_over: frozenset[PodUid] = frozenset()
    held: Mapping[str, Name] | None = None  # id → the active pod that PodResources shows it at
    has: Mapping[str, frozenset[str]] = field(default_factory=dict)  # what is listed at the container already
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
        unread: set[Name] = set()
        objects = [
            (pod, _by_container(listed))
            for name, listed in listing.items()
            if (pod := self._object(name, listed, local, question, holds, unread)) is not None
        ]
        lacking = unsatisfied(objects, question.resource, holds)
        fitting = matching(lacking, question, holds)
        if not fitting and lacking:
            lacking = unsatisfied(self._afresh(lacking, listing), question.resource, holds)
            fitting = matching(lacking, question, holds)
        candidate = choose(fitting, never=never, partner=partner, unread=bool(unread))
        passed_over = frozenset(c.pod.uid for c in lacking if candidate and c.pod.uid != candidate.pod.uid)
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
            has=_listed_at(candidate, listing) if candidate else {},
            reason="" if candidate else _uncertain(question, fitting, lacking, listing, unread),
        )

    def likely(
        self,
        question: Question,
        holds: Holds,
        *,
        never: frozenset[PodUid],
        partner: tuple[PodUid, str] | None,
    ) -> Candidate | None:
        """Who it may be, as far as the pods at hand and the own books tell, asking nobody: for a choice of
        cards that should suit it. Never an identification: a pod may have been rejected since.
        """
        living = (f.pod for found in self._pods.local().values() for f in found if not f.tombstone)
        objects = [(pod, _as_booked(pod, question.resource, holds)) for pod in living if not pod.terminal]
        lacking = unsatisfied(objects, question.resource, holds)
        return choose(matching(lacking, question, holds), never=never, partner=partner)

    def active(self) -> frozenset[Name] | None:
        """The pods that the kubelet counts as active; None if it does not answer."""
        try:
            return frozenset(self._kubelet.listing())
        except NodeUnready:
            return None

    def _object(
        self,
        name: Name,
        listed: Sequence[Listed],
        local: Mapping[str, Sequence[Found]],
        question: Question,
        holds: Holds,
        unread: set[Name],
    ) -> Pod | None:
        """The pod object behind a listed name.

        The listing carries no UID, only the names of app containers and sidecars. Of namesakes alike in
        these it is the one that lives in the API and lacks something; a tombstone only if none lives.
        ``unread`` receives the name if the source of pods does not answer.
        """
        found = local.get(f"{name[0]}/{name[1]}", ())
        if not found:
            return self._fetch(name, unread)
        names = {one.container for one in listed}
        alike = [f for f in found if _listed_names(f.pod) == names]
        if not alike:
            return self._fetch(name, unread)  # the watch has not shown this one yet
        live = [f for f in alike if not f.tombstone] or alike
        lacking = (f.pod for f in live if not _satisfied(f.pod, question.resource, holds))
        return next(lacking, live[0].pod)

    def _afresh(
        self, stale: Sequence[Candidate], listing: Mapping[Name, Sequence[Listed]]
    ) -> Sequence[tuple[Pod, ListedPod]]:
        """The pods behind these names, asked for: the watch may show a namesake that has gone."""
        names = [(c.pod.namespace, c.pod.name) for c in stale[:_MOST_FETCHES]]
        return [
            (pod, _by_container(listing[name])) for name in names if (pod := self._fetch(name)) is not None
        ]

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

    def _fetch(self, name: Name, unread: set[Name] | None = None) -> Pod | None:
        now = self._clock.monotonic()
        self._gone = {n: until for n, until in self._gone.items() if until > now}
        if name in self._gone:
            return None
        self._tally.count("association_fetches")
        try:
            pod = self._pods.fetch(*name)
        except NodeUnready as error:
            log.warning("listed pod unknown and not to be had", pod="/".join(name), reason=str(error))
            if unread is not None:
                unread.add(name)
            return None
        if pod is None:
            self._gone[name] = now + _GONE_SECONDS
        return pod


def _as_booked(pod: Pod, resource: str, holds: Holds) -> ListedPod:
    return {c.name: {resource: holds(pod.uid, c.name, resource)} for c in pod.containers if c.asks}


def _listed_at(
    candidate: Candidate, listing: Mapping[Name, Sequence[Listed]]
) -> Mapping[str, frozenset[str]]:
    listed = listing.get((candidate.pod.namespace, candidate.pod.name), ())
    return next((one.ids for one in listed if one.container == candidate.container.name), {})


def _uncertain(
    question: Question,
    fitting: Sequence[Candidate],
    lacking: Sequence[Candidate],
    active: Collection[Name],
    unread: Collection[Name],
) -> str:
    if unread:
        names = ", ".join("/".join(name) for name in sorted(unread)[:5])
        return f"{len(unread)} of {len(active)} active pods cannot be read, it may be one of them: {names}"
    named = ", ".join(f"{c.pod.key} {c.container.name}" for c in (fitting or lacking)[:5])
    if fitting:
        return f"{len(fitting)} containers could be meant: {named}"
    others = f"; others lack another amount: {named}" if lacking else ""
    return f"none of {len(active)} active pods lacks {question.size} of {question.resource}{others}"


def _satisfied(pod: Pod, resource: str, holds: Holds) -> bool:
    wanting = [c for c in pod.containers if c.wants(resource)]
    return all(holds(pod.uid, c.name, resource) for c in wanting)


def _listed_names(pod: Pod) -> set[str]:
    return {c.name for c in pod.containers if c.kind is not ContainerKind.INIT}


def _by_container(listed: Sequence[Listed]) -> ListedPod:
    return {one.container: one.ids for one in listed}
