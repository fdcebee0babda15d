"""What follows a container's start: its mounts are compared with its grant, a second memory limit is set.

No other check notices a container runtime that ignores an injection: if CDI is assumed to be on and is off,
pods start without a card, without their limits and without an error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import structlog

from gpu_manager.domain.card import CardUuid
from gpu_manager.domain.contract import EVENT_NOT_INJECTED
from gpu_manager.domain.enforcement.evasion import CONTEXT_BYTES
from gpu_manager.domain.errors import NodeUnready
from gpu_manager.domain.injection import injection_faults
from gpu_manager.domain.kube.pod import Pod, PodUid
from gpu_manager.ports.api_server import KnownPod, Pods
from gpu_manager.ports.cards import DriverMemoryLimitSetter
from gpu_manager.ports.clock import Clock
from gpu_manager.ports.containers import ContainerMounts
from gpu_manager.ports.control_pages import Limit
from gpu_manager.services.allocation.books import Grant, Key
from gpu_manager.services.allocation.grant import limits_of
from gpu_manager.services.allocation.node_state import NodeState
from gpu_manager.services.enforcement.usage_sample import ContainerGrants
from gpu_manager.services.metrics import ServiceMetrics

log = structlog.get_logger(__name__)


# Sets a second memory limit, in the driver or the kernel, once a container's cgroup exists.
# The limit is the container's memory plus room for one context and its code: it stops programs that bypass
# the library, and must never affect a program within its share. It ends with the container.


RETRY_SECONDS = 60.0  # until the next attempt where no kind worked: the driver may be upgraded meanwhile
NONE = "none"


@dataclass(eq=False, repr=False)
class DriverMemoryLimits:
    """Sets the limits. One thread calls ``look``; any may read ``kinds``."""

    state: NodeState
    pods: Pods
    setter: DriverMemoryLimitSetter
    clock: Clock
    metrics: ServiceMetrics

    def __post_init__(self) -> None:
        self._containers = ContainerGrants()
        self._held: dict[tuple[str, CardUuid], str | None] = {}
        self._retry: dict[tuple[str, CardUuid], float] = {}
        self._last: tuple[object, object, Mapping[tuple[str, CardUuid], int]] | None = None
        self._looked: object = None
        self._next = 0.0  # when to retry if nothing changes
        self.kinds: Mapping[str, int] = {}
        """How many limits each holder keeps; ``none`` counts those that nobody does."""

    def look(self) -> None:
        """Set the limits of new containers, and drop those of ended ones."""
        wanted, now = self._wanted(), self.clock.monotonic()
        if wanted is self._looked and now < self._next:
            return
        for place in [place for place in self._held if place not in wanted]:
            self._let_go(*place)
        self._retry = {place: at for place, at in self._retry.items() if place in wanted}
        for place, limit in wanted.items():
            if self._held.get(place) is None and now >= self._retry.get(place, now):
                self._hold(*place, limit)
        unheld = (self._retry.get(place, now) for place in wanted if self._held.get(place) is None)
        self._looked, self._next = wanted, min(unheld, default=math.inf)
        self.kinds = Counter(kind or NONE for kind in (self._held.get(place) for place in wanted))

    def _wanted(self) -> Mapping[tuple[str, CardUuid], int]:
        """(container id, card) → bytes, for every fraction whose container exists.

        Recomputed only if grants or pods have changed: neither mapping is ever changed in place.
        """
        grants, pods = self.state.view.grants, self.pods.local()
        if self._last is None or self._last[0] is not grants or self._last[1] is not pods:
            self._last = grants, pods, self._limits(grants, pods)
        return self._last[2]

    def _limits(
        self, grants: Mapping[Key, Grant], pods: Mapping[str, Sequence[KnownPod]]
    ) -> dict[tuple[str, CardUuid], int]:
        limited: dict[Key, tuple[Limit, ...]] = {
            key: limits_of(grant) for key, grant in grants.items() if grant.proven
        }
        gone = {f.pod.uid for found in pods.values() for f in found if f.tombstone}
        return {
            (runtime_id, limit.card): limit.memory + CONTEXT_BYTES
            for (uid, runtime_id), keys in self._containers.of(pods, grants).items()
            if uid not in gone
            for key in keys
            for limit in limited.get(key, ())
        }

    def _hold(self, container_id: str, card: CardUuid, limit: int) -> None:
        place = (container_id, card)
        try:
            kind = self.setter.hold(container_id, card, limit)
        except NodeUnready as error:
            log.debug("driver_memory_limit_pending", container=container_id[:12], reason=str(error))
            return
        self._held[place] = kind
        if kind is None:
            self._retry[place] = self.clock.monotonic() + RETRY_SECONDS
        else:
            log.info("driver_memory_limit_set", container=container_id[:12], card=card, bytes=limit, by=kind)

    def _let_go(self, container_id: str, card: CardUuid) -> None:
        if self._held.pop((container_id, card)) is None:
            return
        try:
            self.setter.let_go(container_id, card)
        except NodeUnready as error:
            log.warning("driver_memory_limit_not_removed", container=container_id[:12], reason=str(error))


PERIOD_SECONDS = 2.0
LOOKS = 2  # a container that is being created shows its node's mounts for a moment
PATIENCE_SECONDS = 60.0  # for which a container without a visible process is checked in each round
RARELY_SECONDS = 60.0  # interval between checks after that

Container = tuple[PodUid, str]
"""Pod UID, container id."""


@dataclass(frozen=True, slots=True)
class NotInjected:
    """A running container whose mounts differ from its grant, and what is missing."""

    namespace: str
    pod: str
    container: str
    why: str


@dataclass(slots=True)
class _Open:
    """A container not judged yet: since when, its next check, and how often its mounts were wrong."""

    since: float
    due: float
    wrong: int = 0


@dataclass(eq=False, repr=False)
class InjectionCheck:
    """Runs the check. One thread calls ``look``; any may read ``found``.

    ``strategy`` is how containers are injected, for messages; ``driver``: the cards are real ones.
    """

    state: NodeState
    pods: Pods
    processes: ContainerMounts
    clock: Clock
    strategy: str
    _: KW_ONLY
    driver: bool

    def __post_init__(self) -> None:
        self._grants = ContainerGrants()
        self._open: dict[Container, _Open] = {}
        self._judged: dict[Container, NotInjected | None] = {}
        self._sources: tuple[object, object] | None = None
        self._running: Mapping[Container, tuple[Pod, str, Grant]] = {}

    @property
    def found(self) -> tuple[NotInjected, ...]:
        """The running containers that lack something of their grant."""
        return tuple(one for one in tuple(self._judged.values()) if one is not None)

    def look(self) -> None:
        """Judge the containers that have started since the last call."""
        grants, local = self.state.view.grants, self.pods.local()
        is_same = self._sources is not None and self._sources[0] is grants and self._sources[1] is local
        if is_same and not self._open:
            return
        if not is_same:  # neither is ever changed in place
            self._running, self._sources = self._running_among(grants, local), (grants, local)
        running = self._running
        self._judged = {one: fault for one, fault in self._judged.items() if one in running}
        now = self.clock.monotonic()
        self._open = {
            one: self._open.get(one) or _Open(now, now) for one in running if one not in self._judged
        }
        due = {one for one, looked in self._open.items() if looked.due <= now}
        if not due:
            return
        mounts = self.processes.mounts(due)
        for one in due:
            looked = self._open[one]
            looked.due = now if now - looked.since < PATIENCE_SECONDS else now + RARELY_SECONDS
            if one not in mounts:
                continue
            pod, name, grant = running[one]
            faults = [
                injection_faults(
                    seen,
                    grant.directory,
                    fraction=not any(share.whole for share in grant.allocation.shares),
                    driver=self.driver,
                )
                for seen in mounts[one]
            ]
            looked.wrong = looked.wrong + 1 if all(faults) else 0
            if not all(faults):
                self._judged[one] = None
            elif looked.wrong >= LOOKS:
                fewest = min(faults, key=len)
                self._judged[one] = self._tell(pod, name, "; ".join(fewest))

    def _running_among(
        self, grants: Mapping[Key, Grant], local: Mapping[str, Sequence[KnownPod]]
    ) -> Mapping[Container, tuple[Pod, str, Grant]]:
        """The containers that run by a grant of this agent (their own or a claim's), with their names."""
        keys = self._grants.of(local, grants)
        return {
            place: (f.pod, container.name, grant)
            for found in local.values()
            for f in found
            if not (f.tombstone or f.pod.terminal)
            for container in f.pod.containers
            if container.runtime_id and container.running
            for place in ((PodUid(f.pod.uid), container.runtime_id),)
            if (grant := next((grants[key] for key in keys[place] if key in grants), None)) is not None
            if grant.directory and grant.allocation.shares
        }

    def _tell(self, pod: Pod, name: str, why: str) -> NotInjected:
        log.error("container_not_injected", pod=pod.key, container=name, injection=self.strategy, reason=why)
        text = (
            f'container "{name}" runs without what it was granted: {why}. The container runtime did not '
            f"act on the injection by {self.strategy}: run `gpu-manager doctor` on the node, choose another "
            "--device-injection, then delete the pod"
        )
        self.pods.event(pod, EVENT_NOT_INJECTED, text, warning=True)
        return NotInjected(pod.namespace, pod.name, name, why)
