"""Whose call is this? The pure half of exact association (spec: which pod an Allocate is for).

The kubelet never says for which pod it asks. But it admits one pod at a time, so among the pods that
PodResources lists exactly one has a container that asks for the resource, has none of it yet and is next
in order. Everything here is a function of what was listed, what the pods ask for and what the own books
hold; when the answer is not certain it says so instead of picking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_manager.domain.contract import RESOURCES
from gpu_manager.domain.pod import Container, ContainerKind, Pod, PodUid


class Holds(Protocol):
    """What the own books say."""

    def __call__(self, pod: PodUid, container: str, resource: str) -> frozenset[str]:
        """The ids that container holds of the resource; empty for none."""


@dataclass(frozen=True, slots=True)
class ContainerCandidate:
    """A container that may be the one the kubelet asks for."""

    pod: Pod
    container: Container

    @property
    def key(self) -> tuple[PodUid, str]:
        """Pod UID and container name."""
        return self.pod.uid, self.container.name

    @property
    def arriving(self) -> bool:
        """True if the pod is under its first admission: Pending, not started, not being deleted."""
        return self.pod.phase in ("", "Pending") and not self.pod.deleting and not self.pod.started


@dataclass(frozen=True, slots=True)
class PreferenceCall:
    """One GetPreferredAllocation: ``size`` ids of ``resource``, ``must`` among them."""

    resource: str
    size: int
    must: frozenset[str] = frozenset()


# container name → resource → ids, as PodResources lists one pod
ListedPod = Mapping[str, Mapping[str, frozenset[str]]]


def next_container(pod: Pod, listed: ListedPod, resource: str, holds: Holds) -> Container | None:
    """The first container in the kubelet's order that asks for ``resource`` and has none of it.

    App containers and sidecars are judged by the listing. PodResources never lists ordinary init
    containers: for them the own books decide, and that the kubelet is past them once it has given a later
    container anything.
    """
    at = max((n for n, c in enumerate(pod.containers) if any(listed.get(c.name, {}).values())), default=0)
    for order, container in enumerate(pod.containers):
        if not container.wants(resource):
            continue
        if container.kind is ContainerKind.INIT:
            has = order < at or bool(holds(pod.uid, container.name, resource))
        else:
            has = bool(listed.get(container.name, {}).get(resource))
        if not has:
            return container
    return None


def unsatisfied(
    pods: Iterable[tuple[Pod, ListedPod]], resource: str, holds: Holds
) -> tuple[ContainerCandidate, ...]:
    """Every listed pod that still lacks some of the resource, with the container that is next."""
    found = []
    for pod, listed in pods:
        container = next_container(pod, listed, resource, holds)
        if container is not None:
            found.append(ContainerCandidate(pod, container))
    return tuple(found)


def matching(
    candidates: Iterable[ContainerCandidate], question: PreferenceCall, holds: Holds
) -> tuple[ContainerCandidate, ...]:
    """Those whose next container asks for exactly this many ids, and may be meant by what must be included.

    Ids that must be included are an ordinary init container's, handed on: then their owner alone is meant. Or
    nobody holds them: under a NUMA policy the kubelet takes the aligned ids before it asks about the rest.
    """
    lacking = tuple(candidates)
    owned: dict[PodUid, frozenset[str]] = {
        c.pod.uid: question.must
        & frozenset().union(*(holds(c.pod.uid, o.name, question.resource) for o in c.pod.containers))
        for c in lacking
    }
    handed_on = frozenset().union(*owned.values())
    return tuple(
        c
        for c in lacking
        if c.container.wants(question.resource) == question.size and owned[c.pod.uid] == handed_on
    )


def withdrawn(pod: Pod, listed: ListedPod, holds: Holds) -> bool:
    """True if the books show ids at a listed container that the kubelet does not: it has taken them back. A
    kubelet before 1.34 lists pods that it has rejected too, until the API has let them go.
    """
    return any(
        had != listed.get(c.name, {}).get(resource, frozenset())
        for c in pod.containers
        if c.kind is not ContainerKind.INIT
        for resource in RESOURCES
        if (had := holds(pod.uid, c.name, resource))
    )


def choose(
    candidates: Sequence[ContainerCandidate],
    *,
    never: frozenset[PodUid] = frozenset(),
    partner: tuple[PodUid, str] | None = None,
    unread: bool = False,
) -> ContainerCandidate | None:
    """The one candidate, or None: an uncertain answer is no answer.

    ``never`` are pods that were passed over once (admitted before the resource existed): they count only
    if nobody else is left. Several left: those under first admission (Pending, not started, not being
    deleted), then the container whose other resource was granted last (``partner``). These break ties
    and never exclude a lone candidate: after a node reboot old pods need a grant too. Unless a listed pod
    could not be read (``unread``): it may be that one, so only a pod under first admission is certain.
    """
    if unread:
        candidates = [c for c in candidates if c.arriving]
    left = [c for c in candidates if c.pod.uid not in never] or list(candidates)
    if len(left) > 1:
        left = [c for c in left if c.arriving] or left
    if len(left) > 1:
        left = [c for c in left if c.key == partner] or left
    return left[0] if len(left) == 1 else None


def reuser(pod: Pod, ids: frozenset[str], resource: str, holds: Holds) -> Container | None:
    """Who in this pod receives ids that an ordinary init container of it held before.

    The kubelet hands such ids on without asking for a preference. It is the first container that asks
    for exactly this many and holds none; if there is none, the container that holds exactly these ids
    is asked for again.
    """
    for container in pod.containers:
        if container.wants(resource) == len(ids) and not holds(pod.uid, container.name, resource):
            return container
    return next((c for c in pod.containers if holds(pod.uid, c.name, resource) == ids), None)
