"""Find the pod and container that the kubelet is admitting, without I/O.

The kubelet never says for which pod it calls the device plugin. But it admits one pod at a time, so among the
pods that PodResources lists exactly one has a container that requests the resource, has none of it yet and is
next in order. The functions take the listing, the pods' requests and the ledger; they return None when the
answer is not certain, and never guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_manager.domain.contract import RESOURCES
from gpu_manager.domain.kube.pod import Container, ContainerKind, Pod, PodUid


class Holds(Protocol):
    """Lookup of the agent's own grants."""

    def __call__(self, pod: PodUid, container: str, resource: str) -> frozenset[str]:
        """Return the ids of the resource that the container holds; empty for none."""


@dataclass(frozen=True, slots=True)
class ContainerCandidate:
    """A container for which the kubelet may be calling."""

    pod: Pod
    container: Container

    @property
    def key(self) -> tuple[PodUid, str]:
        """Pod UID and container name."""
        return self.pod.uid, self.container.name

    @property
    def arriving(self) -> bool:
        """True if the pod is in its first admission: Pending, not started, not being deleted."""
        return self.pod.phase in ("", "Pending") and not self.pod.deleting and not self.pod.started


@dataclass(frozen=True, slots=True)
class PreferenceCall:
    """A GetPreferredAllocation call: ``size`` ids of ``resource``, which must include ``must``."""

    resource: str
    size: int
    must: frozenset[str] = frozenset()


# container name → resource → ids, as PodResources lists one pod
ListedPod = Mapping[str, Mapping[str, frozenset[str]]]


def next_container(pod: Pod, listed: ListedPod, resource: str, holds: Holds) -> Container | None:
    """Return the first container in the kubelet's order that requests ``resource`` and has none of it.

    The listing decides for app containers and sidecars. PodResources never lists ordinary init containers:
    they count as served if the agent has granted them ids, or if a later container is listed with any.
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
    """Return every listed pod that still lacks some of the resource, with its next container."""
    found = []
    for pod, listed in pods:
        container = next_container(pod, listed, resource, holds)
        if container is not None:
            found.append(ContainerCandidate(pod, container))
    return tuple(found)


def matching(
    candidates: Iterable[ContainerCandidate], question: PreferenceCall, holds: Holds
) -> tuple[ContainerCandidate, ...]:
    """Return the candidates whose next container requests exactly this many ids and agrees with ``must``.

    Either an ordinary init container of the pod held the ``must`` ids before: then only that pod matches.
    Or no container holds them: under a NUMA policy the kubelet picks aligned ids before it asks for the rest.
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
    """True if the kubelet no longer lists ids that the agent granted to a listed container.

    The kubelet has then taken them back. Before 1.34 it also lists rejected pods until the API deletes them.
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
    """Return the one certain candidate, or None.

    ``never`` are pods that were admitted before the resource existed: they count only if no other is left.
    Ties go to pods in their first admission (Pending, not started, not being deleted), then to the container
    whose other resource was granted last (``partner``). These rules break ties and never exclude a single
    candidate: after a node reboot old pods need a grant too. If a listed pod could not be read (``unread``),
    the call may be for that one, so only pods in their first admission count.
    """
    left = narrowed(candidates, never=never, partner=partner, unread=unread)
    return left[0] if len(left) == 1 else None


def narrowed(
    candidates: Sequence[ContainerCandidate],
    *,
    never: frozenset[PodUid] = frozenset(),
    partner: tuple[PodUid, str] | None = None,
    unread: bool = False,
) -> Sequence[ContainerCandidate]:
    """Return the candidates that :func:`choose` cannot tell apart."""
    if unread:
        candidates = [c for c in candidates if c.arriving]
    left = [c for c in candidates if c.pod.uid not in never] or list(candidates)
    if len(left) > 1:
        left = [c for c in left if c.arriving] or left
    if len(left) > 1:
        left = [c for c in left if c.key == partner] or left
    return left


def reuser(pod: Pod, ids: frozenset[str], resource: str, holds: Holds) -> Container | None:
    """Return the container of the pod that receives ids which an ordinary init container held before.

    The kubelet passes such ids on without asking for a preference: to the first container that requests
    exactly this many and holds none; if there is none, to the container that already holds exactly these ids.
    """
    for container in pod.containers:
        if container.wants(resource) == len(ids) and not holds(pod.uid, container.name, resource):
            return container
    return next((c for c in pod.containers if holds(pod.uid, c.name, resource) == ids), None)
