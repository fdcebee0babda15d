"""Association: finds the container that a GetPreferredAllocation is for, by a fresh PodResources listing.

The decision is pure and lives in :mod:`gpu_manager.domain.admission_match`; this module fetches its input.
Allocate calls nothing here: a listing during Allocate makes the kubelet forget ids in flight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from gpu_manager.domain.admission_match import (
    ContainerCandidate,
    Holds,
    ListedPod,
    PreferenceCall,
    choose,
    matching,
    narrowed,
    next_container,
    unsatisfied,
    withdrawn,
)
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import ContainerKind, Pod, PodUid
from gpu_manager.ports.api_server import KnownPod, Pods
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.records import Kubelet, PodResourcesEntry
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)

# A listed pod that the API has forgotten (force-deleted) stays listed while the kubelet lags behind:
# asking for it again each time would cost a round trip per call.
_GONE_SECONDS = 10.0
_MOST_FETCHES = 8

Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Hints:
    """Hints from the agent's own ledger: ids of a container, pods skipped before, the last granted
    container.
    """

    holds: Holds
    never: frozenset[PodUid] = frozenset()
    partner: tuple[PodUid, str] | None = None


@dataclass(frozen=True, slots=True)
class Identification:
    """The container, if it is certain, and the active pods, if the kubelet answered.

    ``never`` are the pods that were passed over, now or before: they lack something for ever.
    ``deleted``: the pod, whichever it is, was deleted before the kubelet admitted it, which lags behind.
    """

    candidate: ContainerCandidate | None
    active: frozenset[Name] | None
    never: frozenset[PodUid]
    held: Mapping[str, Name] = field(
        default_factory=dict
    )  # id → the active pod that PodResources shows it at
    has: Mapping[str, frozenset[str]] = field(default_factory=dict)  # ids listed at the container already
    reason: str = ""
    deleted: bool = False


@dataclass
class _Look:
    """What one identification has read: the known pods, listed pods that could not be read, and pods that the
    API does not have. The kubelet, which lags behind the API, may still be admitting one of the last.
    """

    local: Mapping[str, Sequence[KnownPod]]
    unread: set[Name] = field(default_factory=set)
    forgotten: set[Name] = field(default_factory=set)
    absent: set[str] = field(
        default_factory=set
    )  # ``namespace/name`` of the chosen pod, if the API has it not


class Association:
    """Identifies containers by the kubelet and the API server; thread-safe, holds no lock."""

    def __init__(
        self, kubelet: Kubelet, pods: Pods, clock: Clock, metrics: ServiceMetrics, node: str
    ) -> None:
        """``node``: its name, with which the names of its static pods end."""
        self._node = node
        self._kubelet = kubelet
        self._pods = pods
        self._clock = clock
        self._metrics = metrics
        self._gone: dict[Name, float] = {}

    def identify(self, question: PreferenceCall, hints: Hints) -> Identification:
        """Identify the container, or report why that fails. Failures of kubelet or API server raise
        nothing.
        """
        holds, never = hints.holds, hints.never
        try:
            listing = self._kubelet.listing()
        except NodeUnready as error:
            return Identification(None, None, never, reason=str(error))
        look = _Look(self._pods.local())
        objects = [
            (pod, _by_container(listed))
            for name, listed in listing.items()
            if (pod := self._object(name, listed, look, question, holds)) is not None
        ]
        lacking = unsatisfied(objects, question.resource, holds)
        fitting = _standing(matching(lacking, question, holds), listing, holds, look)
        if lacking and sum(c.arriving for c in fitting) != 1:
            afresh = self._afresh(lacking, fitting, listing, look, question, holds)
            lacking = unsatisfied(afresh, question.resource, holds)
            fitting = _standing(matching(lacking, question, holds), listing, holds, look)
        if sum(c.arriving for c in fitting) != 1 and (made := self._made_again(listing, look)):
            lacking += unsatisfied(made, question.resource, holds)
            fitting = _standing(matching(lacking, question, holds), listing, holds, look)
        unknown = look.unread | look.forgotten
        candidate = choose(fitting, never=never, partner=hints.partner, unread=bool(unknown))
        passed_over = frozenset(c.pod.uid for c in lacking if candidate and c.pod.uid != candidate.pod.uid)
        if candidate is not None:
            candidate = self._confirm(candidate, listing, look, question, holds)
        elif not fitting and not unknown:
            candidate = self._overtaken(listing, look, question, holds)
        return Identification(
            candidate=candidate,
            active=frozenset(listing),
            never=passed_over | _still_known(never, look.local),
            held={
                device: name
                for name, containers in listing.items()
                for listed in containers
                for ids in listed.ids.values()
                for device in ids
            },
            has=_listed_at(candidate, listing, question.resource) if candidate else {},
            reason="" if candidate else _uncertain(question, fitting, lacking, listing, unknown),
            deleted=self._deleted(candidate, lacking, look)
            or (candidate is None and self._nobody_asks(listing, look, question)),
        )

    def _made_again(
        self, listing: Mapping[Name, Sequence[PodResourcesEntry]], look: _Look
    ) -> list[tuple[Pod, ListedPod]]:
        """The pods that have a forgotten name by now: it may have been asked for seconds ago."""
        if len(look.forgotten) > _MOST_FETCHES:
            return []
        made = {name: pod for name in sorted(look.forgotten) if (pod := self._ask(name, look))}
        look.forgotten.difference_update(made)
        return [(pod, _by_container(listing[name])) for name, pod in made.items()]

    def _overtaken(
        self,
        listing: Mapping[Name, Sequence[PodResourcesEntry]],
        look: _Look,
        question: PreferenceCall,
        holds: Holds,
    ) -> ContainerCandidate | None:
        """The pod that is meant where none of those that live can be, by what the watch shows by now: the
        kubelet, which lags behind the API, has yet to admit it, and another may have its name already.
        """
        local = self._pods.local()
        known = (
            (found.pod, _by_container(listed))
            for name, listed in listing.items()
            for found in local.get("/".join(name), ())
            if found.pod.phase in ("", "Pending")
            and not (found.pod.started or found.pod.static)
            and _listed_names(found.pod) <= {one.container for one in listed}
        )
        for found in matching(unsatisfied(known, question.resource, holds), question, holds):
            fresh = self._ask((found.pod.namespace, found.pod.name), look)
            if look.unread:
                return None
            if fresh is None or fresh.uid != found.pod.uid:
                look.absent.add(found.pod.key)
            return found
        return None

    def _deleted(
        self, candidate: ContainerCandidate | None, lacking: Sequence[ContainerCandidate], look: _Look
    ) -> bool:
        """True if the pod that the kubelet is admitting is certain to have been deleted.

        If no pod that can be read lacks anything, it is one of those that the API has no longer.
        """
        if candidate is not None:
            absent = candidate.pod.key in look.absent and not candidate.pod.static
            return absent or is_deleted(self._pods.local(), candidate.pod)
        # The kubelet admits a static pod before it makes its copy in the API.
        if any(name.endswith(f"-{self._node}") for _, name in look.forgotten):
            return False
        return not (lacking or look.unread) and 0 < len(look.forgotten) <= _MOST_FETCHES

    def _nobody_asks(
        self, listing: Mapping[Name, Sequence[PodResourcesEntry]], look: _Look, question: PreferenceCall
    ) -> bool:
        """True if the API has no pod of a name that the kubelet lists with less than it may ask for, of which
        any container asks for this amount: who is asking was deleted, and the watch need not have shown it.
        """
        names = [
            name
            for name, listed in listing.items()
            if not all(one.ids.get(question.resource) for one in listed)
        ]
        # The kubelet admits a static pod before it makes its copy in the API.
        if len(names) > _MOST_FETCHES or any(name.endswith(f"-{self._node}") for _, name in names):
            return False
        pods = [pod for name in names if (pod := self._ask(name, look))]
        asked = {c.wants(question.resource) for pod in pods for c in pod.containers}
        return bool(names) and not look.unread and question.size not in asked

    def _object(
        self,
        name: Name,
        listed: Sequence[PodResourcesEntry],
        look: _Look,
        question: PreferenceCall,
        holds: Holds,
    ) -> Pod | None:
        """The pod object behind a listed name.

        The listing carries no UID, only the names of app containers and sidecars. Of namesakes alike in
        these it is the one that lives in the API and lacks something; a tombstone only if none lives, or if
        two of the name are listed and those that live have what they ask for.
        """
        names = {one.container for one in listed}
        found = look.local.get("/".join(name), ())
        among = [f for f in found if _listed_names(f.pod) <= names]
        alike = [f for f in among if _listed_names(f.pod) == names] or among
        if not alike:
            return self._fetch(name, look)  # the watch has not shown this pod yet
        live = [f for f in alike if not f.tombstone] or alike
        two = all(len(listed) > len(_listed_names(f.pod)) for f in live)
        if two and all(_served(f.pod, listed, question.resource, holds) for f in live):
            asking = [f for f in among if f.tombstone and not f.pod.static]
        else:
            asking = live
        lacking = (f.pod for f in asking if not _satisfied(f.pod, question.resource, holds))
        return next(lacking, live[0].pod)

    def _afresh(
        self,
        stale: Sequence[ContainerCandidate],
        fitting: Sequence[ContainerCandidate],
        listing: Mapping[Name, Sequence[PodResourcesEntry]],
        look: _Look,
        question: PreferenceCall,
        holds: Holds,
    ) -> Sequence[tuple[Pod, ListedPod]]:
        """The pods of these names, read anew, those that do not match first: the watch may show an older
        pod of the name. A pod that the API no longer has stays as it was, and one whose namesake there has
        what it asks for.
        """
        asked = _Look(look.local)
        order = sorted(stale, key=fitting.__contains__)
        pods = []
        for pod in (c.pod for c in order[:_MOST_FETCHES]):
            found = self._ask((pod.namespace, pod.name), asked) or pod
            other = found.uid != pod.uid and _satisfied(found, question.resource, holds)
            pods.append(pod if other else found)
        look.local = asked.local
        pods += [c.pod for c in order[_MOST_FETCHES:]]
        return [(pod, _by_container(listing[pod.namespace, pod.name])) for pod in pods]

    def _confirm(
        self,
        candidate: ContainerCandidate,
        listing: Mapping[Name, Sequence[PodResourcesEntry]],
        look: _Look,
        question: PreferenceCall,
        holds: Holds,
    ) -> ContainerCandidate | None:
        """Ask for the pod itself: the watch may still show an older namesake, or older annotations.

        Where the API has a newer namesake already, the kubelet may ask for either: who was granted nothing
        yet is more likely the newer, and PreStartContainer settles it.
        """
        name = candidate.pod.namespace, candidate.pod.name
        fresh = self._ask(name, look)
        if name in look.unread:
            log.warning("pod_read_failed_watch_copy_used", pod=candidate.pod.key)
            self._metrics.association_unconfirmed.inc()
        if fresh is None:
            if name not in look.unread:
                look.absent.add(candidate.pod.key)
            return candidate
        if fresh.terminal:  # a kubelet before 1.34 lists it still: it is asking for another
            return None
        if fresh.uid == candidate.pod.uid:
            return ContainerCandidate(fresh, fresh.container(candidate.container.name) or candidate.container)
        if _satisfied(fresh, question.resource, holds):
            return candidate
        container = next_container(fresh, _by_container(listing[name]), question.resource, holds)
        if container is None or container.wants(question.resource) != question.size:
            return candidate
        return ContainerCandidate(fresh, container)

    def _fetch(self, name: Name, look: _Look) -> Pod | None:
        """The pod of that name; one that the API has forgotten is not asked for again at once."""
        now = self._clock.monotonic()
        self._gone = {n: until for n, until in self._gone.items() if until > now}
        if name in self._gone:
            look.forgotten.add(name)
            return None
        self._metrics.association_fetches.inc()
        pod = self._ask(name, look)
        if pod is None and name not in look.unread:
            look.forgotten.add(name)
            self._gone = {**self._gone, name: now + _GONE_SECONDS}
        return pod

    def _ask(self, name: Name, look: _Look) -> Pod | None:
        """The pod as its source has it now. A source that fails once is not asked again for this question:
        the kubelet admits no pod on the node while it waits for the answer.
        """
        if look.unread:
            look.unread.add(name)
            return None
        try:
            pod = self._pods.fetch(*name)
        except NodeUnready as error:
            log.warning("listed_pod_unavailable", pod="/".join(name), reason=str(error))
            look.unread.add(name)
            return None
        look.local = self._pods.local()  # one answer of the kubelet has all its pods
        return pod


def likely(
    local: Mapping[str, Sequence[KnownPod]], question: PreferenceCall, hints: Hints
) -> ContainerCandidate | None:
    """The container that is probably meant, if only one is :func:`probable`."""
    found = probable(local, question, hints)
    return found[0] if len(found) == 1 else None


def probable(
    local: Mapping[str, Sequence[KnownPod]], question: PreferenceCall, hints: Hints
) -> Sequence[ContainerCandidate]:
    """The containers that are probably meant, by the known pods and the books, without any I/O.

    They guide the choice of cards and identify nothing: a pod may have been rejected since.
    """
    living = (f.pod for found in local.values() for f in found if not f.tombstone)
    objects = [(pod, _as_booked(pod, question.resource, hints.holds)) for pod in living if not pod.terminal]
    lacking = unsatisfied(objects, question.resource, hints.holds)
    return narrowed(matching(lacking, question, hints.holds), never=hints.never, partner=hints.partner)


def pod_of(local: Mapping[str, Sequence[KnownPod]], uid: PodUid) -> Pod | None:
    """The known pod of that UID, even if it is deleted."""
    return next((f.pod for found in local.values() for f in found if f.pod.uid == uid), None)


def is_deleted(local: Mapping[str, Sequence[KnownPod]], pod: Pod) -> bool:
    """True if the pod, by its UID, was deleted or is being deleted. The mirror of a static pod may be: the
    kubelet makes another.
    """
    if pod.static:
        return False
    shown = (f for f in local.get(pod.key, ()) if f.pod.uid == pod.uid)
    return pod.deleting or any(f.tombstone or f.pod.deleting for f in shown)


def _standing(
    candidates: Sequence[ContainerCandidate],
    listing: Mapping[Name, Sequence[PodResourcesEntry]],
    holds: Holds,
    look: _Look,
) -> Sequence[ContainerCandidate]:
    """The candidates without pods whose ids the kubelet has taken back, unless only those are left."""
    listed = {c.key: _by_container(listing[c.pod.namespace, c.pod.name]) for c in candidates}
    left = [c for c in candidates if not withdrawn(c.pod, listed[c.key], holds)]
    return left if left or look.unread or look.forgotten else candidates


def _still_known(never: frozenset[PodUid], local: Mapping[str, Sequence[KnownPod]]) -> frozenset[PodUid]:
    return never and never.intersection(f.pod.uid for found in local.values() for f in found)


def _as_booked(pod: Pod, resource: str, holds: Holds) -> ListedPod:
    return {c.name: {resource: holds(pod.uid, c.name, resource)} for c in pod.containers if c.asks}


def _listed_at(
    candidate: ContainerCandidate, listing: Mapping[Name, Sequence[PodResourcesEntry]], resource: str
) -> Mapping[str, frozenset[str]]:
    """Ids of other resources listed at the container of that name that has none of this resource."""
    listed = listing.get((candidate.pod.namespace, candidate.pod.name), ())
    mine = (one.ids for one in listed if one.container == candidate.container.name)
    return next((ids for ids in mine if not ids.get(resource)), {})


def _uncertain(
    question: PreferenceCall,
    fitting: Sequence[ContainerCandidate],
    lacking: Sequence[ContainerCandidate],
    active: Collection[Name],
    unknown: Collection[Name],
) -> str:
    if unknown:
        names = ", ".join("/".join(name) for name in sorted(unknown)[:5])
        return f"{len(unknown)} of {len(active)} active pods cannot be read, it may be one of them: {names}"
    named = ", ".join(f"{c.pod.key} {c.container.name}" for c in (fitting or lacking)[:5])
    if fitting:
        return f"{len(fitting)} containers could be meant: {named}"
    others = f"; others lack another amount: {named}" if lacking else ""
    return f"none of {len(active)} active pods lacks {question.size} of {question.resource}{others}"


def _satisfied(pod: Pod, resource: str, holds: Holds) -> bool:
    wanting = [c for c in pod.containers if c.wants(resource)]
    return all(holds(pod.uid, c.name, resource) for c in wanting)


def _served(pod: Pod, listed: Sequence[PodResourcesEntry], resource: str, holds: Holds) -> bool:
    """True if the kubelet lists what the pod was granted, and that is all it asks for."""
    shown = {(one.container, one.ids.get(resource, frozenset())) for one in listed}
    wanting = [c for c in pod.containers if c.wants(resource) and c.kind is not ContainerKind.INIT]
    held = [(c.name, holds(pod.uid, c.name, resource)) for c in wanting]
    return _satisfied(pod, resource, holds) and shown.issuperset(held)


def _listed_names(pod: Pod) -> set[str]:
    return {c.name for c in pod.containers if c.kind is not ContainerKind.INIT}


def _by_container(listed: Sequence[PodResourcesEntry]) -> ListedPod:
    """By container; of two of one name (a force-deleted pod and its successor) the one with fewer ids."""
    found: dict[str, Mapping[str, frozenset[str]]] = {}
    for one in listed:
        if one.container not in found or len(one.ids) < len(found[one.container]):
            found[one.container] = one.ids
    return found
