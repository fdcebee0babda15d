"""Maps the containers of a node to their grants, and their processes to slots of pages.

A container uses cards by its own grant, or by those of claims that it names. A process known to the driver
that has a slot in its container's page is accounted there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_manager.domain.enforcement.evasion import ContainerProcess
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Container, Pod, PodUid
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.ports.cards import ProcessUse
from gpu_manager.ports.containers import HostProcesses
from gpu_manager.ports.control_pages import PageEvidence
from gpu_manager.services.allocation.books import Grant, Key

Local = Mapping[str, Sequence[KnownPod]]
Claims = Mapping[tuple[str, str], Sequence[tuple[str, Key]]]
"""(namespace, name of a claim) → its requests, each with the key of its grant."""


class ContainerGrants:
    """The mapping, recomputed only if pods or claims have changed: neither mapping is ever changed in
    place.
    """

    def __init__(self) -> None:
        self._grants: Mapping[Key, Grant] = {}
        self._claims: Claims = {}
        self._local: Local = {}
        self._found: Mapping[tuple[PodUid, str], tuple[Key, ...]] = {}

    def of(self, local: Local, grants: Mapping[Key, Grant]) -> Mapping[tuple[PodUid, str], tuple[Key, ...]]:
        """For each existing container, (pod UID, runtime's container id) → the keys of its grants.

        A container without grants gets the key that its own grant would have.
        """
        claims = self._claims
        if grants is not self._grants:
            claims, self._grants = _by_claim(grants), grants
        if local is not self._local or claims != self._claims:
            self._local, self._claims = local, claims
            self._found = {
                (PodUid(f.pod.uid), container.runtime_id): _keys(f.pod, container, claims)
                for found in local.values()
                for f in found
                for container in f.pod.containers
                if container.runtime_id
            }
        return self._found


def _by_claim(grants: Mapping[Key, Grant]) -> Claims:
    found: dict[tuple[str, str], list[tuple[str, Key]]] = {}
    for key, grant in grants.items():
        claim = grant.allocation.claim
        if claim is not None:
            found.setdefault((grant.allocation.namespace, claim.name), []).append((claim.request, key))
    return found


def _keys(pod: Pod, container: Container, claims: Claims) -> tuple[Key, ...]:
    keys = [
        key
        for name, wanted in container.claims
        for request, key in claims.get((pod.namespace, name), ())
        if wanted in ("", request)
    ]
    return tuple(keys) or ((PodUid(pod.uid), container.name),)


def pods_by_uid(local: Local) -> dict[PodUid, Pod]:
    """The existing pods of this node, by UID."""
    return {f.pod.uid: f.pod for found in local.values() for f in found if not f.tombstone}


def users_of(key: Key, grant: Grant | None, pods: Mapping[PodUid, Pod]) -> tuple[Pod, ...]:
    """The pods of this node that use the grant: its own pod, or all pods that share the claim."""
    claim = grant.allocation.claim if grant else None
    uids = [uid for uid, _ in claim.pods] if claim else [key[0]]
    return tuple(pods[uid] for uid in uids if uid in pods)


def described(container: str, grant: Grant | None) -> str:
    """The container's name for people; for a claim, the claim's name and request."""
    claim = grant.allocation.claim if grant else None
    return f'request "{claim.request}" of claim "{claim.name}"' if claim else f'container "{container}"'


class PageSlots:
    """Maps slots of pages, which contain PIDs of the container's namespace, to processes of the host."""

    def __init__(self, pages: PageEvidence, host: HostProcesses) -> None:
        self._pages = pages
        self._host = host

    def sees_host(self) -> bool:
        """True if the processes of the whole node are visible."""
        return self._host.host_pid()

    def of(self, directory: str, seen: Sequence[ProcessUse]) -> tuple[ContainerProcess, ...]:
        """The container's processes. ``registered`` is None for a process that is ending, and for all if the
        page cannot be read. The page is read only if there are processes.
        """
        if not seen:
            return ()
        inner = {p.pid: self._host.inner_pid(p.pid) for p in seen}
        try:
            holders = self._pages.registered(directory)
        except NodeUnready:
            return without_slots(seen)
        return tuple(
            ContainerProcess(p.pid, p.memory, p.utilisation, None if own is None else own in holders)
            for p in seen
            for own in (inner[p.pid],)
        )


def without_slots(seen: Sequence[ProcessUse]) -> tuple[ContainerProcess, ...]:
    """The processes, with unknown slots."""
    return tuple(ContainerProcess(p.pid, p.memory, p.utilisation) for p in seen)
