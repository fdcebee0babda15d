"""One sample of the cards' usage, by container and card, with the grants of containers and the owners of
processes; and the memory of past samples.

A living process belongs to the container of its cgroup, a dead one to its last known container: the driver
keeps a killed process's memory while a forked child has its descriptors, and goes on listing the dead PID.
That memory remains its container's, and neither limit nor detector may miss it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.cluster.node_past import NodePast
from gpu_manager.domain.cluster.usage_history import HistoryQuery, Series, ShareKey, ShareSum
from gpu_manager.domain.cluster.usage_json import UsedShare
from gpu_manager.domain.enforcement.driver_overhead import NO_EXCESS, Excess
from gpu_manager.domain.enforcement.evasion import ContainerProcess
from gpu_manager.domain.enforcement.time_sharing import NO_STALLS, Stalls
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.kube.pod import Container, Pod, PodUid
from gpu_manager.domain.placement.ledger import Share
from gpu_manager.ports.api_server import KnownPod
from gpu_manager.ports.cards import CardUse, ProcessUse
from gpu_manager.ports.containers import HostProcesses, Processes
from gpu_manager.ports.control_pages import PageEvidence
from gpu_manager.services.allocation.books import Grant, Key

# Maps the containers of a node to their grants, and their processes to slots of pages.
# A container uses cards by its own grant, or by those of claims that it names. A process known to the
# driver that has a slot in its container's page is accounted there.


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


Place = tuple[Key, CardUuid]
"""A container on one of the cards."""


@dataclass(frozen=True, slots=True)
class ShareUse:
    """Usage of one container on one card. Bytes, ratios of one card, seconds; ``None``: unknown.

    ``memory`` is the account's; ``beyond`` what the driver counts in addition (contexts, code); ``excess``
    the part of the account that the driver does not count; ``twice`` what the driver counts for several
    processes that share it. ``longest`` is the longest kernel or graph so far. ``account`` is the page's own
    figure for ``core``, ``error`` by how much of the card it may be wrong, and ``launches`` the launches per
    second; None if the reading does not cover one second. ``stalls`` are of this sample only. ``held_idle``
    is the part of ``throttled`` in which nothing of the container was in flight on the card, ``in_flight``
    the time in which something was. ``began``: it has had work in flight since the sample before, in which it
    was idle. ``enforcement`` is ``active`` (its page is read), ``exclusive`` (a whole
    card, nothing to enforce), ``tampered`` (its page cannot be trusted) or ``unknown`` (it cannot be read);
    ``reason`` gives the cause.
    """

    key: Key
    share: Share
    enforcement: str
    memory: int | None = None
    core: float | None = None
    throttled: float | None = None
    refusals: int | None = None
    refused_bytes: int = 0
    pids: tuple[int, ...] = ()
    reason: str = ""
    beyond: int = 0
    excess: Excess = NO_EXCESS
    twice: int = 0
    held_idle: float = 0.0
    in_flight: float = 0.0
    longest: float = 0.0
    account: float | None = None
    error: float | None = None
    launches: float = 0.0
    stalls: Stalls = NO_STALLS
    began: bool = False

    @property
    def held(self) -> int | None:
        """Bytes of the card's memory held in total, which are compared with the limit."""
        return None if self.memory is None else self.memory + self.beyond

    @property
    def place(self) -> Place:
        """The container and the card."""
        return self.key, self.share.card


@dataclass(frozen=True, slots=True)
class DriverSample:
    """The driver's figures for the cards and their processes, read once per sample.

    ``by_place`` has the processes by the container whose cgroup they are in, whether granted that card or
    not. A card that is not in ``cards`` did not list its processes either. ``busy`` is the percentage of each
    card's time that its processes use.
    """

    cards: Mapping[CardUuid, CardUse] = field(default_factory=dict)
    processes: Sequence[ProcessUse] = ()
    by_place: Mapping[Place, Sequence[ProcessUse]] = field(default_factory=dict)
    busy: Mapping[CardUuid, float] = field(default_factory=dict)

    def of(self, place: Place) -> Sequence[ProcessUse]:
        """The container's processes on the card."""
        return self.by_place.get(place, ())

    def has_others(self, own: Sequence[ProcessUse], card: CardUuid) -> bool:
        """True if other processes than these used the card."""
        return is_beside_others(own, self.busy.get(card, 0.0))


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample (``at``: monotonic seconds).

    ``cards`` and ``processes`` are the driver's (:class:`DriverSample`), ``listed`` all processes that it
    lists. ``ended`` are granted containers that have ended although the ledger still holds their shares.
    ``busy`` is the percentage of each card's time that the driver saw in use, by any process. ``shares`` is
    the previous sample's own tuple if no figure has changed.
    """

    at: float
    grants: Mapping[Key, Grant] = field(default_factory=dict)
    cards: Mapping[CardUuid, CardUse] = field(default_factory=dict)
    shares: tuple[ShareUse, ...] = ()
    processes: Mapping[Place, Sequence[ProcessUse]] = field(default_factory=dict)
    ended: frozenset[Key] = frozenset()
    busy: Mapping[CardUuid, float] = field(default_factory=dict)
    listed: Sequence[ProcessUse] = ()


def has_page(grant: Grant) -> bool:
    """True if the container has a control page: it has fractions of cards, which are metered."""
    return bool(grant.directory) and not any(s.whole for s in grant.allocation.shares)


def unread(grant: Grant, share: Share) -> ShareUse:
    """Usage of a container that was not sampled yet: a fraction's page starts empty."""
    if not has_page(grant):
        return ShareUse(grant.key, share, "exclusive" if share.whole else "unknown")
    return ShareUse(grant.key, share, "active", memory=0, core=0.0, throttled=0.0, refusals=0)


def driver_share(processes: Sequence[ProcessUse]) -> float | None:
    """The share of the card's time that the driver saw these processes use; None if it lists none."""
    seen = [p.utilisation for p in processes if p.utilisation is not None]
    return min(1.0, sum(seen) / 100) if seen else None


OTHERS_PERCENT: Final = 1.0


def is_beside_others(processes: Sequence[ProcessUse], busy: float) -> bool:
    """True if other processes than these used their card; ``busy`` (percent) is the use by all of them. The
    driver then attributes each of its few samples to one process as a whole.
    """
    return busy - sum(p.utilisation or 0.0 for p in processes) > OTHERS_PERCENT


_Container = tuple[PodUid, str]


class ProcessOwners:
    """Remembers each listed process's container for as long as the card lists the process.

    A PID that was found gone remains the dead process's until then, even if the kernel reuses the number.
    Processes that were dead before the agent's first sample have no owner.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._known: dict[tuple[CardUuid, int], tuple[_Container, bool]] = {}

    def of(
        self, listed: Sequence[ProcessUse], told: Collection[CardUuid]
    ) -> Iterator[tuple[ProcessUse, _Container]]:
        """The processes of containers, each with its container: (pod UID, container id).

        ``told``: the cards that listed their processes; for the others previous owners are kept.
        """
        before = self._known
        self._known = {place: owner for place, owner in before.items() if place[0] not in told}
        for process in listed:
            place = process.uuid, process.pid
            container, gone = before.get(place, (None, False))
            seen = None if gone else self._processes.container_of(process.pid)
            if seen is not None:
                self._known[place] = seen, False
                yield process, seen
            elif container is not None and process.memory is not None:
                self._known[place] = container, True
                yield process, container


class UsagePast:
    """Of one node. Times are monotonic seconds."""

    def __init__(self, node: str) -> None:
        self._lock = threading.Lock()
        self._past = NodePast(node)
        self._told: tuple[Sample | None, Mapping[ShareKey, UsedShare]] = (None, {})

    def record(self, sample: Sample) -> None:
        """Take in a sample."""
        before, usage = self._told
        if before is None or sample.shares is not before.shares or sample.grants is not before.grants:
            usage = _usage_of(sample)
        self._told = sample, usage
        with self._lock:
            self._past.record(sample.at, usage)

    def read(self, query: HistoryQuery, now: float, *, hour: bool) -> tuple[list[Series], int]:
        """The series, and the number of shares for which there was no room."""
        with self._lock:
            return self._past.read(query, now, hour=hour), self._past.left_out

    def sums(self, now: float) -> dict[ShareKey, ShareSum]:
        """What each share used within the hour."""
        with self._lock:
            return self._past.sums(now)

    def trends(self, now: float) -> dict[str, list[int | None]]:
        """Each card's use over the last minutes."""
        with self._lock:
            return self._past.trends(now)

    def as_json(self, now: float, covers: Callable[[str], bool]) -> Mapping[str, Any]:
        """JSON of ``/usage/history``."""
        with self._lock:
            return self._past.as_json(now, covers)


def _usage_of(sample: Sample) -> Mapping[ShareKey, UsedShare]:
    usage: dict[ShareKey, UsedShare] = {}
    for use in sample.shares:
        grant = sample.grants.get(use.key)
        if grant is None:
            continue
        held = grant.allocation
        percent = None if use.core is None else 100 * use.core
        key = (*use.key, use.share.card)
        usage[key] = UsedShare(percent, use.held, use.throttled, held.namespace, held.pod_name)
    return usage
